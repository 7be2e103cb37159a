"""The words of a question, weighted by how rare they are, from what PostgreSQL counts for its planner.

`ts_rank` knows how often a word stands in a passage, and not in how many passages it stands: a question is
ranked by its commonest words, and every passage that has one of them is looked at. So each word has the
weight that BM25 gives it, and passages with the rarer words are looked at first.

Source: Robertson & Zaragoza, The Probabilistic Relevance Framework, 2009 (the weight); the documentation of
PostgreSQL, `pg_stats`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

LOOKED_AT = (1_000, 10_000)
"""Rows that are expected to be looked at in the first search, and where that finds too few, in the next."""


@dataclass(frozen=True)
class WordStatistics:
    """In how many rows the words of a table stand, as far as it is known.

    Attributes:
        rows: Rows of the table.
        shares: Share of the rows with a word, in (0, 1], of the most common words; empty where nothing is
            known.
    """

    rows: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def _unknown(self) -> float:
        """Share of any other word: half of that of the rarest known one."""
        return min(self.shares.values()) / 2.0

    def expected_rows(self, word: str) -> float:
        """Return in how many rows a word stands; half of the rarest known one for any other."""
        share = self.shares.get(word)
        return self.rows * (self._unknown if share is None else share)

    def weights(self, words: Sequence[str]) -> list[float]:
        """Return the weight of each word; 1 where nothing is known.

        >>> known = WordStatistics(100, {"the": 1.0, "bridge": 0.1})
        >>> [round(weight, 1) for weight in known.weights(["the", "bridge", "unknown"])]
        [0.0, 2.3, 2.9]
        """
        if not self.shares:
            return [1.0] * len(words)
        found = map(self.expected_rows, words)
        return [math.log(1.0 + max(0.0, self.rows - n + 0.5) / (n + 0.5)) for n in found]

    def steps(self, words: Sequence[str]) -> Iterator[list[str]]:
        """Yield the words that a row must have one of: the rarest first, at last all.

        >>> known = WordStatistics(1e6, {"the": 1.0, "river": 0.005, "bridge": 0.0005})
        >>> list(known.steps(["the", "river", "bridge"]))
        [['bridge'], ['bridge', 'river'], ['bridge', 'river', 'the']]
        """
        if self.shares:
            words = sorted(words, key=self.expected_rows)
            counts = [self.expected_rows(word) for word in words]
            before = 0
            for most in LOOKED_AT:
                n = max(1, sum(math.fsum(counts[: at + 1]) <= most for at in range(len(counts))))
                if before < n < len(words):
                    yield list(words[:n])
                    before = n
        yield list(words)


def literal(word: str) -> str:
    r"""Return a word as a query of PostgreSQL.

    >>> print(literal("o'neil\\"))
    'o''neil\\'
    """
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
