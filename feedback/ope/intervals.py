"""Confidence intervals of estimates, for a log whose size was fixed beforehand.

    normal             delta method; closed form; every estimator
    bootstrap          percentiles over resamples that all estimators and targets share

Only the bounds of `armwise.feedback.ope.confidence_sequences` stay valid under repeated evaluation while the
log grows. Coverage: docs/benchmarks/interval-coverage.md.

A log whose policy keeps a small floor hides its variance: the few rows with a large weight may not have been
drawn at all, and an interval of the drawn rows alone cannot include them. `hedge` adds them as imaginary
rows; both are meant for hedged terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor, inf
from statistics import NormalDist

import numpy as np

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.ope.sample import Terms

LEVEL = 0.95
"""Default coverage of intervals."""

_BYTE_TO_COUNT = np.repeat(np.arange(6, dtype=np.float32), (94, 95, 46, 16, 4, 1))
"""A Poisson(1) count for each value of a byte: mean 1 and variance 1 exactly, skewness 1 to 0.4 %."""

_CELLS = 1 << 15
"""Counts drawn at a time: few enough for the cache, and too few for BLAS to start threads in vain."""

_ROWS = 1 << 16
"""Rows whose columns are laid side by side at a time."""

_NO_WIDTH = 1e-9
"""Width, relative to the possible range, up to which an interval counts as closed."""

FEW = 30
"""Rows below which an interval by the normal approximation or by resamples is opened, see `present`."""

Interval = tuple[float, float]


def by_group(terms: Terms, group: Integers) -> Terms:
    """Add up the rows of each group, so that an interval assumes independent groups instead of rows.

    The value stays the same.

    Args:
        terms: Terms with a row for each row of the log.
        group: Codes 0, 1, 2, without gaps, shape (n,).

    >>> one = np.ones(4)
    >>> pairs = by_group(Terms("ips", np.array([1.0, 0.0, 2.0, 1.0]), one, one), np.array([0, 0, 1, 1]))
    >>> pairs.numerator.tolist(), pairs.denominator.tolist(), pairs.value
    ([1.0, 3.0], [2.0, 2.0], 1.0)
    """
    if int(group.max()) + 1 == len(group):
        return terms
    return replace(
        terms,
        numerator=np.bincount(group, terms.numerator).astype(np.float64, copy=False),
        denominator=np.bincount(group, terms.denominator).astype(np.float64, copy=False),
    )


def hedge(terms: Terms, reach: float, low: float, high: float) -> Terms:
    """Add two imaginary draws of the largest weight, one with the worst and one with the best reward.

    The weighted analogue of adding a success and a failure to a proportion. It changes the value by
    the order of `reach / n`, so it is for intervals, not for the point estimate.

    Args:
        terms: The terms of the estimate.
        reach: Largest weight that any row could have had, over all arms; the cap of the estimator
            counts if it is smaller.
        low: Smallest reward.
        high: Largest reward.

    Source: Agresti and Coull (1998), "Approximate is better than 'exact' for interval
    estimation of binomial proportions", from whom the idea is carried over to weights.

    >>> one = np.ones(2)
    >>> hedge(Terms("snips", one, one, one, ratio=True), reach=5.0, low=0.0, high=1.0).numerator.tolist()
    [1.0, 1.0, 0.0, 5.0]
    """
    weight = min(reach, terms.cap)
    numerator = terms.mean_prediction + weight * (np.array([low, high]) - terms.mean_prediction)
    denominator = np.full(2, weight if terms.ratio else 1.0)
    return replace(
        terms,
        numerator=np.concatenate([terms.numerator, numerator]),
        denominator=np.concatenate([terms.denominator, denominator]),
    )


def influence(terms: Terms) -> Floats:
    """Return the influence of each row on the value, shape (n,), summing to 0.

    >>> influence(Terms("ips", np.array([0.0, 1.0]), np.ones(2), np.ones(2))).tolist()
    [-0.5, 0.5]
    """
    pull: Floats = (terms.numerator - terms.value * terms.denominator) / terms.denominator.mean()
    return pull


def difference(terms: Terms, baseline: Terms) -> Terms:
    """Return terms whose value is that of `terms` minus that of the baseline, for `normal`.

    Both are on the same rows, so common variation cancels. Ratios are linearised. If one is hedged or
    grouped, both must be: an imaginary row is the same row for both.

    Raises:
        ValueError: The terms differ in length.

    >>> one, rewards = np.ones(2), np.array([0.0, 1.0])
    >>> difference(Terms("ips", rewards + 0.25, one, one), Terms("ips", rewards, one, one)).numerator.tolist()
    [0.25, 0.25]
    """
    lengths = len(terms.numerator), len(baseline.numerator)
    if lengths[0] != lengths[1]:
        raise ValueError(f"a difference needs terms of one length, got {lengths[0]} and {lengths[1]}")
    rows = (terms.value - baseline.value) + (influence(terms) - influence(baseline))
    return Terms(
        f"{terms.estimator} - {baseline.estimator}", rows, np.broadcast_to(1.0, rows.shape), terms.weight
    )


def normal(terms: Terms, level: float = LEVEL) -> Interval:
    """Return the value plus or minus the standard errors of the level, by the delta method.

    Raises:
        ValueError: There are fewer than two rows, or the level is out of (0, 1).

    >>> low, high = normal(Terms("ips", np.array([0.0, 1.0] * 50), np.ones(100), np.ones(100)))
    >>> round(low, 3), round(high, 3)
    (0.402, 0.598)
    """
    n = len(terms.numerator)
    if n < 2:
        raise ValueError(f"an interval needs at least 2 rows, got {n}")
    pull = influence(terms)
    errors = NormalDist().inv_cdf(1.0 - split_tail(level))
    half = errors * float(np.sqrt(pull @ pull / (n * (n - 1))))
    return terms.value - half, terms.value + half


def present(
    value: float, interval: Interval, possible: Interval, *, n: float = inf, level: float = LEVEL
) -> tuple[float, Interval]:
    """Return an estimate and its interval as they are shown: cut to the possible range, and opened if needed.

    The truth lies within the possible range, so the cut keeps the coverage; the interval holds the estimate.
    An interval that is entirely impossible, or has an end that is NaN, becomes the possible range.

    Equal rows give an interval of width 0, and for fewer than `FEW` rows resamples and the normal
    approximation know too little. Then the interval is opened for what the rows may have missed: n rows show
    an outcome of probability above 1 - tail^(1/n) at least once, except in a share `tail` of the cases. All
    unseen outcomes together may have that probability, and be the worst or the best.

    Args:
        value: The estimate.
        interval: Interval of the estimate, by the normal approximation or from resamples.
        possible: Smallest and largest possible value, finite.
        n: Number of independent rows, or Kish's effective number; by default the interval is only cut.
        level: Coverage of the interval.

    Source: Louis (1981), "Confidence intervals for a binomial parameter after observing no successes"; for
    equal rewards at the end of the range it is the interval of Clopper and Pearson.

    >>> present(0.5, (-0.1, 1.1), (0.0, 1.0))
    (0.5, (0.0, 1.0))
    >>> value, (low, high) = present(1.0, (1.0, 1.0), (0.0, 1.0), n=100)
    >>> value, round(low, 3), high
    (1.0, 0.964, 1.0)
    """
    least, most = possible
    low, high = interval
    value = min(most, max(least, value))
    if not (low <= most and high >= least):
        return value, possible
    if n < FEW or high - low <= _NO_WIDTH * (most - least):
        missed = 1.0 - split_tail(level) ** (1.0 / n) if n > 0.0 else 1.0
        low, high = min(low, value - missed * (value - least)), max(high, value + missed * (most - value))
    return value, (max(least, min(value, low)), min(most, max(value, high)))


def replicates(terms: Sequence[Terms], rng: np.random.Generator, resamples: int = 1000) -> Floats:
    """Return the values on `resamples` resampled logs, shape (len(terms), resamples).

    Each row of the log enters each resample a Poisson(1) number of times, drawn from
    one byte. Column j is the same resampled log for all terms, whatever their estimator or
    target, so the percentiles of a line minus another are an interval of the difference.
    Memory is bounded whatever the log. A resample in which a ratio is 0 / 0 gives NaN.
    Equal terms of an estimator share a line, so that the difference of equal policies is exactly 0: a kernel
    of BLAS may round equal columns in different places differently.

    Args:
        terms: Terms on the same n rows.
        rng: Source of the resamples.
        resamples: Number of resamples.

    Raises:
        ValueError: The terms differ in length.

    Source: Owen and Eckles (2012), "Bootstrapping data arrays of arbitrary order".
    """
    lengths = {len(t.numerator) for t in terms}
    if len(lengths) != 1:
        raise ValueError(f"shared resamples need terms of one length, got {sorted(lengths)}")
    n = lengths.pop()
    line = _lines(terms)
    terms = [terms[line.index(number)] for number in range(max(line) + 1)]
    value = np.array([[t.value] for t in terms])
    totals = np.zeros((resamples, 2 * len(terms)))
    step = max(1, _CELLS // resamples)
    cells = np.empty(resamples * step, dtype=np.float32)
    for begin in range(0, n, _ROWS):
        columns = _columns(terms, slice(begin, begin + _ROWS))
        for start in range(0, len(columns), step):
            block = columns[start : start + step]
            drawn = np.frombuffer(rng.bytes(resamples * len(block)), dtype=np.uint8)
            # With a mode, `take` writes straight into `out`; without one it goes through a copy.
            counts = np.take(_BYTE_TO_COUNT, drawn, out=cells[: len(drawn)], mode="clip")
            totals += counts.reshape(resamples, len(block)) @ block
    residual, denominator = np.split(totals.T, 2)
    spread = np.divide(residual, denominator, out=np.full_like(residual, np.nan), where=denominator > 0.0)
    return (value + spread)[line]


EQUAL = 1e-12
"""Relative difference of two numbers that is attributed to rounding."""


def _lines(terms: Sequence[Terms]) -> list[int]:
    """Return the line of each of the terms, numbered as they first occur; equal terms share a line.

    >>> one = np.ones(2)
    >>> same, other = Terms("ips", one * 0.3, one, one), Terms("ips", one * 0.4, one, one)
    >>> _lines([same, other, Terms("ips", one * (0.1 + 0.2), one, one), Terms("dm", one * 0.3, one, one)])
    [0, 1, 0, 2]
    """
    distinct: list[Terms] = []
    lines = []
    for t in terms:
        alike = (
            number
            for number, other in enumerate(distinct)
            if t.estimator == other.estimator
            and np.allclose(t.numerator, other.numerator, rtol=EQUAL, atol=EQUAL)
            and np.allclose(t.denominator, other.denominator, rtol=EQUAL, atol=EQUAL)
        )
        lines.append(next(alike, len(distinct)))
        if lines[-1] == len(distinct):
            distinct.append(t)
    return lines


def percentiles(values: Floats, level: float = LEVEL) -> list[Interval]:
    """Return the middle part of each line of replicates, shape (k, resamples), or of their differences.

    Raises:
        ValueError: The level is out of (0, 1).

    Source: Efron and Tibshirani (1993), "An introduction to the bootstrap", chapter 13.

    >>> percentiles(np.array([[3.0, 1.0, 2.0, np.nan]]), level=0.5)
    [(1.5, 2.5)]
    """
    tail = split_tail(level)
    low, high = np.nanquantile(values, (tail, 1.0 - tail), axis=1)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def bootstrap(
    terms: Sequence[Terms], rng: np.random.Generator, resamples: int = 1000, level: float = LEVEL
) -> list[Interval]:
    """Return the percentiles of the replicates of each of the terms; arguments are as in `replicates`."""
    return percentiles(replicates(terms, rng, resamples), level)


def _columns(terms: Sequence[Terms], rows: slice) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return residuals and denominators of some rows, shape (rows, 2 * len(terms)).

    Residuals are centred so that float32 products stay exact enough.
    """
    residuals = [t.numerator[rows] - t.value * t.denominator[rows] for t in terms]
    return np.stack(
        residuals + [t.denominator[rows] for t in terms], axis=1, dtype=np.float32, casting="same_kind"
    )


