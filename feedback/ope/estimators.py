"""Estimate the value of a policy from a log that another policy wrote.

    ips            weigh each reward by p_target / p_log; unbiased, with the variance of the weights
    snips          `ips` divided by the sum of the weights; nearly unbiased, less variance
    dm             predict the reward of every arm; as good as the model
    dr             the prediction, corrected by the weighted residuals; unbiased
    switch_dr      `dr` that trusts the model alone where a weight is large

Each is a function from a `Sample` to `Terms`, with an entry above it: its traits, and its row of the table in
docs/reference/estimators.md. `ESTIMATORS` has the entries by name: reports, the command line and HTTP find an
estimator there.

All doubly robust estimates are the mean of the predicted value of the target in a row, plus a
weight times the residual of the drawn arm. They differ in the weight.

Source: for each estimator, in its docstring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.sample import Prediction, Sample, Terms, ones


class Predictions(Enum):
    """Which predictions of rewards an estimator reads."""

    NONE = "none"
    SHARED = "q_hat, which all targets share"


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
        covers: Whether the intervals contain the truth as often as they state; they miss the bias of a
            biased estimator.
        predictions: Which predictions of rewards it reads.
        anytime: Whether a confidence sequence applies to its values.
    """

    function: Callable[..., Terms]
    value: str
    use: str
    source: str
    rank: int
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
    value="`mean(w r)`",
    use="Use it if weights are small. It is simple and unbiased.",
    source="Horvitz and Thompson (1952)",
    rank=8,
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
    return Terms("ips", sample.weighted_reward, ones(weight), weight)


@estimator(
    value="`sum(w r) / sum(w)`",
    use="Use it without a model. It has little bias and much less variance than `ips`.",
    source="Swaminathan and Joachims (2015)",
    rank=5,
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
    return Terms("snips", sample.weighted_reward, weight, weight, ratio=True)


@estimator(
    value="`mean(e)`",
    use="Use it if nothing else works. It is only as good as its model, and its interval ignores the "
    "model's bias.",
    source="Dudik et al. (2011)",
    rank=10,
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
    value="`mean(e + w d [w <= 10])`",
    use="Use it with a good model, if a few weights are very large.",
    source="Wang et al. (2017)",
    rank=3,
    covers=False,
    predictions=Predictions.SHARED,
)
def switch_dr(sample: Sample, *, threshold: float = 10.0) -> Terms:
    """Estimate like `dr`, without the correction in rows whose weight is above a threshold.

    Args:
        sample: The log and the target.
        threshold: Largest weight that corrects, at least 0: `dm` at 0, `dr` at infinity.

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
    if not threshold >= 0.0:
        raise ValueError(f"threshold must be at least 0, got {threshold:.6g}")
    weight = np.where(sample.supported_weight <= threshold, sample.supported_weight, 0.0)
    return _correct("switch_dr", sample.prediction, weight, cap=threshold)


def _correct(
    name: str,
    prediction: Prediction,
    weight: Floats,
    cap: float = float("inf"),
) -> Terms:
    """Return the terms: the expected reward plus the weight times the residual."""
    rows = weight * prediction.residual
    rows += prediction.expected
    mean = float(prediction.expected.mean())
    return Terms(name, rows, ones(rows), weight, mean, cap=cap)


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
