"""The plots of `routing.py`: accuracy against cost, and what policies earn as they learn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from routing_online import Curve

Floats = NDArray[np.float64]

INK, GREY = "#22303c", "#9aa5b1"
COLOURS = {"single": "#2f6fb7", "router": "#d1495b", "policy": "#3a9d5d", "bound": INK}
BOUNDS = ("oracle", "random arm", "best arm of each source")
"""What no router of the question could be; the last one is told where a question comes from."""

FAMILIES = (
    "Vowpal Wabbit, no labels",
    "other policies, no labels",
    "policies that start from 1,000 labels",
    "routers, and policies that start from one",
)
"""Panels of the plot of policies."""

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
    """Plot the summed reward of each policy less that of the best fixed arm, one panel per family.

    Each panel names its own lines at their right end; the policies of the other families are grey.
    """
    totals = {
        policy: np.mean([np.cumsum(curve.lead(reward)) for curve in orders], axis=0)
        for policy, orders in curves.items()
    }
    families = [family for family in FAMILIES if any(_family(policy) == family for policy in totals)]
    rows = -(-len(families) // 2)
    figure = Figure(figsize=(13, 4.6 * rows), dpi=130, layout="constrained")
    panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flatten()
    learned = np.concatenate([total for policy, total in totals.items() if policy != "uniform"] or [[0.0]])
    margin = 0.13 * float(np.ptp(learned))
    low, high = float(learned.min()) - margin, float(learned.max()) + margin
    longest = max(map(len, totals.values()))
    for axes, family in zip(panels, families, strict=False):
        axes.set_ylim(low, high)
        own = {policy: total for policy, total in totals.items() if _family(policy) == family}
        for policy, total in totals.items():
            if policy != "uniform":
                axes.plot(_turns(total), total, color="#dfe3e8", linewidth=0.9, zorder=1)
                continue
            axes.plot(_turns(total), total, color=GREY, linewidth=1.4, linestyle="--", zorder=2)
            leaves = int(np.argmax(total < low)) if total.min() < low else len(total) - 1
            place = leaves + 0.01 * longest, max(float(total[leaves]), low + margin)
            axes.text(*place, f"uniform {total[-1]:+.0f}", color=GREY, fontsize=8)
        axes.axhline(0.0, color=INK, linewidth=1.2, zorder=2)
        for (policy, total), colour, at in zip(own.items(), LINES, _apart(own, axes), strict=False):
            axes.plot(_turns(total), total, color=colour, linewidth=1.6, zorder=3)
            _label(axes, total, f"{policy} {total[-1]:+.0f}", colour, at)
        _dress(axes, family)
        axes.set_xlim(0, 1.5 * longest)
        axes.set_xticks([tick for tick in MaxNLocator(6).tick_values(0, longest) if 0 <= tick <= longest])
        axes.spines["bottom"].set_bounds(0, longest)
    for axes in panels[len(families) :]:
        axes.set_axis_off()
    title = f"{name}: summed reward less that of the best fixed arm (the line at 0), mean of the orders"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    figure.supxlabel("questions answered", color=INK, fontsize=10)
    figure.savefig(path)


def _family(policy: str) -> str:
    """Return the panel of a policy; none for `uniform`, which stands in all of them."""
    if policy == "uniform":
        return ""
    if policy.endswith("by labels"):
        return FAMILIES[2]
    if policy.startswith("router") or "from" in policy:
        return FAMILIES[3]
    return FAMILIES[0] if "VW" in policy else FAMILIES[1]


def _turns(total: Floats) -> NDArray[np.int_]:
    return np.arange(1, len(total) + 1)


def _label(axes: Any, total: Floats, text: str, colour: str, at: float) -> None:
    """Name a line to the right of its end, at a height that may differ from that of its end."""
    end, gap = len(total), 0.02 * len(total)
    axes.plot([end, end + gap], [total[-1], at], color=colour, linewidth=0.8, clip_on=False)
    axes.text(end + 1.5 * gap, at, text, color=colour, fontsize=8, va="center")


def _apart(totals: Mapping[str, Floats], axes: Any) -> list[float]:
    """Return heights for the labels of some lines: near the ends of these, and not over each other."""
    low, high = axes.get_ylim()
    step = 0.055 * (high - low)
    names = sorted(totals, key=lambda policy: totals[policy][-1])
    heights: dict[str, float] = {}
    for number, policy in enumerate(names):
        least = heights[names[number - 1]] + step if number else -np.inf
        heights[policy] = max(float(totals[policy][-1]), least)
    shift = np.mean([heights[policy] - totals[policy][-1] for policy in names]) if names else 0.0
    return [heights[policy] - float(shift) for policy in totals]


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
