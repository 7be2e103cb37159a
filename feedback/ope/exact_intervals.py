"""Intervals that hold at every sample size, for estimates whose rows are bounded and independent.

    bernstein          means of bounded rows, and `replay`; wide
    clopper_pearson    `replay` with rewards of two values; as narrow as can be

Terms are neither hedged nor grouped here: a question that is asked twice counts as two.
"""

from math import isinf

import numpy as np

from feedback.ope.estimators import ESTIMATORS, Estimator, Rows
from feedback.ope.intervals import LEVEL, Interval, difference, tail_of
from feedback.ope.sample import Terms


def has_bernstein(estimator: Estimator, *, difference: bool) -> bool:
    """Whether `bernstein` is for the values of an estimator, or for their difference to a baseline."""
    return estimator.is_mean or (estimator.rows is Rows.KEPT and not difference)


def bernstein(
    terms: Terms,
    reach: float,
    low: float,
    high: float,
    level: float = LEVEL,
    *,
    baseline: Terms | None = None,
    baseline_reach: float = 1.0,
) -> Interval:
    """Return an interval of the expectation of the estimator, valid at any number of rows.

    Its width is at least 20 (`ips`) or 40 (`dr`) times `reach * (high - low) / n`:
    with a floor of 0.02 and rewards in [0, 1], 0.1 or 0.2 at 10,000 rows. It does not
    include the bias of a biased estimator.

    Args:
        terms: Terms of an estimator whose value is a mean of independent rows, or of `replay`, whose kept
            rows are draws of the target.
        reach: Largest weight that any row could have had, over all arms; the estimator's own
            cap counts where it is smaller.
        low: Smallest reward, and prediction.
        high: Largest reward, and prediction.
        level: Coverage.
        baseline: What the value is compared with, on the same rows; neither may be of `replay`.
        baseline_reach: Largest weight of the baseline: 1 for what was served.

    Raises:
        ValueError: Another estimator, fewer than two rows, or rows outside of the range that
            `reach`, `low` and `high` give.

    Source: Maurer and Pontil (2009), "Empirical Bernstein bounds and sample variance
    penalization", theorem 4, once for each side.
    """
    allowed = [one.name for one in ESTIMATORS.values() if has_bernstein(one, difference=baseline is not None)]
    for part in (terms,) if baseline is None else (terms, baseline):
        if part.estimator not in allowed:
            raise ValueError(f"needs a mean of independent rows ({', '.join(allowed)}), got {part.estimator}")
    rows = terms.numerator if not terms.ratio else terms.numerator[terms.denominator > 0.0]
    bottom, top = _span(terms, reach, low, high)
    if baseline is not None:
        least, most = _span(baseline, baseline_reach, low, high)
        rows, bottom, top = difference(terms, baseline).numerator, bottom - most, top - least
    n = len(rows)
    if n < 2:
        raise ValueError(f"an interval needs at least 2 rows, got {n}")
    slack = 1e-9 * (top - bottom)
    if rows.min() < bottom - slack or rows.max() > top + slack:
        raise ValueError(
            f"rows must be in [{bottom:.6g}, {top:.6g}], got [{rows.min():.6g}, {rows.max():.6g}]"
        )
    log_term = np.log(2.0 / tail_of(level))
    half = float(
        np.sqrt(2.0 * rows.var(ddof=1) * log_term / n) + 7.0 * (top - bottom) * log_term / (3.0 * (n - 1))
    )
    centre = float(rows.mean())
    return centre - half, centre + half


def clopper_pearson(terms: Terms, level: float = LEVEL, low: float = 0.0, high: float = 1.0) -> Interval:
    """Return the exact interval of a proportion, from the rows that `replay` kept.

    Args:
        terms: Terms of `replay`, neither hedged nor grouped.
        level: Coverage, at least.
        low: The one value that rewards have.
        high: The other one.

    Raises:
        ValueError: Another estimator, or a reward that is neither of the two.

    Source: Clopper and Pearson (1934), "The use of confidence or fiducial limits
    illustrated in the case of the binomial".

    >>> kept = np.array([1.0, 1.0, 0.0, 1.0])
    >>> few = Terms("replay", np.array([1.0, 0.0, 0.0, 1.0]), kept, kept, ratio=True)
    >>> tuple(round(end, 3) for end in clopper_pearson(few))
    (0.094, 0.992)
    """
    estimator = ESTIMATORS.get(terms.estimator)
    if estimator is None or estimator.rows is not Rows.KEPT:
        raise ValueError(f"only what replay kept are draws of the target, got {terms.estimator}")
    kept = terms.numerator[terms.denominator > 0.0]
    good = np.isclose(kept, high)
    if not (good | np.isclose(kept, low)).all():
        other = kept[~(good | np.isclose(kept, low))][0]
        raise ValueError(f"rewards must be {low:.6g} or {high:.6g}, got {other:.6g}")
    n, hits, tail = len(kept), int(good.sum()), tail_of(level)
    from scipy import stats  # takes a second to import

    share_low = float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits else 0.0
    share_high = float(stats.beta.isf(tail, hits + 1, n - hits)) if hits < n else 1.0
    return low + (high - low) * share_low, low + (high - low) * share_high


def _span(terms: Terms, reach: float, low: float, high: float) -> Interval:
    """Return the smallest and the largest possible value of a row of the terms."""
    kind = ESTIMATORS[terms.estimator].rows
    if kind is Rows.KEPT:
        return low, high
    weight = min(reach, terms.cap)
    if isinf(weight):
        raise ValueError(f"the reach of {terms.estimator} must be finite, got {reach:.6g}")
    if kind is Rows.WEIGHTED:
        return min(0.0, weight * low), max(0.0, weight * high)
    return low - weight * (high - low), high + weight * (high - low)
