"""Questions to choose arms on, and held-out questions to validate the choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.offline.portfolio_report import Budgeted
from arms.portfolio import Portfolio, ScoreMatrix, coverage, greedy, imputation, knapsack, selection

Scores = NDArray[np.float32]

Floats = NDArray[np.float64]

Codes = NDArray[np.intp]

USUAL_COST = "seconds"
"""The cost that budgets are in, where it was measured and none was named."""

UNNAMED = "unnamed"
"""Stands for the data set of questions that name none."""


@dataclass(slots=True)
class Pool:
    """The arms and questions of which any score is known; the questions are put in order for each split.

    Attributes:
        arms: Names, in the order of the rows.
        scores: NaN where unknown, shape (n_arms, n_questions).
        groups: Data set of each question, as a place in `datasets`, shape (n_questions,).
        datasets: Their names.
        cost: Name of the cost that budgets are in.
        costs: Costs of each arm, shape (n_arms,); None when no cost was measured.
        share: Part of the scores that are known.
        lost_arms: Arms of which no score is known.
        lost_questions: How many questions of which no score is known.
    """

    arms: tuple[str, ...]
    scores: Scores
    groups: Codes
    datasets: tuple[str, ...]
    cost: str | None
    costs: Floats | None
    share: float
    lost_arms: tuple[str, ...]
    lost_questions: int

    @property
    def whole(self) -> bool:
        """Whether every score is known, so that none is filled in."""
        return self.share == 1.0

    @classmethod
    def of(cls, matrix: ScoreMatrix, cost: str | None) -> "Pool":
        """Leave out what nothing is known of.

        Args:
            matrix: Matrix, whose scores are taken over, not copied.
            cost: That budgets are in; None for seconds, or else the first that was measured.

        Raises:
            ValueError: There is no such cost, or no score is known.
        """
        scores = matrix.scores
        if cost is None and matrix.table.costs:
            cost = USUAL_COST if USUAL_COST in matrix.table.costs else next(iter(matrix.table.costs))
        costs = None if cost is None else matrix.costs(cost)
        unknown = np.isnan(scores)
        arms = np.flatnonzero(~unknown.all(axis=1)).tolist()
        questions = np.flatnonzero(~unknown.all(axis=0)).tolist()
        if not arms:
            raise ValueError(f"no arm of {', '.join(matrix.arms)} has a known score")
        if (len(arms), len(questions)) != scores.shape:
            scores = scores[np.ix_(arms, questions)]
            costs = None if costs is None else costs[arms]
        labels = [matrix.questions[question].dataset or UNNAMED for question in questions]
        datasets = {name: place for place, name in enumerate(sorted(set(labels)))}
        return cls(
            arms=tuple(matrix.arms[arm] for arm in arms),
            scores=scores,
            groups=np.array([datasets[label] for label in labels]),
            datasets=tuple(datasets),
            cost=cost,
            costs=costs,
            share=int(np.count_nonzero(~unknown)) / scores.size,
            lost_arms=tuple(name for arm, name in enumerate(matrix.arms) if arm not in arms),
            lost_questions=len(matrix.questions) - len(questions),
        )

    def split(self, share: float, rng: np.random.Generator) -> int:
        """Put the questions to choose on first, and return how many they are.

        Every data set is split in the same proportion. The scores are moved in place, as a second
        copy of a large matrix might not fit. Raises ValueError when a part would be empty.
        """
        n = len(self.groups)
        by_group = np.lexsort((rng.random(n), self.groups))
        held = np.diff(np.floor(np.arange(n + 1) * share + rng.random())) > 0.0
        if held.all() or not held.any():
            raise ValueError(f"{n} questions cannot be split so that a part of {share:g} is held out")
        order = np.concatenate([by_group[~held], by_group[held]])
        self.groups = self.groups[order]
        for row in self.scores:
            row[:] = row[order]
        return int((~held).sum())

    def halves(self, cut: int) -> tuple[Scores, Scores]:
        """Return the scores before and after the cut, expectations in place of those that are not known.

        An arm of which the first part knows nothing scores 0 there: it cannot be chosen by it.
        """
        first, second = self.scores[:, :cut], self.scores[:, cut:]
        chosen, held_out = (
            imputation.complete(first, self.groups[:cut]),
            imputation.complete(second, self.groups[cut:]),
        )
        unscored = [arm for arm, row in enumerate(first) if np.isnan(row).all()]
        if unscored:  # then scores are missing, and what was completed is a copy
            chosen[unscored] = 0.0
        return chosen, held_out


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen on the first part of the questions.

    Attributes:
        chosen: The scores on that part, the unknown ones as expected, shape (n_arms, n_chosen).
        held_out: Those on the others.
        portfolio: The arms.
        average: Arms with the largest means, within the same size or budget.
        single: The arm with the largest mean, whatever it costs.
    """

    chosen: Scores
    held_out: Scores
    portfolio: Portfolio
    average: tuple[int, ...]
    single: int


