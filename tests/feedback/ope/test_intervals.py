"""Intervals: their laws, and how often they hold the truth."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.confidence_sequences import compute_lower_ends
from armwise.feedback.ope.estimators import ESTIMATORS, dr, ips, snips
from armwise.feedback.ope.intervals import (
    bootstrap,
    by_group,
    difference,
    forecast_more,
    hedge,
    influence,
    normal,
    percentiles,
    replicates,
)
from armwise.feedback.ope.sample import Sample, Terms
from benchmarks.interval_coverage import Trial, simulate

REWARDS = hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(-0.1, 1.0))


def sample_of(reward: Floats, p_target: float = 0.5) -> Sample:
    """Rows of which every other was drawn with probability 0.1 instead of 0.5, by targets of two arms."""
    n = len(reward)
    propensity = np.where(np.arange(n) % 2, 0.1, 0.5)
    target = np.tile([p_target, 1.0 - p_target], (n, 1))
    q_hat = np.tile([0.4, 0.6], (n, 1))
    return Sample(propensity, np.zeros(n, dtype=np.int64), reward, target, q_hat)


def terms_of(reward: Floats, estimate=snips, p_target: float = 0.5) -> Terms:
    """The terms of such rows."""
    return estimate(sample_of(reward, p_target))


@pytest.fixture(scope="module")
def trials() -> dict[tuple[str, str, str], list[Trial]]:
    """Sixteen worlds of 400 rows, by what was asked, interval and estimator."""
    found = defaultdict(list)
    for rng in np.random.default_rng(42).spawn(16):
        for trial in simulate(400, rng, resamples=200):
            found[trial.of, trial.interval, trial.estimator].append(trial)
    return found


def coverage(trials: list[Trial]) -> float:
    """Share that held the truth."""
    return float(np.mean([trial.held for trial in trials]))


@pytest.mark.parametrize("of", ["value", "difference"])
@pytest.mark.parametrize("estimator", ["ips", "snips", "dr"])
@pytest.mark.parametrize("interval", ["normal", "bootstrap"])
@pytest.mark.slow
def test_hedged_intervals_hold_the_truth_about_as_often_as_they_say(trials, of, estimator, interval) -> None:
    # 64 intervals on 16 logs; over 500 worlds it is 0.95 to 0.98 (docs/benchmarks/interval-coverage.md).
    assert coverage(trials[of, interval, estimator]) >= 0.9


@pytest.mark.parametrize("estimator", ["ips", "snips"])
@pytest.mark.slow
def test_a_hedge_is_needed(trials, estimator: str) -> None:
    hedge, plain = trials["value", "normal", estimator], trials["value", "normal, not hedged", estimator]
    assert coverage(hedge) > coverage(plain)


@pytest.mark.parametrize("of", ["value", "difference"])
@pytest.mark.slow
def test_intervals_for_every_sample_size_hold_the_truth_nearly_always(trials, of: str) -> None:
    assert coverage(trials[of, "anytime", "betting"]) >= 0.95


@given(REWARDS, st.sampled_from([ips, snips, dr]))
def test_a_hedged_interval_holds_the_point_estimate(reward: Floats, estimate) -> None:
    part = terms_of(reward, estimate)
    low, high = normal(hedge(part, 5.0, -0.1, 1.0))
    assert low <= part.value <= high


@given(REWARDS)
def test_hedging_a_log_without_spread_still_gives_an_interval(reward: Floats) -> None:
    part = terms_of(np.ones_like(reward))
    low, high = normal(part)
    assert high - low < 1e-6
    low, high = normal(hedge(part, 5.0, 0.0, 1.0))
    assert high - low > 1.0 / len(reward)


def test_hedging_fades_as_the_log_grows() -> None:
    reward = np.random.default_rng(0).uniform(0.0, 1.0, 20_000)
    part = terms_of(reward)
    plain, safe = normal(part), normal(hedge(part, 5.0, 0.0, 1.0))
    assert safe == pytest.approx(plain, abs=0.05 * (plain[1] - plain[0]))


def test_a_hedge_of_dr_starts_from_what_the_model_predicts() -> None:
    part = terms_of(np.full(2, 0.4), dr, p_target=1.0)
    worst, best = hedge(part, reach=10.0, low=0.0, high=1.0).numerator[2:]
    assert (worst, best) == pytest.approx((0.4 - 10.0 * 0.4, 0.4 + 10.0 * 0.6))


def test_a_hedge_knows_the_largest_weight_that_the_estimator_allows() -> None:
    part = Terms("switch_dr", *[np.ones(3)] * 3, cap=2.0)
    assert hedge(part, reach=10.0, low=-1.0, high=1.0).numerator[3:].tolist() == [-2.0, 2.0]


@given(REWARDS)
def test_influences_sum_to_zero(reward: Floats) -> None:
    assert influence(terms_of(reward)).sum() == pytest.approx(0.0, abs=1e-9)


def test_rows_said_ten_times_tell_no_more_than_once() -> None:
    reward = np.random.default_rng(3).uniform(-0.1, 1.0, 300)
    once = terms_of(reward)
    group = np.tile(np.arange(300), 10)
    columns = (np.tile(c, 10) for c in (once.numerator, once.denominator, once.weight))
    tenfold = Terms("snips", *columns, ratio=True)
    assert by_group(tenfold, group).value == pytest.approx(once.value)
    assert normal(by_group(tenfold, group)) == pytest.approx(normal(once))
    low, high = normal(once)
    naive_low, naive_high = normal(tenfold)
    assert naive_high - naive_low == pytest.approx((high - low) / np.sqrt(10), rel=0.01)


def test_rows_that_are_all_their_own_group_are_left_as_they_are() -> None:
    part = terms_of(np.ones(4))
    assert by_group(part, np.arange(4)) is part


def test_the_resamples_are_shared_and_spread_as_the_closed_form_says() -> None:
    reward = np.random.default_rng(8).uniform(-0.1, 1.0, 3_000)
    part = terms_of(reward)
    shifted = Terms("snips", part.numerator + part.denominator, part.denominator, part.weight)
    values = replicates([part, shifted], np.random.default_rng(9), resamples=2_000)
    assert values.shape == (2, 2_000)
    np.testing.assert_allclose(values[1] - values[0], 1.0, atol=1e-5)
    low, high = normal(part)
    # A standard deviation of 2,000 draws is off by 1.6 %.
    assert values[0].std() == pytest.approx((high - low) / 3.92, rel=0.06)
    assert values[0].mean() == pytest.approx(part.value, abs=0.05 * (high - low))


@pytest.mark.parametrize("limit", ["_CELLS", "_ROWS"])
def test_resampling_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    # Blocks of a few rows draw the same bytes, row after row, for a single resample.
    part = terms_of(np.random.default_rng(1).uniform(0.0, 1.0, 52))
    at_once = replicates([part], np.random.default_rng(2), resamples=1)
    monkeypatch.setattr(f"armwise.feedback.ope.intervals.{limit}", 4)
    in_blocks = replicates([part], np.random.default_rng(2), resamples=1)
    np.testing.assert_allclose(in_blocks, at_once, rtol=1e-6)


def test_a_resample_without_any_weight_is_left_out_of_the_percentiles() -> None:
    # One row of two counts: more than a third of the resamples miss it.
    weight = np.array([2.0, 0.0])
    part = Terms("snips", weight * np.array([0.7, 0.1]), weight, weight, ratio=True)
    values = replicates([part], np.random.default_rng(0), resamples=200)
    assert 40 < np.isnan(values).sum() < 110
    [(low, high)] = bootstrap([part], np.random.default_rng(0), resamples=200)
    assert (low, high) == pytest.approx((0.7, 0.7))


def test_one_resample_serves_all_estimators_and_targets() -> None:
    reward = np.random.default_rng(5).uniform(0.0, 1.0, 400)
    parts = [estimate(sample_of(reward, p)) for p in (0.3, 0.8) for estimate in ESTIMATORS.values()]
    together = replicates(parts, np.random.default_rng(6), resamples=50)
    for part, line in zip(parts, together, strict=True):
        alone = replicates([part], np.random.default_rng(6), resamples=50)
        np.testing.assert_allclose(alone[0], line, rtol=1e-5)


@given(reward=REWARDS, places=st.integers(1, 9))
def test_equal_terms_have_equal_replicates_wherever_they_stand(reward: Floats, places: int) -> None:
    """Whatever a kernel of BLAS makes of equal columns, equal policies do not differ."""
    one = ips(sample_of(reward))
    rounded = replace(one, numerator=one.numerator * (1.0 + 2.2e-16))
    other = replace(ips(sample_of(reward, 0.3)), numerator=one.numerator + 1e-9)
    lines = replicates(
        [one, *[other] * places, snips(sample_of(reward)), rounded], np.random.default_rng(0), 50
    )
    assert lines.shape == (places + 3, 50)
    assert np.array_equal(lines[-1], lines[0], equal_nan=True)
    assert np.array_equal(lines[1], lines[places], equal_nan=True)
    alone = replicates([other], np.random.default_rng(0), 50)[0]
    assert lines[1] == pytest.approx(alone, abs=1e-6, nan_ok=True)


def test_a_difference_to_the_baseline_is_told_far_better_than_either_value() -> None:
    reward = np.random.default_rng(7).uniform(0.0, 1.0, 1_000)
    one, other = terms_of(reward, p_target=0.5), terms_of(reward, p_target=0.45)
    values = replicates([one, other], np.random.default_rng(8), resamples=400)
    [(low, high)] = percentiles(values[:1] - values[1:])
    assert low <= one.value - other.value <= high
    [(value_low, value_high)] = percentiles(values[:1])
    assert high - low < 0.01 * (value_high - value_low)


@given(REWARDS, st.sampled_from(list(ESTIMATORS.values())), st.sampled_from(list(ESTIMATORS.values())))
def test_a_difference_has_the_value_and_the_spread_of_one(reward: Floats, first, second) -> None:
    one, other = terms_of(reward, first), terms_of(reward, second, p_target=0.9)
    apart = difference(one, other)
    assert apart.value == pytest.approx(one.value - other.value, abs=1e-9)
    np.testing.assert_allclose(influence(apart), influence(one) - influence(other), atol=1e-9)


def test_the_bootstrap_of_a_difference_agrees_with_its_normal_interval() -> None:
    rng = np.random.default_rng(9)
    reward = rng.uniform(0.0, 1.0, 2_000)
    one = terms_of(reward)
    other = Terms("ips", reward, np.ones(2_000), np.ones(2_000))
    values = replicates([one, other], rng, resamples=4_000)
    [ends] = percentiles(values[:1] - values[1:])
    low, high = normal(difference(one, other))
    assert ends == pytest.approx((low, high), abs=0.05 * (high - low))


@settings(max_examples=30)
@given(REWARDS, st.tuples(st.floats(0.05, 0.99), st.floats(0.05, 0.99)))
def test_a_higher_level_has_a_wider_interval(reward: Floats, levels: tuple[float, float]) -> None:
    part, (less, more) = hedge(terms_of(reward), 5.0, -0.1, 1.0), sorted(levels)
    for narrow, wide in (
        (normal(part, less), normal(part, more)),
        (
            bootstrap([part], np.random.default_rng(0), 50, less)[0],
            bootstrap([part], np.random.default_rng(0), 50, more)[0],
        ),
    ):
        assert wide[0] <= narrow[0]
        assert narrow[1] <= wide[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: normal(Terms("ips", *[p.weight[:1]] * 3)), "at least 2 rows, got 1"),
        (lambda p: normal(p, 1.0), r"level must be in \(0, 1\), got 1"),
        (lambda p: bootstrap([p], np.random.default_rng(0), 10, 0.0), r"level must be in \(0, 1\), got 0"),
        (lambda p: replicates([p, terms_of(np.ones(3))], np.random.default_rng(0)), r"got \[3, 4\]"),
        (lambda p: difference(p, terms_of(np.ones(3))), "one length, got 4 and 3"),
    ],
)
def test_what_cannot_have_an_interval_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(terms_of(np.ones(4)))


@pytest.mark.parametrize(("better", "worse", "n"), [(0.2, 0.1, 100), (0.3, 0.25, 300), (0.3, 0.25, 1000)])
def test_eight_of_ten_forecasts_hold(better: float, worse: float, n: int) -> None:
    """Of a mean that a confidence sequence does not tell from 0 after n rows."""
    held = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        values = rng.choice([1.0, -1.0, 0.0], size=21 * n, p=[better, worse, 1.0 - better - worse])
        low = compute_lower_ends(values, 1.0, 0.025)
        mean = float(values[:n].mean())
        more = None if low[n - 1] > 0.0 else forecast_more(mean, mean - float(low[n - 1]), n)
        if more is not None:
            took = int(np.argmax(low[n:] > 0.0)) + 1 if (low[n:] > 0.0).any() else math.inf
            held.append(more[0] <= took <= (more[1] or math.inf))
    assert len(held) > 60
    assert np.mean(held) > 0.75


def test_a_forecast_needs_more_rows_the_smaller_the_lead_is() -> None:
    found = [forecast_more(lead, 0.5, 1000) for lead in (0.4, 0.3, 0.2, 0.1, 0.0)]
    assert [None if more is None else more[0] for more in found] == sorted(more[0] for more in found if more)
    assert forecast_more(-0.2, 0.5, 1000) is None, "the bound is behind the estimate"
    assert forecast_more(0.5, 0.5, 1) == (1, 1)
