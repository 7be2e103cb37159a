"""The value of a portfolio compared with alternatives: figures, tables and a plot.

On the same questions are compared: the portfolio at each size, as many arms with the largest means, the best
single arm, and the oracle that picks the best arm for each question. Since the portfolio is fitted to the
questions it was chosen on, held-out questions are reported separately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from armwise.agent.reporting import GREY, INK, PALETTE
from armwise.arms.lab.portfolio import coverage
from armwise.feedback.ope import Interval, Terms, intervals

Scores = NDArray[np.float32]

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class MeanScores:
    """Mean scores on some questions.

    Attributes:
        questions: Number of questions.
        portfolio: Value of the first pick, of the first two picks, and so on.
        average: Values of as many arms with the largest means on the questions used for choosing.
        lead: 95 % interval of `portfolio` minus `average`, for each size; 0 to 0 for the same arms. None:
            scores are imputed, and vary too little for an interval.
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
        """The complete portfolio minus as many arms with the largest means."""
        return self.portfolio[-1] - self.average[-1]


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The portfolio for one budget.

    Attributes:
        budget: The budget, in the unit of the costs.
        arms: Names of the arms, in the order of picking.
        chosen: Mean score on the questions used for choosing.
        held_out: Mean score on the held-out questions.
        average: Held-out mean score of the arms with the largest means that fit the budget, taken in order.
    """

    budget: float
    arms: tuple[str, ...]
    chosen: float
    held_out: float
    average: float


@dataclass(frozen=True, slots=True)
class ScoreBound:
    """A lower bound of the portfolio's mean score on future questions.

    Attributes:
        factor: With probability 1 - delta, the score is at least `factor` times the optimum minus `error`.
        error: Error due to the number of questions.
        delta: Probability that the bound fails.
        questions: Number of questions that the portfolio was chosen on.
        tolerable: An error small enough in practice.
        needed: Number of questions for an error of `tolerable`.
    """

    factor: float
    error: float
    delta: float
    questions: int
    tolerable: float
    needed: int


@dataclass(frozen=True, slots=True)
class Known:
    """The number of known scores; `armwise.arms.lab.portfolio.imputation` estimates the others.

    Attributes:
        share: Share of known scores, among arms and questions with any known score.
        arms_left_out: Arms without a known score.
        questions_left_out: Number of questions without a known score.
        support: For each arm of the portfolio, the number of its known scores when it was chosen.
        low: Held-out mean score of the portfolio with every unknown score counted as 0.
        high: Held-out mean score of the portfolio with every unknown score counted as 1.
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
        measure: Measure of the scores.
        algorithm: `greedy` or `knapsack`.
        pool: Number of arms to choose from.
        arms: Chosen arms, in the order of picking.
        average: Arms with the largest means, best first.
        chosen: Mean scores on the questions used for choosing.
        held_out: Mean scores on the held-out questions.
        datasets: Mean scores of the complete portfolio on the held-out questions of each data set.
        cost: Name of the cost that is the unit of budgets, if there is one.
        spent: Cost of the portfolio, as the sum over its arms.
        budgets: Value against budget.
        bound: A lower bound of future scores; None: scores are imputed, so that there is no bound.
        known: Figures on unknown scores; None: all scores are known.
        splits: The held-out comparison of each split of the questions, this one first.
        manifest: The inputs of the scores.
        rejected: The arms that were chosen first, and did not certainly score higher than those that stay.
    """

    measure: str
    algorithm: str
    pool: int
    arms: tuple[str, ...]
    average: tuple[str, ...]
    chosen: MeanScores
    held_out: MeanScores
    datasets: Mapping[str, MeanScores]
    cost: str | None
    spent: float | None
    budgets: tuple[Budgeted, ...]
    bound: ScoreBound | None
    known: Known | None
    splits: tuple[MeanScores, ...]
    manifest: Mapping[str, str]
    rejected: "Rejected | None" = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Arms that did not certainly score higher on the held-out questions than those that stay.

    Attributes:
        arms: The arms, in the order of picking.
        lead: Their mean score minus the mean score of the arms that stay.
        interval: The interval of 95 % of the lead.
    """

    arms: tuple[str, ...]
    lead: float
    interval: Interval

    def __str__(self) -> str:
        """Return the reason for people.

        >>> str(Rejected(("a", "b"), 0.021, (-0.01, 0.052)))
        'a, b would change it by +0.021 (-0.010 to +0.052) on held-out questions, which is not certainly more'
        """
        low, high = self.interval
        return (
            f"{', '.join(self.arms)} would change it by {self.lead:+.3f} ({low:+.3f} to {high:+.3f}) on "
            "held-out questions, which is not certainly more"
        )


