"""Which passages of a corpus a query may find, as an array by position.

A condition is evaluated once for each distinct value of its name, and the result is cached: a search with a
filter that was used before costs a look-up.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.filters import GROUPS, Comparison, Compound, Metadata, matches, permits

Rows = Callable[[], Iterable[tuple[int, Metadata]]]
"""Returns the position and the metadata of each passage that has metadata."""

CACHED_BYTES = 128 << 20
"""Largest size in bytes of the cached arrays and of the column values that they are made from."""

VALUE_BYTES, ENTRY_BYTES = 200, 5_000
"""Approximate bytes of a distinct value in a column and of the filter that names an entry."""


@dataclass(frozen=True, slots=True)
class Permitted:
    """The passages that a query may find; objects of the same passages are equal.

    Attributes:
        key: Digest of the passages.
        mask: Whether each may be found, by position, shape (n_passages,).
        count: Number of passages that may be found.
    """

    key: bytes
    mask: NDArray[np.bool_] = field(compare=False, repr=False)
    count: int

    @classmethod
    def from_mask(cls, mask: NDArray[np.bool_]) -> "Permitted":
        """Return the passages of a mask."""
        mask.setflags(write=False)
        digest = hashlib.blake2b(np.packbits(mask).tobytes(), digest_size=16).digest()
        return cls(digest, mask, int(np.count_nonzero(mask)))


@dataclass(frozen=True, slots=True)
class _Column:
    """The values of a name: `values[codes[position]]`; the first is that of passages without the name."""

    codes: NDArray[np.int32]
    values: list[Metadata]

    def where(self, holds: Callable[[Metadata], bool]) -> NDArray[np.bool_]:
        return np.fromiter(map(holds, self.values), np.bool_, len(self.values))[self.codes]


class Permissions:
    """Finds and caches the passages that queries may find; thread-safe.

    Args:
        rows: Reads the metadata.
        size: Number of passages.
        cached_bytes: Largest size of the cache in bytes; the newest entry is kept, however large.
    """

    def __init__(self, rows: Rows, size: int, cached_bytes: int = CACHED_BYTES) -> None:
        self._rows = rows
        self._size = size
        self._most = cached_bytes
        self._cached: OrderedDict[Hashable, tuple[int, Permitted | _Column | None]] = OrderedDict()
        self._lock, self._building = threading.Lock(), threading.Lock()

    def select(self, where: Comparison | Compound | None, groups: frozenset[str]) -> Permitted | None:
        """Return the passages for which `permits` holds; None: it holds for all."""
        # as JSON: `True` equals 1 in Python
        key = None if where is None else where.model_dump_json(), groups
        if (held := self._look_up(key)) is None:
            with self._building:  # one builds, and others that need the same wait for it
                held = self._look_up(key) or self._keep(key, *self._build(where, groups))
        permitted = held[1]
        assert not isinstance(permitted, _Column)
        return permitted

    def _build(
        self, where: Comparison | Compound | None, groups: frozenset[str]
    ) -> tuple[int, Permitted | None]:
        mask = self._column(GROUPS).where(lambda metadata: permits(None, groups, metadata))
        if where is not None:
            mask &= self._where(where)
        return (0, None) if mask.all() else (mask.nbytes, Permitted.from_mask(mask))

    @property
    def nbytes(self) -> int:
        """Approximate size of the cache."""
        with self._lock:
            return sum(size for size, _ in self._cached.values())

    def _where(self, where: Comparison | Compound) -> NDArray[np.bool_]:
        if isinstance(where, Comparison):
            return self._column(where.key).where(lambda metadata: matches(where, metadata))
        parts = np.stack([self._where(part) for part in where.filters])
        return np.asarray(parts.all(axis=0) if where.type == "and" else parts.any(axis=0))

    def _column(self, name: str) -> _Column:
        key = "column", name
        if held := self._look_up(key):
            assert isinstance(held[1], _Column)
            return held[1]
        codes, numbers = np.zeros(self._size, dtype=np.int32), dict[bytes, int]()
        values: list[Metadata] = [{}]
        for position, metadata in self._rows():
            if name in metadata:
                value = orjson.dumps(metadata[name])
                if (number := numbers.get(value)) is None:
                    number = numbers[value] = len(values)
                    values.append({name: metadata[name]})
                codes[position] = number
        column = _Column(codes, values)
        self._keep(key, codes.nbytes + VALUE_BYTES * len(values) + sum(map(len, numbers)), column)
        return column

    def _look_up(self, key: Hashable) -> tuple[int, Permitted | _Column | None] | None:
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
            return self._cached.get(key)

    def _keep(
        self, key: Hashable, size: int, cached: Permitted | _Column | None
    ) -> tuple[int, Permitted | _Column | None]:
        with self._lock:
            named = sum(len(text) for text in key if isinstance(text, str)) if isinstance(key, tuple) else 0
            self._cached[key] = size + named + ENTRY_BYTES, cached
            total = sum(size for size, _ in self._cached.values())
            while total > self._most and len(self._cached) > 1:
                total -= self._cached.popitem(last=False)[1][0]
        return size, cached