def choose(
    chosen: Scores,
    held_out: Scores,
    costs: Floats | None,
    size: int,
    budget: float | None,
    start: Sequence[int],
) -> Choice:
    """Choose on the first part of the questions.

    Args:
        chosen: The scores on it, all known, shape (n_arms, n_chosen).
        held_out: Those on the others.
        costs: Costs of each arm, shape (n_arms,).
        size: Arms to choose, unless there is a budget.
        budget: What they may cost together.
        start: Arms that must be among them.

    Raises:
        ValueError: What is asked for cannot be chosen, or there are no costs for a budget.
    """
    (single,) = selection.top_by_average(chosen, 1)
    if budget is None:
        return Choice(
            chosen, held_out, greedy(chosen, size, start), selection.top_by_average(chosen, size), single
        )
    if costs is None:
        raise ValueError("a budget needs costs, and the matrix has none")
    return Choice(chosen, held_out, *_bought(chosen, costs, budget, start), single)


def _bought(
    chosen: Scores, costs: Floats, budget: float, start: Sequence[int]
) -> tuple[Portfolio, tuple[int, ...]]:
    """Return the portfolio, and the arms with the largest means that can be paid, one after the other."""
    portfolio = knapsack(chosen, costs, budget, start)
    average: list[int] = []
    for arm in selection.top_by_average(chosen, len(chosen)):
        if costs[[*average, arm]].sum() <= budget * (1.0 + selection.ROUNDING):
            average.append(arm)
    return portfolio, tuple(average)


def by_budget(
    pool: Pool, choice: Choice, points: int, most: float, start: Sequence[int]
) -> tuple[Budgeted, ...]:
    """Choose again, for budgets from the least that buys anything of use.

    Args:
        pool: The arms.
        choice: What to compare with: the last budget is at least what it costs.
        points: Budgets, less those that are the same; 0 for none.
        most: The last budget, unless it buys too little.
        start: Arms that must be chosen.
    """
    if pool.costs is None or not points:
        return ()
    paid = pool.costs[(pool.costs > 0.0) & (choice.chosen.max(axis=1) > 0.0)]
    if not len(paid):
        return ()
    least = max(float(paid.min()), math.fsum(pool.costs[list(start)]))
    most = max(most, math.fsum(pool.costs[list(choice.portfolio.arms)]), least)
    found = []
    for budget in np.unique(np.geomspace(least, most, points)).tolist():
        portfolio, average = _bought(choice.chosen, pool.costs, budget, start)
        found.append(
            Budgeted(
                budget,
                tuple(pool.arms[arm] for arm in portfolio.arms),
                portfolio.values[-1],
                coverage.values(choice.held_out, portfolio.arms)[-1],
                coverage.values(choice.held_out, average)[-1],
            )
        )
    return tuple(found)
