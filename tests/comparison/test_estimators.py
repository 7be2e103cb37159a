"""Estimates and intervals against vw-estimators, loops over rows, scipy, and worlds of known value."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from armwise.feedback.arrays import Floats
from armwise.feedback.ope import ESTIMATORS, Sample, Terms, intervals
from armwise.feedback.ope.estimators import (
    estimate,
    ips,
    snips,
    switch_dr,
)


def invent(n: int, n_arms: int, seed: int, floor: float = 0.05) -> Sample:
    """A log with a floor, a soft target, rewards in [-0.1, 1] and blurred predictions of them."""
    rng = np.random.default_rng(seed)
    p_log, p_target = ((1.0 - floor * n_arms) * rng.dirichlet(np.ones(n_arms), n) + floor for _ in range(2))
    drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=n_arms - 1)
    quality = rng.uniform(-0.1, 1.0, (n, n_arms))
    rows = np.arange(n)
    reward = quality[rows, drawn] * rng.uniform(0.5, 1.0, n)
    q_hat = quality + rng.normal(0.0, 0.2, quality.shape)
    return Sample(p_log[rows, drawn], drawn, reward, p_target, q_hat)


SIZES = [(7, 2, 1), (150, 4, 2), (2000, 9, 3)]
SAMPLES = [pytest.param(invent(n, n_arms, seed), id=f"{n}x{n_arms}") for n, n_arms, seed in SIZES]


def theirs(module: Any, sample: Sample, **limits: float) -> float:
    """What an estimator of vw-estimators says."""
    estimator = module.Estimator(**limits)
    p_drawn = sample.p_target[np.arange(len(sample)), sample.drawn]
    for p_log, reward, p in zip(sample.propensity, sample.reward, p_drawn, strict=True):
        estimator.add_example(float(p_log), float(reward), float(p))
    return estimator.get()


@pytest.mark.parametrize("sample", SAMPLES)
def test_ips_and_snips_are_those_of_vw(sample: Sample) -> None:
    vw_ips = pytest.importorskip("estimators.bandits.ips")
    vw_snips = pytest.importorskip("estimators.bandits.snips")
    assert ips(sample).value == pytest.approx(theirs(vw_ips, sample), abs=1e-9)
    assert snips(sample).value == pytest.approx(theirs(vw_snips, sample), abs=1e-9)


MEANS = ("ips", "dm", "dr", "switch_dr")
"""Estimators that `by_row` computes."""


def by_row(sample: Sample, kind: str, parameter: float) -> float:
    """An estimate, one row at a time."""
    q = np.zeros_like(sample.p_target) if kind == "ips" else sample.q_hat
    total = 0.0
    for i, arm in enumerate(sample.drawn):
        weight = sample.p_target[i, arm] / sample.propensity[i]
        if kind == "switch_dr":
            weight = weight if weight <= parameter else 0.0
        elif kind == "dm":
            weight = 0.0
        expected = sum(sample.p_target[i, a] * q[i, a] for a in range(q.shape[1]))
        total += expected + weight * (sample.reward[i] - q[i, arm])
    return total / len(sample)


@pytest.mark.parametrize("parameter", [0.3, 2.0, 30.0])
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_estimates_equal_a_loop_over_rows(sample: Sample, parameter: float) -> None:
    for kind in MEANS:
        ours = switch_dr(sample, threshold=parameter) if kind == "switch_dr" else estimate(sample, kind)
        assert ours.value == pytest.approx(by_row(sample, kind, parameter), abs=1e-12)


TRUTH_ROWS = 200_000
BIASED = {name for name, one in ESTIMATORS.items() if not one.covers}
"""Estimators that do not find the true value with a wrong model, or with weights above a limit."""


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in BIASED])
def test_a_long_log_finds_the_true_value(name: str) -> None:
    rng = np.random.default_rng(11)
    quality, p_log, p_target = np.array([0.2, 0.5, 0.8]), np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6])
    drawn = rng.choice(3, TRUTH_ROWS, p=p_log)
    reward = (rng.random(TRUTH_ROWS) < quality[drawn]).astype(np.float64)
    wrong = np.tile([0.9, 0.1, 0.4], (TRUTH_ROWS, 1))
    sample = Sample(p_log[drawn], drawn, reward, np.tile(p_target, (TRUTH_ROWS, 1)), wrong)
    terms = estimate(sample, name)
    low, high = intervals.normal(terms)
    # Four standard errors: one failure in 16,000 seeds.
    assert terms.value == pytest.approx(p_target @ quality, abs=2.0 * (high - low) / 2.0)
    assert high - low < 0.03


def jackknife_error(sample: Sample, value: Callable[[Sample], Terms]) -> float:
    """Standard error by leaving each row out in turn."""
    n = len(sample)
    left = []
    for i in range(n):
        kept = np.arange(n) != i
        columns = {
            name: None if column is None else column[kept]
            for name, column in ((f, getattr(sample, f)) for f in sample.__dataclass_fields__)
        }
        left.append(value(Sample(**columns)).value)
    return float(np.sqrt((n - 1) / n * ((np.array(left) - np.mean(left)) ** 2).sum()))


@pytest.mark.parametrize(
    "value",
    [
        *(one for name, one in ESTIMATORS.items() if name not in BIASED),
        lambda sample: switch_dr(sample, threshold=3.0),
    ],
)
def test_the_closed_form_error_equals_the_jackknife(value: Callable[[Sample], Terms]) -> None:
    sample = invent(400, 3, seed=5, floor=0.1)
    low, high = intervals.normal(value(sample))
    error = jackknife_error(sample, value)
    assert (high - low) / 2.0 / 1.959964 == pytest.approx(error, rel=0.02)


@pytest.mark.parametrize("value", [ips, snips])
def test_the_bootstrap_agrees_with_scipy(value: Callable[[Sample], Terms]) -> None:
    part = value(invent(400, 3, seed=5, floor=0.1))
    [(low, high)] = intervals.bootstrap([part], np.random.default_rng(1), resamples=4000)

    def ratio(numerator: Floats, denominator: Floats, axis: int = -1) -> Floats:
        return numerator.sum(axis=axis) / denominator.sum(axis=axis)

    theirs = stats.bootstrap(
        (part.numerator, part.denominator),
        ratio,
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    # An end of 4,000 percentiles wanders by some 2 % of the width.
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.08 * (high - low))


def test_what_is_not_compared_with_the_truth_is_compared_with_a_loop_over_rows() -> None:
    assert set(MEANS) >= BIASED