@dataclass(frozen=True, slots=True)
class ComparedScores:
    """The scores of all compared choices, question by question.

    Attributes:
        portfolio: Values of the first picks, shape (n_sizes, n_questions).
        average: Values of as many arms with the largest means, shape (n_sizes, n_questions).
        single: Values of the single arm, shape (n_questions,).
        oracle: Values of the best arm, shape (n_questions,).
        same: Whether both have the same arms, for each size, shape (n_sizes,).
    """

    portfolio: Scores
    average: Scores
    single: Scores
    oracle: Scores
    same: Sequence[bool]

    @classmethod
    def from_picks(
        cls, scores: Scores, picks: Sequence[int], average: Sequence[int], single: int
    ) -> "ComparedScores":
        """Look up the scores; if one choice has fewer arms, its last set stands in for larger sizes."""
        sizes = np.arange(max(len(picks), len(average)))
        grown = (
            np.maximum.accumulate(scores[list(arms)], axis=0)[sizes.clip(max=len(arms) - 1)]
            for arms in (picks, average)
        )
        oracle = coverage.take_best(scores, range(len(scores)))
        same = [set(picks[: size + 1]) == set(average[: size + 1]) for size in sizes.tolist()]
        return cls(next(grown), next(grown), scores[single], oracle, same)

    def compare(self, rng: np.random.Generator | None, where: Indices | slice = slice(None)) -> MeanScores:
        """Average over some questions; `rng` draws the resamples of intervals (None: no intervals)."""
        portfolio, average = self.portfolio[:, where], self.average[:, where]
        leads = (portfolio - average).astype(np.float64)
        ones = np.ones(leads.shape[1])
        terms = [Terms("ips", row, ones, ones) for row in leads]
        lead: tuple[Interval, ...] | None = None
        if rng is not None:
            spans = intervals.bootstrap(terms, rng)
            lead = tuple(map(_bound_lead, terms, spans, self.same))
        return MeanScores(
            questions=len(ones),
            portfolio=_means(portfolio),
            average=_means(average),
            lead=lead,
            single=float(self.single[where].mean(dtype=np.float64)),
            oracle=float(self.oracle[where].mean(dtype=np.float64)),
        )


def _bound_lead(lead: Terms, resampled: Interval, same: bool) -> Interval:
    """Return the interval of a lead, which is 0 for the same arms."""
    if same:
        return 0.0, 0.0
    return intervals.present(lead.value, resampled, (-1.0, 1.0), n=len(lead.numerator))[1]


def _means(scores: Scores) -> tuple[float, ...]:
    return tuple(scores.mean(axis=1, dtype=np.float64).tolist())


def tables(report: PortfolioReport) -> list[Table]:
    """Return the tables: value by size, by data set, by budget, and by split."""
    report_tables = [_by_size(report), _by_dataset(report)]
    if report.budgets:
        report_tables.append(_by_budget(report))
    if len(report.splits) > 1:
        report_tables.append(_by_split(report))
    return report_tables


def notes(report: PortfolioReport) -> list[str]:
    """Return notes on the bound, and on unknown scores."""
    lines = [] if report.rejected is None else [f"{', '.join(report.arms)} stay: {report.rejected}."]
    if (bound := report.bound) is not None:
        proved = (
            f"With probability {1.0 - bound.delta:g}, {report.measure} on new questions like these is at "
            f"least {bound.factor:.3f} of the best possible less {bound.error:.3f}: it was chosen on "
            f"{bound.questions:,} questions"
        )
        if bound.error >= bound.factor:  # scores are at most 1
            proved = f"{bound.questions:,} questions prove nothing of {report.measure} on new ones"
        lines.append(f"{proved}; an error of {bound.tolerable:g} would take {bound.needed:,}.")
    if (known := report.known) is None:
        return lines
    if known.share < 1.0:
        support = ", ".join(f"{arm} {n:,}" for arm, n in zip(report.arms, known.support, strict=True))
        lines.append(
            f"{known.share:.1%} of the scores are known; the others count as what is expected of them, "
            f"so there are no intervals, and nothing is proved of new questions. "
            f"Held out, {report.measure} of the portfolio is {known.low:.3f} if they are all 0 and "
            f"{known.high:.3f} if they are all 1. Known scores behind each pick: {support}."
        )
    if known.questions_left_out:
        lines.append(f"{known.questions_left_out:,} questions without any known score are left out.")
    if known.arms_left_out:
        lines.append(f"Arms without any known score are left out: {', '.join(known.arms_left_out)}.")
    return lines


def _by_size(report: PortfolioReport) -> Table:
    parts = report.chosen, report.held_out
    table = _table(
        f"{report.measure} of the best of the arms, chosen on {parts[0].questions:,} questions, "
        f"held out {parts[1].questions:,}",
        *("arms", "added", "portfolio", "by average"),
        *(f"{name}, held out" for name in ("portfolio", "by average", _lead(report))),
    )
    for size in range(len(parts[0].portfolio)):
        added = report.arms[size] if size < len(report.arms) else ""
        table.add_row(str(size + 1), added, *_cells(parts[0], size)[:2], *_cells(parts[1], size))
    table.add_section()
    for name, (chosen, held_out) in (
        ("best single arm", [part.single for part in parts]),
        (f"oracle of all {report.pool}", [part.oracle for part in parts]),
    ):
        table.add_row("", name, f"{chosen:.3f}", "", f"{held_out:.3f}", "", "")
    return table


