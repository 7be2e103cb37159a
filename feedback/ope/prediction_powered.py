"""Prediction-powered inference: means and policy values from grades on many rows, and feedback on some.

    value = weight * mean of the grades without feedback + mean of (feedback - weight * grade) with it

The second term removes any bias of the judge, if the rows with feedback are a random sample. The weight with
the least variance is estimated: a judge that predicts nothing gets 0, and the result is the mean of the
feedback alone, so on long logs the interval is at most as wide as the classical one. Both are passed through
`intervals.present`: within the range of values, and opened where few or equal audits would close them.

Source: Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023, arXiv:2301.09633; the weight: Angelopoulos,
Duchi and Zrnic 2023 (PPI++), arXiv:2311.01453, section 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

from armwise.feedback.arrays import Floats, refuse
from armwise.feedback.ope.intervals import LEVEL, Interval, present, split_tail
from armwise.feedback.ope.sample import effective_size

BINS = 5
"""Bins of a calibration curve."""


@dataclass(frozen=True, slots=True)
class PoweredMean:
    """A prediction-powered mean with its interval, and the classical mean of the feedback alone.

    Attributes:
        value: The estimate.
        interval: Interval by the normal approximation, through `intervals.present`.
        weight: Weight of the grades; 0 if they are of no help.
        audits: Number of rows with feedback.
        rows: Number of all rows.
        classical: The mean of the feedback alone.
        classical_interval: Interval of the classical estimate.
        bias: Mean grade minus mean value over the rows with feedback.
    """

    value: float
    interval: Interval
    weight: float
    audits: int
    rows: int
    classical: float
    classical_interval: Interval
    bias: float


def estimate_mean(
    grades: Floats,
    values: Floats,
    ratio: Floats | None = None,
    *,
    level: float = LEVEL,
    possible: Interval = (0.0, 1.0),
) -> PoweredMean:
    """Estimate the mean of values that are known on some rows, by grades on all of them.

    Args:
        grades: Grades by a judge, shape (n,), finite.
        values: Values from feedback, shape (n,), NaN: missing; the rows that have one are a random sample.
        ratio: Propensity by a target policy over the logged one, shape (n,), for the value of that policy;
            None: for the mean.
        level: Coverage of the intervals, in (0, 1).
        possible: Smallest and largest possible value.

    Raises:
        ValueError: Shapes differ, there are fewer than two rows with feedback, or a value is impossible.

    >>> found = estimate_mean(np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.1, 0.9, np.nan, np.nan]))
    >>> round(found.value, 6), found.audits, found.rows
    (0.5, 2, 4)
    """
    weights = np.ones(len(grades)) if ratio is None else ratio
    if not len(grades) == len(values) == len(weights):
        raise ValueError(
            f"{len(grades)} grades, {len(values)} values and {len(weights)} ratios: the numbers must be equal"
        )
    audited = ~np.isnan(values)
    n, rest = int(audited.sum()), int((~audited).sum())
    if n < 2:
        raise ValueError(f"{n} of {len(grades)} graded rows have feedback: 2 or more are needed")
    least, most = possible
    refuse("value", values, ~audited | ((values >= least) & (values <= most)), f"from {least:g} to {most:g}")
    f, y = weights * grades, (weights * values)[audited]
    weight = 0.0
    if rest and float(np.ptp(f)) > 0.0:
        weight = float(np.cov(y, f[audited])[0, 1]) / ((1.0 + n / rest) * float(f.var(ddof=1)))
    residual = y - weight * f[audited]
    value, variance = float(residual.mean()), float(residual.var(ddof=1)) / n
    if rest:
        value += weight * float(f[~audited].mean())
    if rest > 1:
        variance += weight**2 * float(f[~audited].var(ddof=1)) / rest
    z = NormalDist().inv_cdf(1.0 - split_tail(level))
    mean, error = float(y.mean()), z * sqrt(float(y.var(ddof=1)) / n)
    half, effective = z * sqrt(variance), effective_size(weights[audited])
    bias = float(f[audited].mean()) - mean
    value, interval = present(value, (value - half, value + half), possible, n=effective, level=level)
    mean, classical = present(mean, (mean - error, mean + error), possible, n=effective, level=level)
    return PoweredMean(value, interval, weight, n, len(grades), mean, classical, bias)


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a calibration curve: mean grade and mean value of audits with similar grades."""

    grade: float
    value: float
    audits: int


def calibration_curve(grades: Floats, values: Floats, bins: int = BINS) -> list[Bin]:
    """Return the mean grade and the mean value in bins of equal width; empty bins are left out.

    Args:
        grades: Grades in [0, 1], shape (n,).
        values: Values from feedback, shape (n,), NaN: missing.
        bins: Number of bins.

    >>> calibration_curve(np.array([0.1, 0.9, 0.9]), np.array([0.5, 1.0, 0.0]), 2)
    [Bin(grade=0.1, value=0.5, audits=1), Bin(grade=0.9, value=0.5, audits=2)]
    """
    audited = ~np.isnan(values)
    grades, values = grades[audited], values[audited]
    which = np.minimum((grades * bins).astype(np.int64), bins - 1)
    return [
        Bin(float(grades[which == b].mean()), float(values[which == b].mean()), int((which == b).sum()))
        for b in np.unique(which).tolist()
    ]


def by_arm(arms: Sequence[str], grades: Floats, values: Floats) -> dict[str, PoweredMean]:
    """Return the mean of each arm that has at least two rows with feedback."""
    named = np.array(arms)
    rows = {arm: named == arm for arm in dict.fromkeys(arms)}
    return {
        arm: estimate_mean(grades[mine], values[mine])
        for arm, mine in rows.items()
        if int((~np.isnan(values[mine])).sum()) >= 2
    }
