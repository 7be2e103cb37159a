"""Cost-quality curves: quality and cost of a router as the weight of cost grows.

A sweep over the weight turns the scores of a router into a family of choices, from the best arm of each
question to the cheapest arm for all. Points of the family can be mixed at random, so their value is the least
non-decreasing concave function above them. Its mean over a range of costs is the AIQ of RouterBench.

Source: Hu et al. 2024, RouterBench, arXiv:2403.12031, section 3.
"""

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.dataset import Floats, RouterError

POINTS = 64
"""Number of weights in a sweep."""

ROUNDING = 1e-9
"""A relative difference below this is rounding error."""


def sweep(scores: Floats, prices: Floats, points: int = POINTS) -> NDArray[np.intp]:
    """Return the arms that maximize the score minus a weight times the price, for weights from 0 up.

    The weights are quantiles of those at which two arms of a question tie, so the choices are invariant when
    all scores are scaled, or the scores of a question shifted, by a constant. Of tied arms the cheaper is
    chosen; at equal prices, the first.

    Args:
        scores: Scores by a router, shape (n_questions, n_arms).
        prices: Prices of the arms, such as the mean cost of an answer; shape (n_arms,).
        points: Largest number of finite weights above 0.

    Returns:
        Chosen arms, a column per weight, shape (n_questions, n_weights), the most expensive choices first.

    Raises:
        RouterError: A score or a price is not finite, or their shapes differ.

    >>> sweep(np.array([[0.5, 0.9], [0.5, 0.6]]), np.array([1.0, 2.0])).tolist()
    [[1, 1, 0, 0], [1, 0, 0, 0]]
    """
    if scores.ndim != 2 or prices.shape != scores.shape[1:]:
        raise RouterError(f"scores of shape {scores.shape} do not fit prices of shape {prices.shape}")
    if not np.isfinite(scores).all() or not np.isfinite(prices).all():
        raise RouterError("a score or a price is not a finite number")
    order = np.argsort(prices, kind="stable")
    ranked, paid = scores[:, order], prices[order]
    gains = (ranked[:, None, :] - ranked[:, :, None])[:, paid[:, None] < paid[None, :]]
    steps = (paid[None, :] - paid[:, None])[paid[:, None] < paid[None, :]]
    at = (gains / steps)[gains > 0.0]
    weights = np.unique(np.quantile(at, np.linspace(0.0, 1.0, points), method="lower")) if at.size else at
    weights = weights * (1.0 + ROUNDING)  # past the tie, so that rounding does not break it
    chosen = [(ranked - weight * paid).argmax(axis=1) for weight in (0.0, *weights)]
    chosen.append(np.full(len(scores), 0, dtype=np.intp))
    return np.asarray(order[np.stack(chosen, axis=1)])


def frontier(cost: Floats, quality: Floats) -> NDArray[np.intp]:
    """Return the points of the least non-decreasing concave function above all points, the cheapest first.

    Args:
        cost: Cost of each point, shape (n_points,).
        quality: Quality of each point, shape (n_points,).

    >>> frontier(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.2, 0.3, 0.8, 0.7])).tolist()
    [0, 2]
    """
    kept: list[int] = []
    for point in np.lexsort((-quality, cost)).tolist():
        if kept and quality[point] <= quality[kept[-1]]:
            continue
        while len(kept) > 1 and _slope(cost, quality, kept[-2], kept[-1]) <= _slope(
            cost, quality, kept[-1], point
        ):
            kept.pop()
        kept.append(point)
    return np.array(kept, dtype=np.intp)


def area(cost: Floats, quality: Floats, low: float, high: float) -> float:
    """Return the mean of the frontier over a range of costs, held level beyond its last point.

    Args:
        cost: Cost of each point, shape (n_points,).
        quality: Quality of each point, shape (n_points,).
        low: Smallest cost of the range.
        high: Largest cost of the range.

    Raises:
        RouterError: The range is empty, or every point costs more than `low`.

    >>> area(np.array([0.0, 1.0]), np.array([0.25, 0.75]), 0.0, 2.0)
    0.625
    """
    if not low < high:
        raise RouterError(f"costs from {low:g} to {high:g} are not a range")
    if cost.min() > low + ROUNDING * abs(low):
        raise RouterError(
            f"the least cost {cost.min():g} of a point is above {low:g}, where the range begins"
        )
    kept = frontier(cost, quality)
    inside = cost[kept][(cost[kept] > low) & (cost[kept] < high)]
    at = np.concatenate([[low], inside, [high]])
    return float(np.trapezoid(np.interp(at, cost[kept], quality[kept]), at) / (high - low))


def cheapest_mixture(cost: Floats, quality: Floats, target: float) -> Floats | None:
    """Return the shares of the points in their cheapest mixture of at least the target quality.

    At most two points, neighbours on the frontier, have a share.

    Args:
        cost: Cost of each point, shape (n_points,).
        quality: Quality of each point, shape (n_points,).
        target: Least mean quality of the mixture.

    Returns:
        Shape (n_points,), summing to 1; None: every point is below the target.

    >>> cheapest_mixture(np.array([1.0, 3.0]), np.array([0.5, 0.9]), 0.8).round(2).tolist()
    [0.25, 0.75]
    """
    kept = frontier(cost, quality)
    if quality[kept[-1]] < target:
        return None
    shares = np.zeros(len(cost))
    after = int(np.searchsorted(quality[kept], target))
    if after == 0:
        shares[kept[0]] = 1.0
        return shares
    left, right = kept[after - 1], kept[after]
    shares[right] = (target - quality[left]) / (quality[right] - quality[left])
    shares[left] = 1.0 - shares[right]
    return shares


def _slope(cost: Floats, quality: Floats, left: int, right: int) -> float:
    return float((quality[right] - quality[left]) / (cost[right] - cost[left]))
