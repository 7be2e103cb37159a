"""Nearest training questions: against a search one by one, and where a line through the embedding fails."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.agent.lab.routers.neighbors import AT_ONCE, WEIGHT, Neighbors
from armwise.agent.lab.routers.ridge import RidgeRouter
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import Features, Floats, RoutingDataset


def units(rng: np.random.Generator, n: int, dim: int = 8) -> NDArray[np.float32]:
    drawn = rng.normal(size=(n, dim))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


def one_by_one(kept: Neighbors, question: NDArray[np.float32], own: int | None = None) -> list[float]:
    """The mean of the k highest cosines to the examples of each arm."""
    found = []
    for arm in range(kept.best.shape[1]):
        cosines = [
            float(question @ example)
            for at, example in enumerate(kept.examples)
            if kept.best[at, arm] and at != own
        ]
        highest = sorted(cosines)[-kept.k :]
        found.append(sum(highest) / len(highest) if highest else 0.0)
    return found


@pytest.mark.parametrize("k", [1, 3, 500])
def test_similarities_are_means_of_the_nearest_questions_of_each_arm(k: int) -> None:
    rng = np.random.default_rng(4)
    kept = Neighbors.fit(units(rng, 40), rng.random((40, 3)).round(1), k)
    asked = units(rng, 10)
    expected = [one_by_one(kept, question) for question in asked]
    np.testing.assert_allclose(kept.similarities(asked), expected, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 40])
def test_a_training_question_is_no_neighbor_of_its_own(k: int) -> None:
    rng = np.random.default_rng(5)
    embedding = units(rng, 30)
    kept = Neighbors.fit(embedding, rng.random((30, 3)), k)
    expected = [one_by_one(kept, question, own) for own, question in enumerate(embedding)]
    np.testing.assert_allclose(kept.similarities(embedding, training=True), expected, atol=1e-3)


def test_many_training_questions_are_compared_in_parts() -> None:
    rng = np.random.default_rng(6)
    embedding = units(rng, AT_ONCE + 3)
    kept = Neighbors.fit(embedding, rng.random((AT_ONCE + 3, 2)), 2)
    found = kept.similarities(embedding, training=True)
    for row in (0, AT_ONCE - 1, AT_ONCE, AT_ONCE + 2):
        np.testing.assert_allclose(found[row], one_by_one(kept, embedding[row], row), atol=1e-3)


def test_an_arm_is_the_best_where_none_is_better_and_some_is_worse() -> None:
    nan = np.nan
    utility = np.array([[0.2, 0.9, 0.9], [0.5, 0.5, 0.5], [nan, 0.1, 0.3], [nan, nan, 0.4], [nan, nan, nan]])
    kept = Neighbors.fit(units(np.random.default_rng(1), 5), utility, 1)
    assert kept.best.tolist() == [
        [False, True, True],
        [False, False, False],
        [False, False, True],
        [False, False, False],
        [False, False, False],
    ]


def test_an_arm_that_was_never_the_best_is_near_to_nothing() -> None:
    utility = np.array([[0.0, 1.0], [0.0, 1.0]])
    embedding = units(np.random.default_rng(2), 2)
    kept = Neighbors.fit(embedding, utility, 5)
    assert kept.similarities(embedding)[:, 0].tolist() == [0.0, 0.0]
    alone = Neighbors.fit(embedding[:1], utility[:1], 5)
    assert alone.similarities(embedding[:1], training=True).tolist() == [[0.0, 0.0]]


def test_the_regression_sees_the_embedding_and_the_similarities() -> None:
    rng = np.random.default_rng(3)
    embedding = units(rng, 12)
    kept = Neighbors.fit(embedding, rng.random((12, 3)), 2)
    inputs = kept.inputs(embedding)
    np.testing.assert_allclose(inputs[:, :8], embedding)
    np.testing.assert_allclose(inputs[:, 8:], 3.0 * kept.similarities(embedding))


CENTRES = units(np.random.default_rng(9), 40, 4)


def groups(n: int, seed: int) -> RoutingDataset:
    """Questions of forty groups that overlap in four dimensions, each answered by one of three arms."""
    rng = np.random.default_rng(seed)
    group = rng.integers(len(CENTRES), size=n)
    near = CENTRES[group] + 0.05 * rng.normal(size=(n, 4))
    embedding = np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), dtype=np.float32)
    utility: Floats = np.eye(3)[group % 3]
    texts = tuple(f"question {seed} {i}" for i in range(n))
    return RoutingDataset(Features(("a", "b", "c"), texts, (), np.zeros((n, 0)), embedding), utility)


def right(router: RidgeRouter, asked: RoutingDataset) -> float:
    return float((router.scores(asked.features).argmax(axis=1) == asked.utility.argmax(axis=1)).mean())


def test_small_groups_of_questions_are_told_apart_by_neighbors_and_not_by_a_line() -> None:
    labels, asked = groups(600, 1), groups(300, 2)
    line = RidgeRouter(sees="embedding").fit(labels)
    near = RidgeRouter(sees="neighbors").fit(labels)
    assert right(line, asked) < 0.6
    assert right(near, asked) > 0.75


def test_passages_of_the_source_of_each_arm_are_seen_too() -> None:
    rng = np.random.default_rng(11)
    embedding, utility, asked = units(rng, 20), rng.random((20, 4)), units(rng, 5)
    docs, tickets = units(rng, 6), units(rng, 3)
    kept = Neighbors.fit(embedding, utility, 2, [docs, tickets, None, docs])
    assert (kept.passages.shape, kept.sources.sum(axis=0).tolist()) == ((9, 8), [6, 3, 0, 6])
    inputs = kept.inputs(asked)
    assert inputs.shape == (5, 8 + 4 + 4)
    np.testing.assert_allclose(inputs[:, :12], Neighbors.fit(embedding, utility, 2).inputs(asked))
    for row, question in enumerate(asked):
        near = [float(np.sort(one @ question)[-2:].mean()) for one in (docs, tickets)]
        expected = [near[0], near[1], 0.0, near[0]]
        np.testing.assert_allclose(inputs[row, 12:] / WEIGHT, expected, atol=2e-3)


def test_a_training_question_is_compared_with_every_passage() -> None:
    rng = np.random.default_rng(12)
    embedding = units(rng, 10)
    kept = Neighbors.fit(embedding, rng.random((10, 2)), 1, [embedding, None])
    np.testing.assert_allclose(kept.inputs(embedding, training=True)[:, 10] / WEIGHT, 1.0, atol=2e-3)


def test_a_router_that_was_fitted_with_passages_needs_none_to_score_and_is_the_same_once_saved() -> None:
    rng = np.random.default_rng(13)
    labels, asked = groups(80, 3), groups(20, 4).features
    sampled = {arm: units(rng, 4, 4) for arm in "abc"}
    router = RidgeRouter(sees="neighbors").fit(
        replace(labels, features=replace(labels.features, passages=sampled))
    )
    np.testing.assert_allclose(load_router(router.save()).scores(asked), router.scores(asked), atol=1e-9)
    without = RidgeRouter(sees="neighbors").fit(labels)
    assert not np.allclose(without.scores(asked), router.scores(asked))


def test_some_of_the_questions_and_of_the_arms_keep_the_passages() -> None:
    features = replace(groups(6, 5).features, passages={"a": units(np.random.default_rng(1), 2, 4)})
    for some in (features.rows([0, 3]), features.select_arms(["c", "a"])):
        assert some.passages is features.passages
