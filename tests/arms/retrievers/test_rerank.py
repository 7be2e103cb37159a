"""Ranking anew: scores that flow between alike passages, and rankings that are drawn."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare
from sklearn.neighbors import kneighbors_graph

from armwise.arms.base import Arm, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import IndexMismatchError
from armwise.arms.indexes import vectors as indexe_vectors
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.retrievers.bm25 import BM25Arm, BM25Params
from armwise.arms.retrievers.kind import ArmSpec, NoRetrieval, Resources
from armwise.arms.retrievers.rerank import (
    PlackettLuceArm,
    RegularizedArm,
    RegularizeParams,
    RerankParams,
    compute_weights,
    plackett_luce,
    regularize,
)
from tests.arms.contract import DIM, ask

BACKBONE = Backbone(model=f"hashing:{DIM}")
UNLIKELY = 0.001
"""A right sampler is refused by a test on a fixed seed only if its p-value is below this."""


class Given:
    """Returns passages as they are given, and remembers how many it was asked for."""

    backbones = frozenset({"of the base"})

    def __init__(self, passages: Sequence[Passage], *, steps: int = 1, tokens: int = 0) -> None:
        self.name = "given"
        self.asked: list[int] = []
        self._found = (tuple(passages), steps, tokens)

    def search(self, query: Query, k: int) -> Retrieval:
        del query
        self.asked.append(k)
        passages, steps, tokens = self._found
        return Retrieval(passages[:k], steps, tokens)


def scored(scores: Mapping[str, float]) -> list[Passage]:
    return [Passage(name, "", name, score) for name, score in scores.items()]


@pytest.fixture
def resources(corpus: Corpus, tmp_path: Path) -> Resources:
    return Resources(corpus, tmp_path, {"words": BACKBONE}, {"base": ArmSpec(kind="bm25")})


def build_regularize(have: Resources, base: Arm, **params: object) -> Arm:
    told = RegularizeParams.model_validate({"arm": "base", "backbone": "words", **params})
    RegularizedArm.prepare(told, have, None)
    return RegularizedArm.build("smooth", told, have, lambda _: base)


def build_draw(have: Resources, base: Arm, name: str = "drawn", **params: object) -> Arm:
    told = RerankParams.model_validate({"arm": "base", **params})
    return PlackettLuceArm.build(name, told, have, lambda _: base)


@pytest.fixture
def bm25(resources: Resources) -> BM25Arm:
    BM25Arm.prepare(BM25Params(), resources, None)
    return BM25Arm.build("base", BM25Params(), resources, NoRetrieval)


def unit_rows(n: int, seed: int, dim: int = 5) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((n, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@pytest.mark.parametrize("build", [build_regularize, build_draw])
def test_the_base_is_asked_for_depth_or_k_passages(resources: Resources, build: Callable[..., Arm]) -> None:
    base = Given([], steps=3, tokens=70)
    arm = build(resources, base, depth=5)
    assert arm.backbones == {"of the base"}, "the vectors of passages are kept: a query needs none for them"
    assert arm.search(Query("?"), 2) == arm.search(Query("?"), 9) == Retrieval((), 3, 70)
    assert base.asked == [5, 9]


def test_steps_and_tokens_of_the_base_are_those_of_the_arm(resources: Resources) -> None:
    found = Given(scored({"fox": 2.0, "bee": 1.0}), steps=2, tokens=7)
    for arm in (build_regularize(resources, found), build_draw(resources, found)):
        answer = arm.search(Query("?"), 1)
        assert (len(answer.passages), answer.steps, answer.tokens) == (1, 2, 7)


def test_scores_flow_along_the_cosines_of_vectors(resources: Resources, bm25: BM25Arm) -> None:
    query = ask("Which river flows through Vienna, the capital of Austria?")
    before = bm25.search(query, 50).passages
    vectors = HashingEmbedder(DIM).encode_passages(
        [indexe_vectors.compose_text(passage) for passage in before]
    )
    assert len(before) > 4

    found = build_regularize(resources, bm25, neighbors=3, passes=2).search(query, 50).passages

    expected = regularize(np.array([p.score for p in before]), vectors, neighbors=3, passes=2)
    by_id = {passage.id: score for passage, score in zip(before, expected, strict=True)}
    assert {p.id: p.score for p in found} == pytest.approx(by_id)
    assert [p.id for p in found] != [p.id for p in before]


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("neighbors", [1, 2, 7, 20, 50])
def test_regularising_equals_the_graph_of_scikit_learn(neighbors: int, passes: int) -> None:
    scores, vectors = np.random.default_rng(1).random(20), unit_rows(20, seed=2)
    graph = kneighbors_graph(
        vectors, min(neighbors, 20), mode="distance", metric="cosine", include_self=True
    ).tocoo()
    weights = np.zeros((20, 20))
    weights[graph.row, graph.col] = np.maximum(1.0 - graph.data, 0.0)
    expected = scores
    for _ in range(passes):
        expected = weights @ expected / weights.sum(axis=1)
    np.testing.assert_allclose(regularize(scores, vectors, neighbors, passes), expected, atol=1e-6)


def test_opposed_passages_count_nothing() -> None:
    opposed = np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32)
    assert regularize(np.array([3.0, 1.0]), opposed, neighbors=2).tolist() == [3.0, 1.0]


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 1000))
def test_regularised_scores_stay_within_their_range(n: int, neighbors: int, seed: int) -> None:
    scores, vectors = np.random.default_rng(seed).normal(size=n), unit_rows(n, seed)
    found = regularize(scores, vectors, neighbors)
    assert found.min() >= scores.min() - 1e-9
    assert found.max() <= scores.max() + 1e-9


def test_a_passage_from_elsewhere_cannot_be_regularised(resources: Resources) -> None:
    arm = build_regularize(resources, Given(scored({"fox": 2.0, "elsewhere": 1.0})))
    with pytest.raises(
        ArmError, match="arm 'smooth' has no vector for what 'base' found: no passage 'elsewhere'"
    ):
        arm.search(Query("?"), 2)


def test_vectors_that_were_not_made_are_missed(resources: Resources) -> None:
    params = RegularizeParams(arm="base", backbone="words")
    with pytest.raises(IndexMismatchError, match="prepare the arms first"):
        RegularizedArm.build("smooth", params, resources, lambda _: Given([]))


def rankings(weights: Sequence[float], n_rankings: int, seed: int) -> NDArray[np.intp]:
    drawn = plackett_luce(np.array(weights), np.random.default_rng(seed), n_rankings)
    return np.argsort(-drawn, axis=1)


def test_every_order_is_as_likely_as_plackett_and_luce_say() -> None:
    weights = [1.0, 2.25, 4.0, 3.0]
    probability: dict[tuple[int, ...], float] = {}
    for order in permutations(range(4)):
        left, probability[order] = sum(weights), 1.0
        for index in order:
            probability[order] *= weights[index] / left
            left -= weights[index]
    assert sum(probability.values()) == pytest.approx(1.0)
    drawn = [tuple(row) for row in rankings(weights, 48_000, seed=9).tolist()]
    counts = [drawn.count(order) for order in probability]
    assert chisquare(counts, [48_000 * p for p in probability.values()]).pvalue > UNLIKELY


def test_an_arm_draws_by_the_weights_of_its_scores(resources: Resources) -> None:
    arm = build_draw(resources, Given(scored({"a": 9.0, "b": 6.0, "c": 3.0})))
    first = [arm.search(Query("?", seed=seed), 1).passages[0].id for seed in range(3000)]
    expected = 3000 * np.array([4.0, 2.25, 1.0]) / 7.25
    assert chisquare([first.count(name) for name in "abc"], expected).pvalue > UNLIKELY


def test_one_decision_is_drawn_the_same_and_arms_apart(resources: Resources) -> None:
    base = Given(scored({name: float(-rank) for rank, name in enumerate("abcdefgh")}))

    def drawn(name: str, seed: int) -> list[str]:
        found = build_draw(resources, base, name).search(Query("?", seed=seed), 8)
        return [passage.id for passage in found.passages]

    assert drawn("one", 2**53 - 1) == drawn("one", 2**53 - 1)
    assert drawn("one", 5) != drawn("two", 5)
    assert drawn("one", 5) != drawn("one", 6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 100))
def test_weights_keep_the_order_within_bounds(scores: list[float], power: float) -> None:
    weights = compute_weights(np.array(scores), power)
    assert (weights >= 1.0).all()
    assert (weights <= 2.0**power * (1 + 1e-9)).all()
    assert (np.diff(weights[np.argsort(scores)]) >= 0).all()
