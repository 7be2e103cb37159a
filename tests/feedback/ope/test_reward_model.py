"""Cross-fitted reward models: what they see, and what they make of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from armwise.feedback.events import Context
from armwise.feedback.ope.reward_model import cross_fit, featurize, stack
from armwise.feedback.texts import pseudonym

MODELS = ["ridge", "means"]
N_ARMS = 3


def rows(n: int, n_questions: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Features, drawn arms, rewards that depend on both, and questions."""
    rng = np.random.default_rng(seed)
    features, drawn = rng.normal(size=(n, 4)), rng.integers(N_ARMS, size=n)
    reward = 0.2 * drawn + 0.1 * features[:, 0] * drawn + rng.normal(0.0, 0.05, n)
    questions = np.arange(n) % n_questions
    return features, drawn, reward, questions


def test_a_feature_that_no_row_has_changes_nothing() -> None:
    features, drawn, reward, questions = rows(40, 8, 0)
    more = np.hstack([features, np.zeros((40, 1))])
    found, same = (
        cross_fit(given, drawn, reward, questions, N_ARMS, np.random.default_rng(0))
        for given in (features, more)
    )
    np.testing.assert_allclose(found, same, atol=1e-3)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=10, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1000))
@pytest.mark.slow
def test_no_row_is_predicted_by_a_model_that_saw_its_question(
    model: Any, n_questions: int, seed: int
) -> None:
    features, drawn, reward, questions = rows(40, n_questions, seed)
    changed = reward.copy()
    changed[questions == 1] = 1e6

    def predict(rewards: Any) -> Any:
        rng = np.random.default_rng(seed)
        return cross_fit(features, drawn, rewards, questions, N_ARMS, rng, model=model)

    before, after = predict(reward), predict(changed)
    np.testing.assert_array_equal(after[questions == 1], before[questions == 1])
    assert not np.array_equal(after, before)


@pytest.mark.parametrize("model", MODELS)
def test_predictions_are_finite_and_within_the_rewards(model: Any) -> None:
    features, drawn, reward, questions = rows(200, 50, seed=1)
    q_hat = cross_fit(features, drawn, reward, questions, N_ARMS, np.random.default_rng(0), model=model)
    assert q_hat.shape == (200, N_ARMS)
    assert q_hat.min() >= reward.min()
    assert q_hat.max() <= reward.max()


def test_means_are_those_of_the_arm_in_the_other_folds_with_one_imaginary_row() -> None:
    drawn, reward = np.array([0, 0, 1, 1]), np.array([1.0, 0.0, 0.5, 0.9])
    questions = np.array([0, 1, 0, 1])
    q_hat = cross_fit(None, drawn, reward, questions, 3, np.random.default_rng(0), model="means", folds=2)
    # Rows 0 and 2 are predicted from 1 and 3, whose mean reward is 0.45; and the other way round.
    from_others = [(0.0 + 0.45) / 2.0, (0.9 + 0.45) / 2.0, 0.45]
    from_first = [(1.0 + 0.75) / 2.0, (0.5 + 0.75) / 2.0, 0.75]
    np.testing.assert_allclose(q_hat, [from_others, from_first, from_others, from_first])


def test_ridge_is_that_of_scikit_learn_on_dense_columns() -> None:
    features, drawn, reward, questions = rows(80, 2, seed=6)
    q_hat = cross_fit(
        features, drawn, reward, questions, N_ARMS, np.random.default_rng(0), folds=2, penalty=2.0
    )
    scaled = features / np.maximum(np.abs(features).max(axis=0), 1.0)

    def design(arm: Any, some: Any) -> Any:
        hot = np.eye(N_ARMS)[arm]
        return np.hstack([some, hot, (hot[:, :, None] * some[:, None, :]).reshape(len(some), -1)])

    seen, held_out = questions == 0, questions == 1
    dense = Ridge(alpha=2.0, solver="cholesky").fit(design(drawn[seen], scaled[seen]), reward[seen])
    for arm in range(N_ARMS):
        expected = dense.predict(design(np.full(held_out.sum(), arm), scaled[held_out]))
        expected = expected.clip(reward[seen].min(), reward[seen].max())
        np.testing.assert_allclose(q_hat[held_out, arm], expected, atol=1e-3)


def test_ridge_finds_what_depends_on_the_question_and_means_do_not() -> None:
    features, drawn, reward, questions = rows(3_000, 3_000, seed=7)
    truth = 0.2 * np.arange(N_ARMS) + 0.1 * features[:, :1] * np.arange(N_ARMS)
    errors = {}
    for model in MODELS:
        rng = np.random.default_rng(8)
        q_hat = cross_fit(features, drawn, reward, questions, N_ARMS, rng, model=model)
        errors[model] = float(np.abs(q_hat - truth).mean())
    assert errors["ridge"] < 0.02
    assert 0.05 < errors["means"] < 0.15


@pytest.mark.parametrize(
    ("n_questions", "options", "words"),
    [
        (1, {}, "at least 2 folds and 2 questions, got 1 and 1"),
        (6, {"folds": 1}, "at least 2 folds and 2 questions, got 1 and 6"),
        (6, {"model": "forest"}, "'forest'; available: ridge, means"),
    ],
)
def test_what_no_model_can_be_fitted_with_is_refused(
    n_questions: int, options: dict[str, Any], words: str
) -> None:
    features, drawn, reward, questions = rows(6, n_questions, seed=9)
    with pytest.raises(ValueError, match=words):
        cross_fit(features, drawn, reward, questions, N_ARMS, np.random.default_rng(0), **options)


def test_a_name_of_a_feature_and_its_pseudonym_have_the_same_column() -> None:
    named, erased = ({"tier=free": 1.0, "length": 0.5}, {pseudonym("tier=free"): 1.0, "length": 0.5})
    rows = featurize([Context("", features) for features in (named, erased)])
    assert (rows[0] != rows[1]).nnz == 0
    assert rows[0].nnz == 2


def test_embeddings_that_not_all_rows_have_in_one_length_are_left_out() -> None:
    embeddings: tuple[tuple[float, ...], ...] = ((0.1,), (0.1, 0.2), ())
    rows = featurize([Context("red", {}, embedding) for embedding in embeddings])
    assert rows.shape == (3, 4096 + 256), "hashed words and named features"
    assert featurize([Context("red", {}, (0.1, 0.2))] * 3).shape == (3, 4096 + 256 + 2)


def test_embeddings_that_only_some_blocks_have_are_left_out() -> None:
    contexts = [Context("red", {}, (0.1,))] * 2 + [Context("blue")] * 2 + [Context("red", {}, (0.2,))]
    seen = stack([featurize(contexts[:2]), featurize(contexts[2:4]), featurize(contexts[4:])])
    same = featurize([Context("red")])
    assert seen.shape == (5, 4096 + 256), "hashed words and named features"
    assert [(seen[row] != same[0]).nnz == 0 for row in range(5)] == [True, True, False, False, True]
    np.testing.assert_allclose(stack([featurize(contexts[:2])] * 2)[:, -1:].toarray(), [[0.1]] * 4)
