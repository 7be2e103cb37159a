"""Choose the few arms that together serve most: what the best of them earns, on average.

    F(S) = mean over questions of the largest score of an arm in S

    greedy           at most k arms               at least 1 - 1/e of the best such set
    knapsack         what a budget buys           at least 0.6174 of the best such set
    top_by_average   the k best by themselves     no factor: they may all answer the same questions
    sample_error     what F on n questions may be wrong by; `sample_size` is its inverse

F never falls when an arm is added, and an arm adds the less the more there are: the two
factors follow from that alone. Scores are of shape (n_arms, n_questions), in [0, 1] and all
known; `arms.portfolio.imputation` says what an unknown one is worth. They are read where they are and
never copied. What decides is compared in float64, and of arms that tie the first is picked.

Source: Retriever Portfolios, 2026, arXiv:2605.31176 (the objective, greedy, the sample size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arms.portfolio.coverage import (
    CLOSE,
    THREADS,
    Run,
    Scores,
    best_of,
    checked,
    threads,
    total,
    totals,
    values,
)

Floats = NDArray[np.float64]

GREEDY = 1.0 - 1.0 / math.e
"""Source: Nemhauser, Wolsey and Fisher 1978, An analysis of approximations for maximizing submodular
set functions I, Mathematical Programming 14."""

KNAPSACK = 0.6174
"""Source: Feldman, Nutov and Shoham 2023, Practical budgeted submodular maximization,
Algorithmica 85, arXiv:2007.04937 (a single guess)."""

ROUNDING = 1e-9
"""Part of a budget that is put down to rounding, so that 0.1 + 0.2 is within 0.3."""

BATCH = 16 * THREADS
"""Arms that are looked at before it is asked whether the next one can still win."""


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The arms that were chosen.

    Attributes:
        arms: Their rows in the scores, in the order of picking.
        values: F of the first, of the first two, and so on; never falling.
        guarantee: The part of the best possible value that `values[-1]` is sure to be.
    """

    arms: tuple[int, ...]
    values: tuple[float, ...]
    guarantee: float

    @property
    def gains(self) -> tuple[float, ...]:
        """What each pick added."""
        return tuple(np.diff(self.values, prepend=0.0).tolist())


def greedy(scores: Scores, k: int, start: Sequence[int] = ()) -> Portfolio:
    """Pick k arms, each the one that adds most to those before it.

    An arm's gain only falls, so an arm whose last known gain is below what another adds now
    need not be looked at: the picks are those of a scan over all arms.

    Args:
        scores: Shape (n_arms, n_questions).
        k: Arms to choose, those of `start` included.
        start: Arms that must be among them; the guarantee is against sets that hold them, too.

    Returns:
        Fewer than k arms when no other arm adds anything.

    Raises:
        ValueError: k is not in 1..n_arms, a score is not in [0, 1], or `start` does not fit.

    Source: Minoux 1978, Accelerated greedy algorithms for maximizing submodular set functions.

    >>> greedy(np.array([[0.9, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.4, 0.5]], np.float32), k=2).arms
    (1, 2)
    """
    scores = checked(scores)
    if not 1 <= k <= len(scores):
        raise ValueError(f"k is {k}; of {len(scores)} arms, 1 to {len(scores)} can be chosen")
    arms = _checked_start(start, len(scores))
    if len(arms) > k:
        raise ValueError(f"start names {len(arms)} arms, more than k = {k}")
    best = best_of(scores, arms)
    bounds, even = np.full(len(scores), np.inf), np.ones(len(scores))
    with threads(scores) as run:
        while len(arms) < k:
            bounds[arms] = -np.inf
            arm, gain = _densest(scores, best, bounds, even, run)
            if gain <= 0.0:
                break
            arms.append(arm)
            np.maximum(best, scores[arm], out=best)
    return _portfolio(scores, arms, GREEDY)


def knapsack(scores: Scores, costs: Floats, budget: float, start: Sequence[int] = ()) -> Portfolio:
    """Pick arms whose costs add up to no more than a budget.

    Every arm is guessed to be in the best portfolio. Each guess is filled up by the largest
    gain for its cost; after each pick, the one arm that would then add most, whatever it
    costs, makes a portfolio too. The best portfolio of all wins. A guess is given up as soon
    as what is left of the budget cannot lift it above the best: gains only fall, so it cannot
    earn more than if parts of arms were for sale at their gains of now.

    Args:
        scores: Shape (n_arms, n_questions).
        costs: Not negative, shape (n_arms,); arms that cost nothing are taken first if they add anything.
        budget: In the unit of the costs.
        start: Arms that must be among them; the guarantee is against sets that hold them, too.

    Raises:
        ValueError: A score is not in [0, 1], a cost is negative or not finite, the budget
            buys no arm that scores above 0 or not those of `start`, or `start` does not fit.

    Source: 1-Guess Greedy+ of Feldman, Nutov and Shoham, see `KNAPSACK`.

    >>> scores = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], np.float32)
    >>> knapsack(scores, np.array([3.0, 1.0, 1.0]), budget=3.0).arms
    (0,)
    """
    scores = checked(scores)
    arms = _checked_start(start, len(scores))
    costs = _checked_costs(costs, budget, arms, len(scores))
    limit = budget * (1.0 + ROUNDING)
    for arm in np.flatnonzero(costs == 0.0).tolist():
        if (scores[arm] > best_of(scores, arms)).any():
            arms.append(arm)
    best = best_of(scores, arms)
    chosen, value = arms, total(best)
    with threads(scores) as run:
        alone = totals(scores, best, np.arange(len(scores)), run) - value
        alone[costs == 0.0] = -np.inf  # those that add anything are taken by now
        prices = np.where(costs > 0.0, costs, 1.0)
        # The empty guess comes first: few of the others can do better than it for long.
        for guess in ([], *([arm] for arm in np.flatnonzero(costs > 0.0).tolist() if arm not in arms)):
            filled, bounds = [*arms, *guess], alone.copy()
            best = best_of(scores, filled)
            while True:
                left = limit - math.fsum(costs[filled])
                bounds[filled] = -np.inf
                bounds[costs > left] = -np.inf
                now = total(best)
                rivals = np.flatnonzero(now + bounds > value)
                if len(rivals):
                    sums = totals(scores, best, rivals, run)
                    bounds[rivals] = sums - now
                    if sums.max() > value:
                        chosen, value = [*filled, int(rivals[sums.argmax()])], float(sums.max())
                more = _fractional(bounds, prices, left)
                if more <= 0.0 or now + more <= value:
                    break
                arm, _ = _densest(scores, best, bounds, prices, run)
                filled.append(arm)
                np.maximum(best, scores[arm], out=best)
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
    means = totals(scores, nothing, np.arange(len(scores)))
    return tuple(np.argsort(-means, kind="stable")[:k].tolist())


