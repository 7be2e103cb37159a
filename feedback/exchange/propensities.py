"""Propensities that nobody recorded, estimated from how often each arm was drawn in the same context.

The estimate is right where the context that was counted is all that the logging policy saw, and where the
policy stayed the same all the while. Neither can be seen in the log, so decisions with such a propensity are
marked (`armwise.feedback.events.ESTIMATED`), and reports name it.
"""

import hashlib
from collections import Counter, defaultdict

from armwise.feedback.exchange.table import TableRow

LEAST_ROWS = 30
"""Rows of a context below which its rows stay without a propensity."""

LEAST_DRAWS = 5
"""Draws of an arm in a context below which they stay without one: the frequency of few is mostly chance."""


class Frequencies:
    """Counts the draws in each context: rows with the same features, or with the same question.

    Args:
        by_features: Whether a context is the features of a row, else its question.
        least_rows: Rows of a context, at least.
        least_draws: Draws of an arm in its context, at least.
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

        None where the context has too few rows, or the arm of the row too few draws. Rows of arms that are
        left out are left out by their arm alone, so the frequencies among the others are those of the policy
        given that it drew one of these.
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
