"""Choose a portfolio from a score matrix, and say what it is worth on questions it was not chosen on.

scores -> split -> choose on one part -> compare on both -> portfolio.yaml   arms for a service
                                                            portfolio.json   all figures
                                                            portfolio.png    value by size and by cost
"""

import math
import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from agent.held_out import Pool
from agent.portfolio_plot import draw
from agent.selection_report import Bound, Budgeted, Known, Outcomes, Report
from agent.selection_tables import notes, tables
from arms.catalog import backbones_of, closure
from arms.completion import extremes
from arms.kinds import ArmSpec
from arms.matrix import ArmTable, read_arms, read_matrix
from arms.nearest import nearest
from arms.portfolio import (
    ROUNDING,
    Portfolio,
    greedy,
    knapsack,
    sample_error,
    sample_size,
    top_by_average,
    values,
)

Scores = NDArray[np.float32]

TOLERABLE = 0.05
"""Error of a mean score for which it is told how many questions it would take."""

YAML, FIGURES, PICTURE = "portfolio.yaml", "portfolio.json", "portfolio.png"


class Selection(BaseModel):
    """Which arms to choose from, how many or for what, and how to check the choice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scores: Path = Field(description="Folder of a score matrix.")
    k: int = Field(default=5, ge=1, description="Arms to choose, those of `start` included.")
    budget: float | None = Field(
        default=None, gt=0, description="What the arms may cost together; replaces k."
    )
    cost: str | None = Field(
        default=None, description="Cost that budgets are in; null is seconds, else the first of the matrix."
    )
    start: tuple[str, ...] = Field(default=(), description="Arms that must be chosen.")
    include: tuple[str, ...] = Field(default=("*",), description="Patterns of arms to choose from.")
    exclude: tuple[str, ...] = Field(default=(), description="Patterns of arms to leave out of these.")
    held_out: float = Field(default=0.5, gt=0, lt=1, description="Part of the questions not chosen on.")
    splits: int = Field(
        default=1,
        ge=1,
        description="Ways to split them; the first gives the portfolio, all of them its spread.",
    )
    seed: int = Field(default=0, ge=0, description="Of the splits and of the resamples of intervals.")
    delta: float = Field(default=0.05, gt=0, lt=1, description="Chance that the sample bound may not hold.")
    budgets: int = Field(default=8, ge=0, description="Points of value against budget; 0 leaves it out.")
    output: Path = Field(description="Folder for the results; those of an earlier run are replaced.")


@dataclass(frozen=True, slots=True)
class _Choice:
    """What was chosen on the first part of the questions.

    Attributes:
        cut: Questions in that part.
        chosen: Its scores, the unknown ones as expected, shape (n_arms, cut).
        held_out: Those of the others.
        portfolio: The arms.
        average: Arms with the largest means, within the same size or budget.
    """

    cut: int
    chosen: Scores
    held_out: Scores
    portfolio: Portfolio
    average: tuple[int, ...]


def select_portfolio(settings: Selection, console: Console) -> Report:
    """Choose, write the results to `settings.output`, print them, and return the figures.

    Args:
        settings: What to choose from, and how.
        console: Where the tables go.

    Raises:
        ValueError: The matrix cannot be read, or the settings do not fit it; the message says how.
    """
    table = read_arms(settings.scores)
    pool = Pool.of(read_matrix(settings.scores, _candidates(settings, table)), settings.cost)
    for arm in settings.start:
        if arm in pool.lost_arms:
            raise ValueError(f"start names {arm!r}, of which no score is known")
    rng = np.random.default_rng([settings.seed, 0])
    report = _report(pool, settings, table, _choose(pool, settings, rng), rng)
    splits = [report.held_out]
    for split in range(1, settings.splits):
        rng = np.random.default_rng([settings.seed, split])
        other = _choose(pool, settings, rng)
        outcomes = Outcomes.of(other.held_out, other.portfolio.arms, other.average)
        splits.append(outcomes.compare(rng))
    report = replace(report, splits=tuple(splits))
    _write(report, table, settings)
    for one in tables(report):
        console.print(one)
    for note in notes(report):
        console.print(note, markup=False, highlight=False)
    console.print(f"written to {settings.output / YAML}", markup=False, highlight=False, soft_wrap=True)
    return report


def _candidates(settings: Selection, table: ArmTable) -> list[str]:
    """Return the arms to choose from, by name. Raises ValueError."""
    for arm in settings.start:
        if arm not in table.specs:
            raise ValueError(f"start names {arm!r}, which was not scored{nearest(arm, table.specs)}")

    def wanted(arm: str) -> bool:
        return any(fnmatchcase(arm, pattern) for pattern in settings.include) and not any(
            fnmatchcase(arm, pattern) for pattern in settings.exclude
        )

    found = [
        arm for arm, spec in table.specs.items() if arm in settings.start or (spec.action and wanted(arm))
    ]
    if not found:
        patterns = ", ".join(settings.include)
        raise ValueError(
            f"none of {len(table.specs)} arms, such as {next(iter(table.specs))!r}, is {patterns}"
        )
    return found


def _choose(pool: Pool, settings: Selection, rng: np.random.Generator) -> _Choice:
    """Split the questions and choose. Raises ValueError."""
    cut = pool.split(settings.held_out, rng)
    chosen, held_out = pool.halves(cut)
    portfolio, average = _best(chosen, pool, settings, settings.budget)
    return _Choice(cut, chosen, held_out, portfolio, average)


def _best(
    chosen: Scores, pool: Pool, settings: Selection, budget: float | None
) -> tuple[Portfolio, tuple[int, ...]]:
    """Return the portfolio, and as many arms, or for as much, by their means. Raises ValueError."""
    start = [pool.arms.index(arm) for arm in settings.start]
    if budget is None:
        return greedy(chosen, settings.k, start), top_by_average(chosen, settings.k)
    if pool.costs is None:
        raise ValueError("a budget needs costs, and the matrix has none")
    portfolio = knapsack(chosen, pool.costs, budget, start)
    bought: list[int] = []
    for arm in top_by_average(chosen, len(chosen)):
        if pool.costs[[*bought, arm]].sum() <= budget * (1.0 + ROUNDING):
            bought.append(arm)
    return portfolio, tuple(bought)


def _report(
    pool: Pool, settings: Selection, table: ArmTable, choice: _Choice, rng: np.random.Generator
) -> Report:
    """Work out all figures of one split."""
    picks, n = choice.portfolio.arms, choice.cut
    outcomes = Outcomes.of(choice.held_out, picks, choice.average)
    groups = pool.groups[n:]
    held_out = outcomes.compare(rng)
    return Report(
        measure=table.measure,
        algorithm="greedy" if settings.budget is None else "knapsack",
        pool=len(pool.arms),
        arms=tuple(pool.arms[arm] for arm in picks),
        average=tuple(pool.arms[arm] for arm in choice.average),
        chosen=Outcomes.of(choice.chosen, picks, choice.average).compare(rng),
        held_out=held_out,
        datasets={
            pool.datasets[group]: outcomes.compare(rng, np.flatnonzero(groups == group))
            for group in np.unique(groups).tolist()
        },
        cost=pool.cost,
        spent=None if pool.costs is None else math.fsum(pool.costs[list(picks)]),
        budgets=_by_budget(pool, settings, choice),
        bound=_bound(pool, settings, choice),
        known=_known(pool, choice),
        splits=(held_out,),
        manifest=table.manifest,
    )


def _bound(pool: Pool, settings: Selection, choice: _Choice) -> Bound:
    most = settings.k
    if settings.budget is not None and pool.costs is not None:
        cheapest = np.sort(pool.costs).cumsum()
        most = int(np.searchsorted(cheapest, settings.budget * (1.0 + ROUNDING), side="right"))
    n, n_arms, delta, factor = choice.cut, len(pool.arms), settings.delta, choice.portfolio.guarantee
    return Bound(
        factor=factor,
        error=sample_error(n, most, n_arms, delta, factor),
        delta=delta,
        questions=n,
        tolerable=TOLERABLE,
        needed=sample_size(TOLERABLE, most, n_arms, delta, factor),
    )


def _by_budget(pool: Pool, settings: Selection, choice: _Choice) -> tuple[Budgeted, ...]:
    """Choose for budgets from the least that buys anything of use to what the portfolio costs, or may."""
    if pool.costs is None or not settings.budgets:
        return ()
    paid = pool.costs[(pool.costs > 0.0) & (choice.chosen.max(axis=1) > 0.0)]
    if not len(paid):
        return ()
    least = max(float(paid.min()), math.fsum(pool.costs[pool.arms.index(arm)] for arm in settings.start))
    most = max(settings.budget or 0.0, math.fsum(pool.costs[list(choice.portfolio.arms)]), least)
    found = []
    for budget in np.geomspace(least, most, settings.budgets).tolist():
        portfolio, average = _best(choice.chosen, pool, settings, budget)
        found.append(
            Budgeted(
                budget,
                tuple(pool.arms[arm] for arm in portfolio.arms),
                portfolio.values[-1],
                values(choice.held_out, portfolio.arms)[-1],
                values(choice.held_out, average)[-1],
            )
        )
    return tuple(found)


def _known(pool: Pool, choice: _Choice) -> Known | None:
    """Tell how much is known, unless everything is."""
    known = math.fsum(np.count_nonzero(~np.isnan(row)) for row in pool.scores)
    if known == pool.scores.size and not pool.lost_arms and not pool.lost_questions:
        return None
    picks = choice.portfolio.arms
    support = (int((~np.isnan(pool.scores[arm, : choice.cut])).sum()) for arm in picks)
    low, high = extremes(pool.scores[:, choice.cut :], picks)
    return Known(known / pool.scores.size, pool.lost_arms, pool.lost_questions, tuple(support), low, high)


def _write(report: Report, table: ArmTable, settings: Selection) -> None:
    """Write all results under other names first, so that none is ever half there; the arms come last."""
    output = settings.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as name:
        unfinished = Path(name)
        draw(report, unfinished / PICTURE)
        (unfinished / FIGURES).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        (unfinished / YAML).write_text(_configuration(report, table, settings), encoding="utf-8")
        for file in (PICTURE, FIGURES, YAML):
            (unfinished / file).replace(output / file)


def _configuration(report: Report, table: ArmTable, settings: Selection) -> str:
    """Return arms and the backbones that they need, as a configuration names them. Raises ArmSpecError."""
    specs: dict[str, ArmSpec] = {}
    for arm in report.arms:
        specs |= closure(arm, table.specs)
    needed = frozenset[str]().union(*(backbones_of(arm, table.specs) for arm in report.arms))
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


__all__ = ["Selection", "select_portfolio"]
