"""The plot of `model_routing.py`: quality against dollars, and the recovered gap against strong calls."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from routing_plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, _dress

from armwise.agent.lab.offline import CostCurve
from armwise.agent.lab.routers import cost_quality
from armwise.arms.lab.portfolio import Outcomes

COLOURS = {
    "trees": RED,
    "network": GREEN,
    "kNN, k = 40 (RouterBench)": BLUE,
    "kNN (RouterBench), tuned": ORANGE,
    "MLP (RouterBench), tuned": PURPLE,
    "similarity ranking (RouteLLM)": ORANGE,
    "matrix factorization (RouteLLM)": PURPLE,
}
"""Routers that are drawn."""

ONLINE = ("LinUCB, cold", "LinUCB, 1,000 labels")


def draw(
    outcomes: Outcomes,
    curves: Mapping[str, CostCurve],
    online: Mapping[str, Sequence[tuple[float, float]]],
    recovered: Mapping[str, NDArray[np.float64]],
    path: Path,
) -> None:
    """Draw both panels.

    Args:
        outcomes: Of the eleven models.
        curves: Of the routers of the eleven.
        online: Dollars and quality of each policy at some weights of cost.
        recovered: Share of the gap between the two models, at each number of strong calls, of each router.
        path: Of the image.
    """
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    usd, quality = (1000 * outcomes.costs["usd"].mean(axis=0), 100 * outcomes.scores["em"].mean(axis=0))
    left.scatter(usd, quality, s=24, color=GREY, zorder=3, label="one model")
    front = cost_quality.frontier(usd, quality)
    left.plot(usd[front], quality[front], color=INK, linewidth=1.4, linestyle="--", label="zero router")
    for router in (name for name in COLOURS if name in curves):
        points = 1000 * curves[router].cost, 100 * curves[router].quality
        kept = cost_quality.frontier(*points)
        left.plot(*(axis[kept] for axis in points), color=COLOURS[router], linewidth=1.8, label=router)
    for policy, marker in zip(ONLINE, "ox", strict=True):
        cost, earned = np.array(online[policy]).T
        left.scatter(
            1000 * cost, 100 * earned, marker=marker, s=34, color=ORANGE, zorder=4, label=f"{policy}, online"
        )
    left.set_xlabel("dollars for 1,000 questions", color=INK)
    left.set_ylabel("quality, %", color=INK)
    left.set_ylim(bottom=40)  # room for the legend
    _dress(left, "RouterBench, eleven models")
    left.legend(frameon=False, fontsize=8.5, loc="lower right")
    right.plot([0, 100], [0, 100], color=INK, linewidth=1.4, linestyle="--", label="random")
    for router in (name for name in COLOURS if name in recovered):
        share = 100 * np.linspace(0.0, 1.0, len(recovered[router]))
        right.plot(share, 100 * recovered[router], color=COLOURS[router], linewidth=1.6, label=router)
    right.set_xlabel("calls of GPT-4, %", color=INK)
    right.set_ylabel("gap between Mixtral and GPT-4 recovered, %", color=INK)
    _dress(right, "RouteLLM's MMLU, two models")
    right.legend(frameon=False, fontsize=8.5, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
