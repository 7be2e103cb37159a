"""Search by meaning: the passages whose vectors are nearest to the question's."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arms.base import Query, Retrieval
from arms.candidates import FirstStage, first_stage, question_vector, shared_index
from arms.corpus import Corpus, Progress
from arms.kinds import Batch, Kind, Members, Resources
from arms.vector_index import IndexParams, VectorIndex


class DenseParams(IndexParams):
    """Parameters of a dense arm: those of its index."""


class Dense:
    """Rank passages by the cosine between their vector and the query's.

    The arm embeds nothing: the query brings its vector, made once for all arms.
    """

    def __init__(self, name: str, corpus: Corpus, params: DenseParams, index: VectorIndex) -> None:
        self.name = name
        self.backbones = frozenset({params.backbone})
        self._corpus = corpus
        self._backbone = params.backbone
        self._index = index

    def search(self, query: Query, k: int) -> Retrieval:
        """Return the `k` nearest passages. Raises MissingEmbeddingError, ArmError."""
        vector = question_vector(query, self._backbone, self._index.dim, arm=self.name)
        scores, positions = self._index.nearest(vector, k)
        found = zip(self._corpus.passages(positions[:k]), scores[:k].tolist(), strict=True)
        return Retrieval(tuple(passage.scored(score) for passage, score in found))


class DenseBatch:
    """Dense arms over one index: they all find the same."""

    def __init__(self, names: Sequence[str], stage: FirstStage) -> None:
        self.names = tuple(names)
        self.backbones = frozenset({stage.backbone})
        self._stage = stage

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return the `k` nearest, a row an arm."""
        near = self._stage.candidates(query, k, arm=self.names[0]).positions
        return np.tile(np.pad(near, (0, k - len(near)), constant_values=-1), (len(self.names), 1))


def prepare_index(params: IndexParams, have: Resources, progress: Progress | None = None) -> None:
    """Build the index that an arm starts from, where it is missing. Raises ModelNotFoundError."""
    VectorIndex.prepare(have.corpus, have.indexes, params, have.backbones[params.backbone], progress)


def _build(name: str, params: DenseParams, have: Resources, _: Members) -> Dense:
    return Dense(name, have.corpus, params, shared_index(params, have))


def _batches(group: Mapping[str, DenseParams], have: Resources) -> list[Batch]:
    by_index: dict[DenseParams, list[str]] = {}
    for name, params in group.items():
        by_index.setdefault(params, []).append(name)
    return [DenseBatch(names, first_stage(params, have)) for params, names in by_index.items()]


KIND = Kind(DenseParams, _build, prepare_index, _batches, backbones=lambda params: (params.backbone,))
