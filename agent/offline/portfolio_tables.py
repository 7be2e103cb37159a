"""The statistics of a portfolio as tables, and notes on them."""

from statistics import fmean, pstdev

from rich.table import Table

from agent.offline.portfolio_report import Comparison, PortfolioReport


def tables(report: PortfolioReport) -> list[Table]:
    """Lay the figures out: value against size, each data set, value against budget, each split."""
    found = [_by_size(report), _by_dataset(report)]
    if report.budgets:
        found.append(_by_budget(report))
    if len(report.splits) > 1:
        found.append(_by_split(report))
    return found


def notes(report: PortfolioReport) -> list[str]:
    """Say what the sample proves, and what is not known."""
    found = []
    if (bound := report.bound) is not None:
        found.append(
            f"With probability {1.0 - bound.delta:g}, {report.measure} on new questions like these is at "
            f"least {bound.factor:.3f} of the best possible less {bound.error:.3f}: it was chosen on "
            f"{bound.questions:,} questions; an error of {bound.tolerable:g} would take {bound.needed:,}."
        )
    if (known := report.known) is None:
        return found
    if known.share < 1.0:
        support = ", ".join(f"{arm} {n:,}" for arm, n in zip(report.arms, known.support, strict=True))
        found.append(
            f"{known.share:.1%} of the scores are known; the others count as what is expected of them, "
            f"so there are no intervals, and nothing is proved of new questions. "
            f"Held out, {report.measure} of the portfolio is {known.low:.3f} if they are all 0 and "
            f"{known.high:.3f} if they are all 1. Known scores behind each pick: {support}."
        )
    if known.questions_left_out:
        found.append(f"{known.questions_left_out:,} questions without any known score are left out.")
    if known.arms_left_out:
        found.append(f"Arms without any known score are left out: {', '.join(known.arms_left_out)}.")
    return found


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
    """Return what the column of leads is called."""
    return "lead" if report.held_out.lead is None else "lead [95 %]"


def _cells(part: Comparison, size: int) -> tuple[str, str, str]:
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
