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

Each is a function from a `Sample` to `Terms`, with an entry above it: its traits, and its row of the table in
docs/reference/estimators.md. `ESTIMATORS` has the entries by name: reports, the command line and HTTP find an
estimator there.

All doubly robust estimates are the mean of the predicted value of the target in a row, plus a
weight times the residual of the drawn arm. They differ in the weight, and `mrdr` in the model.

Source: for each estimator, in its docstring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, TypeVar

import numpy as np

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.sample import NeverDrawnError, Prediction, Sample, Terms, ones
from armwise.feedback.ope.shrinkage import (
    Shrinker,
    clip_weights,
    fit_clip,
    fit_shrinkage,
    fit_threshold,
    shrunk,
    switch_weights,
)


class Rows(Enum):
    """What a row of the terms is; the intervals depend on it."""

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
    """An estimator and its properties; call it like its function.

    Attributes:
        function: Returns the terms of a sample.
        value: The estimate, as a formula of rows: reward `r`, weight `w`, expected
            prediction `e`, residual `d` of the drawn arm, parameter `c`.
        use: When to use it.
        source: Where it was published.
        rank: Rank among the estimators when one figure must represent a policy: the lowest does, and among
            equal ones the first that was requested.
        rows: What a row of the terms is.
        covers: Whether the intervals contain the truth as often as they state; they miss the bias of a
            biased estimator.
        predictions: Which predictions of rewards it reads.
        anytime: Whether a confidence sequence applies to its values.
        parameter: The option that is chosen from the log by default; empty if there is none.
    """

    function: Callable[..., Terms]
    value: str
    use: str
    source: str
    rank: int
    rows: Rows
    covers: bool
    predictions: Predictions = Predictions.NONE
    anytime: bool = False
    parameter: str = ""

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


ESTIMATORS: dict[str, Estimator] = {}
"""The entry of every estimator by its name, in the order of this file."""

Function = TypeVar("Function", bound=Callable[..., Terms])


def estimator(**entry: Any) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as an estimator; it takes the fields of `Estimator`."""

    def register(function: Function) -> Function:
        ESTIMATORS[function.__name__] = Estimator(function, **entry)
        return function

    return register


@estimator(
    value="mean of `r` over rows kept with probability `w / max w`",
    use="Use it for a uniform log and a deterministic target. It is easy to explain.",
    source="Li et al. (2011); weighted: Dudik et al. (2012)",
    rank=9,
    rows=Rows.KEPT,
    covers=True,
)
def replay(sample: Sample, *, bound: float | None = None, rng: np.random.Generator | None = None) -> Terms:
    """Keep each row with a probability of weight / bound, so that the kept rows are draws of the target.

    For a deterministic target and a log that drew all arms with the same probability, these are exactly
    the rows in which both agree.

    Args:
        sample: The log and the target.
        bound: Largest weight that a row may have; the largest in the log by default.
        rng: Source of the draws; seeded with 0 by default, so that the result is reproducible.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The bound is below a weight.

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


