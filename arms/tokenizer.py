"""Words of a text in any script: of an index, of a feature, of a count.

A word is a run of letters and digits with their combining marks. Where a script has no blanks between words,
each character is a word, and so are each two neighbours: no dictionary has to know them, and question and
passage are split alike.

A name of a program, a part or a product is a word as well, besides the words that it is made of:
`getUserById`, `parse_retry_after`, `node.js`, `.NET`, `PPR-9087`. In `C#`, the letter alone is no word.

`armwise.arms.stems` adds what the words of one language have in common.

Stop words change the recall of BM25 more than its own parameters do, so the list is
part of this project and a parameter of the arm.

Source: Unicode Standard Annex 15, Unicode Normalization Forms, and 29, Unicode Text Segmentation; Nie et al.
2000, On the Use of Words and N-grams for Chinese Information Retrieval, doi:10.1145/355214.355235.
"""

import re
import string
import unicodedata
from collections.abc import Iterator, Set
from functools import _lru_cache_wrapper, cache, lru_cache
from itertools import chain
from typing import Literal, TypeAlias

import regex

VERSION = 3
"""Version of the words of a text, raised when they change; part of the identity of what is stored by word."""

UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Line_Break=SA}\u3006\u3031-\u3035\u30fc]"
"""Characters of scripts without blanks between words, such as Chinese, Japanese, Thai, Khmer and Burmese."""

LONGEST_WORD = 40
"""Most characters of a run without blanks that is one word where a length is counted, in Latin letters."""

WORD_CHARACTERS, WORD_BYTES = 16, 8
"""Most ASCII characters, or bytes of others, of a word in a run that is several: of one or two tokens."""

CLUSTER_CHARACTERS = 32
"""Most code points that are one character here; a stream-safe text has at most 30 marks on a letter."""

ARTICLES = frozenset({"a", "an", "the"})

_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Return an answer without case, punctuation, articles and repeated spaces.

    Characters of scripts without blanks are words, as for XQuAD and MLQA.

    Source: Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension
    of Text, arXiv:1606.05250; here punctuation and symbols are those of Unicode.

    >>> normalise(" The  U.S.!")
    'us'
    """
    folded = unicodedata.normalize("NFKC", answer).casefold().translate(_NO_ASCII_PUNCTUATION)
    if not folded.isascii():
        folded = "".join(c for c in folded if unicodedata.category(c)[0] not in "PS")
        folded = _UNSPACED_CHARACTER.sub(r" \g<0> ", folded)
    every = folded.split()
    return " ".join([word for word in every if word not in ARTICLES] or every)


StopWords = Literal["english", "none"]
"""The words that an index leaves out: the function words of a language, or none."""

PAIRED = rf"(?:{UNSPACED}|\p{{Hangul}})"
"""Characters of which two neighbours are a word: Korean has blanks, but its words end with particles."""

_UNSPACED_CHARACTER = regex.compile(rf"{UNSPACED}\p{{M}}*")

_CHARACTER = regex.compile(r"\X")

_COUNTED = re.compile(r"\S+|\s{41,}")
"""What has a length: a run without blanks, and blanks, more than `LONGEST_WORD` of them."""

_PLAIN_WORD = re.compile(r"[^\W_]+")

_PLAIN_CONTRACTION = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")

_LETTER = rf"(?:(?!{PAIRED})[\p{{L}}\p{{N}}]\p{{M}}*)"

_LETTERS = rf"{_LETTER}+"

_WORD = regex.compile(rf"((?:{PAIRED}\p{{M}}*)+)|{_LETTERS}")
"""A word of any script; of one of `PAIRED`, group 1 is a run of its characters."""

_CONTRACTION = regex.compile(rf"((?:{PAIRED}\p{{M}}*)+)|{_LETTERS}(?:['\u2019]{_LETTERS})*")

_NO_LETTER_BEFORE = rf"(?<![\p{{N}}\p{{M}}])(?<!(?!{PAIRED})\p{{L}})"

_SIGNED_LETTER = regex.compile(rf"{_NO_LETTER_BEFORE}(?!{PAIRED})\p{{L}}(?:\+\+|#)(?!(?!{PAIRED})\p{{L}})")
"""A language such as C++, C# or F#, whose letter alone says little."""

_NAME = regex.compile(
    rf"(?:{_NO_LETTER_BEFORE}(?<!\.)\.(?=\p{{L}}))?"
    rf"{_LETTERS}(?:(?:\.|_+|-){_LETTERS})*(?:\+\+(?!{_LETTER}))?"
)
"""A word, or a name with signs: `.NET`, `node.js`, `a_b`, `PPR-9087`, `notepad++`."""

