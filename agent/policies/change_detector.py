"""A sequential test of whether the reward of an arm has changed, with a stated run length.

    reward of an arm, columns of the question -> bets that it has risen, or fallen -> evidence -> a change?

Each reward of an arm multiplies the wealth of bets against the mean of its earlier rewards. While that mean
holds, the expected gain of a bet is 0, however rare or skewed rewards are. A new bet of 1 begins with each
reward, and the evidence is the total wealth. So without a change it grows by 1 per reward on average, over
all arms together, and the expected number of rewards until it reaches N is at least N, whatever the variance,
the number of arms and the shape of the rewards.

The mean is estimated, so bets are against a mean further away: by the error of the estimate, by the part of
the range that so few rewards may have missed, and by `SLACK`. A policy that learns gives an arm other
questions than before, which moves its mean, too. So a small linear model predicts from the question how far
a reward is from the mean. A rise has to exceed the mean with and without that prediction, a fall has to be
below both.

A rhythm is no change. What moves all arms alike, such as the hour of the day, shows in the latest rewards of
the other arms, and is subtracted first. Where one arm has nearly all rewards, there is nothing to compare it
with, so the bets are also against a mean that is further away by as much as the arm's recent mean swings.

The detector has a separate model, because a policy's good model that forgets would learn a change away.

Source: Shin, Ramdas, Rinaldo 2022, E-detectors: a nonparametric framework for sequential change detection,
arXiv:2203.03532, with the sums of Shiryaev and Roberts; the bets are those of Waudby-Smith and Ramdas 2020,
Estimating means of bounded random variables by betting, arXiv:2010.09686. The linear model learns by
normalised least mean squares: Widrow and Hoff 1960, Adaptive switching circuits.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, Restart
from armwise.agent.policies.sampling import TIE

RUN_LENGTH = 100_000.0
"""Default mean number of rewards between two false changes."""

Array = NDArray[np.float64]

LEAST, MOST = 100, 500
"""Fewest and most rewards that a restart keeps; there is no bet on an arm before it has the fewest."""

BETS = (0.5, 1.0)
"""Stakes, in 1 / standard deviations of a reward; each is best for a change of as many deviations."""

SLACK = 0.05
"""Tolerated move of a mean, in standard deviations of a reward."""

UNSEEN = 2.0
"""Number of extreme rewards that the sample of a mean may have missed."""

LATEST = 1000.0
"""Latest rewards of an arm that determine its means and variance, and rewards after which a swing counts.

