"""Estimate the value of a policy from a log that another policy wrote.

    replay         keep rows as a draw of the target would have; their mean
    ips            weigh each reward by p_target / p_log; unbiased, with the variance of the weights
    clipped_ips    the same with a largest weight; some bias for much variance
    snips          `ips` divided by the sum of the weights; nearly unbiased, less variance
    dm             predict the reward of every arm; as good as the model
    dr             the prediction, corrected by the weighted residuals; unbiased
    sndr           `dr` with weights that are made to average 1
    switch_dr      `dr` that trusts the model alone where a weight is large
    dros           `dr` with large weights shrunk smoothly
    mrdr           `dr` with a model that was fitted to make it vary least
    cressie_read   weigh rows so that the weights average 1, at the least distance from the log

Each is a function from a `Sample` to `Terms`. `ESTIMATORS` has them by name, with their traits: reports,
the command line and HTTP find an estimator that is added there.

Source: for each estimator, in its docstring; see also docs/reference/estimators.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any

import numpy as np

from feedback.ope.doubly_robust import dm, dr, dros, mrdr, sndr, switch_dr
from feedback.ope.sample import NeverDrawnError, Sample, Terms, ones
from feedback.ope.shrinkage import clipped, fit_clip


def replay(sample: Sample, *, bound: float | None = None, rng: np.random.Generator | None = None) -> Terms:
    """Keep each row with a chance of weight / bound, so that the rows kept are draws of the target.

    For a deterministic target and a log that drew all arms alike, these are the rows in which
    both agree, and no row is dropped at random.

    Args:
        sample: The log and the target.
        bound: Largest weight that a row may have; the largest in the log by default.
        rng: Source of the draws; seeded with 0 by default, so that one log has one answer.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: A bound below a weight.

    Source: Li, Chu, Langford and Wang (2011), "Unbiased offline evaluation of
    contextual-bandit-based news article recommendation algorithms"; for other logs,
    Dudik, Erhan, Langford and Li (2012), "Sample-efficient nonstationary policy
    evaluation for contextual bandits".

    >>> first = np.array([[1.0, 0.0]] * 4)
    >>> replay(Sample(np.full(4, 0.5), np.array([0, 1, 0, 1]), np.array([1.0, 9.0, 0.0, 9.0]), first)).value
    0.5
    """
    weight = sample.supported_weight
    largest = float(weight.max())
    if bound is None:
        bound = largest
    elif bound < largest:
        raise ValueError(f"bound must be at least the largest weight, {largest:.6g}, got {bound:.6g}")
    source = np.random.default_rng(0) if rng is None else rng
    kept = (source.random(len(sample)) * bound < weight).astype(np.float64)
    if not kept.any():
        raise NeverDrawnError(
            f"rejection with the bound {bound:.6g} kept none of {len(sample)} rows: the log is too short"
        )
    return Terms("replay", kept * sample.reward, kept, kept, ratio=True, cap=1.0)


def ips(sample: Sample) -> Terms:
    """Weigh each reward by how much more often the target draws that arm.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.

    Source: Horvitz and Thompson (1952), "A generalization of sampling without
    replacement from a finite universe".

    >>> first = np.array([[1.0, 0.0]] * 4)
    >>> ips(Sample(np.full(4, 0.5), np.array([0, 0, 1, 1]), np.array([1.0, 0.0, 1.0, 1.0]), first)).value
    0.5
    """
    weight = sample.supported_weight
    return Terms("ips", weight * sample.reward, ones(weight), weight)


def clipped_ips(sample: Sample, *, clip: float | None = None) -> Terms:
    """Weigh each reward as `ips` does, by `clip` at the most.

    Args:
        sample: The log and the target.
        clip: Largest weight, above 0; chosen from the log when None (`feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: A clip that is not above 0.

    Source: Ionides (2008), "Truncated importance sampling".

    >>> first = np.array([[1.0, 0.0]] * 2)
    >>> clipped_ips(Sample(np.full(2, 0.2), np.array([0, 1]), np.ones(2), first), clip=3.0).value
    1.5
    """
    full = sample.supported_weight
    if clip is None:
        clip = fit_clip(full, sample.reward)
    weight = clipped(full, clip)
    return Terms("clipped_ips", weight * sample.reward, ones(weight), weight, cap=clip, parameter=clip)


def snips(sample: Sample) -> Terms:
    """Average the rewards, weighted as in `ips`; always within the range of the rewards.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.

    Source: Swaminathan and Joachims (2015), "The self-normalized estimator for
    counterfactual learning".

    >>> first = np.array([[1.0, 0.0]] * 4)
    >>> snips(Sample(np.full(4, 0.5), np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 0.0]), first)).value
    1.0
    """
    weight = sample.supported_weight
    return Terms("snips", weight * sample.reward, weight, weight, ratio=True)


def cressie_read(sample: Sample, *, least: float = 0.0, largest: float = inf) -> Terms:
    """Weigh the rows so that the weights average 1, at the least distance from weighing all alike.

    The distance is the Cressie-Read divergence of power -2, for which the answer has a
    closed form; one imaginary row with an extreme weight makes it exist. The weight of the
    imaginary row earns the mean reward of the log. The value is that of the
    formula; the terms are its linearisation (value plus influence of each row), so that
    intervals account for the constraint on the weights.

    Args:
        sample: The log and the target.
        least: Smallest weight that a row could have, in [0, 1).
        largest: Largest weight that a row could have, above 1; not known by default.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: `least` or `largest` out of its range.

    Source: Karampatziakis, Langford and Mineiro (2020), "Empirical likelihood for
    contextual bandits".

    >>> first = np.array([[1.0, 0.0]] * 4)
    >>> log = Sample(np.full(4, 0.5), np.array([0, 0, 1, 1]), np.array([1.0, 0.5, 0.0, 0.0]), first)
    >>> round(cressie_read(log).value, 3)
    0.75
    """
    if not 0.0 <= least < 1.0 < largest:
        raise ValueError(f"least must be in [0, 1) and largest above 1, got {least:.6g} and {largest:.6g}")
    w, r, n = sample.supported_weight, sample.reward, len(sample)
    w_r = w * r
    total, mean_reward = float(w.sum()), float(r.mean())
    fake = max(largest, float(w.max())) if total < n else min(least, float(w.min()))
    if fake == inf:
        missing = 1.0 - total / n
        rows = w_r + missing * r + (1.0 - w) * mean_reward - missing * mean_reward
        return Terms("cressie_read", rows, ones(w), w, mean_prediction=float(rows.mean()))
    a, b = (fake + total) / (n + 1), (fake * fake + float(w @ w)) / (n + 1)
    spread = a * a - b
    gamma, beta = (b - a) / spread, (1.0 - a) / spread
    first, second = float(w_r.sum()), float(w_r @ w)
    missing = max(0.0, -fake * (gamma + beta * fake) / (n + 1))
    value = -(gamma * first + beta * second) / (n + 1) + missing * mean_reward
    # Derivatives of a, b, gamma and beta by one more row with weight w, for the influence.
    da, db = w - a, w * w - b
    dspread = 2.0 * a * da - db
    dgamma = (db - da - gamma * dspread) / spread
    dbeta = -(da + beta * dspread) / spread
    pull = -(gamma + beta * w) * w_r - dgamma * (first / n) - dbeta * (second / n)
    return Terms("cressie_read", value + (pull - pull.mean()), ones(w), w, mean_prediction=value)


class Rows(Enum):
    """What a row of the terms is; intervals depend on it."""

    KEPT = "a draw of the target, or left out"
    WEIGHTED = "a weighted reward, independent of the other rows"
    CORRECTED = "a prediction with a weighted correction, independent of the other rows given the model"
    DEPENDENT = "dependent on all other rows, such as by a common divisor"


class Predictions(Enum):
    """Which predictions of rewards an estimator reads."""

    NONE = "none"
    SHARED = "q_hat, which all targets share"
    OWN = "q_mrdr, fitted for each target"


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator and its traits; it is called like its function.

    Attributes:
        function: Returns the terms of a sample.
        rank: Place among the estimators when one figure has to represent a policy: the lowest does, and of
            equal ones the first that was requested.
        rows: What a row of its terms is.
        covers: Whether its intervals hold the truth as often as they state; not those of a biased estimator,
            whose bias no interval captures.
        predictions: Which predictions of rewards it reads.
        anytime: Whether a confidence sequence is for its values.
    """

    function: Callable[..., Terms]
    rank: int
    rows: Rows
    covers: bool
    predictions: Predictions = Predictions.NONE
    anytime: bool = False

    def __call__(self, sample: Sample, **options: Any) -> Terms:
        """Return the terms of a sample; options are the function's."""
        return self.function(sample, **options)

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def is_mean(self) -> bool:
        """Whether the value is a mean of independent rows."""
        return self.rows in (Rows.WEIGHTED, Rows.CORRECTED)


ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator(replay, 9, Rows.KEPT, covers=True),
        Estimator(ips, 8, Rows.WEIGHTED, covers=True, anytime=True),
        Estimator(clipped_ips, 7, Rows.WEIGHTED, covers=False),
        Estimator(snips, 5, Rows.DEPENDENT, covers=True),
        Estimator(dm, 10, Rows.CORRECTED, covers=False, predictions=Predictions.SHARED),
        Estimator(dr, 0, Rows.CORRECTED, covers=True, predictions=Predictions.SHARED),
        Estimator(sndr, 1, Rows.DEPENDENT, covers=True, predictions=Predictions.SHARED),
        Estimator(switch_dr, 3, Rows.CORRECTED, covers=False, predictions=Predictions.SHARED),
        Estimator(dros, 2, Rows.CORRECTED, covers=False, predictions=Predictions.SHARED),
        Estimator(mrdr, 4, Rows.CORRECTED, covers=True, predictions=Predictions.OWN),
        Estimator(cressie_read, 6, Rows.DEPENDENT, covers=True),
    )
}
"""Every estimator by its name; those with a parameter choose it from the log."""


def estimate(sample: Sample, name: str) -> Terms:
    """Return the terms of the estimator of that name.

    Raises:
        ValueError: No estimator has the name; also raises what the estimator raises.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"no estimator {name!r}; there are: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](sample)
