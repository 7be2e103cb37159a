"""Thresholds of a cascade: declared shares, and a bound of the loss that holds as often as it says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.agent.lab.routers.cascade.stopping import (
    StopRule,
    certify_threshold,
    p_value,
    share_thresholds,
)
from armwise.agent.routers.dataset import Floats


@given(st.integers(2, 200), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3), st.integers(0, 99))
def test_the_declared_share_goes_on(n: int, shares: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    gains = [rng.permutation(n) / n for _ in shares]
    here = np.ones(n, dtype=bool)
    for gain, share, threshold in zip(gains, shares, share_thresholds(gains, shares), strict=True):
        reached = int(here.sum())
        here &= gain > threshold
        assert abs(int(here.sum()) - share * reached) <= 1.0


def test_a_share_of_none_and_of_all_are_exact() -> None:
    same = [np.zeros(5)]
    assert share_thresholds(same, [0.0]).tolist() == [np.inf]
    assert share_thresholds(same, [1.0]).tolist() == [-np.inf]


def test_questions_at_the_threshold_do_not_reach_the_next_stage() -> None:
    first, second = np.array([1.0, 1.0, 2.0, 2.0]), np.array([5.0, 6.0, 7.0, 8.0])
    assert share_thresholds([first, second], [0.25, 0.5]).tolist() == [2.0, np.inf]


def losses(rng: np.random.Generator, mean: float, n: int, size: int) -> np.ndarray:
    """Losses of -1, 0 and 1 with this mean; one in five is not 0."""
    return rng.choice([-1.0, 0.0, 1.0], p=[0.1 - mean / 2, 0.8, 0.1 + mean / 2], size=(size, n))


@pytest.mark.parametrize("n", [10, 100, 1000])
def test_a_true_hypothesis_is_rejected_no_more_often_than_its_level(n: int) -> None:
    drawn = losses(np.random.default_rng(n), 0.05, n, 1500)
    p = np.array([p_value(one, 0.05) for one in drawn])
    for level in (0.05, 0.1, 0.3):
        assert (p <= level).mean() <= level + 3.0 * math.sqrt(level * (1.0 - level) / len(p))


def test_a_false_hypothesis_is_rejected_with_enough_questions() -> None:
    drawn = losses(np.random.default_rng(0), 0.0, 1000, 200)
    assert np.mean([p_value(one, 0.05) <= 0.1 for one in drawn]) > 0.8


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=50), st.floats(0.01, 0.5), st.floats(0.0, 0.4))
def test_more_allowed_loss_is_never_harder_to_certify(
    given_losses: list[float], alpha: float, more: float
) -> None:
    one = np.array(given_losses)
    assert 0.0 < p_value(one, alpha) <= 1.0
    assert p_value(one, alpha + more) <= p_value(one, alpha) * (1.0 + 1e-9) + 0.05


LOSS = 0.3
"""Probability that a question of gain 1 loses its answer by stopping, and g times that of gain g."""


def true_loss(threshold: float) -> float:
    """Mean loss where questions stop up to a threshold, of gains that are uniform in [0, 1]."""
    return LOSS * min(max(threshold, 0.0), 1.0) ** 2 / 2.0


@pytest.mark.parametrize("n", [200, 600])
def test_the_certified_loss_is_exceeded_no_more_often_than_delta(n: int) -> None:
    alpha, delta, times = 0.04, 0.2, 250
    rng = np.random.default_rng(n)
    exceeded, thresholds = 0, []
    for _ in range(times):
        gain = rng.uniform(size=n)
        lost = (rng.uniform(size=n) < LOSS * gain).astype(float)
        found, p = certify_threshold(gain, lambda t, g=gain, x=lost: np.where(g <= t, x, 0.0), alpha, delta)
        assert p <= delta
        thresholds.append(found)
        exceeded += true_loss(found) > alpha
    assert exceeded / times <= delta + 3.0 * math.sqrt(delta * (1.0 - delta) / times)
    highest = math.sqrt(2.0 * alpha / LOSS)
    assert np.median(thresholds) > (0.7 if n == 600 else 0.4) * highest, "it is not just cautious"


def test_where_nothing_can_be_certified_all_stages_run() -> None:
    rng = np.random.default_rng(0)
    found, p = certify_threshold(rng.uniform(size=20), lambda _: np.ones(20), 0.05, 0.1)
    assert (found, p) == (-np.inf, 0.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"by": "risk"}, "`by: risk` needs alpha"),
        ({"by": "share"}, "`by: share` needs shares"),
        ({"alpha": 0.1}, "only `by: risk` takes alpha"),
        ({"by": "share", "shares": [1.5]}, "less than or equal to 1"),
        ({"by": "risk", "alpha": 0.0}, "greater than 0"),
        ({"by": "luck"}, "'reward', 'share' or 'risk'"),
    ],
)
def test_a_rule_that_is_not_complete_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StopRule.model_validate(wrong)


def test_forty_thresholds_are_tested_from_the_lowest_gain_to_the_highest() -> None:
    tested: list[float] = []

    def losses_at(threshold: float) -> Floats:
        tested.append(threshold)
        return np.zeros(500)

    found, p = certify_threshold(np.arange(1000.0), losses_at, 0.1, 0.1)
    assert len(tested) == 40
    assert (tested[0], tested[-1], found) == (0.0, 999.0, 999.0)
    assert p < 1e-6