_HUMP = regex.compile(r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll}{2})", regex.VERSION1)
"""Where a part of `parseHTMLPage` begins. The plural of capitals, as in `getIDs`, is no part."""

CACHED_RUNS, CACHED_CHARACTERS = 1 << 16, 40
"""Most runs without blanks whose words are kept, and their longest; longer ones seldom come again."""

_AROUND = ",;:!?()[]\"'\u201c\u201d"

RunReader: TypeAlias = "_lru_cache_wrapper[tuple[str, ...]]"
"""A cached function from a run without blanks to its words."""

_ANY_SCRIPT = re.compile(
    "[\u00ad\u0300-\u1fff\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20d0-\u20ff\u2ce0-\U0010ffff]"
)
"""Blocks outside of which each letter stands alone: no mark, nothing unseen, no script of `PAIRED`."""

_LEFT_OUT = regex.compile(r"[[\p{Cf}\p{Default_Ignorable_Code_Point}]--[\u200b]]+", regex.VERSION1)
"""Characters that are not seen, such as a soft hyphen. The space of no width separates words."""

_SPELLED_SYMBOL = regex.compile(r"[\p{S}--\p{Decomposition_Type=None}]", regex.VERSION1)
"""Symbols that compatibility spells in letters, such as that of a trade mark: words of their own."""

_OPTIONAL_MARKS = regex.compile(r"(?<=[\p{Arabic}\p{Hebrew}\p{Syriac}])\p{M}+|\u0640")
"""Marks of scripts that mostly are written without, and the stroke that widens an Arabic word."""

_OTHER_DIGIT = regex.compile(r"[\p{Nd}--[0-9]]", regex.VERSION1)

_FUNCTION_WORDS = {
    "determiners": "a an the this that these those each both all any some few more most other such no nor "
    "not only",
    "pronouns": "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself "
    "she her hers herself it its itself they them their theirs themselves",
    "questions": "who whom which what when where why how",
    # three modal verbs only: others are also nouns, such as May and might
    "verbs": "am is are was were be been being have has had having do does did doing can will should",
    "prepositions": "of in on at by for with from to into about against between through during before after "
    "above below over under up down out off until while",
    "connectives": "and or but if because as than so too very just then there here now again further once",
    # parts of contractions: it's, don't, we'll, they're, I've, I'd, I'm
    "remnants": "s t ll re ve d m don didn doesn isn aren wasn weren hasn haven hadn wouldn couldn shouldn",
}

ENGLISH = frozenset(word for group in _FUNCTION_WORDS.values() for word in group.split())
"""English function words."""

STOP_WORDS: dict[StopWords, Set[str]] = {"english": ENGLISH, "none": frozenset()}


def words(text: str, stop_words: StopWords = "none") -> list[str]:
    """Return the words of a text in order, without the stop words.

    A word is the same in all its spellings: in any case, composed or not, with or without what is not seen.

    >>> words("Who wrote 'The Waste Land'?", "english")
    ['wrote', 'waste', 'land']
    >>> words("getUserById")
    ['get', 'user', 'by', 'id', 'getuserbyid']
    >>> words("\u6771\u4eac")
    ['\u6771', '\u6771\u4eac', '\u4eac']
    """
    return read_runs(text, _reader(stop_words))


@cache
def _reader(stop_words: StopWords) -> RunReader:
    left_out = STOP_WORDS[stop_words]

    @lru_cache(CACHED_RUNS)
    def read(run: str) -> tuple[str, ...]:
        return tuple(word for part in read_run(run) for word in part if word not in left_out)

    return read


def read_runs(text: str, read: RunReader) -> list[str]:
    """Return what a cached function makes of each run of a text between blanks; long ones are not cached."""
    runs = text.split()
    if max(map(len, runs), default=0) <= CACHED_CHARACTERS:
        return list(chain.from_iterable(map(read, runs)))
    return [
        word for run in runs for word in (read if len(run) <= CACHED_CHARACTERS else read.__wrapped__)(run)
    ]


