"""Names: how they are written, and where they stand in a text.

A name is known by its words alone, without accents, punctuation and case. What is a
name in running text and what a common word, its capitals tell.
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
"""Words of the longest name that is looked for in a text."""

Known = Callable[[Sequence[str]], NDArray[np.bool_]]
"""Normalised names -> which of them are known, shape (n_names,)."""

_WORD = re.compile(r"\w+")

_BEFORE_PARENTHESIS = re.compile(r"(.+?)\s*\([^()]*\)\s*")


def written_words(text: str) -> list[str]:
    """Return the words of a text as they are written, but for their accents.

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
    """Return the names that a title gives, with and without a closing parenthesis and the article.

    >>> title_names("The Tempest (1979 film)")
    ['the tempest 1979 film', 'the tempest', 'tempest 1979 film', 'tempest']
    """
    before = _BEFORE_PARENTHESIS.fullmatch(title)
    names = distinct([normalised(title), normalised(before[1]) if before else ""])
    return distinct([*names, *map(bare, names)])


def bare(name: str) -> str:
    """Return a normalised name without the article before it, which some texts write and some do not.

    >>> bare("the beatles"), bare("a")
    ('beatles', 'a')
    """
    first, _, rest = name.partition(" ")
    return rest if rest and first in ("the", "a", "an") else name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names that are not empty, each where it came first."""
    return [name for name in dict.fromkeys(names) if name]


class Dictionary:
    """Finds names in running text: from left to right the longest first, none inside another.

    What is a name when it is written large is often a common word when not. So a name
    counts only where its first word that is no function word has a capital letter or no
    letter case at all; a name of function words alone where it has several, each with a
    capital; a number alone never.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Take normalised names; those of over `LONGEST` words are never found."""
        self._names = {name for name in names if name.count(" ") < LONGEST}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for name in self._names:
            lengths[name.partition(" ")[0]].add(name.count(" ") + 1)
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def find(self, text: str, *, careless: bool = False) -> list[str]:
        """Return the names in a text, in order.

        Args:
            text: As it is written.
            careless: Nobody cared for capitals: a name counts where it has two words
                that are no function words.

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

    A question that is written in small letters throughout is searched for names of two
    words and more: single words that are somebody's name are mostly just words in it.

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
    """Tell a name from common words by its capitals."""
    content = _content(written)
    if not content:
        return len(written) > 1 and not any(word.islower() for word in written)
    return not content[0].islower() and not (len(written) == 1 and content[0].isdecimal())


def _has_two_content_words(written: Sequence[str]) -> bool:
    return len(_content(written)) > 1


def _content(written: Sequence[str]) -> list[str]:
    """Return the words that are no function words."""
    return [word for word in written if word.lower() not in ENGLISH]
