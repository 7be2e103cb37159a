"""Array types, tolerances and checks that the estimators share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Integers = NDArray[np.int64]

Flags = NDArray[np.bool_]

BLOCK = 1 << 16
"""Rows that are processed at once where a matrix of intermediate results would be as large as the log."""

TOLERANCE = 1e-6
"""Largest deviation of the sum of a distribution from 1 (some policies keep float32)."""


class Growing:
    """An array that rows are appended to in place: parts that are joined at the end are in memory twice."""

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.zeros(0)
        self._n = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows, shape (n,) or (n, width); earlier rows get zeros where they were narrower."""
        if not self._n:
            self._rows = rows.copy()
        elif rows.shape[1:] != self._rows.shape[1:]:
            wider = np.zeros((self._n, *rows.shape[1:]), dtype=rows.dtype)
            wider[:, : self._rows.shape[1]] = self._rows[: self._n]
            self._rows = wider
        end = self._n + len(rows)
        if end > len(self._rows):
            self._rows.resize((max(end, len(self._rows) * 9 // 8), *rows.shape[1:]), refcheck=False)
        self._rows[self._n : end] = rows
        self._n = end

    def take(self) -> NDArray[Any]:
        """Return all rows; the array is empty afterwards."""
        rows, self._rows = self._rows, np.zeros(0)
        rows.resize((self._n, *rows.shape[1:]), refcheck=False)
        self._n = 0
        return rows


def take_drawn(p: Floats, drawn: Integers) -> Floats:
    """Return the entry of `p`, shape (n, n_arms), in the drawn column of each row, shape (n,).

    Raises:
        ValueError: The shapes differ, or a column is out of range.

    >>> take_drawn(np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([1, 0])).tolist()
    [0.8, 0.5]
    """
    if p.ndim != 2 or p.shape[:1] != drawn.shape:
        raise ValueError(f"p must be (n, n_arms) and drawn (n,), got {p.shape} and {drawn.shape}")
    n, n_arms = p.shape
    refuse("drawn", drawn, (drawn >= 0) & (drawn < n_arms), f"a column below {n_arms}")
    # A flat index is several times faster than a pair of them.
    chances: Floats = p.ravel().take(n_arms * np.arange(n) + drawn)
    return chances


def refuse_unless_distributions(name: str, p: Floats) -> None:
    """Check that each row of `p`, shape (n, n_arms), is a distribution. Raises ValueError at the first other.

    >>> refuse_unless_distributions("p", np.array([[0.5, 0.4]]))
    Traceback (most recent call last):
    ValueError: sum of p must be 1, got 0.9 at row 0
    """
    if not p.min() >= 0.0:
        refuse(name, p, p >= 0.0, "at least 0")
    total = p @ np.ones(p.shape[1])
    if not max(total.max() - 1.0, 1.0 - total.min()) <= TOLERANCE:
        refuse(f"sum of {name}", total, np.abs(total - 1.0) <= TOLERANCE, "1")


def refuse(name: str, values: Floats | Integers, allowed: Flags, right: str) -> None:
    """Check that all `values` are `allowed`. Raises ValueError with the first other, and what is `right`.

    >>> refuse("reward", np.array([1.0, np.nan]), np.array([True, False]), "finite")
    Traceback (most recent call last):
    ValueError: reward must be finite, got nan at row 1
    """
    if not allowed.all():
        where = tuple(int(i) for i in np.argwhere(~allowed)[0])
        raise ValueError(f"{name} must be {right}, got {values[where]:.6g} at row {where[0]}")
