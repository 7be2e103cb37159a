"""The quality of all answers, rated or not, from a random share of them that a judge has graded.

    Sessions --draw_answers--> AnswerSample --a judge--> grades --compare_grades--> Ends

Ratings are predictions here, and what the judge says is the truth. An answer is predicted by the mean grade
of earlier answers that were rated like it: well, badly, or not at all. Where the judge has graded it, too,
its error counts by one over the probability that it was drawn. This estimates the mean of all grades, however
bad the predictions are, and better ones make the interval narrower.

What was served is compared with the reference by importance weights: a decision counts by 1 - w, where w is
1 over the probability of the reference if it was drawn, and 0 otherwise. Answers are drawn in proportion to
that, so about half of them are of the reference. Each decision is one observation, given all before it, and
the ends are those of a bet whose size is fixed before the grades are known. They are about one sample:
another size or seed is another look.

Source: prediction-powered inference, Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023,
arXiv:2301.09633.
"""

from dataclasses import dataclass
from math import expm1, log, sqrt

import numpy as np

from armwise.agent.proof.noninferiority import ENOUGH, Ends, NothingComparableError, Sessions
from armwise.feedback.arrays import Flags, Floats, Integers, refuse

SPREAD = 0.3
"""Standard deviation of the errors of predictions for which the bet is best; it is valid for any."""

LARGEST_BET = 0.9
"""Share of the stake that is bet at most."""

PRIOR = 0.5
"""Grade that is predicted before any is known; it counts as one answer."""


@dataclass(frozen=True, slots=True, eq=False)
class AnswerSample:
    """The answers that could have been the reference's, and which of them a judge grades.

    Attributes:
        row: Index of each among the rows of the sessions, shape (n,).
        gap: How much a grade counts in what was served minus the reference, shape (n,).
        chance: Probability with which it was drawn for the judge, shape (n,).
        drawn: Whether it was, shape (n,).
        scale: Most that a grade may count.
    """

    row: Integers
    gap: Floats
    chance: Floats
    drawn: Flags
    scale: float

    @classmethod
    def draw(cls, row: Integers, gap: Floats, most: float, n: int, uniform: Floats) -> "AnswerSample":
        """Draw about `n` answers.

        Args:
            row: Index of each among the rows of the sessions, shape (n_answers,).
            gap: How much each counts, shape (n_answers,).
            most: The most that one could count.
            n: About how many to draw, at least 1; all, if there are fewer.
            uniform: A random number in [0, 1) for each, shape (n_answers,).
        """
        size = np.abs(gap)
        rate = _find_rate(size, n)
        chance = np.minimum(rate * size, 1.0)
        return cls(row, gap, chance, uniform < chance, max(most, 1.0 / rate))

    def bound(self, values: Floats, error: float) -> float:
        """Return a lower bound of a mean, from values that count grades; it holds once, for this sample.

        The product of 1 + bet Z exceeds 1 / error times its expectation with a probability of at most the
        error (Markov), and by Jensen's inequality the expectation is at most (1 + bet mean) to the power n.

        Args:
            values: What each answer counts, shape (n,), none below `-scale`.
            error: Probability that the bound fails, in (0, 1).
        """
        drawn = self.chance > 0.0
        n_like = float((self.gap[drawn] ** 2 / self.chance[drawn]).sum()) / self.scale**2
        bet = min(sqrt(2.0 * log(1.0 / error) / n_like) / SPREAD, LARGEST_BET)
        growth = float(np.log1p(bet * np.maximum(values / self.scale, -1.0)).sum()) - log(1.0 / error)
        return self.scale * expm1(growth / len(values)) / bet

    @property
    def rows(self) -> Integers:
        """Index of each drawn answer among the rows of the sessions."""
        drawn: Integers = self.row[self.drawn]
        return drawn