def read_run(run: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of a run without blanks, and its names, which are the same in every sentence.

    >>> read_run("softLogout()"), read_run("C#,")
    ((('soft', 'logout'), ('softlogout',)), ((), ('c#',)))
    """
    bare = run.strip(_AROUND).rstrip(".")
    is_word = bare.isalpha() and (bare[1:].islower() or bare.isupper() or len(bare) == 1)
    if bare.isascii() and (is_word or bare.isdigit()):
        return (bare.lower(),), ()
    text = run if _is_plain(run) else unicodedata.normalize("NFKC", _show(run))
    names = list(map(fold, _SIGNED_LETTER.findall(text)))
    text = _SIGNED_LETTER.sub(" ", text)
    found, humped = split_words(fold(text), pairs=True), list[str]()
    for written in split_words(text):
        parts = [] if written[1:].islower() or written.isupper() else _HUMP.split(written)
        if len(parts) > 1:
            humped.append(fold(written))
            found += [word for part in parts if len(part) > 1 for word in split_words(fold(part))]
    names += humped
    for name in _NAME.findall(text):
        is_hyphenated = "-" in name and not any(map(str.isdigit, name))  # a phrase, such as well-known
        if not is_hyphenated and any(sign in name for sign in "._-+"):
            names.append(fold(name))
    return tuple(word for word in found if word not in humped), tuple(names)


def fold(text: str) -> str:
    r"""Return a text without differences that no reader counts as one of words.

    >>> fold("Stra\xadßE"), fold("\uff34\uff4f\uff4b\uff59\uff4f")
    ('strasse', 'tokyo')
    """
    lower = text.casefold()
    if _is_plain(lower) and unicodedata.is_normalized("NFKC", lower):
        return lower
    bare = _OPTIONAL_MARKS.sub("", unicodedata.normalize("NFKD", _show(text)))
    decimal = _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0], digit[0])), bare)
    return unicodedata.normalize("NFKC", decimal.casefold())


def _show(text: str) -> str:
    shown: str = _SPELLED_SYMBOL.sub(r" \g<0> ", _LEFT_OUT.sub("", text))
    return shown


def split_words(text: str, *, contractions: bool = False, pairs: bool = False) -> list[str]:
    """Return the words of a text as it writes them; where they have no blanks, each character.

    Args:
        text: The text.
        contractions: Whether an apostrophe may stand within a word.
        pairs: Whether two neighbours are a word, too, where words have no blanks.

    >>> split_words("Don't", contractions=True), split_words("Don't")
    (["Don't"], ['Don', 't'])
    """
    if _is_plain(text):
        return (_PLAIN_CONTRACTION if contractions else _PLAIN_WORD).findall(text)
    text = unicodedata.normalize("NFC", _LEFT_OUT.sub("", text))
    return [
        word
        for run in (_CONTRACTION if contractions else _WORD).finditer(text)
        for word in (_characters(run[0], pairs) if run[1] else (run[0],))
    ]


def _is_plain(text: str) -> bool:
    return text.isascii() or _ANY_SCRIPT.search(text) is None


def _characters(run: str, pairs: bool) -> Iterator[str]:
    """Yield the characters of a run, and each with the one before it, if so wanted."""
    before = ""
    for character in _CHARACTER.findall(run):
        if before and pairs:
            yield before + character
        yield character
        before = character


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text begin and end, as its length for a model is counted.

    A word is what stands between blanks: in Latin letters up to `LONGEST_WORD`, else in parts of at most
    `WORD_CHARACTERS` or `WORD_BYTES`, or each character of a script without blanks. Many blanks in a row are
    words, too. So a word is one or two tokens of most models. No part ends within what a reader takes for
    one character.

    >>> word_spans("One or\u6771\u4eac.")
    [(0, 3), (4, 6), (6, 7), (7, 8), (8, 9)]
    """
    spans = []
    for run in _COUNTED.finditer(text):
        if run.end() - run.start() <= LONGEST_WORD and _is_plain(run[0]):
            spans.append(run.span())
        else:
            spans += _parts(run[0], run.start())
    return spans


def _parts(run: str, begin: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the words in a run without blanks, or of blanks, which begins at `begin`."""
    end, room = begin, 1.0
    for character in _CHARACTER.findall(run) if not run.isascii() else run:
        for first in range(0, len(character), CLUSTER_CHARACTERS):
            part = character[first : first + CLUSTER_CHARACTERS]
            share = _share(part)
            if share > room and end > begin:
                yield begin, end
                begin, room = end, 1.0
            end, room = end + len(part), room - share
    yield begin, end


def _share(character: str) -> float:
    """Return which share of a counted word a character is."""
    if character.isascii() or character.isspace():
        return len(character) / WORD_CHARACTERS
    if _UNSPACED_CHARACTER.match(character):
        return 1.0
    return len(character.encode(errors="replace")) / WORD_BYTES


def count_words(text: str) -> int:
    """Return the length of a text in words, as `word_spans` counts them."""
    return len(word_spans(text))
