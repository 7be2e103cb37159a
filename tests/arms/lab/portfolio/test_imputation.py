"""What is not known is expected, never counted as nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from armwise.arms.lab.portfolio.imputation import complete, extremes
from armwise.arms.lab.portfolio.selection import greedy

UNKNOWN = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.one_of(st.just(float("nan")), st.floats(0.0, 1.0, width=32)),
).filter(lambda scores: not np.isnan(scores).all())


def a_log(worth: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw one arm a question, each as likely as the next, and a reward of 0 or 1."""
    log = np.full(worth.shape, np.nan, dtype=np.float32)
    drawn, asked = rng.integers(0, len(worth), worth.shape[1]), np.arange(worth.shape[1])
    log[drawn, asked] = rng.random(worth.shape[1]) < worth[drawn, asked]
    return log


def test_scores_that_are_all_known_are_returned_as_they_are() -> None:
    scores = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    assert complete(scores) is scores


@given(UNKNOWN, st.integers(1, 3), st.floats(0.01, 10.0))
def test_known_scores_stay_and_expectations_are_scores(
    scores: NDArray[np.float32], n_groups: int, ridge: float
) -> None:
    groups = np.arange(scores.shape[1]) % n_groups
    completed = complete(scores, groups, ridge)
    known = ~np.isnan(scores)
    np.testing.assert_array_equal(completed[known], scores[known])
    assert completed.min() >= 0.0
    assert completed.max() <= 1.0


def test_rows_plus_columns_are_recovered_without_a_ridge() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.2, 0.5, (20, 1)) + rng.uniform(0.0, 0.4, (1, 200))
    scores = np.where(rng.random(truth.shape) < 0.3, truth, np.nan).astype(np.float32)
    off = [float(np.abs(complete(scores, ridge=ridge) - truth).max()) for ridge in (1.0, 0.1, 1e-6)]
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-5


def test_an_arm_is_expected_to_be_good_in_its_group() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 2000)
    truth = np.array([[0.2, 0.9], [0.8, 0.3], [0.6, 0.65]])[:, groups]
    log = a_log(truth, rng)
    assert greedy(complete(log, groups), 1).arms == (2,)
    off = np.abs(complete(log, groups) - truth)[np.isnan(log)].mean()
    assert off < 0.7 * np.abs(complete(log) - truth)[np.isnan(log)].mean()


def test_an_arm_unknown_to_a_group_is_as_elsewhere() -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(400) % 4
    scores = np.array([[0.25], [0.75]], dtype=np.float32) + rng.uniform(-0.01, 0.01, (2, 400)).astype(
        np.float32
    )
    scores[1, groups == 3] = np.nan
    expected = complete(scores, groups, ridge=0.1)
    assert np.abs(expected[1, groups == 3] - 0.75).max() < 0.1


