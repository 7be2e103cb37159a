"""Dense retrieval: the passages whose vectors are nearest to the query's."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from armwise.arms.base import ArmError, Progress, Query, Retrieval
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes import IndexParams, VectorIndex, Vectors
from armwise.arms.retrievers.kind import BatchedArms, Kind, Members, Resources

CACHED_QUERIES = 8
"""Queries whose candidates are cached: more than run at once on a small machine."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a first stage, nearest first, ties by id.

    Attributes:
        positions: Positions in the corpus, shape (m,).
        relevance: Cosines with the query, shape (m,).
        vectors: Unit vectors of the passages, shape (m, dim).
    """

    positions: NDArray[np.intp]
    relevance: NDArray[np.float32]
    vectors: NDArray[np.float32]

    def first(self, m: int) -> "Candidates":
        """Return the `m` nearest, without a copy."""
        return Candidates(self.positions[:m], self.relevance[:m], self.vectors[:m])


class FirstStage:
    """Finds and caches candidates of one backbone; thread-safe.

    Args:
        backbone: Name of the backbone.
        index: The index.
        vectors: All passages by position, shape (n_passages, dim); may be memory-mapped.
        find_permitted: Returns the passages that a query may find; None for all.
    """

    def __init__(
        self,
        backbone: str,
        index: VectorIndex,
        vectors: NDArray[np.float32],
        find_permitted: Callable[[Query], Permitted | None] = lambda _: None,
    ) -> None:
        self.backbone = backbone
        self.vectors = vectors
        self.find_permitted = find_permitted
        self._index = index
        self._deepest = 1
        self._kept: OrderedDict[tuple[bytes, int, Permitted | None], Candidates] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def ranks(self) -> NDArray[np.intp]:
        """Rank of each position in the order of ids, which breaks ties."""
        return self._index.ranks

    def embedding(self, query: Query, *, arm: str) -> NDArray[np.float32]:
        """Return the query's vector, shape (dim,). Raises MissingEmbeddingError, ArmError."""
        return question_vector(query, self.backbone, self._index.dim, arm=arm)

    def forget(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._kept.clear()
            self._deepest = 1

    def candidates(self, query: Query, depth: int, *, arm: str) -> Candidates:
        """Return the `depth` nearest of the passages that a query may find, or all if there are fewer.

        Raises:
            MissingEmbeddingError: The query lacks the embedding of this backbone.
            ArmError: Its embedding has another dimension than the index.
        """
        vector, permitted = self.embedding(query, arm=arm), self.find_permitted(query)
        most = len(self.vectors) if permitted is None else permitted.count
        with self._lock:
            # The deepest request so far, so that a shallow arm that comes first costs no second search. Only
            # for an exact index: other arms' requests must not change an answer.
            self._deepest = max(self._deepest, depth)
            reach = self._deepest if self._index.exact else depth
            key = vector.tobytes(), 0 if self._index.exact else depth, permitted
            candidates = self._kept.get(key)
            if candidates is not None:
                self._kept.move_to_end(key)
        if candidates is None or (len(candidates.positions) < depth and len(candidates.positions) < most):
            candidates = self._search(vector, reach, permitted)
            with self._lock:
                self._kept[key] = candidates
                while len(self._kept) > CACHED_QUERIES:
                    self._kept.popitem(last=False)
        return candidates.first(depth)

    def _search(self, vector: NDArray[np.float32], depth: int, permitted: Permitted | None) -> Candidates:
        relevance, positions = self._index.nearest(vector, depth, permitted)
        order = np.argsort(positions)  # sequential reads of a mapped file
        vectors = np.empty((len(positions), self.vectors.shape[1]), dtype=np.float32)
        vectors[order] = self.vectors[positions[order]]
        return Candidates(positions, relevance, vectors)


def question_vector(query: Query, backbone: str, dim: int, *, arm: str) -> NDArray[np.float32]:
    """Return the query's vector, shape (dim,), finite.

    Raises:
        MissingEmbeddingError: The query lacks the embedding of this backbone.
        ArmError: It has another shape, or is not finite.
    """
    vector = query.embedding(backbone, arm=arm)
    if vector.shape != (dim,):
        raise ArmError(
            f"arm {arm!r}: the query's {backbone!r} embedding has shape {vector.shape}, "
            f"but the index has vectors of shape ({dim},)"
        )
    if not np.isfinite(vector).all():
        raise ArmError(f"arm {arm!r}: the query's {backbone!r} embedding has a number that is not finite")
    return vector


def share_index(params: IndexParams, have: Resources) -> VectorIndex:
    """Return the index that all arms with these index parameters share. Raises IndexMismatchError."""
    index_params = IndexParams(backbone=params.backbone, index=params.index)
    backbone = have.backbones[index_params.backbone]
    return have.share(
        ("vector index", index_params),
        lambda: VectorIndex.open(have.corpus, have.indexes, index_params, backbone),
    )


def first_stage(params: IndexParams, have: Resources) -> FirstStage:
    """Return the first stage that all arms with these index parameters share. Raises IndexMismatchError."""
    index_params = IndexParams(backbone=params.backbone, index=params.index)

    def make() -> FirstStage:
        vectors = Vectors.locate(have.corpus, have.indexes, have.backbones[index_params.backbone]).read()
        return FirstStage(
            index_params.backbone, share_index(index_params, have), vectors, have.corpus.find_permitted
        )

    return have.share(("first stage", index_params), make)


class DenseParams(IndexParams):
    """Parameters of a dense arm: those of its index."""


class DenseArm(Kind[DenseParams]):
    """Finds the nearest passages by embedding, exactly or with compressed vectors."""

    kind = "dense"
    params = DenseParams
    example: ClassVar = {"backbone": "minilm"}
    light = filters = searches_corpus = True

    def __init__(self, name: str, corpus: Corpus, params: DenseParams, index: VectorIndex) -> None:
        self.name = name
        self.backbones = frozenset({params.backbone})
        self._corpus = corpus
        self._backbone = params.backbone
        self._index = index

    @classmethod
    @override
    def prepare(cls, params: DenseParams, have: Resources, progress: Progress | None) -> None:
        prepare_index(params, have, progress)

    @classmethod
    @override
    def build(cls, name: str, params: DenseParams, have: Resources, member: Members) -> Self:
        return cls(name, have.corpus, params, share_index(params, have))

    @classmethod
    @override
    def batch(cls, group: Mapping[str, DenseParams], have: Resources) -> list[BatchedArms]:
        by_index: dict[DenseParams, list[str]] = {}
        for name, params in group.items():
            by_index.setdefault(params, []).append(name)
        return [DenseBatch(names, first_stage(params, have)) for params, names in by_index.items()]

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return the `k` nearest passages. Raises MissingEmbeddingError, ArmError."""
        vector = question_vector(query, self._backbone, self._index.dim, arm=self.name)
        scores, positions = self._index.nearest(vector, k, self._corpus.find_permitted(query))
        passages = zip(self._corpus.passages(positions[:k]), scores[:k].tolist(), strict=True)
        return Retrieval(tuple(passage.replace_score(score) for passage, score in passages))


class DenseBatch:
    """Dense arms over one index, which all find the same."""

    def __init__(self, names: Sequence[str], stage: FirstStage) -> None:
        self.names = tuple(names)
        self.backbones = frozenset({stage.backbone})
        self._stage = stage

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return the `k` nearest, one row per arm."""
        near = self._stage.candidates(query, k, arm=self.names[0]).positions
        return np.tile(np.pad(near, (0, k - len(near)), constant_values=-1), (len(self.names), 1))


def prepare_index(params: IndexParams, have: Resources, progress: Progress | None = None) -> None:
    """Build the index of an arm if it is missing. Raises ModelNotFoundError."""
    VectorIndex.prepare(have.corpus, have.indexes, params, have.backbones[params.backbone], progress)
