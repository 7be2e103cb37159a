"""Estimates and intervals against loops over rows, scipy, and worlds of known value."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.interval_coverage import World
from benchmarks.replay import invent, points, points_by_row
from feedback.estimators import Floats, Terms, ips, snips
from feedback.intervals import bootstrap, influence, normal
from feedback.replay import evaluate


def test_the_three_estimates_equal_a_loop_over_rows() -> None:
    log, p_target, q_hat = invent(2_000, np.random.default_rng(0))
    _, values = points(log, p_target, q_hat)
    np.testing.assert_allclose(values, points_by_row(log, p_target, q_hat, len(log)), rtol=1e-9)


@pytest.mark.parametrize("name", ["candidate", "commonest arm", "rarest arm", "uniform"])
def test_a_long_log_finds_the_true_value_of_every_target(name: str) -> None:
    rng = np.random.default_rng(11)
    world = World.invent(rng)
    log, kind = world.log(100_000, rng)
    target = world.targets[name]
    for estimate in evaluate(log, target[kind], rng):
        # Four standard errors: one failure in 16,000 seeds for each estimate.
        error_bound = 2.0 * (estimate.high - estimate.low) / 2.0
        assert estimate.value == pytest.approx(world.value(target), abs=error_bound)
        assert estimate.high - estimate.low < 0.07


def jackknife_error(part: Terms) -> float:
    """Standard error by leaving each row out in turn."""
    n = len(part.numerator)
    kept = [np.arange(n) != i for i in range(n)]
    left = np.array([part.numerator[k].sum() / part.denominator[k].sum() for k in kept])
    return float(np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum()))


@pytest.fixture
def drawn_rows() -> tuple[Floats, Floats, Floats]:
    """400 rows: propensities, the target's probabilities, rewards."""
    rng = np.random.default_rng(5)
    return rng.uniform(0.3, 1.0, 400), rng.uniform(0.0, 1.0, 400), rng.uniform(-0.1, 1.0, 400)


@pytest.mark.parametrize("estimate", [ips, snips])
def test_the_closed_form_error_equals_the_jackknife(estimate, drawn_rows) -> None:
    part = estimate(*drawn_rows)
    low, high = normal(part)
    assert (high - low) / 2.0 / 1.959964 == pytest.approx(jackknife_error(part), rel=0.01)


@pytest.mark.parametrize("estimate", [ips, snips])
def test_the_bootstrap_agrees_with_scipy(estimate, drawn_rows) -> None:
    part = estimate(*drawn_rows)
    [(low, high)] = bootstrap([part], np.random.default_rng(1), resamples=4000)

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


def test_influences_subtract_to_the_error_of_a_difference(drawn_rows) -> None:
    p_log, p_target, reward = drawn_rows
    one, other = ips(p_log, p_target, reward), ips(p_log, 1.0 - p_target, reward)
    difference = Terms("ips", one.numerator - other.numerator, one.denominator, one.weight)
    np.testing.assert_allclose(influence(one) - influence(other), influence(difference), atol=1e-12)
