"""Entities of passages and questions: titles of the corpus that a text mentions, or names that spaCy marks.

A question's entities are the entities of passages that it mentions, so questions need no model.

An entity is identified by its normalised name: words without accents, punctuation and case. In running
text, capitals distinguish a name from common words. The title of a passage is one of its entities.
"""

import itertools
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from armwise.arms import tokenizer
from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus
from armwise.arms.extras import explain_missing
from armwise.arms.indexes.vectors import compose_text
from armwise.arms.models import ModelNotFoundError
from armwise.arms.tokenizer import ENGLISH, PAIRED

LONGEST = 12
"""Most words of a name."""

Known = Callable[[Sequence[str]], NDArray[np.bool_]]
"""Normalised names -> whether each is an entity of the graph, shape (n_names,)."""

_ACCENT = regex.compile(r"(?<=[\p{Latin}\p{Greek}\p{Cyrillic}\p{Arabic}\p{Hebrew}])\p{M}+")

_CHARACTER = regex.compile(PAIRED)


def split_words(text: str) -> list[str]:
    """Return the words of a text without accents.

    >>> split_words("The Château d'If")
    ['The', 'Chateau', 'd', 'If']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENT.sub("", unicodedata.normalize("NFKD", text)))
    return tokenizer.split_words(text)


def normalise(name: str) -> str:
    """Return the words of a name without accents, punctuation and case.

    >>> normalise("Schindler's List"), normalise("BEYONCÉ")
    ('schindler s list', 'beyonce')
    """
    return " ".join(word.casefold() for word in split_words(name))


def title_names(title: str) -> list[str]:
    """Return the names of a title, with and without a closing parenthesis and the article.

    >>> title_names("The Tempest (1979 film)")
    ['the tempest 1979 film', 'the tempest', 'tempest 1979 film', 'tempest']
    """
    before, _, inside = title.rstrip().rpartition("(")
    closing = inside.find(")") == len(inside) - 1
    names = distinct([normalise(title), normalise(before) if inside and closing else ""])
    return distinct([*names, *map(bare, names)])


def bare(name: str) -> str:
    """Return a normalised name without its leading article.

    >>> bare("the beatles"), bare("a")
    ('beatles', 'a')
    """
    first, _, rest = name.partition(" ")
    return rest if rest and first in ("the", "a", "an") else name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the distinct non-empty names, in order."""
    return [name for name in dict.fromkeys(names) if name]


class Dictionary:
    """Finds names in running text, from left to right, the longest first and without overlaps.

    A name in lower case is often a common word. So the first content word of a name must have a capital
    or be in a script without case; a name of function words alone must have at least two, each with a
    capital. A lone number, or a lone character of a script without blanks, is never a name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Index normalised names of up to `LONGEST` words."""
        self._names = {name for name in names if name.count(" ") < LONGEST}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for name in self._names:
            lengths[name.partition(" ")[0]].add(name.count(" ") + 1)
        self._lengths = {first: sorted(counts, reverse=True) for first, counts in lengths.items()}

    def find(self, text: str, *, careless: bool = False) -> list[str]:
        """Return the names in a text, in order.

        Args:
            text: The text.
            careless: Ignore capitals: a name counts if it has two content words.

        >>> Dictionary(["opera", "new york", "york"]).find("The opera of New York")
        ['new york']
        """
        written = split_words(text)
        folded = [word.casefold() for word in written]
        counts = _has_two_content_words if careless else _stands_out
        names, free = [], 0
        for start, first in enumerate(folded):
            if start < free:
                continue
            for length in self._lengths.get(first, ()):
                name = " ".join(folded[start : start + length])
                if name in self._names and counts(written[start : start + length]):
                    names.append(name)
                    free = start + length
                    break
        return names


def find_known_names(question: str, known: Known) -> list[str]:
    """Return the known names in a question, with and without their articles.

    In a question in lower case, only names of at least two content words count: single words are mostly
    common words.

    >>> find_known_names("Who wrote The Tempest?", lambda names: np.array([n == "tempest" for n in names]))
    ['tempest']
    """
    spans = distinct(_spans(normalise(question).split()))
    if not spans:
        return []
    names = Dictionary(itertools.compress(spans, known(spans))).find(question, careless=question.islower())
    return distinct([*names, *map(bare, names)])


def _spans(folded: Sequence[str]) -> Iterator[str]:
    """Yield every run of words that may be a title."""
    for start in range(len(folded)):
        for end in range(start + 1, min(start + LONGEST, len(folded)) + 1):
            yield " ".join(folded[start:end])


def _stands_out(written: Sequence[str]) -> bool:
    """Return whether a run of words is written like a name, see `Dictionary`."""
    content = _content(written)
    if not content:
        return len(written) > 1 and not any(word.islower() for word in written)
    common = len(written) == 1 and (content[0].isdecimal() or _CHARACTER.match(content[0]) is not None)
    return not content[0].islower() and not common


def _has_two_content_words(written: Sequence[str]) -> bool:
    return len(_content(written)) > 1


def _content(written: Sequence[str]) -> list[str]:
    """Return the content words."""
    return [word for word in written if word.lower() not in ENGLISH]


class Titles:
    """Finds the titles of a corpus in its passages."""

    def __init__(self, corpus: Corpus) -> None:
        self._dictionary = Dictionary(itertools.chain.from_iterable(title_names(p.title) for p in corpus))

    def find_names(self, passage: Passage) -> list[str]:
        """Return the distinct names of a passage's title, then of other titles in its text."""
        return distinct([*title_names(passage.title), *self._dictionary.find(passage.text)])


NUMBERS = frozenset({"CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "DATE", "TIME"})
"""Labels of spaCy that are no names."""


def mark_names(corpus: Corpus, model: Path) -> Iterator[list[str]]:
    """Yield the distinct names of each passage's title, then those that a spaCy pipeline marks.

    Raises:
        ModelNotFoundError: The pipeline has no component `ner`.
        ModuleNotFoundError: spaCy is not installed; the message says what to install.
    """
    with explain_missing():
        import spacy  # a heavy extra, and not needed once the graph is built
    pipeline = spacy.load(model)
    if "ner" not in pipeline.pipe_names:
        raise ModelNotFoundError(f"the spaCy pipeline {model} has no component `ner`")
    unused = [name for name in pipeline.pipe_names if name not in ("tok2vec", "transformer", "ner")]
    documents = pipeline.pipe(map(compose_text, corpus), disable=unused)
    for passage, document in zip(corpus, documents, strict=True):
        marked = [normalise(entity.text) for entity in document.ents if entity.label_ not in NUMBERS]
        yield distinct([*title_names(passage.title), *map(bare, marked)])
