"""A corpus in memory whose passages have metadata, and the engines that the tests can start."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from arms.base import Passage
from arms.indexes.vectors import embedded_text
from arms.models.embedding import HashingEmbedder
from arms.retrievers.engines.ingest import Embedded
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

    def known(self, ids: Iterable[str]) -> Mapping[str, int]:
        places = {passage.id: place for place, passage in enumerate(self.found)}
        return {one: places[one] for one in ids if one in places}


def embedded(corpus: InMemory) -> Embedded:
    """Return the hashed vectors of a corpus."""
    vectors: NDArray[np.float32] = HashingEmbedder(DIM).encode_passages(
        [embedded_text(p) for p in corpus.found]
    )
    return Embedded("hashed", vectors)
