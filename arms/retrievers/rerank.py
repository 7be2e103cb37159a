"""Arms that rerank the passages of another arm.

Reranked       searches with the other arm, scores its passages again, and keeps the best
regularized    scores averaged over similar passages, as LTRR does
plackett_luce  a ranking sampled from the scores
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Passage, Progress, Query, Retrieval
from armwise.arms.corpus import Corpus, CorpusError
from armwise.arms.indexes import Vectors, prepare_vectors
from armwise.arms.retrievers.kind import Kind, Members, Resources

Rescore = Callable[[Query, Sequence[Passage]], NDArray[np.floating]]
"""A question and at least one passage, best first -> a new score for each, shape (n,). Raises ArmError."""


class RerankParams(BaseModel):
    """Parameters of every reranking arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arm: str = Field(description="Arm whose passages are reranked.")
    depth: int = Field(50, ge=1, description="Number of passages to take from that arm, at least `k`.")


R = TypeVar("R", bound=RerankParams)


class RerankedArm(Kind[R]):
    """Ranks the passages of another arm by new scores; steps and tokens are those of the arm."""

    filters = True
    features: tuple[str, ...] = ("depth",)

    def __init__(self, name: str, base: Arm, depth: int, rescore: Rescore) -> None:
        self.name = name
        self.backbones = base.backbones
        self._base = base
        self._depth = depth
        self._rescore = rescore

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return the `k` best of the `depth` passages that the other arm finds. Raises ArmError."""
        retrieval = self._base.search(query, max(k, self._depth))
        if not retrieval.passages:
            return retrieval
        scores = self._rescore(query, retrieval.passages).tolist()
        passages = [p.replace_score(score) for p, score in zip(retrieval.passages, scores, strict=True)]
        ranked = sorted(passages, key=lambda passage: (-passage.score, passage.id))
        return replace(retrieval, passages=tuple(ranked[:k]))


class RegularizeParams(RerankParams):
    """Parameters of score regularisation."""

    backbone: str = Field(description="Backbone for the similarity of passages.")
    neighbors: int = Field(
        50,
        ge=1,
        description=(
            "Number of similar passages that each score is averaged over, including the passage itself."
        ),
    )
    passes: int = Field(
        1,
        ge=1,
        le=1000,
        description="Number of times to average, t in LTRR's P^t s. Each brings the scores closer together.",
    )


class Regularizer:
    """Average scores over similar passages of a corpus.

    Args:
        name: The arm.
        corpus: The corpus.
        vectors: Unit vectors by position, shape (n_passages, dim); may be memory-mapped.
        params: Parameters.
    """

    def __init__(
        self, name: str, corpus: Corpus, vectors: NDArray[np.float32], params: RegularizeParams
    ) -> None:
        self._name = name
        self._corpus = corpus
        self._vectors = vectors
        self._params = params

    def __call__(self, _: Query, passages: Sequence[Passage]) -> NDArray[np.float64]:
        """Return the averaged scores. Raises ArmError for a passage outside the corpus."""
        try:
            positions = self._corpus.positions([passage.id for passage in passages])
        except CorpusError as error:
            raise ArmError(
                f"arm {self._name!r} has no vector for what {self._params.arm!r} found: {error}"
            ) from error
        scores = np.array([passage.score for passage in passages])
        return regularize(scores, self._vectors[positions], self._params.neighbors, self._params.passes)


def regularize(
    scores: NDArray[np.float64], vectors: NDArray[np.floating], neighbors: int, passes: int = 1
) -> NDArray[np.float64]:
    """Return P^passes scores: each pass replaces scores by means over similar passages, weighted by cosine.

    P is `vectors @ vectors.T` with the `neighbors` largest values of each row, the 1 of the
    passage itself among them, divided by the sum of the row. Negative cosines count 0.

    Args:
        scores: Shape (n,).
        vectors: Unit rows, shape (n, dim).
        neighbors: At least 1; all if there are fewer.
        passes: How many times to average.

    Returns:
        Shape (n,), between the least and the largest of `scores`.

    Source: Kim and Diaz 2025, LTRR: Learning To Rank Retrievers for LLMs, appendix A; after
    Diaz 2007, Regularizing query-based retrieval scores, Information Retrieval 10.

    >>> alike, other = [1.0, 0.0], [0.0, 1.0]
    >>> regularize(np.array([3.0, 2.0, 1.0]), np.array([alike, other, alike]), neighbors=3).tolist()
    [2.0, 2.0, 2.0]
    """
    kept = np.maximum(vectors @ vectors.T, 0.0).astype(np.float64)
    if neighbors < len(kept):
        order = np.argsort(-kept, axis=1, kind="stable")
        np.put_along_axis(kept, order[:, neighbors:], 0.0, axis=1)
    transition = kept / kept.sum(axis=1, keepdims=True)
    return np.asarray(np.linalg.matrix_power(transition, passes) @ scores)


POWER = 2.0
"""Power of the scores by which rankings are drawn: 0 would draw all orders alike."""


def compute_weights(scores: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return the scores min-max scaled, plus 1, to a power: shape (n,), in [1, 2 ** power].

    >>> compute_weights(np.array([7.0, 5.0, 3.0]), power=2.0).tolist()
    [4.0, 2.25, 1.0]
    >>> compute_weights(np.array([3.0, 3.0]), power=2.0).tolist()
    [1.0, 1.0]
    """
    above = scores - scores.min()
    return np.asarray((above / (above.max() or 1.0) + 1.0) ** power)


