"""The value of a portfolio beside the alternatives.

Everything is compared on the same questions: the portfolio as it grows, as many arms of the
largest means, the best single arm, and the oracle that may ask every arm. What was chosen on
a question is not evidence on that question, so everything is reported on held-out questions, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arms.portfolio import coverage
from feedback.ope import Interval, Terms, intervals

Scores = NDArray[np.float32]

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean scores on some questions.

    Attributes:
        questions: How many they are.
        portfolio: Values of the first arm that was picked, of the best of the first two, and so on.
        average: The same of the arms with the largest means on the questions used for choosing.
        lead: 95 % interval of the portfolio minus these, for each number of arms; None where
            scores are filled in: what is expected varies less than what happens.
        single: Value of the arm with the largest mean on the questions used for choosing.
        oracle: Value of the best of all arms on each question.
    """

    questions: int
    portfolio: tuple[float, ...]
    average: tuple[float, ...]
    lead: tuple[Interval, ...] | None
    single: float
    oracle: float

    @property
    def difference(self) -> float:
        """The whole portfolio minus the arms with the largest means."""
        return self.portfolio[-1] - self.average[-1]


@dataclass(frozen=True, slots=True)
class Budgeted:
    """What one budget buys.

    Attributes:
        budget: In the unit of the costs.
        arms: Names of the arms, in the order of picking.
        chosen: Mean score on the questions used for choosing.
        held_out: The same on the others.
        average: Held out, of the arms with the largest means that the budget buys one after the other.
    """

    budget: float
    arms: tuple[str, ...]
    chosen: float
    held_out: float
    average: float


@dataclass(frozen=True, slots=True)
class Bound:
    """What the sample proves of the portfolio's mean score on questions to come.

    Attributes:
        factor: With probability 1 - delta it is at least this part of the best possible, less `error`.
        error: What the number of questions allows for.
        delta: Chance that it does not hold.
        questions: How many the portfolio was chosen on.
        tolerable: A small error.
        needed: How many it would take for an error of `tolerable`.
    """

    factor: float
    error: float
    delta: float
    questions: int
    tolerable: float
    needed: int


@dataclass(frozen=True, slots=True)
class Known:
    """How many scores are known; `arms.portfolio.imputation` estimates the others.

    Attributes:
        share: Part of the scores that are known, of the arms and questions of which any is.
        arms_left_out: Arms of which no score is known.
        questions_left_out: How many questions of which no score is known.
        support: For each arm of the portfolio, the questions it was chosen on that know its score.
        low: Held-out mean score of the portfolio with every unknown score counted as 0.
        high: The same, counted as 1.
    """

    share: float
    arms_left_out: tuple[str, ...]
    questions_left_out: int
    support: tuple[int, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PortfolioReport:
    """How a portfolio was chosen, and its value.

    Attributes:
        measure: Measure that the scores are of.
        algorithm: `greedy` or `knapsack`.
        pool: How many arms there were to choose from.
        arms: Those chosen, in the order of picking.
        average: Those with the largest means, best first.
        chosen: On the questions used for choosing.
        held_out: On the others.
        datasets: On the held-out questions of each data set, the whole portfolio only.
        cost: Name of the cost that budgets are in; None when there is none.
        spent: What the portfolio costs, as the sum over its arms.
        budgets: Value against budget.
        bound: What the sample proves; None where scores are filled in: then it proves nothing.
        known: What is known; None when everything is.
        splits: The held-out comparison of each split of the questions, this one first.
        manifest: What the scores follow from.
    """

    measure: str
    algorithm: str
    pool: int
    arms: tuple[str, ...]
    average: tuple[str, ...]
    chosen: Comparison
    held_out: Comparison
    datasets: Mapping[str, Comparison]
    cost: str | None
    spent: float | None
    budgets: tuple[Budgeted, ...]
    bound: Bound | None
    known: Known | None
    splits: tuple[Comparison, ...]
    manifest: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The scores, question by question, of everything that is compared.

    Attributes:
        portfolio: Values of the first picks, shape (n_sizes, n_questions).
        average: Values of as many arms with the largest means, shape (n_sizes, n_questions).
        single: Values of the single arm, shape (n_questions,).
        oracle: Values of the best arm, shape (n_questions,).
    """

    portfolio: Scores
    average: Scores
    single: Scores
    oracle: Scores

    @classmethod
    def of(cls, scores: Scores, picks: Sequence[int], average: Sequence[int], single: int) -> "Outcomes":
        """Look them up; where one of the two has fewer arms, its last set stands for the larger ones."""
        sizes = np.arange(max(len(picks), len(average)))
        grown = (
            np.maximum.accumulate(scores[list(arms)], axis=0)[sizes.clip(max=len(arms) - 1)]
            for arms in (picks, average)
        )
        return cls(next(grown), next(grown), scores[single], coverage.best_of(scores, range(len(scores))))

    def compare(self, rng: np.random.Generator | None, where: Indices | slice = slice(None)) -> Comparison:
        """Average over some questions; `rng` draws the resamples of the intervals, None leaves them out."""
        portfolio, average = self.portfolio[:, where], self.average[:, where]
        leads = (portfolio - average).astype(np.float64)
        one = np.ones(leads.shape[1])
        terms = [Terms("ips", lead, one, one) for lead in leads]
        return Comparison(
            questions=len(one),
            portfolio=_means(portfolio),
            average=_means(average),
            lead=None if rng is None else tuple(intervals.bootstrap(terms, rng)),
            single=float(self.single[where].mean(dtype=np.float64)),
            oracle=float(self.oracle[where].mean(dtype=np.float64)),
        )


def _means(scores: Scores) -> tuple[float, ...]:
    return tuple(scores.mean(axis=1, dtype=np.float64).tolist())
