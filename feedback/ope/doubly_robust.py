"""The direct method and doubly robust estimates: predictions, corrected by weighted residuals.

All but `dm` are the mean of the predicted value of the target in a row, plus a weight times the
residual of the drawn arm. They differ in the weight, and `mrdr` in the model.
"""

import numpy as np

from feedback.arrays import Floats
from feedback.ope.sample import Prediction, Sample, Terms, ones
from feedback.ope.shrinkage import Shrinker, fit_shrinkage, fit_threshold, shrunk, switched


def dm(sample: Sample) -> Terms:
    """Average the predictions of the model, without a correction.

    The only estimate for a target that draws none of the logged arms. It weighs no reward, so its
    effective n is 0, and its intervals cover the spread of the predictions but not their error.

    Raises:
        ValueError: The sample has no `q_hat`.

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.2, 0.0], [0.4, 0.0]])
    >>> round(dm(Sample(np.full(2, 0.5), np.array([0, 1]), np.ones(2), first, q)).value, 3)
    0.3
    """
    expected = sample.prediction.expected
    nothing = np.broadcast_to(0.0, expected.shape)
    return Terms("dm", expected, ones(expected), nothing, float(expected.mean()), cap=0.0)


def dr(sample: Sample) -> Terms:
    """Average the predictions, corrected by the weighted residuals.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample has no `q_hat`.

    Source: Dudik, Langford and Li (2011), "Doubly robust policy evaluation and learning".

    >>> first, q = np.array([[1.0, 0.0]] * 2), np.array([[0.5, 0.0]] * 2)
    >>> dr(Sample(np.full(2, 0.5), np.array([0, 1]), np.array([1.0, 9.0]), first, q)).value
    1.0
    """
    return _corrected("dr", sample.prediction, sample.supported_weight)


def sndr(sample: Sample) -> Terms:
    """Do as `dr` does with weights divided by their mean, which reduces the variance of large ones.

    The terms are linear in each row (value plus influence), so that intervals include the
    variance of the mean weight.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample has no `q_hat`.

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


def switch_dr(sample: Sample, *, threshold: float | None = None) -> Terms:
    """Do as `dr` does, but without the correction where the weight is above a threshold.

    Args:
        sample: The log and the target.
        threshold: Largest weight that corrects, at least 0: `dm` at 0, `dr` at infinity;
            chosen from the log when None (`feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: A negative threshold, or a sample without `q_hat`.

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
    return _with(switched, "switch_dr", sample, threshold, cap=threshold)


def dros(sample: Sample, *, shrinkage: float | None = None) -> Terms:
    """Do as `dr` does with weights w shrunk to w / (1 + w^2 / shrinkage).

    Args:
        sample: The log and the target.
        shrinkage: Above 0: near `dm` at 0, `dr` at infinity; chosen from the log when
            None (`feedback.ope.shrinkage`).

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: A shrinkage that is not above 0, or a sample without `q_hat`.

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


def mrdr(sample: Sample) -> Terms:
    """Do as `dr` does with `q_mrdr`, a model that was fitted for this target by `mrdr_weight`.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: The sample has no `q_mrdr`.

    Source: Farajtabar, Chow and Ghavamzadeh (2018), "More robust doubly robust off-policy
    evaluation".
    """
    if sample.q_mrdr is None:
        raise ValueError("mrdr needs q_mrdr: fit a reward model with the weights of mrdr_weight")
    weight = sample.supported_weight
    return _corrected("mrdr", Prediction.of(sample, sample.q_mrdr, "q_mrdr"), weight)


def mrdr_weight(sample: Sample) -> Floats:
    """Return the sample weights of a model for `mrdr`, shape (n,).

    It is w^2 (1 - p_log): the variance of `dr`, as it depends on the model, is a
    quadratic form in the model's errors, and these are its diagonal. For a deterministic
    target there is nothing else, and the weights are those of the paper,
    (1 - p_log) / p_log^2 where the log drew that arm. For others, the cross terms between
    the arms of one row are left out: they need the propensities of arms that were not
    drawn.

    Source: Farajtabar, Chow and Ghavamzadeh (2018), as in `mrdr`.

    >>> first = np.array([[1.0, 0.0]] * 2)
    >>> mrdr_weight(Sample(np.full(2, 0.5), np.array([0, 1]), np.ones(2), first)).tolist()
    [2.0, 0.0]
    """
    chance: Floats = np.maximum(1.0 - sample.propensity, 0.0)
    return sample.weight * sample.weight * chance


def _with(shrink: Shrinker, name: str, sample: Sample, parameter: float, cap: float) -> Terms:
    """Return the terms of `dr` with shrunk weights."""
    weight = shrink(sample.supported_weight, parameter)
    return _corrected(name, sample.prediction, weight, cap=cap, parameter=parameter)


def _corrected(
    name: str,
    prediction: Prediction,
    weight: Floats,
    cap: float = float("inf"),
    parameter: float | None = None,
) -> Terms:
    """Return the terms: what is expected, plus the weight times the residual."""
    rows = weight * prediction.residual
    rows += prediction.expected
    mean = float(prediction.expected.mean())
    return Terms(name, rows, ones(rows), weight, mean, cap=cap, parameter=parameter)
