"""The picture of a portfolio: what it earns against how many arms it has, and against what they cost."""

from io import BytesIO
from typing import Any

from agent.offline.portfolio_report import PortfolioReport
from agent.reporting import GREY, INK, PALETTE


def draw(report: PortfolioReport) -> bytes:
    """Draw mean score against size and, where there are costs, against budget; return it as a PNG."""
    # Imported here as it takes a second, which no other command of the program should wait for.
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