def test_the_effects_are_those_of_a_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    n_arms, n, ridge, groups = 5, 8, 2.0, np.arange(8) % 2
    scores = np.where(rng.random((n_arms, n)) < 0.6, rng.uniform(0.3, 0.7, (n_arms, n)), np.nan)
    scores = scores.astype(np.float32)
    arms, questions = np.nonzero(~np.isnan(scores))
    seen = scores[arms, questions].astype(np.float64)
    # In-group effects, questions, arms; below what is seen, what is drawn towards 0.
    explain = np.zeros((len(seen), 2 * n_arms + n + n_arms))
    explain[np.arange(len(seen)), 2 * arms + groups[questions]] = 1.0
    explain[np.arange(len(seen)), 2 * n_arms + questions] = 1.0
    draw = np.eye(explain.shape[1])
    draw[np.arange(2 * n_arms), 2 * n_arms + n + np.arange(2 * n_arms) // 2] = -1.0
    design = np.concatenate([explain, np.sqrt(ridge) * draw])
    target = np.concatenate([seen - seen.mean(), np.zeros(len(draw))])
    effects = np.linalg.lstsq(design, target)[0]
    in_group = effects[: 2 * n_arms].reshape(n_arms, 2)[:, groups]
    expected = np.where(
        np.isnan(scores), seen.mean() + in_group + effects[2 * n_arms : 2 * n_arms + n], scores
    )
    np.testing.assert_allclose(complete(scores, groups, ridge), expected, atol=1e-5)


def test_the_means_are_right_from_one_arm_a_question() -> None:
    """20,000 questions, 5 arms: 4,000 draws each, a standard error below 0.008."""
    rng = np.random.default_rng(0)
    quality = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
    worth = np.clip(quality[:, None] + rng.uniform(-0.2, 0.2, 20_000), 0.0, 1.0)
    log = a_log(worth, rng)
    expected = complete(log)
    np.testing.assert_allclose(expected.mean(axis=1), worth.mean(axis=1), atol=0.03)
    counted_as_nothing = np.nan_to_num(log).mean(axis=1)
    assert np.abs(counted_as_nothing - worth.mean(axis=1)).min() > 0.1


def test_an_arm_asked_more_often_is_not_better() -> None:
    rng = np.random.default_rng(0)
    log = np.full((2, 1000), np.nan, dtype=np.float32)
    log[0, :900] = rng.random(900) < 0.4
    log[1, 900:] = rng.random(100) < 0.7
    assert np.nan_to_num(log)[0].sum() > np.nan_to_num(log)[1].sum()
    assert greedy(complete(log), 1).arms == (1,)


def test_what_is_unknown_is_expected_like_the_rest() -> None:
    scores = np.array([[0.5, np.nan, 0.5], [0.5, np.nan, 0.5], [np.nan] * 3], dtype=np.float32)
    assert complete(scores).tolist() == [[0.5] * 3] * 3
    with pytest.raises(ValueError, match="none of the 6 scores is known"):
        complete(np.full((2, 3), np.nan, dtype=np.float32))


@given(UNKNOWN)
def test_the_extremes_hold_what_is_expected(scores: NDArray[np.float32]) -> None:
    low, high = extremes(scores, tuple(range(len(scores))))
    expected = float(complete(scores).max(axis=0).mean(dtype=np.float64))
    assert low - 1e-6 <= expected <= high + 1e-6


def learned(n: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return chances and qualities of a policy that has learned, shape (3, n) each.

    The first two arms are good for a third of the questions each and mostly drawn there; the last one is as
    good for all, and the best one by its mean.
    """
    kind = rng.integers(3, size=n)
    worth = np.array([[0.9, 0.3, 0.3], [0.3, 0.9, 0.3], [0.6, 0.6, 0.6]])[:, kind]
    chances = np.array([[0.8, 0.1, 0.3], [0.1, 0.8, 0.3], [0.1, 0.1, 0.4]])[:, kind]
    return chances, worth


def test_the_means_are_right_from_a_learned_policy() -> None:
    rng = np.random.default_rng(0)
    chances, worth = learned(20_000, rng)
    drawn = (rng.random(20_000) > chances.cumsum(axis=0)).sum(axis=0)
    log = np.full(worth.shape, np.nan, dtype=np.float32)
    asked = np.arange(20_000)
    log[drawn, asked] = rng.random(20_000) < worth[drawn, asked]
    blind, weighted = complete(log), complete(log, chances=chances.astype(np.float32))
    np.testing.assert_allclose(weighted.mean(axis=1), worth.mean(axis=1), atol=0.02)
    assert np.abs(blind.mean(axis=1) - worth.mean(axis=1)).max() > 0.1
    assert greedy(weighted, 1).arms == (2,)
    assert greedy(blind, 1).arms != (2,), "without chances, arms are taken for what they are served on"
    known = ~np.isnan(log)
    np.testing.assert_array_equal(weighted[known], log[known])


def test_a_constant_chance_leaves_the_means() -> None:
    rng = np.random.default_rng(0)
    log = a_log(np.full((3, 900), [[0.2], [0.5], [0.8]]), rng)
    means = [complete(log, chances=np.full(log.shape, p, np.float32)).mean(axis=1) for p in (1 / 3, 0.5, 1.0)]
    np.testing.assert_allclose(means[1], means[0], atol=1e-6)
    np.testing.assert_allclose(means[2], means[0], atol=1e-6)
    np.testing.assert_allclose(means[0], complete(log).mean(axis=1), atol=0.01)


def test_with_chances_an_arm_is_expected_by_the_groups_as_well() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 2, 4000)
    truth = np.array([[0.2, 0.9], [0.8, 0.3]])[:, groups]
    log = a_log(truth, rng)
    completed = complete(log, groups, chances=np.full(log.shape, 0.5, np.float32))
    for group in (0, 1):
        found = completed[:, groups == group].mean(axis=1)
        np.testing.assert_allclose(found, truth[:, groups == group].mean(axis=1), atol=0.05)