def draw_answers(sessions: Sessions, reference: str, n: int, seed: int) -> AnswerSample:
    """Draw answers for a judge, whether they are rated or not.

    Args:
        sessions: The decisions.
        reference: The arm that what was served is compared with.
        n: About how many, at least 1; all, if there are fewer.
        seed: Seed of the draws.

    Raises:
        NothingComparableError: The reference was hardly drawn, or nothing was randomised.
    """
    could, drew = sessions.could(reference), sessions.drew(reference)
    drawn = int((could & drew).sum())
    if drawn < ENOUGH or not (could & sessions.randomised).any():
        raise NothingComparableError(
            f"{reference} was drawn {drawn} times from a distribution: {ENOUGH} draws are needed for an audit"
        )
    row, chance = np.flatnonzero(could), sessions.chance(reference, could)
    p = sessions.rows.propensity[row] if chance is None else chance
    gap = 1.0 - drew[row] / p
    most = float(np.abs(gap).max()) if chance is None else max(1.0 / float(chance.min()) - 1.0, 1.0)
    uniform = np.random.default_rng(seed).random(len(sessions.rows))[row]
    return AnswerSample.draw(row, gap, most, n, uniform)


def _find_rate(size: Floats, n: int) -> float:
    """Return the factor by which sizes are probabilities, at most 1 each, that sum to `n`.

    >>> round(_find_rate(np.array([1.0, 1.0, 8.0]), 2), 6), _find_rate(np.array([0.5, 2.0, 0.0]), 7)
    (0.5, 2.0)
    """
    rising = np.sort(size[size > 0.0])
    if n >= len(rising):
        return float(1.0 / rising[0])
    # with the k largest at 1, the others share n - k; the first k for which none of these exceeds 1
    left = np.cumsum(rising)[::-1]
    k = np.arange(min(n, len(rising)))
    rates = (n - k) / left[: len(k)]
    return float(rates[np.argmax(rates * rising[::-1][: len(k)] <= 1.0)])


def compare_grades(
    sample: AnswerSample, grades: Floats, ratings: Floats, middle: float, errors: tuple[float, float]
) -> Ends:
    """Return the mean grade of all answers as served, minus the mean grade of the reference.

    Args:
        sample: The drawn answers.
        grades: Grades of the drawn answers in [0, 1]; NaN: the judge gave none, so that each end takes the
            worse case.
        ratings: The rating of each answer, shape (n,); NaN: it has none.
        middle: Rating above which one is good.
        errors: Errors of the lower and the upper end.

    Raises:
        ValueError: A grade is out of its range, or a drawn answer lacks one.
    """
    if len(grades) != int(sample.drawn.sum()):
        raise ValueError(f"{len(grades):,} grades of {int(sample.drawn.sum()):,} drawn answers")
    refuse("grade", grades, np.isnan(grades) | ((grades >= 0.0) & (grades <= 1.0)), "from 0 to 1")
    grade = np.full(len(sample.row), np.nan)
    grade[sample.drawn] = grades
    known, unknown = ~np.isnan(grade), sample.drawn & np.isnan(grade)
    predicted = np.empty(len(grade))
    for alike in (np.isnan(ratings), ratings <= middle, ratings > middle):
        predicted[alike] = _mean_before(grade[alike], known[alike])
    start = predicted - _mean_before(grade, known)

    def count(missing: Floats) -> Floats:
        error = np.where(unknown, missing, grade) - predicted
        each = np.divide(error, sample.chance, out=np.zeros(len(error)), where=sample.drawn)
        return sample.gap * (start + each)

    worst = np.where(sample.gap > 0.0, 0.0, 1.0)
    estimate, low, high = count(predicted), count(worst), count(1.0 - worst)
    ends = sample.bound(low, errors[0]), -sample.bound(-high, errors[1])
    return float(np.clip(estimate.mean(), -1.0, 1.0)), max(ends[0], -1.0), min(ends[1], 1.0)


def _mean_before(grade: Floats, known: Flags) -> Floats:
    """Return the mean of the grades known before each, with `PRIOR` as one of them, shape (n,)."""
    seen: Integers = np.cumsum(known) - known
    total = np.cumsum(np.where(known, grade, 0.0)) - np.where(known, grade, 0.0)
    mean: Floats = (PRIOR + total) / (1.0 + seen)
    return mean
