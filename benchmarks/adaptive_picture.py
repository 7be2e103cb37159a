"""The picture of the policy page: what `adaptive` draws while it learns, and after a change.

    python benchmarks/adaptive_picture.py [--plot docs/img/adaptive.png] [--orders 20]

Three arms answer 2,000 questions alike, right with a probability of .8, .7 and .4, and every answer is rated.
After 1,000 ratings the best arm falls to .5. The policy is the one of `serve_config.yaml` without features,
with its exploration. The lines are means over the orders, the band is between the quartiles of the best arm.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from routing_plots import BLUE, GREEN, INK, RED, _dress

from armwise.agent.policies import choose, compute_served_distribution
from armwise.agent.policies.adaptive import Adaptive
from armwise.feedback.events import Context, Decision

ARMS = {"large": RED, "medium": BLUE, "small": GREEN}
BEFORE, AFTER = np.array([0.8, 0.7, 0.4]), np.array([0.5, 0.7, 0.4])
RATINGS, CHANGE, EXPLORATION = 2000, 1000, 0.02


def play(seed: int) -> NDArray[np.float64]:
    """Return the probabilities of the arms at each rating of an order, shape (RATINGS, 3)."""
    random, policy, arms = np.random.default_rng(seed), Adaptive(), tuple(ARMS)
    context, p = Context("a question"), np.zeros((RATINGS, len(arms)))
    for turn in range(RATINGS):
        p[turn] = compute_served_distribution(policy, context, arms, EXPLORATION / len(arms))
        drawn = choose(p[turn], random.random())
        fact = Decision("d", context, arms, tuple(p[turn].tolist()), arms[drawn], policy.kind, 1)
        right = AFTER if turn >= CHANGE else BEFORE
        policy.learn(fact, float(random.random() < right[drawn]))
    return p


def main(
    plot: Annotated[Path, typer.Option(help="Where to draw it.")] = Path("docs/img/adaptive.png"),
    orders: Annotated[int, typer.Option(min=2, help="Orders of questions.")] = 20,
) -> None:
    """Draw the picture, and print the mean shares at some numbers of ratings."""
    p = 100 * np.array([play(seed) for seed in range(orders)])
    figure = Figure(figsize=(8.4, 3.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    for at, (name, colour) in enumerate(ARMS.items()):
        label = f"{name} ({BEFORE[at]:.0%} right" + (f", later {AFTER[at]:.0%})" if not at else ")")
        axes.plot(p[:, :, at].mean(axis=0), color=colour, linewidth=1.8, label=label)
    quartiles = np.quantile(p[:, :, 0], [0.25, 0.75], axis=0)
    axes.fill_between(np.arange(RATINGS), *quartiles, color=RED, alpha=0.15)
    axes.axvline(CHANGE, color=INK, linewidth=0.9, linestyle=":")
    axes.set_xlabel("ratings", color=INK)
    axes.set_ylabel("share of requests, %", color=INK)
    axes.set_xlim(0, RATINGS)
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, fontsize=9)
    _dress(axes, "")
    figure.savefig(plot)
    for rating in (0, 50, 100, 300, 999, 1050, 1100, 1300, 1999):
        shares = zip(ARMS, p[:, rating].mean(axis=0), strict=True)
        print(rating, *(f"{name} {share:.0f} %" for name, share in shares))


if __name__ == "__main__":
    typer.run(main)
