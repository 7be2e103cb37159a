"""Selection of a portfolio of arms that maximises the mean score of its best arm.

    F(S) = mean over questions of the largest score of an arm in S

    greedy           at most k arms               at least 1 - 1/e of the best such set
    knapsack         arms within a budget         at least 0.6174 of the best such set
    top_by_average   the k arms of largest means  unbounded: all may answer the same questions
    sample_error     error bound of F on n questions; `sample_size` is its inverse

The factors follow from F being monotone and submodular. Scores are of shape (n_arms,
n_questions), in [0, 1] and complete (see `armwise.arms.lab.portfolio.imputation`), and are read in place.
Decisions are made in float64; of tied arms the first is picked.

Source: Retriever Portfolios, 2026, arXiv:2605.31176 (the objective, greedy, the sample size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from armwise.arms.lab.portfolio.coverage import Floats, Scores, check_scores, take_best, total, totals, values

GREEDY = 1.0 - 1.0 / math.e
"""Source: Nemhauser, Wolsey and Fisher 1978, An analysis of approximations for maximizing submodular
set functions I, Mathematical Programming 14."""

KNAPSACK = 0.6174
"""Source: Feldman, Nutov and Shoham 2023, Practical budgeted submodular maximization,
Algorithmica 85, arXiv:2007.04937 (a single guess)."""

ROUNDING = 1e-9
"""Relative tolerance of a budget, so that 0.1 + 0.2 is within 0.3."""


@dataclass(frozen=True, slots=True)
class Portfolio:
    """A selection of arms.

    Attributes:
        arms: Rows of the scores, in the order of the picks.
        values: F of the first arm, of the first two, and so on; non-decreasing.
        guarantee: Lower bound of `values[-1]` as a share of the best possible value.
    """

    arms: tuple[int, ...]
    values: tuple[float, ...]
    guarantee: float

    @property
    def gains(self) -> tuple[float, ...]:
        """Increase of F by each pick."""
        return tuple(np.diff(self.values, prepend=0.0).tolist())


def greedy(scores: Scores, k: int) -> Portfolio:
    """Pick k arms one by one, each time the arm with the largest gain.

    Args:
        scores: Shape (n_arms, n_questions).
        k: Number of arms.

    Returns:
        Fewer than k arms if all others have a gain of 0.

    Raises:
        ValueError: k is outside 1..n_arms, or a score is outside [0, 1].

    >>> greedy(np.array([[0.9, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.4, 0.5]], np.float32), k=2).arms
    (1, 2)
    """
    scores = check_scores(scores)
    if not 1 <= k <= len(scores):
        raise ValueError(f"k is {k}; it must be from 1 to the number of arms, {len(scores)}")
    arms: list[int] = []
    best = take_best(scores, arms)
    while len(arms) < k:
        sums = totals(scores, best, range(len(scores)))
        arm = int(sums.argmax())
        if sums[arm] <= total(best):
            break
        arms.append(arm)
        np.maximum(best, scores[arm], out=best)
    return _portfolio(scores, arms, GREEDY)


def knapsack(scores: Scores, costs: Floats, budget: float) -> Portfolio:
    """Pick arms whose costs are within a budget.

    Every arm is tried as the first pick, and the set is filled by the largest gain per cost. After each pick,
    the set plus the affordable arm of largest gain, the cheapest if tied, is a candidate. The best candidate
    wins. Gains only fall, so a trial stops when the fractional relaxation of the remaining budget cannot
    exceed the best.

    Args:
        scores: Shape (n_arms, n_questions).
        costs: At least 0, shape (n_arms,); arms that cost 0 are taken first if they have a gain.
        budget: Most total cost, in the unit of `costs`.

    Raises:
        ValueError: A score is outside [0, 1], a cost is negative or infinite, or the budget is too small for
            any arm with a score above 0.

    Source: 1-Guess Greedy+ of Feldman, Nutov and Shoham, see `KNAPSACK`.

    >>> scores = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], np.float32)
    >>> knapsack(scores, np.array([3.0, 1.0, 1.0]), budget=3.0).arms
    (0,)
    """
    scores = check_scores(scores)
    costs = _check_costs(costs, budget, len(scores))
    arms: list[int] = []
    limit = budget * (1.0 + ROUNDING)
    for arm in np.flatnonzero(costs == 0.0).tolist():
        if (scores[arm] > take_best(scores, arms)).any():
            arms.append(arm)
    best = take_best(scores, arms)
    chosen, value = arms, total(best)
    alone = totals(scores, best, range(len(scores))) - value
    alone[costs == 0.0] = -np.inf  # free arms with a gain are taken already
    prices = np.where(costs > 0.0, costs, 1.0)
    # the empty guess first: it stops most of the others early
    for guess in ([], *([arm] for arm in np.flatnonzero(costs > 0.0).tolist())):
        filled, bounds = [*arms, *guess], alone.copy()
        best = take_best(scores, filled)
        while True:
            now, left = total(best), limit - math.fsum(costs[filled])
            bounds[filled] = -np.inf
            bounds[costs > left] = -np.inf
            rivals = np.flatnonzero(now + bounds > value)
            if len(rivals):
                sums = totals(scores, best, rivals)
                bounds[rivals] = sums - now
                if sums.max() > value:
                    # of tied arms, the cheapest
                    arm = int(rivals[np.lexsort((costs[rivals], -sums))[0]])
                    chosen, value = [*filled, arm], float(sums.max())
            more = _fractional(bounds, prices, left)
            if more <= 0.0 or now + more <= value:
                break
            filled.append(_densest(scores, best, bounds, prices))
            np.maximum(best, scores[filled[-1]], out=best)
    if not chosen and (useful := scores.any(axis=1)).any():
        least = costs[useful].min()
        raise ValueError(
            f"budget {budget:g} is too small: the cheapest arm that scores above 0 costs {least:g}"
        )
    return _portfolio(scores, chosen, KNAPSACK)


def top_by_average(scores: Scores, k: int) -> tuple[int, ...]:
    """Return the k arms with the largest mean scores, best first, ties by index.

    >>> top_by_average(np.array([[0.9, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.4, 0.5]], np.float32), k=2)
    (1, 2)
    """
    nothing = np.zeros(scores.shape[1], dtype=np.float32)
    means = totals(scores, nothing, range(len(scores)))
    return tuple(np.argsort(-means, kind="stable")[:k].tolist())


def affordable(costs: Floats, budget: float) -> int:
    """Return how many arms, cheapest first, a budget pays for.

    >>> affordable(np.array([0.3, 0.1, 0.2]), budget=0.3)
    2
    """
    return int(np.searchsorted(np.sort(costs).cumsum(), budget * (1.0 + ROUNDING), side="right"))


def sample_error(n: int, k: int, n_arms: int, delta: float, factor: float = GREEDY) -> float:
    """Return the eps with F(S) >= factor * OPT - eps on new questions, for S chosen on n questions.

    Hoeffding: F on n questions is off by e or more, in one direction, with probability
    exp(-2 n e^2). A union bound over the at most n_arms^k possible choices, and over the
    best set, gives 2 n_arms^k exp(-2 n e^2) = delta. Otherwise
    F(S) >= F_n(S) - e >= factor * F_n(best) - e >= factor * OPT - (1 + factor) e.

    Args:
        n: Questions that the portfolio was chosen on, from the distribution of new questions.
        k: Number of arms; under a budget, `affordable`.
        n_arms: Number of candidates.
        delta: Probability that the bound fails, in (0, 1).
        factor: Guarantee of the algorithm.

    >>> round(sample_error(sample_size(0.1, k=5, n_arms=360, delta=0.05), k=5, n_arms=360, delta=0.05), 4)
    0.1
    """
    return (1.0 + factor) * math.sqrt((k * math.log(n_arms) + math.log(2.0 / delta)) / (2.0 * n))


def sample_size(eps: float, k: int, n_arms: int, delta: float, factor: float = GREEDY) -> int:
    """Return the least number of questions whose `sample_error` is at most eps.

    >>> sample_size(0.1, k=5, n_arms=360, delta=0.05)
    4412
    """
    return math.ceil(((1.0 + factor) / eps) ** 2 * (k * math.log(n_arms) + math.log(2.0 / delta)) / 2.0)


def _portfolio(scores: Scores, arms: Sequence[int], guarantee: float) -> Portfolio:
    if not arms:
        raise ValueError("none of the available arms scores above 0 on any question")
    return Portfolio(tuple(arms), values(scores, arms), guarantee)


def _densest(scores: Scores, best: Scores, bounds: Floats, prices: Floats) -> int:
    """Return the arm with the largest gain per price; of tied arms the first.

    Args:
        scores: Shape (n_arms, n_questions).
        best: Coverage of the arms picked before, shape (n_questions,).
        bounds: Upper bounds of the gains, shape (n_arms,); minus infinity excludes an arm. The bounds of
            evaluated arms are replaced by their gains, which only fall when `best` rises.
        prices: Positive, shape (n_arms,).
    """
    densest, largest, now = -1, -np.inf, total(best)
    for arm in np.argsort(-bounds / prices, kind="stable").tolist():
        if bounds[arm] / prices[arm] < largest:
            break
        (bounds[arm],) = totals(scores, best, [arm]) - now
        if (density := bounds[arm] / prices[arm]) > largest or (density == largest and arm < densest):
            densest, largest = arm, density
    return densest


def _fractional(bounds: Floats, costs: Floats, left: float) -> float:
    """Return the gain of the fractional relaxation within the remaining budget."""
    gaining = np.flatnonzero(bounds > 0.0)
    order = gaining[np.argsort(-bounds[gaining] / costs[gaining], kind="stable")]
    before = np.cumsum(costs[order]) - costs[order]
    part = ((left - before) / costs[order]).clip(0.0, 1.0)
    return float(bounds[order] @ part)


def _check_costs(costs: Floats, budget: float, n_arms: int) -> Floats:
    """Return the costs as float64. Raises ValueError."""
    costs = np.asarray(costs, dtype=np.float64)
    if costs.shape != (n_arms,):
        raise ValueError(f"{n_arms} arms need costs of shape ({n_arms},), got {costs.shape}")
    for arm in np.flatnonzero(~((costs >= 0.0) & (costs < np.inf))):
        raise ValueError(f"arm {arm} costs {costs[arm]:g}; costs must be finite and not negative")
    if not 0.0 <= budget < np.inf:
        raise ValueError(f"budget {budget:g} must be finite and not negative")
    return costs