def _by_dataset(report: PortfolioReport) -> Table:
    table = _table(
        f"{report.measure} by data set, held out",
        *("data set", "questions", "portfolio", "by average", _lead(report), "best single", "oracle"),
    )
    rows = (
        {**report.datasets, "all": report.held_out} if len(report.datasets) > 1 else {"all": report.held_out}
    )
    for name, part in rows.items():
        table.add_row(
            name, f"{part.questions:,}", *_cells(part, -1), f"{part.single:.3f}", f"{part.oracle:.3f}"
        )
    return table


def _by_budget(report: PortfolioReport) -> Table:
    table = _table(
        f"{report.measure} by budget in {report.cost}",
        *("budget", "arms", "portfolio", "portfolio, held out", "by average, held out"),
    )
    for row in report.budgets:
        values = (f"{value:.3f}" for value in (row.chosen, row.held_out, row.average))
        table.add_row(f"{row.budget:.4g}", str(len(row.arms)), *values)
    return table


def _by_split(report: PortfolioReport) -> Table:
    splits = report.splits
    table = _table(
        f"{report.measure} held out, over {len(splits)} splits", "", "mean", "spread", "least", "most"
    )
    for name, values in (
        ("portfolio", [split.portfolio[-1] for split in splits]),
        ("by average", [split.average[-1] for split in splits]),
        ("lead", [split.difference for split in splits]),
        ("best single arm", [split.single for split in splits]),
        ("oracle", [split.oracle for split in splits]),
    ):
        spread = (fmean(values), pstdev(values), min(values), max(values))
        table.add_row(name, *(f"{value:.3f}" for value in spread))
    return table


def _lead(report: PortfolioReport) -> str:
    """Return the title of the column of leads."""
    return "lead" if report.held_out.lead is None else "lead [95 %]"


def _cells(part: MeanScores, size: int) -> tuple[str, str, str]:
    lead = f"{part.portfolio[size] - part.average[size]:+.3f}"
    if part.lead is not None:
        low, high = part.lead[size]
        lead += f" [{low:+.3f}, {high:+.3f}]"
    return f"{part.portfolio[size]:.3f}", f"{part.average[size]:.3f}", lead


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        left = not i or column == "added"
        table.add_column(column, justify="left" if left else "right", overflow="fold" if left else "ellipsis")
    return table


def draw(report: PortfolioReport) -> bytes:
    """Draw mean score against size and, if there are costs, against budget; return a PNG."""
    from matplotlib.figure import Figure

    panels = 2 if report.budgets else 1
    figure = Figure(figsize=(6.2 * panels, 4.6), dpi=150, layout="constrained")
    by_size, *by_budget = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    _draw_sizes(by_size, report)
    for axes in by_budget:
        _draw_budgets(axes, report)
    for axes in (by_size, *by_budget):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
        axes.grid(axis="y", color="#e6e8eb")
        axes.set_axisbelow(True)
    by_size.set_ylabel(f"{report.measure}, best of the arms", color=INK)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_sizes(axes: Any, report: PortfolioReport) -> None:
    held_out, chosen = report.held_out, report.chosen
    sizes = range(1, len(held_out.portfolio) + 1)
    axes.axhline(held_out.oracle, color=GREY, linestyle=":", label=f"oracle of all {report.pool}")
    axes.plot(
        sizes, chosen.portfolio, color=PALETTE[0], alpha=0.5, linestyle="--", label="portfolio, where chosen"
    )
    axes.plot(sizes, held_out.portfolio, color=PALETTE[0], linewidth=2.4, marker="o", label="portfolio")
    axes.plot(sizes, held_out.average, color=PALETTE[1], marker="s", label="largest means")
    axes.axhline(held_out.single, color=INK, linestyle="--", linewidth=1.0, label="best single arm")
    axes.set_xticks(list(sizes))
    axes.set_title(f"Held out, {held_out.questions:,} questions", loc="left", color=INK)
    axes.set_xlabel("Arms", color=INK)
    axes.legend(frameon=False, fontsize=8)


def _draw_budgets(axes: Any, report: PortfolioReport) -> None:
    budgets = [row.budget for row in report.budgets]
    axes.plot(budgets, [row.chosen for row in report.budgets], color=PALETTE[0], alpha=0.5, linestyle="--")
    held_out = [row.held_out for row in report.budgets]
    axes.plot(budgets, held_out, color=PALETTE[0], linewidth=2.4, marker="o")
    axes.plot(budgets, [row.average for row in report.budgets], color=PALETTE[1], marker="s")
    axes.axhline(report.held_out.oracle, color=GREY, linestyle=":")
    axes.axhline(report.held_out.single, color=INK, linestyle="--", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{budget:,.0f}" if budget >= 100 else f"{budget:.3g}" for budget in budgets])
    axes.set_xticks([], minor=True)
    axes.set_title("By what the arms cost together", loc="left", color=INK)
    axes.set_xlabel(f"Budget, {report.cost}", color=INK)