@estimator(
    value="`mean(w r)`",
    use="Use it if weights are small. It is simple and unbiased.",
    source="Horvitz and Thompson (1952)",
    rank=8,
    rows=Rows.WEIGHTED,
    covers=True,
    anytime=True,
)
def ips(sample: Sample) -> Terms:
    """Weigh each reward by how much more often the target draws that arm than the log did.

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


@estimator(
    value="`mean(min(w, c) r)`",
    use="Use it for large weights, if no reward is below 0. It is biased downwards.",
    source="Ionides (2008)",
    rank=7,
    rows=Rows.WEIGHTED,
    covers=False,
    parameter="clip",
)
def clipped_ips(sample: Sample, *, clip: float | None = None) -> Terms:
    """Weigh each reward like `ips`, with weights of at most `clip`.

    Args:
        sample: The log and the target.
        clip: Largest weight, above 0; None: chosen from the log (`armwise.feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The clip is not above 0.

    Source: Ionides (2008), "Truncated importance sampling".

    >>> first = np.array([[1.0, 0.0]] * 2)
    >>> clipped_ips(Sample(np.full(2, 0.2), np.array([0, 1]), np.ones(2), first), clip=3.0).value
    1.5
    """
    full = sample.supported_weight
    if clip is None:
        clip = fit_clip(full, sample.reward)
    weight = clip_weights(full, clip)
    return Terms("clipped_ips", weight * sample.reward, ones(weight), weight, cap=clip, parameter=clip)


@estimator(
    value="`sum(w r) / sum(w)`",
    use="Use it without a model. It has little bias and much less variance than `ips`.",
    source="Swaminathan and Joachims (2015)",
    rank=5,
    rows=Rows.DEPENDENT,
    covers=True,
)
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


@estimator(
    value="`mean(e)`",
    use="Use it if nothing else works. It is only as good as its model, and its interval ignores the "
    "model's bias.",
    source="Dudik et al. (2011)",
    rank=10,
    rows=Rows.CORRECTED,
    covers=False,
    predictions=Predictions.SHARED,
)
def dm(sample: Sample) -> Terms:
    """Average the predictions of the model, without a correction.

    Use it only if the target draws none of the logged arms. It ignores rewards, so the
    effective n is 0, and the intervals cover the spread of the predictions but not their error.

    Raises:
        ValueError: The sample lacks `q_hat`.

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.2, 0.0], [0.4, 0.0]])
    >>> round(dm(Sample(np.full(2, 0.5), np.array([0, 1]), np.ones(2), first, q)).value, 3)
    0.3
    """
    expected = sample.prediction.expected
    nothing = np.broadcast_to(0.0, expected.shape)
    return Terms("dm", expected, ones(expected), nothing, float(expected.mean()), cap=0.0)


@estimator(
    value="`mean(e + w d)`",
    use="Use it with a model. It is unbiased even if the model is bad.",
    source="Dudik et al. (2011)",
    rank=0,
    rows=Rows.CORRECTED,
    covers=True,
    predictions=Predictions.SHARED,
)
def dr(sample: Sample) -> Terms:
    """Average the predictions, corrected by the weighted residuals.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample lacks `q_hat`.

    Source: Dudik, Langford and Li (2011), "Doubly robust policy evaluation and learning".

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.5, 0.0]] * 2)
    >>> dr(Sample(np.full(2, 0.5), np.array([0, 1]), np.array([1.0, 9.0]), first, q)).value
    1.0
    """
    return _correct("dr", sample.prediction, sample.supported_weight)


@estimator(
    value="`mean(e) + sum(w d) / sum(w)`",
    use="Use it instead of `dr` if a few rows have large weights. It then has less variance.",
    source="Thomas and Brunskill (2016)",
    rank=1,
    rows=Rows.DEPENDENT,
    covers=True,
    predictions=Predictions.SHARED,
)
def sndr(sample: Sample) -> Terms:
    """Estimate like `dr` with weights divided by their mean, which reduces the variance of large ones.

    The terms are linear in each row (value plus influence), so that intervals include the
    variance of the mean weight.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample lacks `q_hat`.

    Source: Thomas and Brunskill (2016), "Data-efficient off-policy policy evaluation for
    reinforcement learning": their weighted doubly robust estimate, for a single step.

    >>> first, q = np.array([[1.0, 0.0]] * 3), np.zeros((3, 2))
    >>> sndr(Sample(np.full(3, 0.5), np.array([0, 0, 1]), np.ones(3), first, q)).value
    1.0
    """
    weight, prediction = sample.supported_weight, sample.prediction
    mean_weight = float(weight.mean())
    correction = float(weight @ prediction.residual) / (mean_weight * len(sample))
    rows = prediction.residual - correction
    rows *= weight
    rows /= mean_weight
    rows += prediction.expected
    rows += correction
    return Terms("sndr", rows, ones(rows), weight, float(rows.mean()))


@estimator(
    value="`mean(e + w d [w <= c])`",
    use="Use it with a good model, if a few weights are very large.",
    source="Wang et al. (2017)",
    rank=3,
    rows=Rows.CORRECTED,
    covers=False,
    predictions=Predictions.SHARED,
    parameter="threshold",
)
def switch_dr(sample: Sample, *, threshold: float | None = None) -> Terms:
    """Estimate like `dr`, without the correction in rows whose weight is above a threshold.

    Args:
        sample: The log and the target.
        threshold: Largest weight that corrects, at least 0: `dm` at 0, `dr` at infinity;
            None: chosen from the log (`armwise.feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The threshold is negative, or the sample lacks `q_hat`.

    Source: Wang, Agarwal and Dudik (2017), "Optimal and adaptive off-policy evaluation in
    contextual bandits".

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.5, 0.0]] * 2)
    >>> log = Sample(np.array([0.1, 0.5]), np.array([0, 0]), np.ones(2), first, q)
    >>> switch_dr(log, threshold=2.0).value
    1.0
    """
    weight, prediction = sample.supported_weight, sample.prediction
    if threshold is None:
        threshold = fit_threshold(weight, prediction.residual, prediction.expected)
    return _with(switch_weights, "switch_dr", sample, threshold, cap=threshold)


@estimator(
    value="`mean(e + d w / (1 + w^2 / c))`",
    use="Use it as a smooth version of `switch_dr`. On small logs it has the smallest error of the three "
    "with `c`.",
    source="Su, Dimakopoulou et al. (2020)",
    rank=2,
    rows=Rows.CORRECTED,
    covers=False,
    predictions=Predictions.SHARED,
    parameter="shrinkage",
)
def dros(sample: Sample, *, shrinkage: float | None = None) -> Terms:
    """Estimate like `dr` with weights w shrunk to w / (1 + w^2 / shrinkage).

    Args:
        sample: The log and the target.
        shrinkage: Parameter above 0: near `dm` at 0, `dr` at infinity; None: chosen from the
            log (`armwise.feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The shrinkage is not above 0, or the sample lacks `q_hat`.

    Source: Su, Dimakopoulou, Krishnamurthy and Dudik (2020), "Doubly robust off-policy
    evaluation with shrinkage", the optimistic kind.

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.5, 0.0]] * 2)
    >>> dros(Sample(np.full(2, 0.5), np.array([0, 0]), np.ones(2), first, q), shrinkage=4.0).value
    1.0
    """
    weight, prediction = sample.supported_weight, sample.prediction
    if shrinkage is None:
        shrinkage = fit_shrinkage(weight, prediction.residual, prediction.expected)
    # w / (1 + w^2 / s) is largest at w = sqrt(s), where it is sqrt(s) / 2.
    return _with(shrunk, "dros", sample, shrinkage, cap=float(np.sqrt(shrinkage)) / 2.0)


@estimator(
    value="`dr` with a model fitted to minimize its variance",
    use="Use it if only one target matters.",
    source="Farajtabar et al. (2018)",
    rank=4,
    rows=Rows.CORRECTED,
    covers=True,
    predictions=Predictions.OWN,
)
def mrdr(sample: Sample) -> Terms:
    """Estimate like `dr` with `q_mrdr`, a model that was fitted for this target by `mrdr_weight`.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample lacks `q_mrdr`.

    Source: Farajtabar, Chow and Ghavamzadeh (2018), "More robust doubly robust off-policy
    evaluation".
    """
    if sample.q_mrdr is None:
        raise ValueError("mrdr needs q_mrdr: fit a reward model with the weights from mrdr_weight")
    weight = sample.supported_weight
    return _correct("mrdr", Prediction.from_predictions(sample, sample.q_mrdr, "q_mrdr"), weight)


def mrdr_weight(sample: Sample) -> Floats:
    """Return the sample weights of a model for `mrdr`, shape (n,).

    The weight is w^2 (1 - p_log): the variance of `dr`, as it depends on the model, is a
    quadratic form in the model's errors, and these weights are the diagonal. For a deterministic
    target the form is diagonal, and the weights equal the paper's,
    (1 - p_log) / p_log^2, if the log drew that arm. For others, the cross terms between
    the arms of a row are left out: they need the propensities of arms that were not drawn.

    Source: Farajtabar, Chow and Ghavamzadeh (2018), as in `mrdr`.

    >>> first = np.array([[1.0, 0.0]] * 2)
    >>> mrdr_weight(Sample(np.full(2, 0.5), np.array([0, 1]), np.ones(2), first)).tolist()
    [2.0, 0.0]
    """
    chance: Floats = np.maximum(1.0 - sample.propensity, 0.0)
    return sample.weight * sample.weight * chance


@estimator(
    value="weights closest to 1 that average 1",
    use="Use it for small logs. It has the smallest error without a model.",
    source="Karampatziakis et al. (2020)",
    rank=6,
    rows=Rows.DEPENDENT,
    covers=True,
)
def cressie_read(sample: Sample, *, least: float = 0.0, largest: float = inf) -> Terms:
    """Weigh the rows so that the weights average 1, at the least distance from equal weights.

    The distance is the Cressie-Read divergence of power -2, for which the answer has a
    closed form; one imaginary row with an extreme weight makes it exist. The weight of the
    imaginary row earns the mean reward of the log. The value comes from the
    formula; the terms are its linearisation (value plus influence of each row), so that
    intervals account for the constraint on the weights.

    Args:
        sample: The log and the target.
        least: Smallest weight that a row could have, in [0, 1).
        largest: Largest weight that a row could have, above 1; by default unknown.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: `least` or `largest` is out of its range.

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


def _with(shrink: Shrinker, name: str, sample: Sample, parameter: float, cap: float) -> Terms:
    """Return the terms of `dr` with shrunk weights."""
    weight = shrink(sample.supported_weight, parameter)
    return _correct(name, sample.prediction, weight, cap=cap, parameter=parameter)


def _correct(
    name: str,
    prediction: Prediction,
    weight: Floats,
    cap: float = float("inf"),
    parameter: float | None = None,
) -> Terms:
    """Return the terms: the expected reward plus the weight times the residual."""
    rows = weight * prediction.residual
    rows += prediction.expected
    mean = float(prediction.expected.mean())
    return Terms(name, rows, ones(rows), weight, mean, cap=cap, parameter=parameter)


def estimate(sample: Sample, name: str) -> Terms:
    """Return the terms of the estimator of that name.

    Raises:
        ValueError: The name is unknown; also raises the errors of the estimator.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; available: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name](sample)


def estimators_table() -> str:
    """Return the table of docs/reference/estimators.md."""
    rows = (
        f"| `{entry.name}` | {entry.value} | {entry.use} | {entry.source} |" for entry in ESTIMATORS.values()
    )
    return "\n".join(("| name | value | when to use it | source |", "| --- | --- | --- | --- |", *rows))
