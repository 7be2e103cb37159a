"""Choose a portfolio from a score matrix, and validate it on held-out questions.

scores -> split -> choose on one part -> compare on both -> portfolio.yaml   arms of a service
                                                            portfolio.json   all figures
                                                            portfolio.png    value by size and by cost
"""

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from armwise.agent.lab.offline.portfolio_report import (
    Budgeted,
    ComparedScores,
    Known,
    PortfolioReport,
    Rejected,
    ScoreBound,
    draw,
    notes,
    tables,
)
from armwise.agent.routers import TooLittleError
from armwise.arms.lab.portfolio import (
    MatrixArms,
    Portfolio,
    ScoreMatrix,
    coverage,
    greedy,
    imputation,
    knapsack,
    read_matrix,
    score_matrix,
    selection,
)
from armwise.arms.retrievers import ArmGraph

TOLERABLE, DELTA = 0.05, 0.05
"""Error of a mean score for which the number of questions needed is reported, and the probability that the
sample bound does not hold."""

BUDGETS = 8
"""Points in the plot of value against budget."""

YAML, FIGURES, PICTURE = "portfolio.yaml", "portfolio.json", "portfolio.png"


Scores = NDArray[np.float32]

Floats = NDArray[np.float64]

Codes = NDArray[np.intp]

USUAL_COST = "seconds"
"""Default unit of budgets, if it was measured."""

UNNAMED = "unnamed"
"""Name of the data set of questions without one."""


