"""Choose a portfolio from a score matrix, and validate it on held-out questions.

scores -> split -> choose on one part -> compare on both -> portfolio.yaml   arms for a service
                                                            portfolio.json   all figures
                                                            portfolio.png    value by size and by cost
"""

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from agent.offline.portfolio_plot import draw
from agent.offline.portfolio_report import Bound, Known, Outcomes, PortfolioReport
from agent.offline.portfolio_tables import notes, tables
from agent.offline.portfolio_validation import Choice, Pool, Scores, by_budget, choose
from arms.portfolio import ArmTable, imputation, read_matrix, score_matrix, selection
from arms.retrievers import ArmSpec, catalog, closure
from arms.suggestions import did_you_mean, matches

TOLERABLE = 0.05
"""Error of a mean score for which the number of questions needed is reported."""

YAML, FIGURES, PICTURE = "portfolio.yaml", "portfolio.json", "portfolio.png"


class Selection(BaseModel):
    """Which arms to choose from, how many or within which budget, and how to validate the choice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scores: Path = Field(description="Folder of a score matrix.")
    k: int = Field(default=5, ge=1, description="Arms to choose, those of --start included.")
    budget: float | None = Field(
        default=None, gt=0, description="What the arms may cost together, instead of -k."
    )
    cost: str | None = Field(
        default=None,
        description="Unit of a budget: seconds, steps, tokens, or of a log total_tokens; else seconds, "
        "or the first of the matrix.",
    )
    start: tuple[str, ...] = Field(default=(), description="An arm that must be chosen.")
    include: tuple[str, ...] = Field(default=("*",), description="Pattern of arms to choose from.")
    exclude: tuple[str, ...] = Field(default=(), description="Pattern of arms to leave out.")
    held_out: float = Field(
        default=0.5, gt=0, lt=1, description="Part of the questions to validate the choice on."
    )
    splits: int = Field(
        default=1,
        ge=1,
        description="Splits of the questions; the first gives the portfolio, all of them its spread.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the splits and of the resamples of intervals.")
    delta: float = Field(default=0.05, gt=0, lt=1, description="Chance that the sample bound may not hold.")
    budgets: int = Field(default=8, ge=0, description="Points of value against budget; 0 leaves it out.")
    output: Path = Field(
        default=Path("portfolio"), description="Folder for arms, figures and plot; earlier ones are replaced."
    )


def select_portfolio(settings: Selection, console: Console) -> PortfolioReport:
    """Choose, write the results to `settings.output`, print them, and return the figures.

    Args:
        settings: What to choose from, and how.
        console: Where the tables go.

    Raises:
        ValueError: The matrix cannot be read, or the settings do not fit it; the message says how.
    """
    table = score_matrix.read_arms(settings.scores)
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
        splits.append(_outcomes(other.held_out, other).compare(rng if pool.whole else None))
    report = replace(report, splits=tuple(splits))
    results = {
        PICTURE: draw(report),
        FIGURES: orjson.dumps(report, option=orjson.OPT_INDENT_2),
        YAML: _configuration(report, table, settings).encode(),  # the last: what a service reads
    }
    _write(settings.output, results)
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
            raise ValueError(f"start names {arm!r}, which was not scored{did_you_mean(arm, table.specs)}")

    def wanted(arm: str) -> bool:
        return matches(arm, settings.include) and not matches(arm, settings.exclude)

    found = [
        arm for arm, spec in table.specs.items() if arm in settings.start or (spec.action and wanted(arm))
    ]
    if not found:
        patterns = ", ".join(settings.include)
        raise ValueError(
            f"none of {len(table.specs)} arms, such as {next(iter(table.specs))!r}, is {patterns}"
        )
    return found


def _choose(pool: Pool, settings: Selection, rng: np.random.Generator) -> Choice:
    """Split the questions and choose. Raises ValueError."""
    chosen, held_out = pool.halves(pool.split(settings.held_out, rng))
    return choose(chosen, held_out, pool.costs, settings.k, settings.budget, _start(pool, settings))


def _start(pool: Pool, settings: Selection) -> list[int]:
    return [pool.arms.index(arm) for arm in settings.start]


def _outcomes(scores: Scores, choice: Choice) -> Outcomes:
    return Outcomes.of(scores, choice.portfolio.arms, choice.average, choice.single)


def _report(
    pool: Pool, settings: Selection, table: ArmTable, choice: Choice, rng: np.random.Generator
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
        budgets=by_budget(pool, choice, settings.budgets, settings.budget or 0.0, _start(pool, settings)),
        bound=_bound(pool, settings, choice) if pool.whole else None,
        known=_known(pool, choice),
        splits=(held_out,),
        manifest=table.manifest,
    )


def _bound(pool: Pool, settings: Selection, choice: Choice) -> Bound:
    most = settings.k
    if settings.budget is not None and pool.costs is not None:
        most = selection.affordable(pool.costs, settings.budget)
    (n_arms, n), delta, factor = choice.chosen.shape, settings.delta, choice.portfolio.guarantee
    return Bound(
        factor=factor,
        error=selection.sample_error(n, most, n_arms, delta, factor),
        delta=delta,
        questions=n,
        tolerable=TOLERABLE,
        needed=selection.sample_size(TOLERABLE, most, n_arms, delta, factor),
    )


def _known(pool: Pool, choice: Choice) -> Known | None:
    """Return how many scores are known, None where all are."""
    if pool.whole and not pool.lost_arms and not pool.lost_questions:
        return None
    picks, cut = choice.portfolio.arms, choice.chosen.shape[1]
    support = (int((~np.isnan(pool.scores[arm, :cut])).sum()) for arm in picks)
    low, high = imputation.extremes(pool.scores[:, cut:], picks)
    return Known(pool.share, pool.lost_arms, pool.lost_questions, tuple(support), low, high)


def _write(output: Path, results: Mapping[str, bytes]) -> None:
    """Write all files under temporary names, then rename them in their order, so that none is ever partial.

    Empty folders that it made are removed where that fails.
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


def _configuration(report: PortfolioReport, table: ArmTable, settings: Selection) -> str:
    """Return arms and the backbones that they need, as a configuration names them. Raises ArmSpecError."""
    specs: dict[str, ArmSpec] = {}
    for arm in report.arms:
        specs |= closure(arm, table.specs)
    needed = frozenset[str]().union(*(catalog.backbones_of(arm, table.specs) for arm in report.arms))
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
