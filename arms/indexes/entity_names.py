"""Names of entities, and how they are found in a text.

A name is its words without accents, punctuation and case. In running text, capitals
distinguish a name from common words.
"""

import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from arms.tokenizer import ENGLISH

LONGEST = 12
"""Most words of a name that is found in a text."""

Known = Callable[[Sequence[str]], NDArray[np.bool_]]
"""Normalised names -> which of them are known, shape (n_names,)."""

_WORD = re.compile(r"\w+")


def written_words(text: str) -> list[str]:
    """Return the words of a text without accents.

    >>> written_words("The Château d'If")
    ['The', 'Chateau', 'd', 'If']
    """
    if not text.isascii():
        marks = unicodedata.normalize("NFKD", text)
        text = "".join(mark for mark in marks if not unicodedata.combining(mark))
    return _WORD.findall(text)


def normalised(name: str) -> str:
    """Return the words of a name without accents, punctuation and case.

    >>> normalised("Schindler's List"), normalised("BEYONCÉ")
    ('schindler s list', 'beyonce')
    """
    return " ".join(word.casefold() for word in written_words(name))


def title_names(title: str) -> list[str]:
    """Return the names of a title, with and without a closing parenthesis and the article.

    >>> title_names("The Tempest (1979 film)")
    ['the tempest 1979 film', 'the tempest', 'tempest 1979 film', 'tempest']
    """
    before, _, inside = title.rstrip().rpartition("(")
    closing = inside.find(")") == len(inside) - 1
    names = distinct([normalised(title), normalised(before) if inside and closing else ""])
    return distinct([*names, *map(bare, names)])


def bare(name: str) -> str:
    """Return a normalised name without its leading article.

    >>> bare("the beatles"), bare("a")
    ('beatles', 'a')
    """
    first, _, rest = name.partition(" ")
    return rest if rest and first in ("the", "a", "an") else name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the distinct names that are not empty, in order."""
    return [name for name in dict.fromkeys(names) if name]


class Dictionary:
    """Finds names in running text, from left to right, the longest first and without overlaps.

    A name in small letters is often a common word. So a name counts only if its first content
    word has a capital letter or no letter case; a name of function words only if it has
    several, each with a capital; a number alone never.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Index normalised names of up to `LONGEST` words."""
        self._names = {name for name in names if name.count(" ") < LONGEST}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for name in self._names:
            lengths[name.partition(" ")[0]].add(name.count(" ") + 1)
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def find(self, text: str, *, careless: bool = False) -> list[str]:
        """Return the names in a text, in order.

        Args:
            text: The text.
            careless: Ignore capitals: a name counts if it has two content words.

        >>> Dictionary(["opera", "new york", "york"]).find("The opera of New York")
        ['new york']
        """
        written = written_words(text)
        folded = [word.casefold() for word in written]
        counts = _has_two_content_words if careless else _stands_out
        found, free = [], 0
        for start, first in enumerate(folded):
            if start < free:
                continue
            for length in self._lengths.get(first, ()):
                name = " ".join(folded[start : start + length])
                if name in self._names and counts(written[start : start + length]):
                    found.append(name)
                    free = start + length
                    break
        return found


def known_names(question: str, known: Known) -> list[str]:
    """Return the known names in a question, with and without their articles.

    A question in small letters is searched for names of two content words and more: single
    words are mostly common words.

    >>> known_names("Who wrote The Tempest?", lambda names: np.array([name == "tempest" for name in names]))
    ['tempest']
    """
    spans = distinct(_spans(normalised(question).split()))
    if not spans:
        return []
    found = Dictionary(itertools.compress(spans, known(spans))).find(question, careless=question.islower())
    return distinct([*found, *map(bare, found)])


def _spans(folded: Sequence[str]) -> Iterator[str]:
    """Yield every run of words that may be a title."""
    for start in range(len(folded)):
        for end in range(start + 1, min(start + LONGEST, len(folded)) + 1):
            yield " ".join(folded[start:end])


def _stands_out(written: Sequence[str]) -> bool:
    """Return whether the capitals of a run of words are those of a name."""
    content = _content(written)
    if not content:
        return len(written) > 1 and not any(word.islower() for word in written)
    return not content[0].islower() and not (len(written) == 1 and content[0].isdecimal())


def _has_two_content_words(written: Sequence[str]) -> bool:
    return len(_content(written)) > 1


def _content(written: Sequence[str]) -> list[str]:
    """Return the content words."""
    return [word for word in written if word.lower() not in ENGLISH]
