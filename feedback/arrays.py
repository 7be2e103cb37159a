"""Array types, tolerances and checks that the estimators share.

A matrix with a row for each decision is large, so nothing reads one whole: `split` gives the rows of one
block after another. A `Matrix` makes a block when it is read; a `Spool` keeps one in a temporary file.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Integers = NDArray[np.int64]

Flags = NDArray[np.bool_]

BLOCK = 1 << 16
"""Rows that are processed at once where a matrix of intermediate results would be as large as the log."""

TOLERANCE = 1e-6
"""Largest deviation of the sum of a distribution from 1 (some policies keep float32)."""


IN_MEMORY = 1 << 24
"""Bytes of a `Spool` beyond which it is kept on disk."""


def split(n: int) -> Iterator[slice]:
    """Yield the rows of a long matrix, a block at a time.

    >>> [*split(BLOCK + 1)]
    [slice(0, 65536, None), slice(65536, 65537, None)]
    """
    for begin in range(0, n, BLOCK):
        yield slice(begin, min(begin + BLOCK, n))


class Matrix:
    """A matrix of numbers whose rows are made when they are read.

    Args:
        make: Returns some rows, shape (n_rows, width): those of a slice, or those at some positions.
        shape: Number of rows, and of columns.

    >>> halves = Matrix(lambda rows: np.full((2, 2), 0.5), (2, 2))
    >>> halves[0:2].tolist(), len(halves), halves.shape
    ([[0.5, 0.5], [0.5, 0.5]], 2, (2, 2))
    """

    ndim = 2

    def __init__(self, make: "Callable[[slice | Integers], Floats]", shape: tuple[int, int]) -> None:
        self._make, self.shape = make, shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: "slice | Integers") -> Floats:
        return self._make(rows)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Floats:
        """Return all rows, for `np.asarray`."""
        del dtype, copy
        return self[:]


def select_rows(p: "Floats | Matrix", kept: Flags) -> "Floats | Matrix":
    """Return the rows of a matrix that are kept, without copying them."""
    if kept.all():
        return p
    at: NDArray[Any] = np.flatnonzero(kept)
    if len(kept) < 2**31:
        at = at.astype(np.int32)
    return Matrix(lambda rows: p[at[rows]], (len(at), p.shape[1]))


def _close(file: SpooledTemporaryFile[bytes]) -> None:
    with suppress(OSError):  # what a full disk did not take is not needed any more
        file.close()


class Spool:
    """Rows of numbers in a temporary file, or in memory while they are few; it is gone with this object."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - as long as this object
        finalize(self, _close, self._file)
        self._starts: list[int] = []
        self._widths: list[int] = []
        self._places: list[int] = []
        self._n = self._end = 0

    def append(self, rows: Floats) -> None:
        """Append rows, shape (n, width); earlier ones may have been narrower."""
        if not len(rows):
            return
        self._starts.append(self._n)
        self._widths.append(rows.shape[1])
        self._places.append(self._end)
        self._file.seek(self._end)
        try:
            self._end += self._file.write(np.ascontiguousarray(rows, dtype=np.float64).data)
        except OSError as error:
            message = (
                f"the distributions of a replay do not fit in {gettempdir()}; set TMPDIR to a larger folder"
            )
            raise OSError(error.errno, message) from error
        self._n += len(rows)

    def read(self, width: int) -> Matrix:
        """Return the rows so far; those that were narrower have zeros on the right."""
        n = self._n

        def make(rows: slice | Integers) -> Floats:
            if isinstance(rows, slice):
                return self._read(*rows.indices(n)[:2], width)
            found = np.empty((len(rows), width))
            for begin in range(int(rows[0]), int(rows[-1]) + 1, BLOCK) if len(rows) else ():  # they rise
                here = slice(*np.searchsorted(rows, [begin, begin + BLOCK]))
                end = min(begin + BLOCK, int(rows[-1]) + 1)
                found[here] = self._read(begin, end, width)[rows[here] - begin]
            return found

        return Matrix(make, (n, width))

    def _read(self, begin: int, end: int, width: int) -> Floats:
        block = np.zeros((max(0, end - begin), width))
        part = bisect_right(self._starts, begin) - 1
        while begin < end:
            last = self._starts[part + 1] if part + 1 < len(self._starts) else self._n
            some, size = min(end, last) - begin, self._widths[part]
            self._file.seek(self._places[part] + 8 * size * (begin - self._starts[part]))
            stored = np.frombuffer(self._file.read(8 * size * some), dtype=np.float64)
            at = len(block) - (end - begin)
            block[at : at + some, :size] = stored.reshape(some, size)
            begin, part = begin + some, part + 1
        return block


class Growing:
    """A column that rows are appended to in place: parts that are joined at the end are in memory twice."""

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.zeros(0)
        self._n = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows, shape (n,)."""
        if not self._n:
            self._rows = rows.copy()
        end = self._n + len(rows)
        if end > len(self._rows):
            self._rows.resize(max(end, len(self._rows) * 9 // 8), refcheck=False)
        self._rows[self._n : end] = rows
        self._n = end

    def take(self) -> NDArray[Any]:
        """Return all rows; the array is empty afterwards."""
        rows, self._rows = self._rows, np.zeros(0)
        rows.resize(self._n, refcheck=False)
        self._n = 0
        return rows


def take_drawn(p: Floats | Matrix, drawn: Integers) -> Floats:
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
    chances = np.empty(n)
    for rows in split(n):
        block = p[rows]
        # A flat index is several times faster than a pair of them.
        chances[rows] = block.ravel().take(n_arms * np.arange(len(block)) + drawn[rows])
    return chances


def refuse_unless_distributions(name: str, p: Floats | Matrix) -> None:
    """Check that each row of `p`, shape (n, n_arms), is a distribution. Raises ValueError at the first other.

    >>> refuse_unless_distributions("p", np.array([[0.5, 0.4]]))
    Traceback (most recent call last):
    ValueError: sum of p must be 1, got 0.9 at row 0
    """
    for rows in split(len(p)):
        block = p[rows]
        if not block.min() >= 0.0:
            refuse(name, block, block >= 0.0, "at least 0", rows.start)
        total = block @ np.ones(block.shape[1])
        if not max(total.max() - 1.0, 1.0 - total.min()) <= TOLERANCE:
            refuse(f"sum of {name}", total, np.abs(total - 1.0) <= TOLERANCE, "1", rows.start)


def refuse(name: str, values: Floats | Integers, allowed: Flags, right: str, first: int = 0) -> None:
    """Check that all `values` are `allowed`. Raises ValueError with the first other, and what is `right`.

    Their rows are numbered from `first` on.

    >>> refuse("reward", np.array([1.0, np.nan]), np.array([True, False]), "finite")
    Traceback (most recent call last):
    ValueError: reward must be finite, got nan at row 1
    """
    if not allowed.all():
        where = tuple(int(i) for i in np.argwhere(~allowed)[0])
        raise ValueError(f"{name} must be {right}, got {values[where]:.6g} at row {first + where[0]}")
