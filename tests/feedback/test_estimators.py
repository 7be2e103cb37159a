"""Laws and small examples of the three estimators."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedback.estimators import Floats, Integers, NeverDrawnError, Terms, dr, ips, snips

N_ARMS = 3


@st.composite
def logs(draw: st.DrawFn) -> tuple[Floats, Floats, Integers, Floats, Floats]:
    """Distributions of log and target, both (n, 3), what was drawn, rewards, predictions."""
    n = draw(st.integers(1, 20))
    positive = hnp.arrays(np.float64, (n, N_ARMS), elements=st.floats(0.05, 1.0))
    p_log, p_target = draw(positive), draw(positive)
    drawn = draw(hnp.arrays(np.int64, n, elements=st.integers(0, N_ARMS - 1)))
    reward = draw(hnp.arrays(np.float64, n, elements=st.floats(-1.0, 1.0)))
    q_hat = draw(hnp.arrays(np.float64, (n, N_ARMS), elements=st.floats(-1.0, 1.0)))
    p_log /= p_log.sum(axis=1, keepdims=True)
    p_target /= p_target.sum(axis=1, keepdims=True)
    return p_log, p_target, drawn, reward, q_hat


def of_drawn(p: Floats, drawn: Integers) -> Floats:
    return p[np.arange(len(drawn)), drawn]


@given(logs())
def test_a_constant_reward_of_1_is_worth_1_to_snips(log: Any) -> None:
    p_log, p_target, drawn, reward, _ = log
    part = snips(of_drawn(p_log, drawn), of_drawn(p_target, drawn), np.ones_like(reward))
    assert part.value == pytest.approx(1.0)


@given(logs())
def test_a_constant_reward_of_1_is_worth_1_to_ips_in_expectation(log: Any) -> None:
    p_log, p_target, *_ = log
    # The expectation over the draw, arm by arm: sum of p_log * p_target / p_log.
    expected = sum(
        p_log[0, arm] * ips(p_log[:1, arm], p_target[:1, arm], np.ones(1)).value for arm in range(N_ARMS)
    )
    assert expected == pytest.approx(1.0)


@given(logs())
def test_the_policy_that_logged_is_worth_the_mean_reward(log: Any) -> None:
    p_log, _, drawn, reward, q_hat = log
    p = of_drawn(p_log, drawn)
    assert ips(p, p, reward).value == pytest.approx(reward.mean())
    assert snips(p, p, reward).value == pytest.approx(reward.mean())
    assert dr(p, p_log, drawn, reward, of_drawn(q_hat, drawn)[:, None] * np.ones(N_ARMS)).value == (
        pytest.approx(reward.mean())
    )
    assert ips(p, p, reward).effective_n == pytest.approx(len(reward))


@given(logs(), st.floats(-2.0, 2.0))
def test_a_shift_of_all_rewards_shifts_snips_and_dr_alike(log: Any, shift: float) -> None:
    p_log, p_target, drawn, reward, q_hat = log
    p, t = of_drawn(p_log, drawn), of_drawn(p_target, drawn)
    assert snips(p, t, reward + shift).value == pytest.approx(snips(p, t, reward).value + shift)
    shifted = dr(p, p_target, drawn, reward + shift, q_hat + shift)
    assert shifted.value == pytest.approx(dr(p, p_target, drawn, reward, q_hat).value + shift)


@given(logs(), st.floats(-3.0, 3.0))
def test_a_scale_of_all_rewards_scales_every_estimate(log: Any, scale: float) -> None:
    p_log, p_target, drawn, reward, q_hat = log
    p, t = of_drawn(p_log, drawn), of_drawn(p_target, drawn)
    for estimate in (ips, snips):
        assert estimate(p, t, scale * reward).value == pytest.approx(scale * estimate(p, t, reward).value)
    scaled = dr(p, p_target, drawn, scale * reward, scale * q_hat)
    assert scaled.value == pytest.approx(scale * dr(p, p_target, drawn, reward, q_hat).value)


@given(logs())
def test_snips_stays_within_the_rewards_and_effective_n_within_n(log: Any) -> None:
    p_log, p_target, drawn, reward, _ = log
    part = snips(of_drawn(p_log, drawn), of_drawn(p_target, drawn), reward)
    assert reward.min() - 1e-9 <= part.value <= reward.max() + 1e-9
    assert 0.0 < part.effective_n <= len(reward) * (1.0 + 1e-9)


@given(logs())
def test_dr_without_predictions_is_ips(log: Any) -> None:
    p_log, p_target, drawn, reward, q_hat = log
    p = of_drawn(p_log, drawn)
    part = dr(p, p_target, drawn, reward, np.zeros_like(q_hat))
    np.testing.assert_allclose(part.numerator, ips(p, of_drawn(p_target, drawn), reward).numerator)


@given(logs())
def test_dr_with_a_perfect_prediction_leaves_nothing_to_chance(log: Any) -> None:
    p_log, p_target, drawn, _, q_hat = log
    truth = np.tile(q_hat[0], (len(drawn), 1))
    target = np.tile(p_target[0], (len(drawn), 1))
    part = dr(of_drawn(p_log, drawn), target, drawn, of_drawn(truth, drawn), truth)
    np.testing.assert_allclose(part.numerator, target[0] @ truth[0], atol=1e-12)


HALF, ONES = np.full(3, 0.5), np.ones(3)
SURE, NOUGHT = np.tile([1.0, 0.0], (3, 1)), np.zeros((3, 2))
FIRST = np.zeros(3, dtype=np.int64)


@pytest.mark.parametrize("estimate", [ips, snips])
@pytest.mark.parametrize(
    ("p_log", "p_target", "reward", "message"),
    [
        ([0.5, 0.0, 0.5], HALF, ONES, r"p_log must be in \(0, 1\], got 0 at row 1"),
        ([0.5, 0.5, 1.5], HALF, ONES, r"p_log must be in \(0, 1\], got 1.5 at row 2"),
        ([np.nan, 0.5, 0.5], HALF, ONES, r"p_log must be in \(0, 1\], got nan at row 0"),
        (HALF, [0.5, -0.1, 0.5], ONES, r"p_target must be in \[0, 1\], got -0.1 at row 1"),
        (HALF, [0.5, np.nan, 0.5], ONES, r"p_target must be in \[0, 1\], got nan at row 1"),
        (HALF, HALF, [1.0, 1.0, np.inf], "reward must be finite, got inf at row 2"),
        (HALF, HALF, [1.0, 1.0], r"must share one shape \(n,\), got \(3,\), \(3,\) and \(2,\)"),
        ([], [], [], "the log is empty"),
    ],
)
def test_a_log_that_cannot_be_right_is_refused_by_value_and_row(
    estimate: Any, p_log: Any, p_target: Any, reward: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(np.array(p_log), np.array(p_target), np.array(reward))


@pytest.mark.parametrize(
    "estimate",
    [
        lambda: ips(HALF, np.zeros(3), ONES),
        lambda: snips(HALF, np.zeros(3), ONES),
        lambda: dr(HALF, SURE, FIRST + 1, ONES, NOUGHT),
    ],
)
def test_a_target_that_was_never_drawn_has_an_error_of_its_own(estimate: Callable[[], Terms]) -> None:
    with pytest.raises(NeverDrawnError, match="the target draws none of the 3 logged arms"):
        estimate()


@pytest.mark.parametrize(
    ("p_target", "drawn", "q_hat", "message"),
    [
        (SURE * 0.9, FIRST, NOUGHT, "sum of p_target must be 1, got 0.9 at row 0"),
        (np.tile([2.0, -1.0], (3, 1)), FIRST, NOUGHT, "p_target must be at least 0, got -1 at row 0"),
        (SURE, FIRST + 2, NOUGHT, "drawn must be a column below 2, got 2 at row 0"),
        (SURE, FIRST - 1, NOUGHT, "drawn must be a column below 2, got -1 at row 0"),
        (SURE, FIRST, NOUGHT * np.nan, "q_hat must be finite, got nan at row 0"),
        (SURE, FIRST, NOUGHT[:, :1], r"got \(3, 2\), \(3, 1\) and \(3,\)"),
        (SURE, FIRST[:2], NOUGHT, r"got \(3, 2\), \(3, 2\) and \(2,\)"),
    ],
)
def test_dr_also_refuses_what_only_it_is_given(p_target: Any, drawn: Any, q_hat: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dr(HALF, p_target, drawn, ONES, q_hat)


def test_effective_n_counts_rows_that_are_worth_as_much_as_unweighted_ones() -> None:
    weight = np.array([1.0, 1.0, 1.0, 0.0])
    assert Terms("ips", weight, np.ones(4), weight).effective_n == pytest.approx(3.0)
