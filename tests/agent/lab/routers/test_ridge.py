"""Linear routers: equal to scikit-learn's on the same inputs, and held down as far as the data want it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC, LinearSVR

from armwise.agent.lab.routers import ridge
from armwise.agent.lab.routers.cross_validation import best_candidate, choose_best, folds
from armwise.agent.lab.routers.preprocessing import Preparation
from armwise.agent.lab.routers.ridge import RidgeRouter, solve
from armwise.agent.lab.routers.svm import PointwiseSVM, rank
from armwise.agent.routers.catalog import load_router
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset
from tests.router_contracts import world


def vectorizer(least: int) -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, 2), min_df=least, sublinear_tf=True)


def test_ridge_on_words_is_the_ridge_regression_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "STRENGTHS", (2.5,))
    labels, asked = world(120, seed=1), world(10, seed=2).features
    router = RidgeRouter(sees="words").fit(labels)
    theirs = vectorizer(3)
    inputs = theirs.fit_transform(labels.features.texts).toarray()
    model = Ridge(alpha=2.5, solver="svd").fit(inputs, labels.utility)
    expected = model.predict(theirs.transform(asked.texts).toarray())
    np.testing.assert_allclose(router.scores(asked), expected, atol=1e-5)
    np.testing.assert_array_equal(load_router(router.save()).scores(asked), router.scores(asked))


def test_each_arm_is_fitted_to_the_questions_where_it_is_known() -> None:
    rng = np.random.default_rng(0)
    inputs, utility = rng.normal(size=(40, 3)), rng.normal(size=(40, 4))
    utility[rng.random(utility.shape) < 0.5] = np.nan
    utility[:, 3] = np.nan
    coefficients, intercept = solve(inputs, utility, 2.0)
    for arm in range(3):
        known = ~np.isnan(utility[:, arm])
        model = Ridge(alpha=2.0).fit(inputs[known], utility[known, arm])
        np.testing.assert_allclose(coefficients[:, arm], model.coef_, atol=1e-10)
        assert intercept[arm] == pytest.approx(model.intercept_)
    assert coefficients[:, 3].tolist() == [0.0, 0.0, 0.0]
    assert intercept[3] == np.nanmin(utility)


def test_an_arm_of_which_nothing_is_known_scores_0_where_all_others_are_better() -> None:
    _, intercept = solve(np.zeros((3, 1)), np.array([[0.5, np.nan], [0.7, np.nan], [0.9, np.nan]]), 2.0)
    assert intercept.round(9).tolist() == [0.7, 0.0]


@pytest.mark.parametrize("sees", ["words", "embedding", "features"])
def test_ridge_learns_signal_and_holds_down_noise(sees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = world(200, seed=1)
    assert RidgeRouter(sees=sees).fit(labels).strength < 300.0
    features = labels.features
    utility = np.random.default_rng(3).normal(np.array([0.0, 0.0, 0.6, 0.0]), size=labels.utility.shape)
    monkeypatch.setattr(ridge, "STRENGTHS", (1e6, 1.0))
    router = RidgeRouter(sees=sees).fit(RoutingDataset(features, utility))
    assert router.strength == 1e6
    assert (router.scores(features).argmax(axis=1) == 2).all()


def test_ridge_without_a_known_word_scores_the_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ridge, "LEAST", 1000)
    labels = world(30, seed=1)
    router = RidgeRouter().fit(labels)
    expected = np.broadcast_to(labels.utility.mean(axis=0), labels.utility.shape)
    for same in (router, load_router(router.save())):
        np.testing.assert_allclose(same.scores(labels.features), expected)


def test_ridge_on_the_embedding_needs_one() -> None:
    labels = world(30, seed=1)
    seen = labels.features
    bare = Features(seen.arms, seen.texts, seen.names, seen.question, np.empty((30, 0), dtype=np.float32))
    with pytest.raises(RouterError, match="needs the questions' embeddings"):
        RidgeRouter(sees="embedding").fit(RoutingDataset(bare, labels.utility))


@pytest.mark.parametrize("stage", ["question", "retrieved"])
def test_pointwise_svm_is_the_one_of_scikit_learn(stage: str) -> None:
    labels, asked = world(150, seed=1), world(10, seed=2).features
    labels.utility[:30, 1] = np.nan
    router = PointwiseSVM(stage=stage).fit(labels)

    schema = router.schema
    assert schema is not None

    def rows(features: Features) -> Floats:
        features = schema.conform(features)
        question, own = preparation.question(features), preparation.impute(features)
        names = 3.0 * np.eye(4)
        return np.array(
            [np.concatenate([q, c, names[a]]) for q, of_arms in zip(question, own, strict=True)
             for a, c in enumerate(of_arms)]
        )  # fmt: skip

    preparation = router._preparation  # noqa: SLF001 - what it learned is tested elsewhere
    known = ~np.isnan(labels.utility.ravel())
    kernel = Nystroem(gamma=0.01, n_components=256, random_state=0)
    model = LinearSVR(C=1.0, epsilon=0.1, loss="squared_epsilon_insensitive", dual=False).fit(
        kernel.fit_transform(rows(labels.features)[known]), labels.utility.ravel()[known]
    )
    expected = model.predict(kernel.transform(rows(asked))).reshape(10, 4)
    np.testing.assert_allclose(router.scores(asked), expected, atol=1e-6)


def test_pairwise_svm_is_the_one_of_scikit_learn_on_all_differences() -> None:
    rng = np.random.default_rng(0)
    n, d, n_arms = 60, 3, 3
    question, own = rng.normal(size=(n, d)), rng.normal(size=(n, n_arms, 2))
    utility = rng.integers(3, size=(n, n_arms)).astype(float)
    utility[:10, 0] = np.nan
    strength, free = 5.0, 1e3  # offsets a thousand times as large cost next to nothing
    differences, better = [], []
    for i in range(n):
        for a in range(n_arms):
            for b in range(n_arms):
                if (
                    utility[i, a] > utility[i, b] or utility[i, a] < utility[i, b]
                ):  # a tie, or unknown: neither
                    signs = np.eye(n_arms)[a] - np.eye(n_arms)[b]
                    row = [np.outer(question[i], signs).ravel(), own[i, a] - own[i, b], free * signs]
                    differences.append(np.concatenate(row))
                    better.append(utility[i, a] > utility[i, b])
    # both directions are here, so an error costs half
    model = LinearSVC(C=0.25 / strength, dual=False, fit_intercept=False, tol=1e-8, max_iter=100_000)
    weights = model.fit(np.array(differences), better).coef_[0]

    ours = rank(question, own, utility, strength)

    np.testing.assert_allclose(ours.question, weights[: d * n_arms].reshape(d, n_arms), atol=2e-3)
    np.testing.assert_allclose(ours.own, weights[d * n_arms :][:2], atol=2e-3)
    offset = free * weights[-n_arms:]
    np.testing.assert_allclose(ours.offset - ours.offset[0], offset - offset[0], atol=2e-3)


def test_ties_teach_a_pairwise_svm_nothing() -> None:
    labels = world(80, seed=1)
    tied = labels.utility.copy()
    tied[:20] = 0.5
    preparation = Preparation.fit(labels.features, 4)
    question, own = preparation.question(labels.features), preparation.impute(labels.features)
    with_ties = rank(question, own, tied, 3.0)
    without = rank(question[20:], own[20:], tied[20:], 3.0)
    np.testing.assert_allclose(with_ties.question, without.question, atol=1e-12)


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=30), st.integers(2, 6), st.integers(0, 5))
def test_folds_hold_out_each_text_once(texts: list[str], n: int, seed: int) -> None:
    cut = folds(texts, n, seed)
    assert len(cut) == (min(n, len(set(texts))) if len(set(texts)) > 1 else 0)
    if cut:
        assert sorted(row for _, held_out in cut for row in held_out.tolist()) == [*range(len(texts))]
    for seen, held_out in cut:
        assert not {texts[row] for row in seen} & {texts[row] for row in held_out}
        assert len(seen) + len(held_out) == len(texts)
        assert len(held_out)


def test_what_is_not_known_is_not_asked() -> None:
    utility = np.array([[np.nan, 1.0, 2.0], [np.nan, np.nan, 9.0], [3.0, 4.0, np.nan]])
    scores = np.array([[9.0, 5.0, 4.0], [1.0, 1.0, 1.0], [1.0, 0.0, 7.0]])
    assert choose_best(scores, utility).sum() == 1.0 + 3.0


def test_of_candidates_that_earn_the_same_the_first_is_chosen() -> None:
    labels = world(20, seed=1)
    scores = (labels.utility[::-1], -labels.utility, labels.utility, 2.0 * labels.utility)

    def rehearse(seen: object, held_out: object) -> list[Floats]:
        del seen
        return [candidate[held_out] for candidate in scores]

    assert best_candidate(4, rehearse, labels) == 2


def test_each_compared_question_counts_as_much_however_few_its_part_has() -> None:
    labels = world(60, seed=1)
    labels.utility[:] = np.nan
    (_, many), *others = folds(labels.features.texts)
    labels.utility[many, :2] = 0.3, 0.0
    for _, part in others:
        labels.utility[part[0], :2] = 0.0, 0.4

    def rehearse(seen: object, held_out: Sequence[int]) -> list[Floats]:
        del seen
        return [np.tile(row, (len(held_out), 1)) for row in np.eye(labels.utility.shape[1])[:2]]

    assert best_candidate(2, rehearse, labels) == 0
