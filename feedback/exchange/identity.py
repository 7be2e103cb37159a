"""Count decisions, calls and scores once by their ids, in the same way for all readers.

`Ids` is for facts that are final: the first counts. `NewestById` is for rows that are exported again as they
grow, or are corrected: the newest counts, of equally new ones the last.
"""

import hashlib
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from armwise.feedback.exchange.imported import BadValue

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

DUPLICATE = "duplicate"
"""Reason that is counted for a decision whose id occurred before."""


class Ids:
    """Ids so far, as digests of 64 bits: two in a billion rows meet by chance with probability 0.03."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def require_new(self, ident: str) -> None:
        """Record an id. Raises BadValue if it has occurred before."""
        digest = int.from_bytes(hashlib.blake2b(ident.encode(errors="replace"), digest_size=8).digest())
        if digest in self._seen:
            raise BadValue(DUPLICATE, f"id {ident!r} already occurred above; ids must be unique")
        self._seen.add(digest)


class NewestById(Generic[K, V]):
    """The newest version of each thing with an id; of equally new ones the last."""

    def __init__(self) -> None:
        self._newest: dict[K, tuple[float, V]] = {}

    def add(self, ident: K, at: float, version: V) -> bool:
        """Record a version with its time; return whether the id occurred before."""
        before = self._newest.get(ident)
        if before is None or before[0] <= at:
            self._newest.pop(ident, None)  # so that the last one also comes last
            self._newest[ident] = at, version
        return before is not None

    def get(self, ident: K) -> V | None:
        """Return the newest version of an id, if it has occurred."""
        newest = self._newest.get(ident)
        return None if newest is None else newest[1]

    def __contains__(self, ident: object) -> bool:
        """Return whether an id occurred."""
        return ident in self._newest

    def __iter__(self) -> Iterator[V]:
        """Yield the newest version of each id."""
        return (version for _, version in self._newest.values())
