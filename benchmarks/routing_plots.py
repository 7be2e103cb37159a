"""The plots of `routing.py`: accuracy against cost, and what policies earn as they learn.

Both show a few rows by name, in colours that the colour-blind can tell apart (Okabe and Ito 2008).
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from routing_online import Curve

Floats = NDArray[np.float64]

INK, GREY = "#22303c", "#7a858f"
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"

KINDS = {"single": ("single arm", BLUE), "router": ("router", RED), "policy": ("policy", GREEN)}
BOUNDS = ("oracle", "random arm", "best arm of each source")
"""What no router of the question could be; the last one is told where a question comes from."""

NAMED = (
    "oracle",
    "always graph",
    "always rrf",
    "always multi",
    "pairwise_ffn",
    "pairwise_xgboost, after retrieval",
    "trees, 2 answers",
    "trees, 3 answers",
    "trees, 4 answers",
    "trees, all answers",
    "policy LinUCB",
    "policy LinUCB from the router",
)
"""Points that are named; of another data set, those that no other beats at their cost."""

SHOWN = {
    "plain VW over words": GREY,
    "VW SquareCB": RED,
    "Thompson": PURPLE,
    "LinUCB": BLUE,
    "LinUCB, warm by labels": SKY,
    "LinUCB from the router": GREEN,
    "router of recall": ORANGE,
}
"""Policies that are drawn, from the least to the most that they are given."""


def draw_costs(name: str, cost: str, rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot exact match against cost, a point a row, on a logarithmic scale: what costs nothing is a note."""
    priced = [row for row in rows if row.get("cost") is not None]
    if not priced:
        return
    figure = Figure(figsize=(8, 5.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    paid = [row for row in priced if row["cost"] > 0.0]
    for kind, (label, colour) in KINDS.items():
        points = [row for row in paid if _kind(row["row"]) == kind]
        at = [row["cost"] for row in points], [100 * row["em"] for row in points]
        axes.scatter(*at, s=26, color=colour, alpha=0.75, linewidths=0, label=label, zorder=3)
    bounds = [row for row in paid if row["row"] == "oracle"]
    axes.scatter([row["cost"] for row in bounds], [100 * row["em"] for row in bounds], s=34, color=INK)
    axes.set_xlim(min(row["cost"] for row in paid) / 1.3, 1.3 * max(row["cost"] for row in paid))
    _dress(axes, f"{name}: accuracy against cost")
    free = ", ".join(f"{row['row']} {100 * row['em']:.1f} %" for row in priced if row["cost"] == 0.0)
    ticks = [tick for tick in (0.5, 1, 2, 3, 5, 10) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    if len(ticks) > 2:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(
        f"{cost} a question, what a router looks at included{f' (for none: {free})' if free else ''}",
        color=INK,
        fontsize=10,
    )
    axes.set_ylabel("exact match, %", color=INK, fontsize=11)
    axes.legend(frameon=False, loc="upper right", fontsize=11, handletextpad=0.2)
    named = [row for row in paid if row["row"] in NAMED]
    _name_points(figure, axes, named if len(named) > 2 else _undominated(paid), paid)
    figure.savefig(path)


def draw_curves(name: str, curves: Mapping[str, Sequence[Curve]], reward: Floats, path: Path) -> None:
    """Plot the summed reward of some policies less that of the best fixed arm, named at their right end."""
    totals = {
        policy: np.mean([np.cumsum(curve.lead(reward)) for curve in curves[policy]], axis=0)
        for policy in SHOWN
        if policy in curves
    }
    figure = Figure(figsize=(8, 5.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    low, high = (f(total.min() if f is min else total.max() for total in totals.values()) for f in (min, max))
    axes.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))
    longest = max(map(len, totals.values()))
    if "uniform" in curves:
        total = np.mean([np.cumsum(curve.lead(reward)) for curve in curves["uniform"]], axis=0)
        axes.plot(_turns(total), total, color=GREY, linewidth=1.3, linestyle=":")
        leaves = int(np.argmax(total < low)) or len(total) - 1
        axes.text(leaves + 0.015 * longest, low, "uniform", color=GREY, fontsize=11)
    axes.axhline(0.0, color=INK, linewidth=1.2)
    axes.text(0.99 * longest, 0.0, "best fixed arm", color=INK, fontsize=11, ha="right", va="bottom")
    for (policy, total), at in zip(totals.items(), _apart(totals, axes), strict=True):
        axes.plot(_turns(total), total, color=SHOWN[policy], linewidth=2.0, zorder=3)
        _label(axes, total, f"{policy} {total[-1]:+.0f}", SHOWN[policy], at)
    _dress(axes, f"{name}: summed reward less that of the best fixed arm")
    axes.set_xlim(0, 1.42 * longest)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= longest])
    axes.spines["bottom"].set_bounds(0, longest)
    axes.set_xlabel("questions answered", color=INK, fontsize=11, x=0.35)
    figure.savefig(path)


def _turns(total: Floats) -> NDArray[np.int_]:
    return np.arange(1, len(total) + 1)


def _label(axes: Any, total: Floats, text: str, colour: str, at: float) -> None:
    """Name a line to the right of its end, at a height that may differ from that of its end."""
    end, gap = len(total), 0.02 * len(total)
    axes.plot([end, end + gap], [total[-1], at], color=colour, linewidth=0.8, clip_on=False)
    axes.text(end + 1.5 * gap, at, text, color=colour, fontsize=11, va="center", fontweight="bold")


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


def _name_points(
    figure: Figure, axes: Any, named: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]
) -> None:
    """Name some points: each label at the nearest place where it covers neither a label nor a point."""
    figure.draw_without_rendering()
    taken = [axes.transData.transform((row["cost"], 100 * row["em"])) for row in points]
    boxes: list[Any] = []
    for row in sorted(named, key=lambda row: -row["em"]):
        colour = KINDS[kind][1] if (kind := _kind(row["row"])) in KINDS else INK
        places = product((8, 30, 60, 90), (1, -1), range(0, 90, 6), (1, -1))
        offsets = ((side * dx, up * dy) for dx, side, dy, up in places)
        for dx, dy in sorted(offsets, key=lambda place: abs(place[0]) + 2 * abs(place[1])):
            text = axes.annotate(
                row["row"].removeprefix("policy "),
                (row["cost"], 100 * row["em"]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha="left" if dx > 0 else "right",
                va="center",
                fontsize=10,
                color=colour,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7}
                if dy or abs(dx) > 8
                else None,
            )
            text.get_window_extent()  # places the text
            box = Text.get_window_extent(text).expanded(1.01, 1.1)  # without its line
            covers = any(box.overlaps(other) for other in boxes) or any(box.contains(*at) for at in taken)
            if not covers and all(axes.bbox.contains(*corner) for corner in box.corners()):
                boxes.append(box)
                break
            text.remove()


def _undominated(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that no other beats at their cost."""
    kept: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["cost"], -row["em"])):
        if _kind(row["row"]) in KINDS and (not kept or row["em"] > kept[-1]["em"]):
            kept.append(row)
    return kept


def _kind(row: str) -> str:
    if row.startswith("always"):
        return "single"
    if row in BOUNDS:
        return "bound"
    return "policy" if row.startswith("policy") else "router"


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold", color=INK, fontsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e8eb")
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=10)
