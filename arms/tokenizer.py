"""Words of a lexical index: runs of letters, digits and underscores, in lower case.

Stop words change the recall of BM25 more than its own parameters do, so the list is
part of this project and a parameter of the arm.
"""

import re
import string
import unicodedata
from collections.abc import Set
from typing import Literal

ARTICLES = frozenset({"a", "an", "the"})

_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Return an answer without case, punctuation, articles and repeated spaces.

    Source: Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension
    of Text, arXiv:1606.05250; here punctuation and symbols are those of Unicode.

    >>> normalised(" The  U.S.!")
    'us'
    """
    folded = unicodedata.normalize("NFKC", answer).casefold().translate(_NO_ASCII_PUNCTUATION)
    if not folded.isascii():
        folded = "".join(c for c in folded if unicodedata.category(c)[0] not in "PS")
    every = folded.split()
    return " ".join([word for word in every if word not in ARTICLES] or every)


StopWords = Literal["english", "none"]
"""The words that an index leaves out: the function words of a language, or none."""

_WORD = re.compile(r"\w+")

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

    >>> words("Who wrote 'The Waste Land'?", "english")
    ['wrote', 'waste', 'land']
    """
    left_out = STOP_WORDS[stop_words]
    return [word for word in _WORD.findall(text.lower()) if word not in left_out]
