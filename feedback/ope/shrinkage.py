"""Shrinking of importance weights, with a parameter selected from the log by a published rule.

A smaller weight trades bias for variance, with one parameter:

    clipped     min(w, parameter)                       clipped_ips
    switched    w where w <= parameter, otherwise 0     switch_dr
    shrunk      w / (1 + w^2 / parameter)               dros

Each is the full weight at infinity. Three rules choose the parameter from a grid.

    mse         the least sum of variance and squared bias, both estimated
    mse_bound   `mse` with an upper bound of the bias: hardly ever changes a weight
    slope       from the widest interval to the narrowest, go on while the estimate
                agrees with all before it: for small logs with a good model

`mse` is the default: in simulations it was at worst a little behind full weights, and much
better where weights vary widely (`benchmarks/shrinkage.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from armwise.feedback.arrays import TOLERANCE, Floats

Shrinker = Callable[[Floats, float], Floats]

Rule = Literal["mse", "mse_bound", "slope"]

DELTA = 0.1
"""Failure probability of the bounds in the rules."""

_CANDIDATES = 15
"""Parameters in a grid, besides infinity."""

_BLOCK = 1 << 12
"""Rows that are processed with all parameters at a time, few enough for the cache."""


def clip_weights(weight: Floats, parameter: float) -> Floats:
    """Return min(weight, parameter), shape (n,). Raises ValueError unless parameter > 0.

    >>> clip_weights(np.array([0.5, 4.0]), 2.0).tolist()
    [0.5, 2.0]
    """
    _refuse_unless("clip must be above 0", parameter > 0.0, parameter)
    return np.minimum(weight, parameter)


def switch_weights(weight: Floats, parameter: float) -> Floats:
    """Return weight, or 0 where it is above the parameter, shape (n,). Raises ValueError unless >= 0.

    >>> switch_weights(np.array([0.5, 4.0]), 2.0).tolist()
    [0.5, 0.0]
    """
    _refuse_unless("threshold must be at least 0", parameter >= 0.0, parameter)
    return weight * (weight <= parameter)


def shrunk(weight: Floats, parameter: float) -> Floats:
    """Return weight / (1 + weight^2 / parameter), shape (n,). Raises ValueError unless parameter > 0.

    >>> shrunk(np.array([0.0, 2.0]), 4.0).tolist()
    [0.0, 1.0]
    """
    _refuse_unless("shrinkage must be above 0", parameter > 0.0, parameter)
    divisor = weight * weight
    divisor /= parameter
    divisor += 1.0
    return np.divide(weight, divisor, out=divisor)


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """The estimate at each parameter of a grid.

    Attributes:
        grid: Parameters, shape (n_candidates,), ascending; the last is infinity.
        mean: Estimate at each, shape (n_candidates,).
        variance: Variance of a row at each, shape (n_candidates,).
        n: Number of rows.
    """

    grid: Floats
    mean: Floats
    variance: Floats
    n: int


def fit_clip(weight: Floats, reward: Floats, rule: Rule = "mse") -> float:
    """Return a clip for `clipped_ips`, both arguments of shape (n,); infinity: full weights.

    >>> fit_clip(np.ones(4), np.array([0.0, 1.0, 0.0, 1.0]))
    inf
    """
    largest = float(weight.max())
    grid = candidates(largest, largest)
    return select_parameter(try_all(clip_weights, weight, reward, None, grid), weight, rule)


def fit_threshold(weight: Floats, residual: Floats, expected: Floats, rule: Rule = "mse") -> float:
    """Return a threshold for `switch_dr`, all arguments of shape (n,); infinity: full weights.

    >>> fit_threshold(np.array([9.0, 9.0]), np.array([0.1, -0.1]), np.array([0.3, 0.3])) < 9.0
    True
    """
    largest = float(weight.max())
    grid = candidates(largest, largest)
    return select_parameter(try_all(switch_weights, weight, residual, expected, grid), weight, rule)


def fit_shrinkage(weight: Floats, residual: Floats, expected: Floats, rule: Rule = "mse") -> float:
    """Return a parameter for `dros`, all arguments of shape (n,); infinity: full weights."""
    largest = float(weight.max())
    # A parameter of a hundred times the squared weight reduces it by 1 %.
    grid = candidates(largest, 100.0 * largest * largest)
    return select_parameter(try_all(shrunk, weight, residual, expected, grid), weight, rule)


def candidates(largest: float, top: float) -> Floats:
    """Return a grid of parameters: geometric from 1 up, and infinity.

    If all weights are at most 1, infinity is the only candidate.

    Args:
        largest: Largest weight.
        top: End of the grid, exclusive; above 1 if `largest` is.

    >>> candidates(1.0, 1.0), candidates(1e15, 1e15)[:3]
    (array([inf]), array([  1.,  10., 100.]))
    """
    if largest <= 1.0 + TOLERANCE:
        return np.array([np.inf])
    return np.append(np.geomspace(1.0, top, _CANDIDATES, endpoint=False), np.inf)


def try_all(
    shrink: Shrinker, weight: Floats, residual: Floats, expected: Floats | None, grid: Floats
) -> Trials:
    """Estimate with every parameter of a grid, in one pass over the rows.

    Args:
        shrink: Applies a parameter to the weights.
        weight: Importance weights, shape (n,).
        residual: Factor of the weights, shape (n,): rewards, or residuals of a model.
        expected: Summand of each row, shape (n,); None: 0.
        grid: Parameters, shape (n_candidates,).
    """
    n = len(weight)
    full = weight * residual if expected is None else expected + weight * residual
    centre = float(full.mean())
    total, squares = np.zeros(len(grid)), np.zeros(len(grid))
    for start in range(0, n, _BLOCK):
        block = slice(start, start + _BLOCK)
        w, r = weight[block], residual[block]
        base = -centre if expected is None else expected[block] - centre
        for j, parameter in enumerate(grid):
            rows = shrink(w, parameter)
            rows *= r
            rows += base
            total[j] += rows.sum()
            squares[j] += rows @ rows
    shift = total / n
    return Trials(grid, centre + shift, np.maximum(squares / n - shift * shift, 0.0), n)


def select_parameter(trials: Trials, weight: Floats, rule: Rule) -> float:
    """Return the parameter that a rule selects; `weight` are the full weights, shape (n,)."""
    match rule:
        case "mse":
            pick = least_error(trials)
        case "mse_bound":
            pick = least_error(trials, bernstein_noise(weight))
        case "slope":
            pick = slope(trials)
    return float(trials.grid[pick])


def slope(trials: Trials, delta: float = DELTA) -> int:
    """Return the index that SLOPE selects.

    Candidates are visited from the widest confidence interval to the narrowest, from least
    to most bias. The last is selected whose estimate differs from each before
    it by no more than its own half width and sqrt(6) - 1 times the other's.

    Args:
        trials: The candidates.
        delta: Failure probability of one side of an interval.

    Source: Su, Srinath and Krishnamurthy (2020), "Adaptive estimator selection for
    off-policy evaluation"; the constant from Tucker and Lee (2021), "Improved estimator
    selection for off-policy evaluation".

    >>> grid = np.array([1.0, 2.0, np.inf])
    >>> slope(Trials(grid, np.array([0.1, 0.5, 0.5]), np.array([0.01, 0.04, 1.0]), 101))
    1
    """
    from scipy.special import stdtrit

    if trials.n < 2:
        return len(trials.grid) - 1
    half = np.sqrt(trials.variance / (trials.n - 1)) * stdtrit(trials.n - 1, 1.0 - delta)
    # Of equal intervals the largest parameter comes last, and is kept.
    order = np.argsort(-half, kind="stable")
    for place in range(1, len(order)):
        new, before = order[place], order[:place]
        apart = np.abs(trials.mean[before] - trials.mean[new])
        if (apart > half[new] + (np.sqrt(6.0) - 1.0) * half[before]).any():
            return int(order[place - 1])
    return int(order[-1])


def least_error(trials: Trials, noise: float = 0.0) -> int:
    """Return the index with the least sum of variance and squared bias.

    The bias is estimated by the distance to the candidate at infinity, which is unbiased.

    Args:
        trials: The candidates; the last is at infinity.
        noise: Added to each bias, at least 0, to make it an upper bound.

    Source: Su, Dimakopoulou, Krishnamurthy and Dudik (2020), "Doubly robust off-policy
    evaluation with shrinkage", their procedure for choosing a model.

    >>> grid = np.array([1.0, 2.0, np.inf])
    >>> least_error(Trials(grid, np.array([0.1, 0.5, 0.5]), np.array([1.0, 4.0, 100.0]), 100))
    1
    """
    bias = np.abs(trials.mean - trials.mean[-1]) + noise
    score = trials.variance / trials.n + bias * bias
    # Of equal scores the largest parameter, which changes the weights least.
    return len(score) - 1 - int(np.argmin(score[::-1]))


def bernstein_noise(weight: Floats, delta: float = DELTA) -> float:
    """Return a bound on the error of the mean of weights, shape (n,), times values in [-1, 1].

    Args:
        weight: Importance weights.
        delta: Failure probability of the bound.

    Source: Su, Dimakopoulou, Krishnamurthy and Dudik (2020), as in `least_error`, after
    Bernstein's inequality.

    >>> round(bernstein_noise(np.ones(1000)), 3)
    0.079
    """
    n, log_term = len(weight), float(np.log(2.0 / delta))
    spread = np.sqrt(2.0 * float(weight @ weight) * log_term) / n
    return float(spread + 2.0 * float(weight.max()) * log_term / (3.0 * n))


def _refuse_unless(right: str, allowed: bool, parameter: float) -> None:
    if not allowed:
        raise ValueError(f"{right}, got {parameter:.6g}")
