"""A corpus and a collection in memory, whose passages have metadata."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.base import Passage, Query
from armwise.arms.engines.collection import FillState, Row
from armwise.arms.engines.ingest import Embedded
from armwise.arms.indexes.vectors import compose_text
from armwise.arms.models.embedding import HashingEmbedder
from tests.arms.contract import DIM


@dataclass(frozen=True)
class Manifest:
    """What is known of a corpus: the metadata have a digest of their own."""

    metadata: str


@dataclass(frozen=True)
class InMemory:
    """A corpus of these passages."""

    found: Sequence[Passage]
    name: str = "tests"
    digest: str = field(init=False)
    manifest: Manifest = field(init=False)

    def __post_init__(self) -> None:
        texts = [[p.id, p.title, p.text] for p in self.found]
        object.__setattr__(self, "digest", hashlib.blake2b(orjson.dumps(texts)).hexdigest())
        found = [dict(p.metadata) for p in self.found]
        object.__setattr__(self, "manifest", Manifest(hashlib.blake2b(orjson.dumps(found)).hexdigest()))

    def __iter__(self) -> Iterator[Passage]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def passages(self, positions: Iterable[int]) -> list[Passage]:
        return [self.found[position] for position in positions]

    def find_positions(self, ids: Iterable[str]) -> Mapping[str, int]:
        places = {passage.id: place for place, passage in enumerate(self.found)}
        return {one: places[one] for one in ids if one in places}


def embedded(corpus: InMemory) -> Embedded:
    """Return the hashed vectors of a corpus."""
    vectors: NDArray[np.float32] = HashingEmbedder(DIM).encode_passages(
        [compose_text(p) for p in corpus.found]
    )
    return Embedded("hashed", vectors)


class CollectionInMemory:
    """A collection that records what is done with it, and returns the same rankings to every search.

    Attributes:
        rows: What it holds, by id.
        calls: Each call that changes it or searches it, with its size: passages, k, or positions done.
        failing: The call that raises KeyboardInterrupt, once; None for none.
    """

    def __init__(self, words: Sequence[Passage] = (), near: Sequence[Passage] = ()) -> None:
        self.words, self.near = list(words), list(near)
        self.rows: dict[str, Row] = {}
        self.calls: list[tuple[str, int]] = []
        self.failing: tuple[str, int] | None = None
        self.kept: FillState | None = None

    def _called(self, what: str, size: int) -> None:
        if self.failing == (what, size):
            self.failing = None
            raise KeyboardInterrupt
        self.calls.append((what, size))

    def lexical(self, query: Query, k: int) -> list[Passage]:
        del query
        self._called("lexical", k)
        return self.words[:k]

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        del vector, query
        self._called("dense", k)
        return self.near[:k]

    def create(self, dim: int | None) -> None:
        self._called("create", dim or 0)

    def state(self) -> FillState | None:
        return self.kept

    def keep(self, state: FillState) -> None:
        self._called("keep", state.done)
        self.kept = state

    def count(self) -> int:
        return len(self.rows)

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        return {one: self.rows[one].digest for one in ids if one in self.rows}

    def ids(self) -> Iterator[str]:
        return iter(list(self.rows))

    def write(self, rows: Sequence[Row]) -> None:
        self._called("write", len(rows))
        self.rows |= {row.passage.id: row for row in rows}

    def delete(self, ids: Sequence[str]) -> None:
        self._called("delete", len(ids))
        for one in ids:
            self.rows.pop(one, None)

    def finish(self) -> None:
        self._called("finish", len(self.rows))