If a swing counted sooner, a change would hide itself.
"""

STAKED = 0.9
"""Largest part of the wealth that one reward can lose."""

LEAST_MOVE = 0.005
"""Least tolerated move of a mean, for rewards that hardly differ."""

COMMON_PRIOR = 10.0
"""Rewards of 0 with which the level of the other arms starts."""

MOST_COMMON = 0.5
"""Most that the level of the other arms counts, in standard deviations of a reward."""

RATE = 0.02
"""Rate at which recent means of an arm forget, the level of the other arms, and the swings of blocks."""

SWINGS = 1.25
"""Tolerated move of a mean, in root mean squares of its swings; a sine wave reaches 1.4."""

NO_COLUMNS = np.zeros(0)


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
    """The statistics of an arm.

    Attributes:
        n: Rewards since the start or the last change, at most `LATEST`.
        mean: Mean of the rewards.
        error: Mean of the rewards minus the linear model's predictions.
        variance: Variance of the rewards.
        low, high: Smallest and largest reward.
        level: Recent mean of the rewards minus the predictions.
        own_mean, own_n: Long-term mean of the rewards as they came, and how many it counts, at most `LATEST`.
        apart_n, apart, apart_at: Decayed number of rewards, decayed sum of their differences from that mean,
            and the number of the reward at which they were decayed.
        recent: Recent mean of the rewards, less the mean.
        block, block_n: Sum of the squares of `recent` beyond chance in this block, and how many they are.
        swing, blocks: Mean of those squares over all blocks, and how many blocks they are.
        evidence: Wealth of the bets on a rise, then of those on a fall, for each stake.
        begun: The same sums, with each bet weighted by the number of the reward at which it began.
        weights: Weights of the columns, shape (d,).
        squares: 1 plus the sum of the squares of each column, shape (d,).
    """

    n: float = 0.0
    mean: float = 0.0
    error: float = 0.0
    variance: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    level: float = 0.0
    own_mean: float = 0.0
    own_n: float = 0.0
    apart_n: float = 0.0
    apart: float = 0.0
    apart_at: float = 0.0
    recent: float = 0.0
    block: float = 0.0
    block_n: float = 0.0
    swing: float = 0.0
    blocks: float = 0.0
    evidence: list[float] = field(default_factory=lambda: [0.0] * 2 * len(BETS))
    begun: list[float] = field(default_factory=lambda: [0.0] * 2 * len(BETS))
    weights: Array = field(default_factory=NO_COLUMNS.copy)
    squares: Array = field(default_factory=NO_COLUMNS.copy)

    def predict(self, x: Array, reward: float) -> float:
        """Return the difference from the mean that a question's columns predict, and learn its reward."""
        if not len(x):
            return 0.0
        predicted = float(self.weights @ x)
        error = reward - self.level - predicted
        self.level += error * max(1.0 / (self.n + 1.0), RATE)
        self.squares += x * x
        self.weights += error / max(float(x @ x), TIE) * x / self.squares
        return predicted

    def note_swing(self, reward: float) -> None:
        """Measure how far the recent mean of the arm is from its mean."""
        self.recent += (reward - self.mean - self.recent) * RATE
        by_chance = self.variance * RATE / (2.0 - RATE)
        self.block = self.block + self.recent * self.recent - by_chance
        self.block_n += 1.0
        if self.block_n == LATEST:
            self.blocks += 1.0
            self.swing += (self.block / LATEST - self.swing) * max(1.0 / (self.blocks + 1.0), RATE)
            self.block = self.block_n = 0.0