def plackett_luce(
    weights: NDArray[np.float64], rng: np.random.Generator, n_rankings: int
) -> NDArray[np.float64]:
    """Sample rankings in which each place is drawn from the rest in proportion to the weights.

    Args:
        weights: Positive, shape (n,).
        rng: Source of randomness.
        n_rankings: Number of rankings.

    Returns:
        Log weights plus Gumbel noise, shape (n_rankings, n). A row sorted in descending order
        is a ranking, and its first k are distributed as those drawn place by place.

    Source: Gumbel's trick, as in Oosterhuis 2021, Computationally Efficient Optimization of
    Plackett-Luce Ranking Models for Relevance and Fairness, arXiv:2105.00855.
    """
    return np.log(weights) + rng.gumbel(size=(n_rankings, len(weights)))


class RegularizedArm(RerankedArm[RegularizeParams]):
    """Replaces each passage's score by the mean score of similar passages."""

    kind = "regularize"
    params = RegularizeParams
    example: ClassVar = {"arm": "bm25", "backbone": "minilm"}
    features = ("depth", "neighbors", "passes")
    searches_corpus = True

    @classmethod
    @override
    def embeds(cls, params: RegularizeParams) -> tuple[str, ...]:
        return ()

    @classmethod
    @override
    def prepare(cls, params: RegularizeParams, have: Resources, progress: Progress | None) -> None:
        prepare_vectors(have.corpus, have.indexes, have.backbones[params.backbone], progress)

    @classmethod
    @override
    def build(cls, name: str, params: RegularizeParams, have: Resources, member: Members) -> Self:
        backbone = have.backbones[params.backbone]
        vectors = have.share(
            ("vectors", params.backbone), lambda: Vectors.locate(have.corpus, have.indexes, backbone).read()
        )
        regularizer = Regularizer(name, have.corpus, vectors, params)
        return cls(name, member(params.arm), params.depth, regularizer)


class PlackettLuceArm(RerankedArm[RerankParams]):
    """Draws a random ranking from another arm's scores."""

    kind = "plackett_luce"
    params = RerankParams
    example: ClassVar = {"arm": "dense"}
    light = draws = True

    @classmethod
    @override
    def build(cls, name: str, params: RerankParams, have: Resources, member: Members) -> Self:
        def draw(query: Query, passages: Sequence[Passage]) -> NDArray[np.float64]:
            # with the name, so that two fused arms do not draw the same noise
            rng = np.random.default_rng([query.seed, *name.encode()])
            weights = compute_weights(np.array([passage.score for passage in passages]), POWER)
            return plackett_luce(weights, rng, n_rankings=1).ravel()

        return cls(name, member(params.arm), params.depth, draw)
