"""How far an estimate may be from the truth: three 95 % intervals.

    normal      delta method; closed form; what `feedback.replay.evaluate` uses
    bootstrap   percentiles over resamples that all estimates share
    bernstein   holds at every sample size, for `ips` and `dr`; many times wider

A log whose policy keeps a small floor hides its own variance: the few rows with a
large weight may not have been drawn at all, and then no interval that looks only at
the drawn rows can know of them. `hedged` puts that knowledge back, and the first two
intervals should be asked of hedged terms. Run `benchmarks/interval_coverage.py` to see what it
is worth.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from feedback.estimators import Floats, Integers, Terms

LEVEL = 0.95
"""Share of logs whose interval is to hold the truth."""

_BYTE_TO_COUNT = np.repeat(np.arange(6, dtype=np.float32), (94, 95, 46, 16, 4, 1))
"""A Poisson(1) count for each value of a byte: mean 1 and variance 1 exactly, skewness 1 to 0.4 %."""

_CELLS = 1 << 15
"""Counts drawn at a time: few enough for the cache, and too few for BLAS to wake threads it cannot use."""

Interval = tuple[float, float]


def by_group(terms: Terms, group: Integers) -> Terms:
    """Add the rows of each group up, so that an interval takes groups to be independent, not rows.

    The value stays the same.

    Args:
        terms: One row for each row of the log.
        group: Codes from 0, shape (n,), none left out.

    >>> one = np.ones(4)
    >>> pairs = by_group(Terms("ips", np.array([1.0, 0.0, 2.0, 1.0]), one, one), np.array([0, 0, 1, 1]))
    >>> pairs.numerator.tolist(), pairs.denominator.tolist(), pairs.value
    ([1.0, 3.0], [2.0, 2.0], 1.0)
    """
    if int(group.max()) + 1 == len(group):
        return terms
    return Terms(
        terms.estimator,
        np.bincount(group, terms.numerator).astype(np.float64, copy=False),
        np.bincount(group, terms.denominator).astype(np.float64, copy=False),
        terms.weight,
        terms.baseline,
    )


def hedged(terms: Terms, reach: float, low: float, high: float) -> Terms:
    """Add two imaginary draws of the largest weight, one with the worst and one with the best reward.

    The weighted kin of adding a success and a failure before putting an interval on a
    proportion. It moves the value by the order of `reach / n`, so it is for intervals,
    not for the point estimate.

    Args:
        terms: What to put an interval on.
        reach: Largest weight that any row could have had, over all arms.
        low: Smallest reward.
        high: Largest reward.

    Source: Agresti and Coull (1998), "Approximate is better than 'exact' for interval
    estimation of binomial proportions", from whom the idea is carried over to weights.

    >>> one = np.ones(2)
    >>> hedged(Terms("snips", one, one, one), reach=5.0, low=0.0, high=1.0).numerator.tolist()
    [1.0, 1.0, 0.0, 5.0]
    """
    numerator = terms.baseline + reach * (np.array([low, high]) - terms.baseline)
    denominator = np.full(2, reach if terms.estimator == "snips" else 1.0)
    return Terms(
        terms.estimator,
        np.concatenate([terms.numerator, numerator]),
        np.concatenate([terms.denominator, denominator]),
        terms.weight,
        terms.baseline,
    )


def influence(terms: Terms) -> Floats:
    """Return how far each row pulls the value, shape (n,), summing to 0.

    Influences of two policies on one log may be subtracted row by row: the spread of
    the difference is that of the difference of their values.

    >>> influence(Terms("ips", np.array([0.0, 1.0]), np.ones(2), np.ones(2))).tolist()
    [-0.5, 0.5]
    """
    pull: Floats = (terms.numerator - terms.value * terms.denominator) / terms.denominator.mean()
    return pull


def normal(terms: Terms) -> Interval:
    """Return value plus or minus 1.96 standard errors, by the delta method.

    On hedged terms it is the default for all three estimators. Over 1,000 simulated
    worlds with four arms, a floor of 0.02, rewards in [-0.1, 1] and four targets
    (`benchmarks/interval_coverage.py 1000`) it held the truth in this share of logs:

        rows    ips     snips   dr      each target by itself
        500     0.975   0.959   0.973   0.941 to 0.988
        1500    0.961   0.955   0.956   0.940 to 0.972

    Without the hedge it was 0.885 to 0.901 and 0.926 to 0.937. The hedged bootstrap
    does as well (0.966 to 0.975, 0.952 to 0.958) and takes longer.

    Raises:
        ValueError: Fewer than two rows.

    >>> low, high = normal(Terms("ips", np.array([0.0, 1.0] * 50), np.ones(100), np.ones(100)))
    >>> round(low, 3), round(high, 3)
    (0.402, 0.598)
    """
    n = len(terms.numerator)
    if n < 2:
        raise ValueError(f"an interval needs at least 2 rows, got {n}")
    pull = influence(terms)
    half = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0) * float(np.sqrt(pull @ pull / (n * (n - 1))))
    return terms.value - half, terms.value + half


def replicates(terms: Sequence[Terms], rng: np.random.Generator, resamples: int = 1000) -> Floats:
    """Return the values on `resamples` resampled logs, shape (len(terms), resamples).

    Each row of the log enters each resample a Poisson(1) number of times, drawn from
    one byte. Column j is the same resampled log for all terms, so that differences
    may be taken. Memory does not grow with the log. A resample in which a ratio is
    0 / 0 gives NaN.

    Args:
        terms: All on the same n rows.
        rng: Source of the resamples.
        resamples: How many.

    Raises:
        ValueError: Terms of different lengths.

    Source: Owen and Eckles (2012), "Bootstrapping data arrays of arbitrary order".
    """
    lengths = {len(t.numerator) for t in terms}
    if len(lengths) != 1:
        raise ValueError(f"shared resamples need terms of one length, got {sorted(lengths)}")
    n = lengths.pop()
    # Residuals are centred so that float32 products keep what matters.
    columns = np.stack(
        [t.numerator - t.value * t.denominator for t in terms] + [t.denominator for t in terms],
        axis=1,
        dtype=np.float32,
        casting="same_kind",
    )
    totals = np.zeros((resamples, columns.shape[1]))
    step = max(1, _CELLS // resamples)
    cells = np.empty(resamples * step, dtype=np.float32)
    for start in range(0, n, step):
        block = columns[start : start + step]
        drawn = np.frombuffer(rng.bytes(resamples * len(block)), dtype=np.uint8)
        # With a mode, `take` writes straight into `out`; without one it goes through a copy.
        counts = np.take(_BYTE_TO_COUNT, drawn, out=cells[: len(drawn)], mode="clip")
        totals += counts.reshape(resamples, len(block)) @ block
    residual, denominator = np.split(totals.T, 2)
    value = np.array([[t.value] for t in terms])
    spread = np.divide(residual, denominator, out=np.full_like(residual, np.nan), where=denominator > 0.0)
    return value + spread


def bootstrap(terms: Sequence[Terms], rng: np.random.Generator, resamples: int = 1000) -> list[Interval]:
    """Return the middle 95 % of the replicates of each of the terms; takes what `replicates` does.

    Source: Efron and Tibshirani (1993), "An introduction to the bootstrap", chapter 13.
    """
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.nanquantile(replicates(terms, rng, resamples), (tail, 1.0 - tail), axis=1)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def bernstein(terms: Terms, reach: float, low: float, high: float) -> Interval:
    """Return an interval that holds the truth in 95 % of logs at any number of rows.

    Takes what `hedged` does, on terms that are not hedged and not grouped. Its price is
    a width of at least 20 (`ips`) or 40 (`dr`) times `reach * (high - low) / n`: with a
    floor of 0.02 and rewards in [0, 1], 0.1 or 0.2 at 10,000 rows.

    Raises:
        ValueError: The terms are a ratio (`snips`), fewer than two, or outside of the
            range that `reach`, `low` and `high` give.

    Source: Maurer and Pontil (2009), "Empirical Bernstein bounds and sample variance
    penalization", theorem 4, once for each side.
    """
    n = len(terms.numerator)
    if terms.estimator == "snips" or n < 2:
        raise ValueError(f"needs a mean of at least 2 terms (ips or dr), got {terms.estimator} of {n}")
    if terms.estimator == "ips":
        bottom, top = min(0.0, reach * low), max(0.0, reach * high)
    else:
        bottom, top = low - reach * (high - low), high + reach * (high - low)
    least, most = float(terms.numerator.min()), float(terms.numerator.max())
    slack = 1e-9 * (top - bottom)
    if least < bottom - slack or most > top + slack:
        raise ValueError(f"terms must be in [{bottom:.6g}, {top:.6g}], got [{least:.6g}, {most:.6g}]")
    log_term = np.log(4.0 / (1.0 - LEVEL))
    variance = terms.numerator.var(ddof=1)
    half = float(np.sqrt(2.0 * variance * log_term / n) + 7.0 * (top - bottom) * log_term / (3.0 * (n - 1)))
    return terms.value - half, terms.value + half
