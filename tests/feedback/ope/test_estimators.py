"""Laws and small examples of the estimators, and what a sample refuses."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.estimators import (
    ESTIMATORS,
    Predictions,
    dm,
    dr,
    estimate,
    estimators_table,
    ips,
    snips,
    switch_dr,
)
from armwise.feedback.ope.sample import NeverDrawnError, Sample, Terms

N_ARMS = 3
law = settings(max_examples=40, deadline=None)
WEIGHS_REWARDS_ALONE = {name for name, one in ESTIMATORS.items() if one.predictions is Predictions.NONE}
NORMALISED = {*ESTIMATORS} - {"ips"}
"""Those whose weights, and shares of predictions, sum to 1 in every log."""


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """A log of at most 20 rows over 3 arms, all of which log and target could draw."""
    n = draw(st.integers(1, 20))
    positive = hnp.arrays(np.float64, (n, N_ARMS), elements=st.floats(0.05, 1.0))
    p_log, p_target = draw(positive), draw(positive)
    p_log /= p_log.sum(axis=1, keepdims=True)
    p_target /= p_target.sum(axis=1, keepdims=True)
    drawn = draw(hnp.arrays(np.int64, n, elements=st.integers(0, N_ARMS - 1)))
    reward = draw(hnp.arrays(np.float64, n, elements=st.floats(-1.0, 1.0)))
    predictions = hnp.arrays(np.float64, (n, N_ARMS), elements=st.floats(-1.0, 1.0))
    return Sample(p_log[np.arange(n), drawn], drawn, reward, p_target, draw(predictions))


def rows_of(sample: Sample, rows: slice) -> Sample:
    """Some rows of a log."""
    columns = ("propensity", "drawn", "reward", "p_target", "q_hat")
    found = {name: getattr(sample, name) for name in columns}
    kept = {name: None if column is None else column[rows].copy() for name, column in found.items()}
    return Sample(**kept)


def on_policy(sample: Sample) -> Sample:
    """The same log with the policy that wrote it for a target: what was drawn was sure enough."""
    n = len(sample)
    p_log = np.repeat((1.0 - sample.propensity)[:, None] / (N_ARMS - 1), N_ARMS, axis=1)
    p_log[np.arange(n), sample.drawn] = sample.propensity
    return replace(sample, p_target=p_log)


def flat(sample: Sample, level: float) -> Sample:
    """The same log with a model that predicts `level` throughout."""
    q = np.full_like(sample.p_target, level)
    return replace(sample, q_hat=q)


def test_the_table_has_a_row_of_each_entry_in_the_order_of_the_file() -> None:
    names = re.findall(r"^\| `(\w+)` \| ", estimators_table(), re.MULTILINE)
    assert names == list(ESTIMATORS)


PREFERRED = ("dr", "switch_dr", "snips", "ips", "dm")
"""Which of them represents a policy, the best first; another estimator may share a rank with one of them."""


def test_doubly_robust_estimates_represent_a_policy_first_and_the_direct_one_last() -> None:
    ranks = [ESTIMATORS[name].rank for name in PREFERRED]
    assert ranks == sorted(set(ranks))
    assert min(ESTIMATORS.values(), key=lambda one: one.rank).name == "dr"
    assert max(ESTIMATORS.values(), key=lambda one: one.rank).name == "dm"


@law
@given(samples())
def test_every_estimate_is_named_finite_and_read_off_its_terms(sample: Sample) -> None:
    for name in ESTIMATORS:
        terms = estimate(sample, name)
        assert terms.estimator == name
        assert np.isfinite(terms.numerator).all()
        assert np.isfinite(terms.value)
        assert 0.0 <= terms.effective_n <= len(sample) * (1.0 + 1e-9)
        assert terms.weight.max() <= terms.cap * (1.0 + 1e-9)
        if not terms.ratio:
            assert (terms.denominator == 1.0).all()


def test_an_estimator_must_exist() -> None:
    with pytest.raises(ValueError, match="unknown estimator 'dq'; available: "):
        estimate(Sample(HALF, FIRST, ONES, SURE), "dq")


@law
@given(samples())
def test_a_constant_reward_of_1_is_worth_1_to_those_that_normalise_their_weights(sample: Sample) -> None:
    ones = flat(replace(sample, reward=np.ones(len(sample))), 1.0)
    for name in NORMALISED:
        assert estimate(ones, name).value == pytest.approx(1.0), name


@law
@given(samples())
def test_a_constant_reward_of_1_is_worth_1_to_ips_in_expectation(sample: Sample) -> None:
    p_log, p_target = np.array([0.2, 0.3, 0.5]), sample.p_target[:1]
    one_row = [
        Sample(p_log[[arm]], np.array([arm]), np.ones(1), p_target, np.zeros((1, N_ARMS)))
        for arm in range(N_ARMS)
    ]
    for unbiased in (ips, dr):
        expected = sum(p * unbiased(row).value for p, row in zip(p_log, one_row, strict=True))
        assert expected == pytest.approx(1.0)


@law
@given(samples())
@pytest.mark.slow
def test_the_policy_that_logged_is_worth_the_mean_reward(sample: Sample) -> None:
    same = flat(on_policy(sample), 0.4)
    for name in set(ESTIMATORS) - {"dm"}:
        assert estimate(same, name).value == pytest.approx(same.reward.mean()), name
    assert ips(same).effective_n == pytest.approx(len(same))


@law
@given(samples(), st.floats(-2.0, 2.0))
def test_a_shift_of_rewards_and_predictions_shifts_the_value_alike(sample: Sample, shift: float) -> None:
    moved = replace(
        sample,
        reward=sample.reward + shift,
        q_hat=sample.q_hat + shift,
    )
    for name in NORMALISED:
        assert estimate(moved, name).value == pytest.approx(estimate(sample, name).value + shift), name
    assert switch_dr(moved, threshold=1.5).value == pytest.approx(
        switch_dr(sample, threshold=1.5).value + shift
    )


@law
@given(samples(), st.floats(-3.0, 3.0))
def test_a_scale_of_rewards_and_predictions_scales_the_value_alike(sample: Sample, scale: float) -> None:
    scaled = replace(
        sample,
        reward=scale * sample.reward,
        q_hat=scale * sample.q_hat,
    )
    for name in ESTIMATORS:
        assert estimate(scaled, name).value == pytest.approx(scale * estimate(sample, name).value), name


@law
@given(samples())
def test_the_order_of_the_rows_does_not_matter(sample: Sample) -> None:
    turned = rows_of(sample, slice(None, None, -1))
    for name in ESTIMATORS:
        assert estimate(turned, name).value == pytest.approx(estimate(sample, name).value), name


@law
@given(samples())
@pytest.mark.slow
def test_what_only_weighs_rewards_does_not_look_at_predictions(sample: Sample) -> None:
    blind = replace(sample, q_hat=None)
    for name in WEIGHS_REWARDS_ALONE:
        assert estimate(blind, name).value == estimate(sample, name).value
    for name in set(ESTIMATORS) - WEIGHS_REWARDS_ALONE:
        with pytest.raises(ValueError, match=r"needs? q_"):
            estimate(blind, name)


@law
@given(samples())
def test_averages_of_rewards_stay_within_the_rewards(sample: Sample) -> None:
    assert sample.reward.min() - 1e-9 <= snips(sample).value <= sample.reward.max() + 1e-9


@law
@given(samples())
def test_doubly_robust_without_predictions_is_ips(sample: Sample) -> None:
    blank = flat(sample, 0.0)
    assert dr(blank).value == pytest.approx(ips(blank).value)
    np.testing.assert_allclose(dr(blank).numerator, ips(blank).numerator)


@law
@given(samples())
@pytest.mark.slow
def test_the_limits_of_the_threshold_are_dm_and_dr(sample: Sample) -> None:
    largest = float(sample.weight.max())
    for threshold in (np.inf, largest):
        assert switch_dr(sample, threshold=threshold).value == pytest.approx(dr(sample).value)
    assert switch_dr(sample, threshold=0.0).value == pytest.approx(dm(sample).value, abs=1e-9)


@law
@given(samples())
def test_a_perfect_prediction_leaves_nothing_to_chance(sample: Sample) -> None:
    n = len(sample)
    truth, target = np.tile(sample.q_hat[0], (n, 1)), np.tile(sample.p_target[0], (n, 1))
    perfect = Sample(sample.propensity, sample.drawn, truth[np.arange(n), sample.drawn], target, truth)
    for name in set(ESTIMATORS) - WEIGHS_REWARDS_ALONE:
        np.testing.assert_allclose(estimate(perfect, name).numerator, target[0] @ truth[0], atol=1e-12)


HALF, ONES = np.full(3, 0.5), np.ones(3)
SURE, NOUGHT = np.tile([1.0, 0.0], (3, 1)), np.zeros((3, 2))
FIRST = np.zeros(3, dtype=np.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": np.array([0.5, 0.0, 0.5])}, r"propensity must be in \(0, 1\], got 0 at row 1"),
        ({"propensity": np.array([0.5, 0.5, 1.5])}, r"propensity must be in \(0, 1\], got 1.5 at row 2"),
        ({"propensity": np.array([np.nan, 0.5, 0.5])}, r"propensity must be in \(0, 1\], got nan at row 0"),
        ({"reward": np.array([1.0, 1.0, np.inf])}, "reward must be finite, got inf at row 2"),
        ({"reward": np.ones(2)}, r"share one shape \(n,\).* got \(3,\), \(3,\), \(2,\), \(3, 2\)"),
        ({"p_target": SURE[:2]}, r"p_target be \(n, n_arms\), got .* \(2, 2\)"),
        ({"p_target": ONES}, r"p_target be \(n, n_arms\), got .* \(3,\)"),
        ({"p_target": SURE * 0.9}, "sum of p_target must be 1, got 0.9 at row 0"),
        ({"p_target": np.tile([2.0, -1.0], (3, 1))}, "p_target must be at least 0, got -1 at row 0"),
        ({"p_target": SURE * np.nan}, "p_target must be at least 0, got nan at row 0"),
        ({"drawn": FIRST + 2}, "drawn must be a column below 2, got 2 at row 0"),
        ({"drawn": FIRST - 1}, "drawn must be a column below 2, got -1 at row 0"),
        ({"drawn": FIRST[:2]}, r"share one shape \(n,\).* got \(3,\), \(2,\), \(3,\), \(3, 2\)"),
        ({"q_hat": NOUGHT[:, :1]}, r"q_hat must have the shape of p_target, \(3, 2\), got \(3, 1\)"),
        (
            {"propensity": HALF[:0], "drawn": FIRST[:0], "reward": ONES[:0], "p_target": SURE[:0]},
            "the log is empty",
        ),
    ],
)
def test_a_log_that_cannot_be_right_is_refused_by_value_and_row(changes: Any, message: str) -> None:
    columns = {"propensity": HALF, "drawn": FIRST, "reward": ONES, "p_target": SURE}
    with pytest.raises(ValueError, match=message):
        Sample(**{**columns, **changes})


@pytest.mark.parametrize("unused", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_not_finite_is_refused(unused: int, value: float) -> None:
    q = NOUGHT.copy()
    q[1, unused] = value
    with pytest.raises(ValueError, match=f"q_hat must be finite, got {value} at row 1"):
        dr(Sample(HALF, FIRST, ONES, SURE, q))


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"dm"}))
def test_a_target_that_was_never_drawn_has_an_error_of_its_own(name: str) -> None:
    with pytest.raises(NeverDrawnError, match="the target never draws any of the 3 logged arms"):
        estimate(Sample(HALF, FIRST + 1, ONES, SURE, NOUGHT), name)


def test_a_target_that_was_never_drawn_still_has_a_prediction() -> None:
    never = dm(Sample(HALF, FIRST + 1, ONES, SURE, NOUGHT + 0.25))
    assert (never.value, never.effective_n) == (0.25, 0.0)


@pytest.mark.parametrize("threshold", [-1.0, np.nan])
def test_a_threshold_out_of_its_range_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=f"threshold must be at least 0, got {threshold:g}"):
        switch_dr(Sample(HALF, FIRST, ONES, SURE, NOUGHT), threshold=threshold)


def test_effective_n_counts_rows_that_are_worth_as_much_as_unweighted_ones() -> None:
    weight: Floats = np.array([1.0, 1.0, 1.0, 0.0])
    assert Terms("ips", weight, np.ones(4), weight).effective_n == pytest.approx(3.0)
