"""Inputs and outputs of estimators: a log with a target policy, and the terms of an estimate.

A `Sample` is validated once; its weights and predictions are computed once and shared by all
estimators (`armwise.feedback.ope.estimators`). `Terms` are an estimate row by row, from which the value and
any interval are computed (`armwise.feedback.ope.intervals`).
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Integers,
    Matrix,
    refuse,
    refuse_unless_distributions,
    split,
    take_drawn,
)

UNKNOWN = "no propensity is on record, so no reward can be weighed"
"""Why a log without propensities permits only averages of predictions."""


class NeverDrawnError(ValueError):
    """The target draws none of the logged arms, so its value cannot be estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """An estimate, row by row: the value is the sum of one column divided by the sum of another.

    Attributes:
        estimator: Name of the estimator.
        numerator: Column of the numerator, shape (n,).
        denominator: Column of the denominator, shape (n,); all 1 if the estimate is a mean over rows.
        weight: Weight of the reward of each row, shape (n_rows,): p_target / p_log of the drawn arms,
            as the estimator limits them; 0 for `dm`, which uses only predictions.
        mean_prediction: Expectation of a row before its reward is known: the mean prediction of a
            doubly robust estimate, 0 for estimates that only weigh rewards.
        ratio: Whether the denominator is random too (`snips`).
        cap: Largest weight that the estimator allows; `inf`: unlimited.
    """

    estimator: str
    numerator: Floats
    denominator: Floats
    weight: Floats
    mean_prediction: float = 0.0
    ratio: bool = False
    cap: float = inf

    @property
    def value(self) -> float:
        """The point estimate."""
        return float(self.numerator.sum() / self.denominator.sum())

    @property
    def effective_n(self) -> float:
        """Kish's effective sample size, in [0, n]; see `effective_size`."""
        return effective_size(self.weight)


@dataclass(frozen=True, eq=False)
class Sample:
    """The rows of a log, with the target policy's distribution in each row.

    Attributes:
        propensity: Probability with which the logged arm was drawn, shape (n,), in (0, 1]; NaN in all rows if
            it is unknown, and then every weight is 0.
        drawn: Column of the logged arm, shape (n,).
        reward: Reward, shape (n,), finite.
        p_target: The target's distribution, shape (n, n_arms), rows sum to 1.
        q_hat: Predicted reward of every arm, shape (n, n_arms), finite, from a model that was fitted without
            the row (`armwise.feedback.ope.reward_model`).

    Raises:
        ValueError: Shapes differ, the log is empty, or a value is out of its range.

    >>> half, first = np.full(2, 0.5), np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> Sample(half, np.array([0, 1]), np.ones(2), first).weight.tolist()
    [2.0, 0.0]
    """

    propensity: Floats
    drawn: Integers
    reward: Floats
    p_target: Floats | Matrix
    q_hat: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.reward)
        columns = [a.shape for a in (self.propensity, self.drawn, self.reward)]
        if columns != [(n,)] * 3 or self.p_target.ndim != 2 or len(self.p_target) != n:
            raise ValueError(
                "propensity, drawn and reward must share one shape (n,) and p_target be (n, n_arms), got "
                f"{', '.join(str(shape) for shape in [*columns, self.p_target.shape])}"
            )
        if not n:
            raise ValueError("the log is empty: an estimate needs at least one row")
        if self.q_hat is not None and self.q_hat.shape != self.p_target.shape:
            raise ValueError(
                f"q_hat must have the shape of p_target, {self.p_target.shape}, got {self.q_hat.shape}"
            )
        n_arms = self.p_target.shape[1]
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < n_arms), f"a column below {n_arms}")
        if not self.unknown:
            possible = (self.propensity > 0.0) & (self.propensity <= 1.0 + TOLERANCE)
            refuse("propensity", self.propensity, possible, "in (0, 1]")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        refuse_unless_distributions("p_target", self.p_target)

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def unknown(self) -> bool:
        """Whether all propensities are unknown, so that only predictions can be averaged."""
        return bool(np.isnan(self.propensity).all())

    @cached_property
    def weight(self) -> Floats:
        """Importance weight p_target / p_log of each drawn arm, shape (n,)."""
        if self.unknown:
            return np.zeros(len(self))
        return take_drawn(self.p_target, self.drawn) / self.propensity

    @cached_property
    def weighted_reward(self) -> Floats:
        """Each reward times its weight, shape (n,)."""
        return self.weight * self.reward

    @property
    def supported_weight(self) -> Floats:
        """The weights; at least one is above 0.

        Raises:
            NeverDrawnError: All are 0.
        """
        if self.unknown:
            raise NeverDrawnError(UNKNOWN)
        if not self.weight.any():
            raise NeverDrawnError(
                f"the target never draws any of the {len(self)} logged arms, so its value cannot be estimated"
            )
        return self.weight

    @cached_property
    def prediction(self) -> "Prediction":
        """The predictions for this target. Raises ValueError without `q_hat`."""
        if self.q_hat is None:
            raise ValueError(
                "the direct and the doubly robust estimates need q_hat, see armwise.feedback.ope.reward_model"
            )
        return Prediction.from_predictions(self, self.q_hat)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The predictions of a reward model for a target.

    Attributes:
        expected: Predicted reward of the target in each row, shape (n,).
        residual: Reward minus the prediction for the drawn arm, shape (n,).
    """

    expected: Floats
    residual: Floats

    @classmethod
    def from_predictions(cls, sample: Sample, q: Floats) -> "Prediction":
        """Read predictions `q`, shape (n, n_arms). Raises ValueError unless all are finite."""
        expected = np.empty(len(sample))
        for rows in split(len(sample)):
            expected[rows] = row_products(sample.p_target[rows], q[rows])
        if not np.isfinite(expected).all():
            refuse("q_hat", q, np.isfinite(q), "finite")
        residual = sample.reward - take_drawn(q, sample.drawn)
        return cls(expected, residual)


def ones(rows: Floats) -> Floats:
    """Return the denominator of a mean over rows: shape (n,), all 1, a broadcast scalar."""
    return np.broadcast_to(1.0, rows.shape)


def effective_size(weight: Floats) -> float:
    """Return Kish's effective sample size: (sum of weights) squared over sum of squares.

    That many rows drawn from the target itself would have about the same variance; 0 if all weights are 0.

    Source: Kish (1965), "Survey sampling".

    >>> effective_size(np.array([1.0, 1.0, 1.0, 0.0]))
    3.0
    """
    squares = float(weight @ weight)
    return float(weight.sum()) ** 2 / squares if squares > 0.0 else 0.0


def row_products(p: Floats, q: Floats | Flags) -> Floats:
    """Return the inner product of each row of `p` with that of `q`, both (n, n_arms), shape (n,).

    >>> row_products(np.array([[0.5, 0.5]]), np.array([[1.0, 3.0]])).tolist()
    [2.0]
    """
    products: Floats = np.einsum("ij,ij->i", p, q)
    return products