class ChangeDetector:
    """Detects, from rewards in their order, that the mean reward of an arm has changed.

    Different questions than before do not count as a change, as far as they predict rewards.

    Args:
        run_length: Expected number of rewards, of all arms together, between two false changes. A change by
            d standard deviations is detected after some 2 log(4 run_length) / d^2 rewards of the arm, twice
            as many if d is near .5.

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
        self._common = 0.0, 0.0
        self._now = 0

    def see(self, arm: str, reward: float, x: Array = NO_COLUMNS) -> ArmChange | None:
        """Add the next reward of an arm; return a change if this reward completes the evidence of it.

        After a change, the evidence of all arms is reset, except for how far their means swing.

        Args:
            arm: Name of the arm.
            reward: A finite number.
            x: Columns of the question without a constant one, as many as before, shape (d,).
        """
        one = self._arms.get(arm)
        if one is None:
            one = self._arms[arm] = _ArmEvidence(weights=np.zeros(len(x)), squares=np.ones(len(x)))
        self._now += 1
        reward -= self._measure_common(one, reward)
        if one.n >= LEAST / 2:
            one.note_swing(reward)
        one.low, one.high = min(one.low, reward), max(one.high, reward)
        predicted = one.predict(x, reward)
        # if all rewards were equal, a bet could neither win nor lose
        known = one.n >= LEAST and one.low < one.high
        change = self._bet(arm, one, predicted, reward) if known else None
        if change is not None:
            self._common = 0.0, 0.0
            for name, old in self._arms.items():
                self._arms[name] = _ArmEvidence(
                    block=old.block,
                    block_n=old.block_n,
                    swing=old.swing,
                    blocks=old.blocks,
                    weights=np.zeros_like(old.weights),
                    squares=np.ones_like(old.squares),
                )
            return change
        one.n = min(one.n + 1.0, LATEST)
        apart = reward - one.mean
        one.mean += apart / one.n
        one.error += (reward - predicted - one.error) / one.n
        one.variance += (apart * apart * (1.0 - 1.0 / one.n) - one.variance) / one.n
        return None

    def _measure_common(self, one: _ArmEvidence, reward: float) -> float:
        """Return how far the latest rewards of the other arms are above their means, and note a reward."""
        weight, total = (value * (1.0 - RATE) for value in self._common)
        kept: float = (1.0 - RATE) ** (self._now - one.apart_at)
        own_weight, own_total = one.apart_n * kept, one.apart * kept
        level = (total - own_total) / (max(weight - own_weight, 0.0) + COMMON_PRIOR)
        most = MOST_COMMON * math.sqrt(one.variance)
        apart = reward - one.own_mean if one.own_n else 0.0
        one.own_n = min(one.own_n + 1.0, LATEST)
        one.own_mean += (reward - one.own_mean) / one.own_n
        one.apart_n, one.apart, one.apart_at = own_weight + 1.0, own_total + apart, float(self._now)
        self._common = weight + 1.0, total + apart
        return min(max(level, -most), most)

    def _bet(self, arm: str, one: _ArmEvidence, predicted: float, reward: float) -> ArmChange | None:
        """Settle the bets on a reward, which the range of its arm already includes."""
        n, low, high = one.n, one.low, one.high
        deviation = math.sqrt(one.variance + (high - low) ** 2 / (2.0 * n))
        moved = deviation * (SLACK + 1.0 / math.sqrt(n)) + SWINGS * math.sqrt(max(one.swing, 0.0))
        corrected = min(max(predicted + one.error, low), high)
        top, bottom = max(one.mean, corrected), min(one.mean, corrected)
        # how far the reward is beyond the mean, the most that is possible, and the most on the other side
        rise, fall = (reward - top, high - top, top - low), (bottom - reward, bottom - low, high - bottom)
        at = 0
        for beyond, most_beyond, most_short in (rise, fall):
            further = max(min(moved + UNSEEN * most_beyond / n, most_beyond / 2.0), LEAST_MOVE)
            gain, most = beyond - further, STAKED / max(most_short + further, TIE)
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
        """Return the state without the names of the arms: a row per arm, and the number of rewards."""
        rows = [np.hstack([getattr(one, each.name) for each in fields(one)]) for one in self._arms.values()]
        return {"watched": np.array(rows), "seen": np.array([float(self._now), *self._common])}

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the rows."""
        return [*self._arms]

    def load(self, arms: Sequence[str], watched: Array, seen: Array) -> Self:
        """Return a detector of the same run length with the given state."""
        loaded = copy.copy(self)
        now, *common = seen.tolist()
        those = dict(zip(arms, map(_read, watched), strict=True))
        vars(loaded).update(_arms=those, _now=int(now), _common=tuple(common))
        return loaded


def _read(row: Array) -> _ArmEvidence:
    """Return the arm of a row of the state."""
    one = _ArmEvidence(*row[:17].tolist())
    one.evidence, one.begun = row[17 : 17 + 4 * len(BETS)].reshape(2, -1).tolist()
    one.weights, one.squares = row[17 + 4 * len(BETS) :].reshape(2, -1).copy()
    return one


def restart_after(change: ArmChange, now: int, rewards: Sequence[tuple[str, float]]) -> Restart:
    """Return the restart that follows a change.

    Args:
        change: The change.
        now: Number of the latest reward, from 1.
        rewards: Arm and reward of the latest rewards, oldest first.
    """
    kept = min(max(change.since, LEAST), MOST, len(rewards))
    all_of_it = [reward for _, reward in rewards]
    means = []
    for part in (rewards[: len(rewards) - kept], rewards[len(rewards) - kept :]):
        own = [reward for arm, reward in part if arm == change.arm] or all_of_it
        means.append(sum(own) / len(own))
    return Restart(now, change.arm, change.rise, kept, *means)
