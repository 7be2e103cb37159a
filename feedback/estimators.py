"""What a policy would have earned, from a log that another policy wrote.

Three answers to one question. Each is a ratio of two sums over the rows of the
log, so each hands back its `Terms`: the point estimate is read off them, and so
is any interval (`feedback.intervals`).

    ips     reweight each reward by p_target / p_log; unbiased, wild when weights are
    snips   the same, divided by the sum of the weights; nearly unbiased, calmer
    dr      predict the reward of every arm, correct the prediction where it was
            tested; unbiased, and calm when the prediction is good

Source: Horvitz and Thompson (1952), "A generalization of sampling without
replacement from a finite universe". Swaminathan and Joachims (2015), "The
self-normalized estimator for counterfactual learning". Dudik, Erhan, Langford and
Li (2014), "Doubly robust policy evaluation and optimization".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 1e-6
"""How far a distribution may be from summing to 1 (some policies keep float32)."""


class NeverDrawnError(ValueError):
    """The target draws none of the logged arms, so the log cannot tell its value."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a policy, and how sure the log can be of it.

    Attributes:
        estimator: `ips`, `snips` or `dr`.
        value: Expected reward of a decision under the policy.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        n: Rows of the log.
        effective_n: Rows drawn from the policy itself that would tell as much
            (Kish), in (0, n].
    """

    estimator: str
    value: float
    low: float
    high: float
    n: int
    effective_n: float


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """An estimate row by row: the value is the sum of one column over the sum of another.

    Attributes:
        estimator: The function that made them.
        numerator: Shape (n,).
        denominator: Shape (n,); all 1 where the estimate is a plain mean.
        weight: Importance weights p_target / p_log of the drawn arms, shape (n_rows,).
        baseline: What a row is expected to give before its reward is seen: the mean
            prediction of a doubly robust estimate, 0 for the others.
    """

    estimator: str
    numerator: Floats
    denominator: Floats
    weight: Floats
    baseline: float = 0.0

    @property
    def value(self) -> float:
        """The point estimate."""
        return float(self.numerator.sum() / self.denominator.sum())

    @property
    def effective_n(self) -> float:
        """Kish's effective sample size: (sum of weights) squared over sum of squares."""
        return float(self.weight.sum() ** 2 / (self.weight @ self.weight))


def ips(p_log: Floats, p_target: Floats, reward: Floats) -> Terms:
    """Weigh each reward by how much more often the target draws that arm.

    Args:
        p_log: Probability with which the logged arm was drawn, shape (n,), in (0, 1].
        p_target: Probability with which the target draws it, shape (n,), in [0, 1].
        reward: What it earned, shape (n,), finite.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: A value out of its range, shapes that differ, or an empty log.

    >>> half = np.array([0.5, 0.5, 0.5, 0.5])
    >>> ips(half, np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 1.0])).value
    0.5
    """
    weight = _weights(p_log, p_target, reward)
    return Terms("ips", weight * reward, np.broadcast_to(1.0, weight.shape), weight)


def snips(p_log: Floats, p_target: Floats, reward: Floats) -> Terms:
    """Average the rewards, weighted as in `ips`; always within the range of the rewards.

    Takes and raises what `ips` does.

    >>> half = np.array([0.5, 0.5, 0.5, 0.5])
    >>> snips(half, np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0])).value
    1.0
    """
    weight = _weights(p_log, p_target, reward)
    return Terms("snips", weight * reward, weight, weight)


def dr(p_log: Floats, p_target: Floats, drawn: Integers, reward: Floats, q_hat: Floats) -> Terms:
    """Predict what the target earns, then add the weighted error of the prediction.

    The model behind `q_hat` must not have seen the row that it predicts, or the
    estimate is optimistic: see `feedback.replay.fit_reward_model`.

    Args:
        p_log: Probability with which the logged arm was drawn, shape (n,), in (0, 1].
        p_target: The target's whole distribution, shape (n, n_arms), rows sum to 1.
        drawn: Column of the logged arm, shape (n,).
        reward: What it earned, shape (n,), finite.
        q_hat: Predicted reward of every arm, shape (n, n_arms), finite.

    Raises:
        NeverDrawnError: As `ips`.
        ValueError: As `ips`; also a `drawn` that is no column.

    >>> p_target, q_hat = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.5, 0.0], [0.5, 0.0]])
    >>> dr(np.array([0.5, 0.5]), p_target, np.array([0, 1]), np.array([1.0, 9.0]), q_hat).value
    1.0
    """
    if p_target.ndim != 2 or p_target.shape != q_hat.shape or p_target.shape[:1] != drawn.shape:
        raise ValueError(
            f"p_target and q_hat must be (n, n_arms) and drawn (n,), got {p_target.shape}, {q_hat.shape} and "
            f"{drawn.shape}"
        )
    n_arms = p_target.shape[1]
    refuse("drawn", drawn, (drawn >= 0) & (drawn < n_arms), f"a column below {n_arms}")
    refuse_unless_distributions("p_target", p_target)
    refuse("q_hat", q_hat, np.isfinite(q_hat), "finite")
    cell = drawn + n_arms * np.arange(len(drawn))
    weight = _weights(p_log, p_target.ravel()[cell], reward)
    predicted = np.einsum("ij,ij->i", p_target, q_hat)
    terms = predicted + weight * (reward - q_hat.ravel()[cell])
    return Terms("dr", terms, np.broadcast_to(1.0, weight.shape), weight, float(predicted.mean()))


def refuse_unless_distributions(name: str, p: Floats) -> None:
    """Raise ValueError at the first row of `p`, shape (n, n_arms), that is no distribution.

    >>> refuse_unless_distributions("p", np.array([[0.5, 0.4]]))
    Traceback (most recent call last):
    ValueError: sum of p must be 1, got 0.9 at row 0
    """
    refuse(name, p, p >= 0.0, "at least 0")
    total = p @ np.ones(p.shape[1])
    refuse(f"sum of {name}", total, np.abs(total - 1.0) <= TOLERANCE, "1")


def refuse(name: str, values: Floats | Integers, allowed: NDArray[np.bool_], right: str) -> None:
    """Raise ValueError at the first row of `values` that is not `allowed`, saying what is right.

    >>> refuse("reward", np.array([1.0, np.nan]), np.array([True, False]), "finite")
    Traceback (most recent call last):
    ValueError: reward must be finite, got nan at row 1
    """
    if not allowed.all():
        where = tuple(int(i) for i in np.argwhere(~allowed)[0])
        raise ValueError(f"{name} must be {right}, got {values[where]:.6g} at row {where[0]}")


def _weights(p_log: Floats, p_target: Floats, reward: Floats) -> Floats:
    """Return p_target / p_log, shape (n,), or refuse the log."""
    if not p_log.shape == p_target.shape == reward.shape or p_log.ndim != 1:
        raise ValueError(
            f"p_log, p_target and reward must share one shape (n,), got {p_log.shape}, {p_target.shape} and "
            f"{reward.shape}"
        )
    if not len(p_log):
        raise ValueError("the log is empty: an estimate needs at least one row")
    refuse("p_log", p_log, (p_log > 0.0) & (p_log <= 1.0 + TOLERANCE), "in (0, 1]")
    refuse("p_target", p_target, (p_target >= 0.0) & (p_target <= 1.0 + TOLERANCE), "in [0, 1]")
    refuse("reward", reward, np.isfinite(reward), "finite")
    weight: Floats = p_target / p_log
    if not weight.any():
        raise NeverDrawnError(
            f"the target draws none of the {len(weight)} logged arms: the log cannot tell its value"
        )
    return weight
