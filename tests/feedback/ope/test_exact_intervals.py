"""Intervals for every sample size: equal to their formulas, and wide enough."""

import numpy as np
import pytest
from scipy import stats

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.ope.estimators import dr, ips
from armwise.feedback.ope.intervals import bernstein
from armwise.feedback.ope.sample import Sample, Terms


def plain(rows: Floats, estimator: str = "ips") -> Terms:
    """A mean over rows of weight 1."""
    return Terms(estimator, rows, np.ones(len(rows)), np.ones(len(rows)))


def even_log(n: int, seed: int) -> tuple[Floats, Integers, Floats]:
    """Propensities, arms and rewards of a log that draws two arms alike, right with 0.3 and 0.8."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(2, size=n)
    return np.full(n, 0.5), drawn, (rng.random(n) < np.array([0.3, 0.8])[drawn]).astype(np.float64)


def test_bernstein_equals_the_formula_by_hand() -> None:
    low, high = bernstein(plain(np.array([0.0, 1.0] * 50)), reach=1.0, low=0.0, high=1.0)
    variance, log_term = 25 / 99, np.log(80)
    half = np.sqrt(2 * variance * log_term / 100) + 7 * log_term / (3 * 99)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


def test_bernstein_of_a_difference_is_that_of_the_rows_of_differences() -> None:
    propensity, drawn, reward = even_log(500, 1)
    target = ips(Sample(propensity, drawn, reward, np.tile([0.0, 1.0], (500, 1))))
    got = bernstein(target, 2.0, 0.0, 1.0, baseline=plain(reward))
    rows = target.numerator - reward
    # Of (2 or 0) * reward - reward, from -1 to 2 as far as the spans know.
    log_term = np.log(80)
    half = np.sqrt(2 * rows.var(ddof=1) * log_term / 500) + 7 * 3.0 * log_term / (3 * 499)
    assert got == pytest.approx((rows.mean() - half, rows.mean() + half))
    assert got[0] <= 0.8 - 0.55 <= got[1]


def test_a_cap_narrows_what_a_row_can_be() -> None:
    rows = np.linspace(0.0, 1.0, 100)
    free = Terms("switch_dr", rows, np.ones(100), np.ones(100))
    capped = Terms("switch_dr", rows, np.ones(100), np.ones(100), cap=1.0)
    width = [high - low for low, high in (bernstein(part, 50.0, 0.0, 1.0) for part in (free, capped))]
    assert width[1] < 0.1 * width[0]


@pytest.mark.slow
def test_both_hold_the_truth_at_least_as_often_as_they_say() -> None:
    held = np.zeros(2)
    runs = 400
    for seed in range(runs):
        propensity, drawn, reward = even_log(100, seed)
        half = np.full((100, 2), 0.5)
        sample = Sample(propensity, drawn, reward, np.tile([0.0, 1.0], (100, 1)), half)
        ends = (
            bernstein(ips(sample), 2.0, 0.0, 1.0),
            bernstein(dr(sample), 2.0, 0.0, 1.0),
        )
        held += [low <= 0.8 <= high for low, high in ends]
    # An interval of 95 % holds fewer in one of a thousand seeds.
    assert (held >= stats.binom.ppf(0.001, runs, 0.95)).all()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_higher_level_has_a_wider_interval(level: float) -> None:
    reward = (np.arange(50) % 3 == 0).astype(np.float64)
    (low, high), (lower, higher) = (
        bernstein(plain(reward), 1.0, 0.0, 1.0, at) for at in (level, level + 0.005)
    )
    assert lower < low
    assert high < higher


ROWS: Floats = np.full(4, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bernstein(plain(ROWS, "snips"), 5.0, 0.0, 1.0), "mean of independent rows.*got snips"),
        (lambda: bernstein(plain(ROWS[:1]), 5.0, 0.0, 1.0), "at least 2 rows, got 1"),
        (lambda: bernstein(plain(5.0 * ROWS), 2.0, 0.0, 1.0), r"in \[0, 2\], got \[2.5, 2.5\]"),
        (lambda: bernstein(plain(ROWS), np.inf, 0.0, 1.0), "reach of ips must be finite, got inf"),
        (lambda: bernstein(plain(ROWS), 2.0, 0.0, 1.0, 1.0), r"level must be in \(0, 1\), got 1"),
    ],
)
def test_what_cannot_have_such_an_interval_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
