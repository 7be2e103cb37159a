"""Arms that select diverse passages among the nearest ones.

A family is its parameters and one function that picks for all of its configurations at
once; an arm is a batch of one.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from armwise.arms.base import Progress, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import IndexParams
from armwise.arms.retrievers.dense import Candidates, FirstStage, first_stage, prepare_index
from armwise.arms.retrievers.kind import BatchedArms, Kind, Members, Resources
from armwise.number import Number

DECIMALS = 9
"""Cosines are rounded: the last digits of a product depend on the shape of the matrices."""


class DiverseParams(IndexParams):
    """Parameters of an arm that selects among candidates."""

    depth: int = Field(1000, ge=1, description="Number of candidates to choose from, at least `k`.")


P = TypeVar("P", bound=DiverseParams)

Picks = tuple[NDArray[np.intp], NDArray[np.float64]]
"""Indices of candidates, best first, and the score that each had when it was picked, both of shape (c, n)."""

Pick = Callable[[Sequence[P], Candidates, int], Picks]
"""Configurations (c of them), candidates and n -> what each configuration picks."""


class Cosines:
    """Cosines between candidates, computed row by row, as few rows are needed.

    Args:
        vectors: Shape (m, dim), not zero.

    >>> Cosines(np.array([[1.0, 0.0], [0.6, 0.8]])).rows(np.array([1, 0])).tolist()
    [[0.6, 1.0], [1.0, 0.6]]
    """

    def __init__(self, vectors: NDArray[np.floating]) -> None:
        self._vectors = vectors.astype(np.float64)
        self._lengths = np.sqrt(np.einsum("md,md->m", self._vectors, self._vectors))
        self._rows: dict[int, NDArray[np.float64]] = {}

    def rows(self, candidates: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the row of each candidate, shape (*candidates.shape, m)."""
        distinct, which = np.unique(candidates, return_inverse=True)
        new = [row for row in distinct.tolist() if row not in self._rows]
        if new:
            products = self._vectors[new] @ self._vectors.T
            cosines = np.round(products / np.outer(self._lengths[new], self._lengths), DECIMALS)
            self._rows.update(zip(new, cosines, strict=True))
        return np.stack([self._rows[row] for row in distinct.tolist()])[which]


class DiverseBatch(Generic[P]):
    """Arms of one family over the same candidates.

    Args:
        group: Parameters by arm, with equal index and depth.
        stage: Finds the candidates.
        pick: Picks for all arms.
    """

    def __init__(self, group: Mapping[str, P], stage: FirstStage, pick: Pick[P]) -> None:
        self.names = tuple(group)
        self.backbones = frozenset({stage.backbone})
        self._configurations = tuple(group.values())
        self._stage = stage
        self._pick = pick

    def picks(self, query: Query, k: int) -> Picks:
        """Return positions in the corpus, fewer than k where a query may find fewer, and scores.

        The score of a pick is what it added, or the previous score if that was less; ties are
        broken by id.

        Raises:
            ArmError: The query's embedding is missing, or has another dimension than the index.
        """
        depth = max(k, self._configurations[0].depth)
        candidates = self._stage.candidates(query, depth, arm=self.names[0])
        if not len(candidates.positions):  # none is permitted
            none = (len(self.names), 0)
            return np.empty(none, dtype=np.intp), np.empty(none)
        picks, scores = self._pick(self._configurations, candidates, min(k, len(candidates.positions)))
        positions, falling = candidates.positions[picks], np.minimum.accumulate(scores, axis=1)
        order = np.lexsort((self._stage.ranks[positions], -falling), axis=-1)
        return np.take_along_axis(positions, order, axis=1), np.take_along_axis(falling, order, axis=1)

    def positions(self, query: Query, k: int) -> NDArray[np.intp]:
        """Return the picks of each arm."""
        positions, _ = self.picks(query, k)
        return np.pad(positions, ((0, 0), (0, k - positions.shape[1])), constant_values=-1)


