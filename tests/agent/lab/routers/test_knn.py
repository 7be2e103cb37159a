"""Nearest neighbours: against scikit-learn, with unknown utilities, ties, and the choice of their number."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.agent.lab.routers import knn
from armwise.agent.lab.routers.cross_validation import folds
from armwise.agent.lab.routers.knn import NearestNeighbors, mean_of_nearest
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset


def units(rng: np.random.Generator, n: int, dim: int = 8) -> NDArray[np.float32]:
    drawn = rng.normal(size=(n, dim))
    halved = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)
    return halved.astype(np.float32)


def labels(n: int, seed: int, noise: float = 0.3) -> RoutingDataset:
    """Return questions on which the first of three arms is worth what the first number of the vector says."""
    rng = np.random.default_rng(seed)
    embedding = units(rng, n)
    utility: Floats = 0.1 * np.arange(3.0) + noise * rng.normal(size=(n, 3))
    utility[:, 0] += embedding[:, 0]
    texts = tuple(f"question {seed} {i}" for i in range(n))
    return RoutingDataset(Features(("a", "b", "c"), texts, (), np.zeros((n, 0)), embedding), utility)


@pytest.mark.parametrize("k", [1, 7, 40, 90])
def test_scores_are_those_of_scikit_learn(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "COUNTS", (k,))
    from sklearn.neighbors import KNeighborsRegressor

    known, asked = labels(90, 1), labels(30, 2).features
    theirs = KNeighborsRegressor(n_neighbors=k, metric="cosine", algorithm="brute")
    expected = theirs.fit(known.features.embedding.astype("f8"), known.utility).predict(asked.embedding)
    ours = NearestNeighbors().fit(known)
    np.testing.assert_allclose(ours.scores(asked), expected, atol=1e-9)


def test_the_number_of_neighbors_is_that_of_a_grid_search_of_scikit_learn() -> None:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsRegressor

    for seed in (1, 2, 3):
        known = labels(400, seed)
        search = GridSearchCV(
            KNeighborsRegressor(metric="cosine", algorithm="brute"),
            {"n_neighbors": list(knn.COUNTS)},
            scoring="neg_mean_squared_error",
            cv=folds(known.features.texts),
        )
        search.fit(known.features.embedding.astype("f8"), known.utility)
        ours = NearestNeighbors().fit(known)
        assert ours.k == search.best_params_["n_neighbors"]


def test_noisy_labels_take_more_neighbors_than_exact_ones() -> None:
    exact, noisy = (NearestNeighbors().fit(labels(400, 5, noise)).k for noise in (0.0, 2.0))
    assert exact <= 20
    assert noisy >= 60


def test_an_arm_has_the_neighbors_on_which_it_is_known() -> None:
    rng = np.random.default_rng(7)
    asked, known, utility = units(rng, 10), units(rng, 60), rng.normal(size=(60, 3))
    utility[::2, 1] = np.nan
    utility[:, 2] = np.nan
    (scores,) = mean_of_nearest(asked, known, utility, [5])
    for arm, rows in ((0, slice(None)), (1, slice(1, None, 2))):
        (alone,) = mean_of_nearest(asked, known[rows], utility[rows, arm, None], [5])
        np.testing.assert_allclose(scores[:, arm], alone[:, 0])
    np.testing.assert_allclose(scores[:, 2], np.nanmin(utility))
    (gained,) = mean_of_nearest(asked, known, utility + 9.0, [5])
    assert gained[:, 2].tolist() == [0.0] * 10


def test_questions_as_near_as_the_last_neighbor_count_too() -> None:
    vectors = np.eye(3, dtype=np.float32)[[0, 0, 0, 1]]
    utility = np.array([[1.0], [2.0], [6.0], [9.0]])
    (scores,) = mean_of_nearest(np.eye(3, dtype=np.float32), vectors, utility, [2])
    np.testing.assert_allclose(scores, [[3.0], [4.5], [4.5]])  # one is near, and three are as far


def test_a_question_whose_embedding_is_0_has_the_means() -> None:
    known, asked = labels(50, 9), labels(2, 10).features
    router = NearestNeighbors().fit(known)
    nothing = replace(asked, embedding=np.zeros_like(asked.embedding))
    np.testing.assert_allclose(router.scores(nothing)[0], known.utility.mean(axis=0))


def test_many_questions_are_compared_in_parts() -> None:
    rng = np.random.default_rng(11)
    asked, known = units(rng, 1030), units(rng, 40)
    utility = rng.random((40, 2))
    (scores,) = mean_of_nearest(asked, known, utility, [3])
    (last,) = mean_of_nearest(asked[1020:], known, utility, [3])
    np.testing.assert_allclose(scores[1020:], last)


def test_labels_without_embeddings_are_refused() -> None:
    known = labels(10, 14)
    bare = replace(known.features, embedding=np.zeros((10, 0), dtype=np.float32))
    with pytest.raises(RouterError, match="needs the questions' embeddings"):
        NearestNeighbors().fit(replace(known, features=bare))
