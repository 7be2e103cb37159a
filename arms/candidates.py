"""The first stage that arms of several kinds share: the passages nearest to a question, with their vectors.

All arms over one backbone that choose among candidates ask the same stage. It keeps
what it found for the last few questions, so that hundreds of configurations scored on
one question search the corpus once.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arms.base import ArmError, Query
from arms.kinds import Resources
from arms.vector_index import IndexParams, VectorIndex
from arms.vectors import Vectors

KEPT = 8
"""Questions whose candidates are kept: more than are in the works at once on a small machine."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the first stage found for one question, nearest first, ties by position.

    Attributes:
        positions: Places in the corpus, shape (m,).
        relevance: Cosines between question and passage, shape (m,).
        vectors: Unit vectors of the passages, shape (m, dim).
    """

    positions: NDArray[np.intp]
    relevance: NDArray[np.float32]
    vectors: NDArray[np.float32]

    def first(self, m: int) -> "Candidates":
        """Return the `m` nearest of them, without a copy."""
        return Candidates(self.positions[:m], self.relevance[:m], self.vectors[:m])


class FirstStage:
    """Finds candidates on one backbone; safe to use from many threads.

    Args:
        backbone: Name of the backbone, as queries carry its embedding.
        index: Finds the nearest.
        vectors: Of all passages, by position, shape (n_passages, dim); may be mapped from a file.
    """

    def __init__(self, backbone: str, index: VectorIndex, vectors: NDArray[np.float32]) -> None:
        self.backbone = backbone
        self.vectors = vectors
        self._index = index
        self._deepest = 1
        self._kept: OrderedDict[bytes, Candidates] = OrderedDict()
        self._lock = threading.Lock()

    def embedding(self, query: Query, *, arm: str) -> NDArray[np.float32]:
        """Return the question's vector, shape (dim,). Raises MissingEmbeddingError, ArmError."""
        vector = query.embedding(self.backbone, arm=arm)
        if vector.shape != (self._index.dim,):
            raise ArmError(
                f"arm {arm!r}: the query's {self.backbone!r} embedding has shape {vector.shape}, "
                f"the index holds vectors of shape ({self._index.dim},)"
            )
        return vector

    def candidates(self, query: Query, depth: int, *, arm: str) -> Candidates:
        """Return the `depth` nearest passages, or all where there are fewer.

        Raises:
            MissingEmbeddingError: The query lacks the embedding of this backbone.
            ArmError: Its embedding has another dimension than the index.
        """
        vector = self.embedding(query, arm=arm)
        key = vector.tobytes()
        with self._lock:
            # As deep as was ever asked for: a shallow arm that comes first does not cost a second search.
            self._deepest = max(self._deepest, depth)
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None or (len(found.positions) < depth and len(found.positions) < len(self.vectors)):
            found = self._search(vector, self._deepest)
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return found.first(depth)

    def _search(self, vector: NDArray[np.float32], depth: int) -> Candidates:
        relevance, positions = self._index.nearest(vector, depth)
        # All that tie with the last are kept too: whoever cuts at an id finds the same ones.
        order = np.argsort(positions)  # a mapped file is read in its own order
        vectors = np.empty((len(positions), self.vectors.shape[1]), dtype=np.float32)
        vectors[order] = self.vectors[positions[order]]
        return Candidates(positions, relevance, vectors)


def first_stage(params: IndexParams, have: Resources) -> FirstStage:
    """Return the stage that all arms with this backbone and index share. Raises IndexMismatchError."""
    # Only what tells one index from another: the parameters of an arm may be more.
    told = IndexParams.model_validate({name: getattr(params, name) for name in IndexParams.model_fields})

    def make() -> FirstStage:
        backbone = have.backbones[told.backbone]
        index = VectorIndex.open(have.corpus, have.indexes, told, backbone)
        return FirstStage(told.backbone, index, Vectors.of(have.corpus, have.indexes, backbone).read())

    return have.shared(("first stage", told), make)