class DiverseArm(Kind[P]):
    """The base of arms that select diverse passages among the nearest ones: a family is its `pick`."""

    filters = searches_corpus = True

    def __init__(self, name: str, corpus: Corpus, params: P, stage: FirstStage) -> None:
        self.name = name
        self.backbones = frozenset({stage.backbone})
        self._corpus = corpus
        self._batch = DiverseBatch({name: params}, stage, self.pick)

    @staticmethod
    @abstractmethod
    def pick(configurations: Sequence[P], candidates: Candidates, n: int) -> Picks:
        """Pick `n` candidates for each configuration."""

    @classmethod
    @override
    def prepare(cls, params: P, have: Resources, progress: Progress | None) -> None:
        prepare_index(params, have, progress)

    @classmethod
    @override
    def build(cls, name: str, params: P, have: Resources, member: Members) -> Self:
        return cls(name, have.corpus, params, first_stage(params, have))

    @classmethod
    @override
    def batch(cls, group: Mapping[str, P], have: Resources) -> list[BatchedArms]:
        alike: dict[Hashable, dict[str, P]] = {}
        for name, params in group.items():
            key = tuple(getattr(params, field) for field in DiverseParams.model_fields)
            alike.setdefault(key, {})[name] = params
        return [
            DiverseBatch(members, first_stage(next(iter(members.values())), have), cls.pick)
            for members in alike.values()
        ]

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return `k` passages in the order of the picks. Raises MissingEmbeddingError, ArmError."""
        (positions,), (scores,) = self._batch.picks(query, k)
        passages = zip(self._corpus.passages(positions), scores.tolist(), strict=True)
        return Retrieval(tuple(passage.replace_score(score) for passage, score in passages))


class DiscountedParams(DiverseParams):
    """Parameters of a discounted similarity arm."""

    gamma: Number = Field(
        ge=0.0,
        le=100.0,
        description=(
            "Discount for passages that are similar to a chosen passage. With 0, the arm works as `dense` "
            "does."
        ),
    )
    threshold: Number = Field(
        ge=0.0, le=1.0, description="Cosine similarity below which passages are not discounted."
    )


def pick_discounted(
    relevance: NDArray[np.floating],
    vectors: NDArray[np.floating],
    gammas: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    n: int,
) -> Picks:
    """Pick `n` candidates for each configuration, best first, ties by index.

    A candidate d starts at its relevance; each time a passage p is picked, its score is
    multiplied by exp(-gamma c), where c = cos(d, p), or 0 below the threshold.

    Args:
        relevance: Cosines between question and candidate, shape (m,).
        vectors: Vectors of the candidates, shape (m, dim).
        gammas: In [0, 100], shape (c,).
        thresholds: In [0, 1], shape (c,).
        n: At most m.

    Returns:
        Indices of candidates, and the score of each when it was picked, both of shape (c, n).

    >>> relevance, vectors = np.array([0.9, 0.8, 0.5]), np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> pick_discounted(relevance, vectors, np.array([0.1, 2.0]), np.zeros(2), 2)[0].tolist()
    [[0, 1], [0, 2]]

    Source: Retriever Portfolios, 2026, arXiv:2605.31176 (DiscountedSimilarity).
    """
    cosines = Cosines(vectors)
    current = np.tile(relevance.astype(np.float64), (len(gammas), 1))
    picks = np.empty((len(gammas), n), dtype=np.intp)
    scores = np.empty((len(gammas), n))
    for step in range(n):
        if step:
            # in place: allocation takes longer than the computation
            factors = cosines.rows(picks[:, step - 1])
            factors *= factors >= thresholds[:, np.newaxis]
            factors *= -gammas[:, np.newaxis]
            current *= np.exp(factors, out=factors)
            np.put_along_axis(current, picks[:, step - 1 : step], -np.inf, axis=1)
        picks[:, step] = current.argmax(axis=1)
        scores[:, step] = current.max(axis=1)
    return picks, scores


class DiscountedArm(DiverseArm[DiscountedParams]):
    """Picks the nearest passages one by one, and lowers the scores of those similar to a pick."""

    kind = "ds"
    params = DiscountedParams
    example: ClassVar = {"backbone": "minilm", "gamma": 1.0, "threshold": 0.2}
    features = ("gamma", "threshold")

    @staticmethod
    @override
    def pick(configurations: Sequence[DiscountedParams], candidates: Candidates, n: int) -> Picks:
        gammas = np.array([params.gamma for params in configurations])
        thresholds = np.array([params.threshold for params in configurations])
        return pick_discounted(candidates.relevance, candidates.vectors, gammas, thresholds, n)
