"""Estimate missing propensities by the frequency of each arm in the same context.

The estimate is right if the logging policy saw only the counted context, and stayed the same. The log cannot
show either, so decisions with such a propensity are marked (`armwise.feedback.events.ESTIMATED`), and reports
name them.
"""

import hashlib
from collections import Counter, defaultdict

from armwise.feedback.exchange.table import TableRow

LEAST_ROWS = 30
"""Fewest rows of a context for estimates in it."""

LEAST_DRAWS = 5
"""Fewest draws of an arm in a context for an estimate: the frequency of fewer is mostly chance."""


class Frequencies:
    """Counts the draws in each context: rows with the same features, or with the same question.

    Args:
        by_features: Whether the context is the features of a row; otherwise it is the question.
        least_rows: Fewest rows of a context.
        least_draws: Fewest draws of an arm in its context.
    """

    def __init__(
        self, *, by_features: bool, least_rows: int = LEAST_ROWS, least_draws: int = LEAST_DRAWS
    ) -> None:
        self._by_features, self._least_rows, self._least_draws = by_features, least_rows, least_draws
        self._draws: defaultdict[bytes, Counter[str]] = defaultdict(Counter)

    def add(self, row: TableRow) -> None:
        """Count a row."""
        self._draws[self._context(row)][row.arm] += 1

    def distribution(self, row: TableRow) -> dict[str, float] | None:
        """Return the frequencies of the arms in the context of a row, among those drawn often enough.

        None: the context has too few rows, or the arm of the row too few draws. Rows are left out by their
        arm alone, so the frequencies of the others are those of the policy given that it drew one of these.
        """
        draws = self._draws[self._context(row)]
        if draws.total() < self._least_rows or draws[row.arm] < self._least_draws:
            return None
        often = {arm: n for arm, n in sorted(draws.items()) if n >= self._least_draws}
        total = sum(often.values())
        return {arm: n / total for arm, n in often.items()}

    def _context(self, row: TableRow) -> bytes:
        context = repr(sorted(row.features.items())) if self._by_features else row.question
        return hashlib.blake2b(context.encode(errors="replace"), digest_size=16).digest()

    @property
    def contexts(self) -> int:
        """Number of contexts."""
        return len(self._draws)

    @property
    def counted(self) -> int:
        """Number of contexts with enough rows."""
        return sum(draws.total() >= self._least_rows for draws in self._draws.values())