def split_tail(level: float) -> float:
    """Return the probability of each tail."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level:.6g}")
    return (1.0 - level) / 2.0


Further = tuple[int, int | None]
"""Least and most further rows of a forecast; None: more than `MOST_MORE` times as many as there are."""

MOST_MORE = 20
"""Furthest forecast, as a multiple of the rows so far."""


def forecast_more(lead: float, half: float, n: int, *, errors: float = 3.5) -> Further | None:
    """Estimate after how many more rows an interval leaves out a bound that it contains.

    The distance of an end from the estimate falls with the square root of the number of rows. The forecast is
    a range, for leads that are a standard error larger and smaller: in simulations, eight of ten are in it.

    Args:
        lead: Distance of the estimate from the bound; negative where the estimate is beyond it.
        half: Distance of the estimate from the end of the interval that is to pass the bound.
        n: Number of rows so far.
        errors: Standard errors in `half`: about 3.5 in a confidence sequence, which holds at every number of
            rows, and 1.96 in a normal interval of 95 %.

    Returns:
        Least and most further rows, rounded to two digits; None: it takes more than `MOST_MORE` times as many
        as there are.

    >>> forecast_more(0.2, 0.3, 1_000), forecast_more(0.1, 0.3, 1_000), forecast_more(0.0, 0.3, 1_000)
    ((100, 5900), (1600, None), (11000, None))
    >>> forecast_more(-0.2, 0.3, 1_000)
    """
    least, most = (
        n * ((half / reached) ** 2 - 1.0) if reached > 0.0 else inf
        for reached in (lead + half / errors, lead - half / errors)
    )
    if least > MOST_MORE * n:
        return None
    return _round(max(1.0, least), floor), None if most > MOST_MORE * n else _round(max(1.0, most), ceil)


def _round(n: float, towards: Callable[[float], int]) -> int:
    """Return a number with two significant digits.

    >>> _round(43.2, ceil), _round(1_234.0, floor)
    (44, 1200)
    """
    scale = int(10 ** max(0, len(str(int(n))) - 2))
    return towards(n / scale) * scale
