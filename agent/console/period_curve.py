"""Cost and quality of what was served, of each single arm, and of mixes of two arms at equal quality.

A policy that sees no question can reach every point between two arms, by drawing one of them with a fixed
probability. So the arms and the lines between them are what is to be had without learning, and the mix that
would have earned as much as what was served says what learning saved at equal quality.

Arms are compared as in `armwise.agent.evaluation.served`, and costs as rewards: an alternative is not worse
where the interval of its lead leaves no loss beyond `EQUAL` of the range of rewards. All these intervals hold
together (Bonferroni), and at every look. The mix is chosen after looking, among all pairs and shares, so its
interval is the mean of those of its arms, weighted by their shares: where these hold, it holds for every mix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from armwise.agent.evaluation.served import ERROR, MOST_MORE
from armwise.feedback.arrays import Floats
from armwise.feedback.ope import Interval, confidence_sequences, intervals

if TYPE_CHECKING:
    from armwise.agent.console.period import Turns

EQUAL = 0.02
"""Loss of reward up to which two count as equally good, as a share of the range of rewards."""

FIGURES = 4
"""Intervals of each alternative: its reward, its cost, and the lead in both."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the cost-quality curve.

    Attributes:
        name: The arm; None for what was served.
        n: Decisions with a reward that it is estimated on.
        reward: Reward a decision.
        reward_interval: Interval of it.
        cost: Dollars an answer; seconds where no dollars were charged.
        cost_interval: Interval of it.
    """

    name: str | None
    n: int
    reward: float
    reward_interval: Interval
    cost: float
    cost_interval: Interval


@dataclass(frozen=True, slots=True)
class AtEqualQuality:
    """What was served beside an alternative, by cost and by reward.

    Attributes:
        shares: Arms of the alternative, each with how often it is drawn.
        n: Decisions with a reward on which both are compared.
        lead: Reward a decision of what was served beyond the alternative.
        low: Lower end of the lead.
        high: Upper end of it.
        saved: Cost an answer of the alternative beyond what was served.
        saved_low: Lower end of it.
        saved_high: Upper end of it.
        margin: Loss of reward up to which two count as equally good.
        more: Further decisions that it takes at least to say whether the cheaper of the two is as good; None
            where it is said, or out of sight.
    """

    shares: tuple[tuple[str, float], ...]
    n: int
    lead: float
    low: float
    high: float
    saved: float
    saved_low: float
    saved_high: float
    margin: float
    more: int | None

    @property
    def served_saves(self) -> bool:
        """Whether what was served is shown to be cheaper and as good."""
        return self.saved_low > 0.0 and self.low >= -self.margin

    @property
    def alternative_saves(self) -> bool:
        """Whether the alternative is shown to be cheaper and as good."""
        return self.saved_high < 0.0 and self.high <= self.margin

    @property
    def name(self) -> str:
        """What would have been used."""
        if len(self.shares) == 1:
            return f"always {self.shares[0][0]}"
        return " and ".join(f"{arm} for {share:.0%}" for arm, share in self.shares) + ", at random"

    @property
    def verdict(self) -> str:
        """What is known, in a few words."""
        if self.served_saves:
            return "what was served is cheaper and as good"
        if self.alternative_saves:
            return "it is cheaper and as good"
        cheaper = self.saved_high < 0.0
        if cheaper and self.low > 0.0:
            return "it is cheaper and worse"
        if self.saved_low > 0.0 and self.high < 0.0:
            return "it is dearer and better"
        return "not known"


def curve_of(turns: "Turns", names: Sequence[str], floor: float, rewards: Interval) -> tuple[CurvePoint, ...]:
    """Return the points of what was served and of each arm, what was served first; none without costs.

    Args:
        turns: The turns of the period.
        names: The arms.
        floor: Least probability of an arm that could be drawn.
        rewards: Smallest and largest possible reward.
    """
    costs = turns.costs
    if costs is None:
        return ()
    top = float(np.nanmax(costs))
    level = 1.0 - ERROR / (FIGURES * (1 + len(names)))
    points = []
    for name in (None, *names):
        rows = turns.every if name is None else turns.having(name)
        target = turns.served if name is None else turns.always(name)
        reach = 1.0 if name is None else 1.0 / floor
        both = []
        for values, possible in ((turns.reward, rewards), (costs, (0.0, top))):
            sums = turns.sums(rows, values, target)
            errors = confidence_sequences.asymptotic_errors(max(1, sums.n), level)
            both.append((sums.n, sums.estimate(reach=reach, rewards=possible, errors=errors)))
        (n, reward), (_, cost) = both
        if reward is not None and cost is not None:
            points.append(CurvePoint(name, n, reward[0], reward[1], cost[0], cost[1]))
    return tuple(points) if points and points[0].name is None else ()


def at_equal_quality(
    turns: "Turns", points: Sequence[CurvePoint], floor: float, rewards: Interval
) -> tuple[AtEqualQuality, ...]:
    """Return what was served beside each single arm, and beside the cheapest mix that is as good.

    Args:
        turns: The turns of the period.
        points: The cost-quality curve.
        floor: Least probability of an arm that could be drawn.
        rewards: Smallest and largest possible reward.
    """
    arms = [point for point in points if point.name is not None]
    if not arms or points[0].name is not None:
        return ()
    alternatives: list[tuple[tuple[str, float], ...]] = [((str(arm.name), 1.0),) for arm in arms]
    if (mix := cheapest_mix(points[0], arms)) is not None:
        alternatives.append(mix)
    level = 1.0 - ERROR / (FIGURES * (len(alternatives) + 1))
    pairs = len(arms) * (len(arms) - 1)
    comparisons = [_beside(turns, shares, floor, rewards, level, pairs) for shares in alternatives]
    return tuple(comparison for comparison in comparisons if comparison is not None)


def cheapest_mix(
    served: CurvePoint, arms: Sequence[CurvePoint]
) -> tuple[tuple[str, float], tuple[str, float]] | None:
    """Return the cheapest mix of two arms that earns what was served, by estimates; None where none does.

    >>> ends = (0.0, 1.0)
    >>> points = [CurvePoint("a", 9, 0.4, ends, 1.0, ends), CurvePoint("b", 9, 0.8, ends, 9.0, ends)]
    >>> cheapest_mix(CurvePoint(None, 9, 0.7, ends, 2.0, ends), points)
    (('a', 0.25), ('b', 0.75))
    """
    best: tuple[float, tuple[tuple[str, float], tuple[str, float]]] | None = None
    for worse, better in permutations(arms, 2):
        if not worse.reward < served.reward < better.reward:
            continue
        share = (better.reward - served.reward) / (better.reward - worse.reward)
        cost = share * worse.cost + (1.0 - share) * better.cost
        if best is None or cost < best[0]:
            share = round(share, 4)
            best = cost, ((str(worse.name), share), (str(better.name), round(1.0 - share, 4)))
    return None if best is None else best[1]


def _beside(
    turns: "Turns",
    shares: tuple[tuple[str, float], ...],
    floor: float,
    rewards: Interval,
    level: float,
    pairs: int,
) -> AtEqualQuality | None:
    """Compare what was served with an arm, or a mix of two, on the turns for which each could be drawn.

    An interval of an arm on all turns that had it is one of those that hold at `level`. On fewer turns it is
    another one for each of the `pairs`, which share the error of one.
    """
    costs = turns.costs
    assert costs is not None
    dearest, rows = float(np.nanmax(costs)), turns.every
    for arm, _ in shares:
        rows = rows & turns.having(arm)

    def leads(values: Floats, possible: Interval) -> tuple[int, list[float]] | None:
        """Return the compared turns, and the lead of what was served with the ends of its interval."""
        n, parts = 0, list[Floats]()
        for arm, share in shares:
            is_whole = bool((rows == turns.having(arm)).all())
            sums = turns.sums(rows, values, turns.always(arm))
            chance = 1.0 - (1.0 - level) / (1 if is_whole else pairs)
            errors = confidence_sequences.asymptotic_errors(max(1, sums.n), chance)
            found = intervals.lead_from_sums(sums, reach=1.0 / floor, rewards=possible, errors=errors)
            if found is None:
                return None
            n, parts = sums.n, [*parts, share * np.array([found[0], *found[1]])]
        return n, np.sum(parts, axis=0).tolist()

    reward, cost = leads(turns.reward, rewards), leads(costs, (0.0, dearest))
    if reward is None or cost is None:
        return None
    n, (lead, low, high) = reward
    saved, saved_high, saved_low = (-each for each in cost[1])
    span = rewards[1] - rewards[0]
    low, high = max(-span, low), min(span, high)
    margin = EQUAL * span
    comparison = AtEqualQuality(shares, n, lead, low, high, saved, saved_low, saved_high, margin, None)
    if comparison.verdict != "not known":
        return comparison
    more = _more(lead if saved > 0.0 else -lead, (high - low) / 2.0, margin, n)
    return AtEqualQuality(shares, n, lead, low, high, saved, saved_low, saved_high, margin, more)


def _more(lead: float, half: float, margin: float, n: int) -> int | None:
    """Return how many more decisions it takes at least to show that the cheaper one is as good.

    Args:
        lead: Reward of the cheaper one beyond the other.
        half: Half of the width of its interval.
        margin: Loss that counts as equal.
        n: Decisions so far.

    >>> _more(0.0, 0.04, 0.02, 100), _more(-0.03, 0.04, 0.02, 100), _more(0.05, 0.01, 0.02, 100)
    (300, None, None)
    """
    room = lead + margin
    if room <= 0.0 or half <= room:
        return None
    more = ceil(n * ((half / room) ** 2 - 1.0) - 1e-9)
    return more if 0 < more <= MOST_MORE * n else None