def affordable(costs: Floats, budget: float) -> int:
    """Return how many arms a budget buys at most: the cheapest ones.

    >>> affordable(np.array([0.3, 0.1, 0.2]), budget=0.3)
    2
    """
    return int(np.searchsorted(np.sort(costs).cumsum(), budget * (1.0 + ROUNDING), side="right"))


def sample_error(n: int, k: int, n_arms: int, delta: float, factor: float = GREEDY) -> float:
    """Return the eps for which F(S) >= factor * OPT - eps, S chosen on n questions, OPT the best of new ones.

    Hoeffding: F on n questions is off by e or more, in one direction, with chance exp(-2 n e^2).
    At most n_arms^k sets could have been chosen and must not look better than they are by e, and
    the best one must not look worse: all hold but with chance 2 n_arms^k exp(-2 n e^2) = delta.
    Then F(S) >= F_n(S) - e >= factor * F_n(best) - e >= factor * OPT - (1 + factor) e.

    Args:
        n: Questions that the portfolio was chosen on, drawn like those to come.
        k: Arms chosen; under a budget, `affordable`.
        n_arms: Arms that they were chosen from.
        delta: Chance that the bound does not hold, in (0, 1).
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
        raise ValueError("no arm that can be chosen scores above 0 on any question")
    return Portfolio(tuple(arms), values(scores, arms), guarantee)


def _densest(scores: Scores, best: Scores, bounds: Floats, costs: Floats, run: Run) -> tuple[int, float]:
    """Return the arm with the largest gain for its cost, the first of those that tie, and its gain.

    Args:
        scores: Shape (n_arms, n_questions).
        best: What the arms before it earn, shape (n_questions,).
        bounds: What each arm gains at most, shape (n_arms,); minus infinity leaves it out. They
            are lowered for the arms that are looked at, and hold when `best` rises.
        costs: Positive, shape (n_arms,).
        run: Spreads work over threads.
    """
    now, error, found = total(best), CLOSE * len(best), -np.inf
    order = np.argsort(-bounds / costs, kind="stable")[: np.count_nonzero(bounds > -np.inf)]
    for at in range(0, len(order), BATCH):
        batch = order[at : at + BATCH]
        if bounds[batch[0]] / costs[batch[0]] < found:
            break
        bounds[batch] = totals(scores, best, batch, run, np.float32) - now + error
        found = max(found, float(((bounds[batch] - 2.0 * error) / costs[batch]).max()))
    tied = np.flatnonzero(bounds / costs >= found)
    gains = totals(scores, best, tied, run) - now
    first = int((gains / costs[tied]).argmax())
    return int(tied[first]), float(gains[first])


def _fractional(bounds: Floats, costs: Floats, left: float) -> float:
    """Return what can be gained at most within what is left of the budget, if parts of arms are for sale."""
    gaining = np.flatnonzero(bounds > 0.0)
    order = gaining[np.argsort(-bounds[gaining] / costs[gaining], kind="stable")]
    before = np.cumsum(costs[order]) - costs[order]
    part = ((left - before) / costs[order]).clip(0.0, 1.0)
    return float(bounds[order] @ part)


def _checked_start(start: Sequence[int], n_arms: int) -> list[int]:
    for arm in start:
        if not 0 <= arm < n_arms or start.count(arm) > 1:
            raise ValueError(f"start holds {arm}; it must name arms from 0 to {n_arms - 1}, each once")
    return list(start)


def _checked_costs(costs: Floats, budget: float, start: list[int], n_arms: int) -> Floats:
    """Return the costs as float64. Raises ValueError."""
    costs = np.asarray(costs, dtype=np.float64)
    if costs.shape != (n_arms,):
        raise ValueError(f"{n_arms} arms need costs of shape ({n_arms},), got {costs.shape}")
    for arm in np.flatnonzero(~((costs >= 0.0) & (costs < np.inf))):
        raise ValueError(f"arm {arm} costs {costs[arm]:g}; costs must be finite and not negative")
    if not 0.0 <= budget < np.inf:
        raise ValueError(f"budget {budget:g} must be finite and not negative")
    if (least := math.fsum(costs[start])) > budget * (1.0 + ROUNDING):
        raise ValueError(f"budget {budget:g} is too small: the arms of start cost {least:g}")
    return costs
