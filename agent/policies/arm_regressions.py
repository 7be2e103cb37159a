"""Ridge regressions of the rewards of arms, upon one small regression of what all arms have in common.

    expected reward of an arm = mean score + common . v + own . x

v has the difference of the arm's score from the mean score, and which of two levels it has: that of arms with
scores, or of arms without. So one reward corrects all arms where scores promise too much, or say nothing. x
are the columns of the question, whose weights are penalised the more, the more of them there are: intercept,
form, embedding. Penalties shrink with the noise of rewards, so that the prior uncertainty of a weight stays;
among those in common, this holds for the worth of a difference of scores.

An inverse per arm is updated a reward at a time, exactly (Sherman and Morrison's formula).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

# with 40 for the form, two models are told apart after 109 questions and not 191 at an extra cost of .06, but
# eleven language models (RouterBench) earn 13 less of 1,000, with a standard error of 5
INTERCEPT, FORM, EMBEDDING = 10.0, 100.0, 1000.0
"""Penalties on the squares of an arm's weights, at the noise of single ratings or more.

The intercept of an arm that has a score is known better than another one: its penalty is that of the form.
"""

COMMON = np.array([0.8, INTERCEPT, 2.0 * INTERCEPT])
"""Penalties on the worth of a difference of scores, which is expected to be 1, and on the two levels."""

NOISE, NOISE_COUNT, NOISE_DECAY, LEAST_NOISE = 0.2, 20.0, 0.999, 0.0004
"""Initial variance of a reward, the rewards that it counts as, its discount, and its least value."""

RESCALE = 0.35
"""Change of the logarithm of the noise at which the penalties follow it."""

DIFFERENCE, OF_SCORED, OF_OTHERS = 0, 1, 2
"""Columns of v."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected of n arms before their own rewards are considered.

    Attributes:
        mean_score: Mean of the scores; 0 where no arm has one.
        v: Columns in common, shape (n, 3).
        bonus: What is added for want of a score, shape (n,).
    """

    mean_score: float
    v: Array
    bonus: Array

    @classmethod
    def from_scores(cls, scores: Array, bonus: Array) -> "Prior":
        """Return the prior of arms with these scores; those without one, NaN, have the best and a bonus."""
        known, v = ~np.isnan(scores), np.zeros((len(scores), 3))
        if not known.any():
            v[:, OF_OTHERS] = 1.0
            return cls(0.0, v, bonus)
        mean = float(scores[known].mean())
        v[:, DIFFERENCE] = np.where(known, scores, scores[known].max()) - mean
        v[:, OF_SCORED] = 1.0
        return cls(mean, v, np.where(known, 0.0, bonus))

    def only(self, at: int) -> "Prior":
        """Return the prior of one arm."""
        one = slice(at, at + 1)
        return Prior(self.mean_score, self.v[one], self.bonus[one])


@dataclass(slots=True)
class ArmRegressions:
    """The statistics of n arms with d columns; the last row is an arm without rewards.

    Attributes:
        inverse: Inverse of the penalties plus the sum of x x', shape (n + 1, d, d).
        target: Sums of x times the reward less the mean score, and of x times each of v, shape (n + 1, 4, d).
        drawn: Number of rewards, as far as they count, shape (n + 1,).
        rise: Sum by which rewards are higher than expected, shape (n + 1,).
        last: Number of the last reward of each, of all rewards, shape (n + 1,).
        gram: Penalties in common plus the sum of v v', shape (3, 3).
        moment: Sum of v times the reward less the mean score, with what is expected, shape (3,).
        paid: Sum of what rewards lost to costs, and their number, shape (n + 1, 2); never forgotten.
        noise: Mean square of the errors, the rewards that it counts as, and the factor of the penalties.
        penalties: Penalties on the weights of an arm at a factor of 1, shape (d,).
    """

    inverse: Array
    target: Array
    drawn: Array
    rise: Array
    last: Array
    gram: Array
    moment: Array
    paid: Array
    penalties: Array
    noise: Array = field(default_factory=lambda: np.array([NOISE, NOISE_COUNT, 1.0]))

    @classmethod
    def empty(cls, d: int, n_form: int, level: float) -> "ArmRegressions":
        """Return those of no arm.

        Args:
            d: Number of columns, the first of which is 1.
            n_form: Number of columns after it that are of the form of a question, not of its embedding.
            level: Expected reward of arms without scores.
        """
        penalties = np.repeat([INTERCEPT, FORM, EMBEDDING], [1, n_form, d - 1 - n_form])
        return cls(
            inverse=np.diag(1.0 / penalties)[None],
            target=np.zeros((1, 4, d)),
            drawn=np.zeros(1),
            rise=np.zeros(1),
            last=np.zeros(1),
            gram=np.diag(COMMON),
            moment=COMMON * [1.0, 0.0, level],
            paid=np.zeros((1, 2)),
            penalties=penalties,
        )

    def arrays(self) -> Mapping[str, Array]:
        """Return the statistics by name, the arguments of the class."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def deviation(self) -> float:
        """Standard deviation of a reward around its expectation."""
        return math.sqrt(self.noise[0])

    def add_arm(self) -> None:
        """Add an arm without rewards."""
        for name in ("inverse", "target", "drawn", "rise", "last", "paid"):
            rows: Array = getattr(self, name)
            setattr(self, name, np.concatenate([rows, rows[-1:]]))

    def forget(self, level: float) -> None:
        """Forget everything but the arms and the noise."""
        self.inverse[:] = np.diag(1.0 / (self.noise[2] * self.penalties))
        self.target[:], self.drawn[:], self.rise[:] = 0.0, 0.0, 0.0
        penalties = COMMON * [self.noise[2], 1.0, 1.0]
        self.gram, self.moment = np.diag(penalties), penalties * [1.0, 0.0, level]

    def expect(self, rows: Rows, x: Array, prior: Prior) -> tuple[Array, Array]:
        """Return the expected reward of each arm, and the variance of that, shapes (n,)."""
        common, gain = np.linalg.solve(self.gram, self.moment), self._solve(rows, x, prior)
        own = (self.target[rows] @ gain[:, :, None])[:, :, 0] @ [1.0, *-common]
        return prior.mean_score + prior.v @ common + prior.bonus + own, self.noise[0] * (gain @ x)

    def variance_in_common(self, v: Array) -> Array:
        """Return the variance of what the arms have in common, for columns of shape (n, 3), shape (n,)."""
        return np.asarray(self.noise[0] * np.einsum("ni,ni->n", v, np.linalg.solve(self.gram, v.T).T))

    def _solve(self, rows: Rows, right: Array, prior: Prior) -> Array:
        """Return the inverse of each arm times a vector, or one of its own, shape (n, d).

        The further penalty on the intercept of an arm with a score is a change of rank one.
        """
        found = (self.inverse[rows] @ right[..., None])[..., 0]
        more = self.noise[2] * (FORM - INTERCEPT) * prior.v[:, OF_SCORED]
        first = self.inverse[rows, :, 0]
        return np.asarray(found - first * (more * found[:, 0] / (1.0 + more * first[:, 0]))[:, None])

    def measure(self, square: float) -> None:
        """Update the noise by a squared error, or by parts of several; the penalties follow it in steps."""
        self.noise[1] = NOISE_DECAY * self.noise[1] + 1.0
        self.noise[0] = max(self.noise[0] + (square - self.noise[0]) / self.noise[1], LEAST_NOISE)
        before, factor = self.noise[2], min(self.noise[0] / NOISE, 1.0)
        if abs(math.log(factor / before)) > RESCALE:
            more = np.diag((factor - before) * self.penalties)
            self.inverse = np.linalg.inv(np.linalg.inv(self.inverse) + more)
            in_common = (factor - before) * COMMON[DIFFERENCE]
            self.gram[DIFFERENCE, DIFFERENCE] += in_common
            self.moment[DIFFERENCE] += in_common
            self.noise[2] = factor

    def costs(self, rows: Rows) -> Array:
        """Return the mean of what the rewards of each arm lost to costs; of an unknown arm, of all arms."""
        total, n = self.paid[rows].T
        mean: Array = total / np.maximum(n, 1.0)
        if n.all():
            return mean
        known = self.paid[self.paid[:, 1] > 0.0]
        usual = float((known[:, 0] / known[:, 1]).mean()) if len(known) else 0.0
        return np.where(n > 0.0, mean, usual)

    def pay(self, row: int, cost: float) -> None:
        """Count what a reward of an arm lost to costs."""
        self.paid[row] += (cost, 1.0)

    def fade(self, row: int, kept: float) -> None:
        """Forget a part of what is known of an arm."""
        prior = (1.0 - kept) * self.noise[2] * np.diag(self.penalties)
        self.inverse[row] = np.linalg.inv(kept * np.linalg.inv(self.inverse[row]) + prior)
        self.target[row] *= kept

    def add(self, row: int, x: Array, v: Array, apart: float, weight: float = 1.0) -> None:
        """Add a reward of an arm.

        Args:
            row: Row of the arm.
            x: Columns of the question, shape (d,).
            v: Columns in common, shape (3,).
            apart: The reward less the mean score.
            weight: What it counts as.
        """
        gain = self.inverse[row] @ x
        self.inverse[row] -= gain[:, None] * (gain * (weight / (1.0 + weight * (gain @ x))))
        self.target[row] += (weight * np.array([apart, *v]))[:, None] * x
        self.gram += weight * (v[:, None] * v)
        self.moment += weight * apart * v
        self.drawn[row] += weight
