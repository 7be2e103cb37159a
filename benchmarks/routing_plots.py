"""The plots of `routing.py`: accuracy against cost, and what policies earn as they learn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from routing_online import Curve

Floats = NDArray[np.float64]

INK, GREY = "#22303c", "#9aa5b1"
COLOURS = {"single": "#2f6fb7", "router": "#d1495b", "policy": "#3a9d5d", "bound": INK}
BOUNDS = ("oracle", "random arm", "best arm of each source")
"""What no router of the question could be; the last one is told where a question comes from."""

LINES = ("#2f6fb7", "#d1495b", "#3a9d5d", "#e3a018", "#7b5ea7", "#00a1b3", "#a05a2c", "#d76ba8", "#5b6b7a")


def draw_costs(name: str, cost: str, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot exact match against cost, a point a row; rows that no other beats at their cost are named."""
    known = [row for row in rows if "cost" in row]
    if not known:
        return
    figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for kind, colour in COLOURS.items():
        points = [row for row in known if _kind(str(row["row"])) == kind]
        axes.scatter(
            [row["cost"] for row in points],
            [100 * row["em"] for row in points],
            s=28,
            color=colour,
            label={"single": "single arm", "bound": "bounds"}.get(kind, kind),
            zorder=3,
        )
    reached, below = -np.inf, False
    for row in sorted(known, key=lambda row: (row["cost"], -row["em"])):
        if row["em"] > reached and _kind(str(row["row"])) != "bound":
            reached, below = row["em"], not below
            place, offset = (row["cost"], 100 * row["em"]), (6, -10 if below else 6)
            told = {"xytext": offset, "textcoords": "offset points", "fontsize": 7, "color": INK}
            axes.annotate(row["row"], place, **told)
    _dress(axes, f"{name}: accuracy against cost")
    axes.set_xlabel(f"{cost} a question, what a router looks at included", color=INK)
    axes.set_ylabel("exact match, %", color=INK)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path)


def draw_curves(name: str, curves: Mapping[str, Sequence[Curve]], reward: Floats, path: Path) -> None:
    """Plot the reward of each policy less that of the best fixed arm, mean over the orders."""
    figure = Figure(figsize=(11, 6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (policy, orders) in enumerate(curves.items()):
        leads = [np.cumsum(curve.lead(reward)) for curve in orders]
        total = np.mean(leads, axis=0)
        style = {"color": LINES[number % len(LINES)], "linestyle": ("-", "--", ":")[number // len(LINES) % 3]}
        axes.plot(
            np.arange(1, len(total) + 1), total, linewidth=1.4, label=f"{policy}  {total[-1]:+.0f}", **style
        )
    axes.axhline(0.0, color=GREY, linewidth=1.2)
    _dress(axes, f"{name}: reward gained on the best fixed arm, summed, mean of the orders")
    axes.set_xlabel("questions answered", color=INK)
    axes.set_ylabel("summed reward less the best fixed arm's", color=INK)
    axes.legend(
        title="policy, at the end", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8
    )
    figure.savefig(path)


def _kind(row: str) -> str:
    if row.startswith("always"):
        return "single"
    if row in BOUNDS:
        return "bound"
    return "policy" if row.startswith("policy") else "router"


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e8eb")
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)


__all__ = ["draw_costs", "draw_curves"]