class PortfolioSelection(BaseModel):
    """Settings of the choice of a portfolio, and of its validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scores: Path = Field(description="Folder of a score matrix.")
    k: int = Field(default=5, ge=1, description="Arms to choose.")
    budget: float | None = Field(
        default=None, gt=0, description="What the arms may cost together, instead of -k."
    )
    cost: str | None = Field(
        default=None,
        description="Unit of the budget: seconds, steps, tokens or usd, or total_tokens for a log. By "
        "default seconds, or the first cost in the matrix.",
    )
    keep: tuple[str, ...] = Field(
        default=(), description="Arms that stay unless others certainly score higher on held-out questions."
    )
    held_out: float = Field(
        default=0.5, gt=0, lt=1, description="Share of the questions to validate the choice on."
    )
    splits: int = Field(
        default=1,
        ge=1,
        description="Splits of the questions. The first gives the portfolio, all of them its spread.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the splits and of the bootstrap.")
    output: Path = Field(
        default=Path("portfolio"), description="Folder for arms, figures and plot. Earlier ones are replaced."
    )


@dataclass(slots=True)
class Pool:
    """The arms and questions with at least one known score. A split reorders the questions.

    Attributes:
        arms: Names of the arms, in the order of the rows.
        scores: Scores, NaN if unknown, shape (n_arms, n_questions).
        chances: Probability that each score is known, shape (n_arms, n_questions), if that was random.
        groups: Data set of each question, as an index in `datasets`, shape (n_questions,).
        datasets: Names of the data sets.
        cost: Name of the cost that is the unit of budgets.
        costs: Cost of each arm, shape (n_arms,), if it was measured.
        share: Share of the scores that are known.
        lost_arms: Arms without a known score.
        lost_questions: Number of questions without a known score.
    """

    arms: tuple[str, ...]
    scores: Scores
    chances: Scores | None
    groups: Codes
    datasets: tuple[str, ...]
    cost: str | None
    costs: Floats | None
    share: float
    lost_arms: tuple[str, ...]
    lost_questions: int

    @property
    def whole(self) -> bool:
        """Whether all scores are known."""
        return self.share == 1.0

    @classmethod
    def from_matrix(cls, matrix: ScoreMatrix, cost: str | None) -> "Pool":
        """Select the arms and questions of a matrix that have a known score.

        Args:
            matrix: The matrix; its scores are used without a copy.
            cost: Unit of budgets; None: seconds if measured, else the first measured cost.

        Raises:
            ValueError: The cost is unknown, or all scores are.
        """
        scores, chances = matrix.scores, matrix.chances
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
            chances = None if chances is None else chances[np.ix_(arms, questions)]
            costs = None if costs is None else costs[arms]
        labels = [matrix.questions[question].dataset or UNNAMED for question in questions]
        datasets = {name: place for place, name in enumerate(sorted(set(labels)))}
        return cls(
            arms=tuple(matrix.arms[arm] for arm in arms),
            scores=scores,
            chances=chances,
            groups=np.array([datasets[label] for label in labels]),
            datasets=tuple(datasets),
            cost=cost,
            costs=costs,
            share=int(np.count_nonzero(~unknown)) / scores.size,
            lost_arms=tuple(name for arm, name in enumerate(matrix.arms) if arm not in arms),
            lost_questions=len(matrix.questions) - len(questions),
        )

    def split(self, share: float, rng: np.random.Generator) -> int:
        """Move the questions to choose on to the front, and return their number.

        Every data set is split in the same proportion. The scores are moved in place, as a second copy of a
        large matrix might not fit. Raises ValueError if a part would be empty.
        """
        n = len(self.groups)
        by_group = np.lexsort((rng.random(n), self.groups))
        held = np.diff(np.floor(np.arange(n + 1) * share + rng.random())) > 0.0
        if held.all() or not held.any():
            raise TooLittleError(f"{n} questions cannot be split so that a part of {share:g} is held out")
        order = np.concatenate([by_group[~held], by_group[held]])
        self.groups = self.groups[order]
        for row in (*self.scores, *(() if self.chances is None else self.chances)):
            row[:] = row[order]
        return int((~held).sum())

    def halves(self, cut: int) -> tuple[Scores, Scores]:
        """Return the scores before and after the cut, with unknown scores imputed.

        An arm without known scores in the first part scores 0 there, which keeps it from being chosen.
        """
        first, second = self.scores[:, :cut], self.scores[:, cut:]
        known = (None, None) if self.chances is None else (self.chances[:, :cut], self.chances[:, cut:])
        chosen, held_out = (
            imputation.complete(first, self.groups[:cut], chances=known[0]),
            imputation.complete(second, self.groups[cut:], chances=known[1]),
        )
        unscored = [arm for arm, row in enumerate(first) if np.isnan(row).all()]
        if unscored:  # then scores are missing, and `chosen` is a copy
            chosen[unscored] = 0.0
        return chosen, held_out


@dataclass(frozen=True, slots=True)
class PortfolioChoice:
    """The arms chosen on the first part of the questions.

    Attributes:
        chosen: Scores on that part, unknown scores imputed, shape (n_arms, n_chosen).
        held_out: Scores on the held-out questions, unknown scores imputed, shape (n_arms, n_held_out).
        portfolio: The chosen portfolio.
        average: Arms with the largest means, within the same size or budget.
        single: The arm with the largest mean, at any cost.
    """

    chosen: Scores
    held_out: Scores
    portfolio: Portfolio
    average: tuple[int, ...]
    single: int


def select_portfolio(settings: PortfolioSelection, console: Console) -> PortfolioReport:
    """Choose, write the results to `settings.output`, print them, and return the figures.

    Args:
        settings: Settings of the choice.
        console: Where the tables go.

    Raises:
        ValueError: The matrix cannot be read, or contradicts the settings; the message says how.
    """
    table = score_matrix.read_arms(settings.scores)
    pool = Pool.from_matrix(read_matrix(settings.scores, _candidates(table)), settings.cost)
    rng = np.random.default_rng([settings.seed, 0])
    choice = _choose(pool, settings, rng)
    rejected = _reject(pool, settings, choice, rng)
    if rejected is not None:
        kept = tuple(pool.arms.index(arm) for arm in settings.keep)
        portfolio = Portfolio(kept, coverage.values(choice.chosen, kept), choice.portfolio.guarantee)
        average = selection.top_by_average(choice.chosen, len(kept))
        choice = replace(choice, portfolio=portfolio, average=average)
    report = _report(pool, settings, table, choice, rng)
    splits = [report.held_out]
    for split in range(1, settings.splits):
        rng = np.random.default_rng([settings.seed, split])
        other = _choose(pool, settings, rng)
        splits.append(_outcomes(other.held_out, other).compare(rng if pool.whole else None))
    report = replace(report, splits=tuple(splits), rejected=rejected)
    results = {
        PICTURE: draw(report),
        FIGURES: orjson.dumps(report, option=orjson.OPT_INDENT_2),
        YAML: _configuration(report, table, settings).encode(),  # the last: what a service reads
    }
    _write(settings.output, results)
    for table_of_figures in tables(report):
        console.print(table_of_figures)
    for note in notes(report):
        console.print(note, markup=False, highlight=False)
    console.print(f"written to {settings.output / YAML}", markup=False, highlight=False, soft_wrap=True)
    return report


def _candidates(table: MatrixArms) -> list[str]:
    """Return the arms to choose from, by name. Raises ValueError."""
    candidates = [arm for arm, spec in table.specs.items() if spec.action]
    if not candidates:
        raise ValueError(
            f"none of {len(table.specs)} arms, such as {next(iter(table.specs))!r}, is an action"
        )
    return candidates


def _choose(pool: Pool, settings: PortfolioSelection, rng: np.random.Generator) -> PortfolioChoice:
    """Split the questions and choose. Raises ValueError."""
    chosen, held_out = pool.halves(pool.split(settings.held_out, rng))
    return choose(chosen, held_out, pool.costs, settings.k, settings.budget)


def _reject(
    pool: Pool, settings: PortfolioSelection, choice: PortfolioChoice, rng: np.random.Generator
) -> Rejected | None:
    """Return why the arms to keep stay; None: there are none, they cannot stay, or others are better.

    They cannot stay where one of them has no score, or where they are more than `k` or the budget allows.
    Without all scores there is no interval, so the choice holds.
    """
    names = settings.keep
    if not names or not pool.whole or not set(names) <= set(pool.arms):
        return None
    kept = [pool.arms.index(arm) for arm in names]
    if settings.budget is None:
        fits = len(kept) <= settings.k
    else:
        fits = pool.costs is not None and float(pool.costs[kept].sum()) <= settings.budget
    if not fits or set(kept) == set(choice.portfolio.arms):
        return None
    compared = ComparedScores.from_picks(choice.held_out, choice.portfolio.arms, kept, choice.single).compare(
        rng
    )
    assert compared.lead is not None  # as resamples were drawn
    interval = compared.lead[-1]
    if interval[0] > 0.0:
        return None
    arms = tuple(pool.arms[arm] for arm in choice.portfolio.arms)
    return Rejected(arms, compared.portfolio[-1] - compared.average[-1], interval)


def _outcomes(scores: Scores, choice: PortfolioChoice) -> ComparedScores:
    return ComparedScores.from_picks(scores, choice.portfolio.arms, choice.average, choice.single)


def _report(
    pool: Pool,
    settings: PortfolioSelection,
    table: MatrixArms,
    choice: PortfolioChoice,
    rng: np.random.Generator,
) -> PortfolioReport:
    """Compute the statistics of one split."""
    picks, groups = choice.portfolio.arms, pool.groups[choice.chosen.shape[1] :]
    outcomes, resamples = _outcomes(choice.held_out, choice), rng if pool.whole else None
    held_out = outcomes.compare(resamples)
    return PortfolioReport(
        measure=table.measure,
        algorithm="greedy" if settings.budget is None else "knapsack",
        pool=len(pool.arms),
        arms=tuple(pool.arms[arm] for arm in picks),
        average=tuple(pool.arms[arm] for arm in choice.average),
        chosen=_outcomes(choice.chosen, choice).compare(resamples),
        held_out=held_out,
        datasets={
            pool.datasets[group]: outcomes.compare(resamples, np.flatnonzero(groups == group))
            for group in np.unique(groups).tolist()
        },
        cost=pool.cost,
        spent=None if pool.costs is None else math.fsum(pool.costs[list(picks)]),
        budgets=by_budget(pool, choice, settings.budget or 0.0),
        bound=_bound_score(pool, settings, choice) if pool.whole else None,
        known=_count_known(pool, choice),
        splits=(held_out,),
        manifest=table.manifest,
    )


def _bound_score(pool: Pool, settings: PortfolioSelection, choice: PortfolioChoice) -> ScoreBound:
    most = settings.k
    if settings.budget is not None and pool.costs is not None:
        most = selection.affordable(pool.costs, settings.budget)
    (n_arms, n), factor = choice.chosen.shape, choice.portfolio.guarantee
    return ScoreBound(
        factor=factor,
        error=selection.sample_error(n, most, n_arms, DELTA, factor),
        delta=DELTA,
        questions=n,
        tolerable=TOLERABLE,
        needed=selection.sample_size(TOLERABLE, most, n_arms, DELTA, factor),
    )


def _count_known(pool: Pool, choice: PortfolioChoice) -> Known | None:
    """Return figures on unknown scores; None: all scores are known."""
    if pool.whole and not pool.lost_arms and not pool.lost_questions:
        return None
    picks, cut = choice.portfolio.arms, choice.chosen.shape[1]
    support = (int((~np.isnan(pool.scores[arm, :cut])).sum()) for arm in picks)
    low, high = imputation.extremes(pool.scores[:, cut:], picks)
    return Known(pool.share, pool.lost_arms, pool.lost_questions, tuple(support), low, high)


def _write(output: Path, results: Mapping[str, bytes]) -> None:
    """Write all files under temporary names, then rename them in order, so that files are always complete.

    After a failure, new folders that are still empty are removed.
    """
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=output) as unfinished:
            for file, content in results.items():
                (Path(unfinished) / file).write_bytes(content)
            for file in results:
                (Path(unfinished) / file).replace(output / file)
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _configuration(report: PortfolioReport, table: MatrixArms, settings: PortfolioSelection) -> str:
    """Return the arms and their backbones in the form of a configuration. Raises ArmSpecError."""
    graph = ArmGraph(table.specs)
    specs = graph.closure(*report.arms)
    needed = frozenset[str]().union(*map(graph.backbones, report.arms))
    held_out = report.held_out
    header = [
        f"{len(report.arms)} of {report.pool} arms, chosen by {report.algorithm} for {report.measure} on "
        f"{report.chosen.questions} questions",
        f"on {held_out.questions} others {held_out.portfolio[-1]:.3f}, by average "
        f"{held_out.average[-1]:.3f}, best single arm {held_out.single:.3f}, oracle {held_out.oracle:.3f}",
        f"seed {settings.seed}; in the order of picking: {', '.join(report.arms)}",
        *(f"{fact}: {value}" for fact, value in report.manifest.items()),
    ]
    if members := [arm for arm in specs if arm not in report.arms]:
        header.append(f"not chosen, but parts of arms that were: {', '.join(members)}")
    document = {
        "arms": {
            arm: spec.model_copy(update={"action": arm in report.arms}).model_dump(
                mode="json", exclude_defaults=True
            )
            for arm, spec in specs.items()
        },
        "backbones": {
            name: backbone.model_dump(mode="json", exclude_defaults=True)
            for name, backbone in table.backbones.items()
            if name in needed
        },
    }
    comments = "".join(f"# {' '.join(line.split())}\n" for line in header)
    return comments + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def choose(
    chosen: Scores,
    held_out: Scores,
    costs: Floats | None,
    size: int,
    budget: float | None,
) -> PortfolioChoice:
    """Choose on the first part of the questions.

    Args:
        chosen: Scores on that part, all known, shape (n_arms, n_chosen).
        held_out: Scores on the held-out questions, shape (n_arms, n_held_out).
        costs: Cost of each arm, shape (n_arms,).
        size: Number of arms to choose if there is no budget.
        budget: Most that the chosen arms may cost together.

    Raises:
        ValueError: The size or budget is impossible, or a budget is given without costs.
    """
    (single,) = selection.top_by_average(chosen, 1)
    if budget is None:
        return PortfolioChoice(
            chosen, held_out, greedy(chosen, size), selection.top_by_average(chosen, size), single
        )
    if costs is None:
        raise ValueError("a budget needs costs, and the matrix has none")
    return PortfolioChoice(chosen, held_out, *_fill_budget(chosen, costs, budget), single)


def _fill_budget(chosen: Scores, costs: Floats, budget: float) -> tuple[Portfolio, tuple[int, ...]]:
    """Return the portfolio within a budget, and the arms with the largest means that fit it, in order."""
    portfolio = knapsack(chosen, costs, budget)
    average: list[int] = []
    for arm in selection.top_by_average(chosen, len(chosen)):
        if costs[[*average, arm]].sum() <= budget * (1.0 + selection.ROUNDING):
            average.append(arm)
    return portfolio, tuple(average)


def by_budget(pool: Pool, choice: PortfolioChoice, most: float) -> tuple[Budgeted, ...]:
    """Choose again for a range of budgets, from the smallest useful one.

    Args:
        pool: The arms.
        choice: The choice to compare with; the last budget is at least its cost.
        most: The last budget; raised if it is too small.
    """
    if pool.costs is None:
        return ()
    paid = pool.costs[(pool.costs > 0.0) & (choice.chosen.max(axis=1) > 0.0)]
    if not len(paid):
        return ()
    least = float(paid.min())
    most = max(most, math.fsum(pool.costs[list(choice.portfolio.arms)]), least)
    budgeted = []
    for budget in np.unique(np.geomspace(least, most, BUDGETS)).tolist():
        portfolio, average = _fill_budget(choice.chosen, pool.costs, budget)
        budgeted.append(
            Budgeted(
                budget,
                tuple(pool.arms[arm] for arm in portfolio.arms),
                portfolio.values[-1],
                coverage.values(choice.held_out, portfolio.arms)[-1],
                coverage.values(choice.held_out, average)[-1],
            )
        )
    return tuple(budgeted)
