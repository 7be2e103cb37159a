"""A sequential test of whether the reward of an arm has changed, with a stated run length.

    reward of an arm, columns of the question -> bets that it has risen, or fallen -> evidence -> a change?

Each reward of an arm multiplies the wealth of bets against the mean that its earlier rewards had. While that
mean holds, a bet gains nothing on average, however rare or skewed rewards are. A new bet of 1 begins with
each reward, and the evidence is what all of them are worth. So without a change it grows by 1 with each
reward on average, over all arms together, and the expected number of rewards until it reaches N is at least
N: no variance, no number of arms and no shape of the rewards enters.

The mean is not known, but estimated, so bets are against a mean further away: by the error of the estimate,
by the part of the range that so few rewards may not have shown, and by `SLACK`, since a daily rhythm moves
what an arm earns a little. A policy that learns gives other questions to an arm than before, which moves its
mean, too. So a small linear model predicts by the question how far a reward is from the mean. A rise is one
beyond the mean with and without that, a fall is one below both.

The model is the detector's own: one that is learned well and forgets would learn a change away.

Source: Shin, Ramdas, Rinaldo 2022, E-detectors: a nonparametric framework for sequential change detection,
arXiv:2203.03532, with the sums of Shiryaev and Roberts; the bets are those of Waudby-Smith and Ramdas 2020,
Estimating means of bounded random variables by betting, arXiv:2010.09686. The linear model learns by
normalised least mean squares: Widrow and Hoff 1960, Adaptive switching circuits.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, Restart

RUN_LENGTH = 100_000.0
"""Rewards between two false changes, on average, where nothing else is stated."""

Array = NDArray[np.float64]

BEGIN = 100
"""Rewards of an arm before the first bet on it."""

LEAST, MOST = 100, 500
"""Rewards that a restart keeps, at least and at most."""

BETS = (0.5, 1.0)
"""Stakes, in 1 / standard deviations of a reward: one is best for a change of as many of them."""

SLACK = 0.05
"""By how much a mean may move without being evidence, in standard deviations of a reward."""

UNSEEN = 2.0
"""Rewards at the end of the range that the mean is held possible to have missed."""

LATEST = 1000.0
"""Rewards of an arm whose mean and variance are its reference: of more, the latest ones count."""

STAKED = 0.9
"""Largest part of the wealth that one reward can lose."""

LEAST_MOVE = 0.005
"""By how much a mean may move at least, where rewards hardly differ."""

LEVEL_RATE = 0.02
"""Least rate at which the linear model learns the mean, which is no part of what it predicts."""

TINY = 1e-9
"""Least divisor."""

NO_COLUMNS = np.zeros(0)

REMOVED = {
    "threshold": "set run_length, the expected number of rewards between two restarts where nothing changes",
    "slack": "run_length alone says how readily it restarts",
}
"""What takes the place of parameters that policies with restarts no longer have."""


@dataclass(frozen=True, slots=True)
class ArmChange:
    """A change that the rewards of an arm show.

    Attributes:
        arm: Name of the arm.
        rise: Whether its reward has risen.
        since: Estimated number of rewards, of all arms, since the change, at least 1.
    """

    arm: str
    rise: bool
    since: int


@dataclass(slots=True)
class _ArmEvidence:
    """What is known of an arm.

    Attributes:
        n: Rewards since the start or the last change, `LATEST` at most.
        mean: Mean of the rewards.
        error: Mean of the rewards less what the linear model predicted.
        variance: Variance of the rewards.
        low, high: Smallest and largest reward.
        evidence: Worth of the bets on a rise, then of those on a fall, one of each stake.
        begun: Sum of the same, each times the number of the reward with which it began.
        level: Mean reward less what is predicted, of late.
        weights: Weights of the columns, shape (d,).
        squares: 1 plus the sum of the squares of each column, shape (d,).
    """

    n: float = 0.0
    mean: float = 0.0
    error: float = 0.0
    variance: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    evidence: list[float] = field(default_factory=lambda: [0.0] * 2 * len(BETS))
    begun: list[float] = field(default_factory=lambda: [0.0] * 2 * len(BETS))
    level: float = 0.0
    weights: Array = field(default_factory=NO_COLUMNS.copy)
    squares: Array = field(default_factory=NO_COLUMNS.copy)

    def predict(self, x: Array, reward: float) -> float:
        """Return what the columns of a question predict, apart from the mean, and learn its reward."""
        if not len(x):
            return 0.0
        predicted = float(self.weights @ x)
        error = reward - self.level - predicted
        self.level += error * max(1.0 / (self.n + 1.0), LEVEL_RATE)
        self.squares += x * x
        self.weights += error / max(float(x @ x), TINY) * x / self.squares
        return predicted


class ChangeDetector:
    """Find from rewards, in their order, that the mean reward of an arm has changed.

    An arm that gets other questions than before has not changed, as far as they show what it earns.

    Args:
        run_length: Expected number of rewards, of all arms together, between two changes that are found where
            nothing changes. A change by d standard deviations is found after some
            2 log(4 run_length) / d^2 rewards of the arm, twice as many where d is near .5.

    Raises:
        PolicyError: The run length is not a finite number above 1.

    >>> detector = ChangeDetector()
    >>> [detector.see("a", float(t % 2)) for t in range(400)].count(None)
    400
    >>> next(filter(None, (detector.see("a", 0.0) for _ in range(100))))
    ArmChange(arm='a', rise=False, since=22)
    """

    def __init__(self, run_length: float = RUN_LENGTH) -> None:
        if not 1.0 < run_length < math.inf:
            raise PolicyError(f"run_length {run_length} is not a finite number above 1")
        self._limit = 2.0 * len(BETS) * run_length
        self._arms: dict[str, _ArmEvidence] = {}
        self._now = 0

    def see(self, arm: str, reward: float, x: Array = NO_COLUMNS) -> ArmChange | None:
        """Add the next reward of an arm; return the change that it completes the evidence of.

        After a change, all arms begin anew.

        Args:
            arm: Name of the arm.
            reward: A finite number.
            x: Columns of the question without a constant one, as many as before, shape (d,).
        """
        one = self._arms.get(arm)
        if one is None:
            one = self._arms[arm] = _ArmEvidence(weights=np.zeros(len(x)), squares=np.ones(len(x)))
        self._now += 1
        one.low, one.high = min(one.low, reward), max(one.high, reward)
        predicted = one.predict(x, reward)
        # where all rewards were equal, a bet would neither win nor lose
        known = one.n >= BEGIN and one.low < one.high
        change = self._bet(arm, one, predicted, reward) if known else None
        if change is not None:
            self._arms.clear()
            return change
        one.n = min(one.n + 1.0, LATEST)
        apart = reward - one.mean
        one.mean += apart / one.n
        one.error += (reward - predicted - one.error) / one.n
        one.variance += (apart * apart * (1.0 - 1.0 / one.n) - one.variance) / one.n
        return None

    def _bet(self, arm: str, one: _ArmEvidence, predicted: float, reward: float) -> ArmChange | None:
        """Settle the bets on a reward, which is part of the range of its arm already."""
        n, low, high = one.n, one.low, one.high
        deviation = math.sqrt(one.variance + (high - low) ** 2 / (2.0 * n))
        moved = deviation * (SLACK + 1.0 / math.sqrt(n))
        corrected = min(max(predicted + one.error, low), high)
        top, bottom = max(one.mean, corrected), min(one.mean, corrected)
        # how far the reward is beyond the mean, how far one can be, and how far one can be on the other side
        rise, fall = (reward - top, high - top, top - low), (bottom - reward, bottom - low, high - bottom)
        at = 0
        for beyond, most_beyond, most_short in (rise, fall):
            further = max(min(moved + UNSEEN * most_beyond / n, most_beyond / 2.0), LEAST_MOVE)
            gain, most = beyond - further, STAKED / max(most_short + further, TINY)
            for stake in BETS:
                growth = 1.0 + min(stake / deviation, most) * gain
                one.evidence[at] = (one.evidence[at] + 1.0) * growth
                one.begun[at] = (one.begun[at] + self._now) * growth
                at += 1
            worth = one.evidence[at - len(BETS) : at]
            if sum(worth) >= self._limit:
                begun = sum(one.begun[at - len(BETS) : at]) / sum(worth)
                return ArmChange(arm, at == len(BETS), max(round(self._now - begun) + 1, 1))
        return None

    def arrays(self) -> dict[str, Array]:
        """Return the state but for the names of the arms: a row of each, and the number of rewards."""
        rows = []
        for one in self._arms.values():
            moments = (one.n, one.mean, one.error, one.variance, one.low, one.high, one.level)
            rows.append([*moments, *one.evidence, *one.begun, *one.weights, *one.squares])
        return {"watched": np.array(rows, dtype=np.float64), "seen": np.array([float(self._now)])}

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the rows."""
        return [*self._arms]

    def load(self, arms: Sequence[str], watched: Array, seen: Array) -> Self:
        """Return a detector of the same run length with the given state."""
        loaded = copy.copy(self)
        vars(loaded).update(_arms=dict(zip(arms, map(_read, watched), strict=True)), _now=int(seen[0]))
        return loaded


def _read(row: Array) -> _ArmEvidence:
    """Return the arm of a row of the state."""
    n, mean, error, variance, low, high, level = row[:7].tolist()
    evidence, begun = row[7 : 7 + 4 * len(BETS)].reshape(2, -1).tolist()
    weights, squares = row[7 + 4 * len(BETS) :].reshape(2, -1).copy()
    return _ArmEvidence(n, mean, error, variance, low, high, evidence, begun, level, weights, squares)


def restart_after(change: ArmChange, now: int, rewards: Sequence[tuple[str, float]]) -> Restart:
    """Return what a restart after a change keeps.

    Args:
        change: The change.
        now: Number of the latest reward, from 1.
        rewards: The latest arms and their rewards, oldest first.
    """
    kept = min(max(change.since, LEAST), MOST, len(rewards))
    all_of_it = [reward for _, reward in rewards]
    means = []
    for part in (rewards[: len(rewards) - kept], rewards[len(rewards) - kept :]):
        own = [reward for arm, reward in part if arm == change.arm] or all_of_it
        means.append(sum(own) / len(own))
    return Restart(now, change.arm, change.rise, kept, *means)
