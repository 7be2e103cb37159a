"""Discounted similarity: the batch picks what the plain greedy of the formula does."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.arms.more.diversity import pick_discounted

Floats = NDArray[np.float64]


def candidates(seed: int, m: int, dim: int) -> tuple[Floats, Floats]:
    """Return relevance and vectors of candidates, nearest first; some are copies of others."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(m, dim))
    vectors[rng.random(m) < 0.3] = vectors[rng.integers(m)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = rng.normal(size=dim)
    relevance = np.array([vector @ query for vector in vectors]) / np.linalg.norm(query)
    order = np.argsort(-relevance, kind="stable")
    return relevance[order], vectors[order]


def plain(
    relevance: Floats, vectors: Floats, gamma: float, threshold: float, n: int
) -> tuple[list[int], list[float]]:
    """Pick and score as the formula says, a candidate at a time."""
    scores = dict(enumerate(relevance.tolist()))
    picks, when_picked = [], []
    for _ in range(n):
        best = max(scores, key=lambda d: (scores[d], -d))
        picks.append(best)
        when_picked.append(scores.pop(best))
        for d in scores:
            c = float(vectors[d] @ vectors[best])
            scores[d] *= math.exp(-gamma * (c if c >= threshold else 0.0))
    return picks, when_picked


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.integers(2, 16),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 0.95)), min_size=1, max_size=6),
    st.data(),
)
@pytest.mark.slow
def test_the_batch_picks_and_scores_as_the_plain_greedy_does(
    seed: int, m: int, dim: int, configurations: list[tuple[float, float]], data: st.DataObject
) -> None:
    relevance, vectors = candidates(seed, m, dim)
    n = data.draw(st.integers(1, m))
    gammas, thresholds = np.array(configurations).T
    picks, scores = pick_discounted(relevance, vectors, gammas, thresholds, n)
    for row, (gamma, threshold) in enumerate(configurations):
        expected, expected_scores = plain(relevance, vectors, gamma, threshold, n)
        assert picks[row].tolist() == expected
        assert scores[row] == pytest.approx(expected_scores, abs=1e-7)


def test_scores_are_those_worked_out_by_hand() -> None:
    vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    picks, scores = pick_discounted(
        np.array([0.9, 0.8, 0.5]), vectors, np.array([2.0, 2.0, 2.0]), np.array([0.0, 0.7, 0.9]), 3
    )
    assert picks.tolist() == [[0, 2, 1], [0, 2, 1], [0, 1, 2]]
    expected = [
        [0.9, 0.5, 0.8 * math.exp(-2 * 0.8) * math.exp(-2 * 0.6)],
        [0.9, 0.5, 0.8 * math.exp(-2 * 0.8)],
        [0.9, 0.8, 0.5],
    ]
    np.testing.assert_allclose(scores, expected)


def test_a_threshold_of_one_discounts_copies_alone() -> None:
    rng = np.random.default_rng(11)
    vectors = rng.normal(size=(3, 700))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors[[0, 0, 1, 1, 2]].astype(np.float32)
    relevance = np.array([0.9, 0.9, 0.8, 0.8, 0.7])
    picks, _ = pick_discounted(relevance, vectors, np.array([3.0]), np.array([1.0]), 5)
    assert picks[0].tolist() == [0, 2, 4, 1, 3]


def test_resemblance_that_points_away_changes_nothing() -> None:
    vectors = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, 1.0]])
    _, scores = pick_discounted(np.array([0.5, 0.4, 0.3]), vectors, np.array([5.0]), np.zeros(1), 2)
    assert scores[0].tolist() == [0.5, 0.4]


def test_the_harshest_discount_still_picks_each_candidate_once() -> None:
    vectors = np.ones((40, 8))
    picks, scores = pick_discounted(np.linspace(1, 0.1, 40), vectors, np.array([100.0]), np.zeros(1), 40)
    assert sorted(picks[0].tolist()) == list(range(40))
    assert np.isfinite(scores).all()
