"""Diagnostics of a target on a log: weights and overlap.

An interval is computed from the rows that were drawn; an arm that was hardly ever drawn leaves it unchanged,
but shows here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from armwise.feedback.arrays import Floats, Integers, Matrix, split
from armwise.feedback.ope.sample import Sample, effective_size


@dataclass(frozen=True, slots=True)
class Overlap:
    """How well a log covers a target's draws of one arm.

    Attributes:
        arm: Name of the arm.
        rows: Rows in which the log drew it.
        logged: Share of the rows in which the log drew it, in [0, 1].
        target: Share of the decisions for which the target would draw it, in [0, 1].
        covered: Share of `target` that the log covers, in [0, 1]: 1 if the log draws
            the arm at least as often as the target in every row, 0 if it never does.
            It is the mean of min(p_log, p_target) divided by the mean of p_target, the former
            estimated from the drawn rows; 1 if the target never draws the arm.
        effective_n: Kish's effective size of the rows that drew it.
        largest_weight: Largest p_target / p_log of these rows; 0 without rows.
    """

    arm: str
    rows: int
    logged: float
    target: float
    covered: float
    effective_n: float
    largest_weight: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Whether the estimates of a target can be trusted.

    Attributes:
        n: Rows of the log that were used.
        effective_n: Kish's effective sample size, in [0, n].
        largest_weight: Largest p_target / p_log of a drawn arm.
        mean_weight: Mean of p_target / p_log. Its expectation is 1 if the propensities are right
            and the log could draw every arm of the target.
        mean_weight_error: Standard error of that mean; None for a single observation. Where the log's
            distributions are known, it is at least the error of draws from them: a sample that lacks the
            few rows of large weight underestimates it.
        overlap: The overlap of each arm, in the order of the columns.
    """

    n: int
    effective_n: float
    largest_weight: float
    mean_weight: float
    mean_weight_error: float | None
    overlap: tuple[Overlap, ...]

    @property
    def mean_weight_z(self) -> float:
        """Distance of the mean weight from 1 in standard errors, signed; 0 if the error is unknown."""
        away = self.mean_weight - 1.0
        if self.mean_weight_error is None or abs(away) <= 1e-9:
            return 0.0
        return away / self.mean_weight_error if self.mean_weight_error > 0.0 else inf * away

    @property
    def covered(self) -> float:
        """Share of the target's draws that the log covers, over all arms, in [0, 1]."""
        return sum(arm.target * arm.covered for arm in self.overlap)


def diagnose(
    sample: Sample,
    arms: Sequence[str],
    *,
    groups: Integers | None = None,
    p_log: Floats | Matrix | None = None,
) -> Diagnostics:
    """Return the diagnostics of a target on a log.

    Args:
        sample: The log and the target.
        arms: Names of the columns.
        groups: Codes from 0, shape (n,): rows with the same code are an observation for the error of the
            mean weight. None: each row is one.
        p_log: The log's distribution in each row, shape (n, n_arms); None: only the propensities of the drawn
            arms are known.

    Raises:
        ValueError: The number of names differs from that of columns.

    >>> log = Sample(np.array([0.5, 0.5]), np.array([0, 1]), np.ones(2), np.array([[1.0, 0.0]] * 2))
    >>> figures = diagnose(log, ["bm25", "dense"])
    >>> figures.effective_n, figures.mean_weight, figures.covered
    (1.0, 1.0, 0.5)
    >>> [(arm.arm, arm.target, arm.covered) for arm in figures.overlap]
    [('bm25', 1.0, 0.5), ('dense', 0.0, 1.0)]
    """
    n_arms = sample.p_target.shape[1]
    if len(arms) != n_arms:
        raise ValueError(f"arms must name the {n_arms} columns of p_target, got {len(arms)}: {list(arms)}")
    weight = sample.weight
    return Diagnostics(
        n=len(sample),
        effective_n=effective_size(weight),
        largest_weight=float(weight.max()),
        mean_weight=float(weight.mean()),
        mean_weight_error=_error_of_mean(sample, groups, p_log),
        overlap=_overlaps(sample, arms),
    )


def _overlaps(sample: Sample, arms: Sequence[str]) -> tuple[Overlap, ...]:
    """Return the overlap in each arm."""
    n, k, weight, drawn = len(sample), len(arms), sample.weight, sample.drawn
    rows = np.bincount(drawn, minlength=k)
    shared = np.bincount(drawn, np.minimum(weight, 1.0), minlength=k) / n
    total = np.bincount(drawn, weight, minlength=k)
    squares = np.bincount(drawn, weight * weight, minlength=k)
    largest = np.zeros(k)
    np.maximum.at(largest, drawn, weight)
    target = np.zeros(k)
    for here in split(n):
        block = sample.p_target[here]
        target += np.ones(len(block)) @ block
    target /= n
    covered = np.divide(shared, target, out=np.ones(k), where=target > 0.0).clip(max=1.0)
    effective = np.divide(total * total, squares, out=np.zeros(k), where=squares > 0.0)
    columns = (rows, rows / n, target, covered, effective, largest)
    return tuple(
        Overlap(arm, int(count), *figures)
        for arm, count, *figures in zip(arms, *(column.tolist() for column in columns), strict=True)
    )


def _error_of_mean(sample: Sample, groups: Integers | None, p_log: Floats | Matrix | None) -> float | None:
    """Return the standard error of the mean weight, with groups of rows as observations; None: one group."""
    weight, n = sample.weight, len(sample)
    pull = weight - weight.mean()
    if groups is not None:
        pull = np.bincount(groups, pull)
    m = len(pull)
    if m < 2:
        return None
    error = float(np.sqrt(pull @ pull * m / (m - 1))) / n
    return error if p_log is None else max(error, _error_of_draws(sample.p_target, p_log))


def _error_of_draws(p_target: Floats | Matrix, p_log: Floats | Matrix) -> float:
    """Return the standard deviation of the mean weight of independent draws from `p_log`."""
    squares = 0.0
    for rows in split(len(p_log)):
        target, log = p_target[rows], p_log[rows]
        drawable = np.where(log > 0.0, target, 0.0)
        ratio = np.divide(drawable, log, out=np.zeros_like(log), where=log > 0.0)
        away = ratio - drawable.sum(axis=1, keepdims=True)
        squares += float((log * away * away).sum())
    return sqrt(squares) / len(p_log)
