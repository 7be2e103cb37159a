"""The cost-quality curve of a router: the cost of reaching the quality of the best single arm, or nearly.

A router's scores are swept over the weight of cost, from the best arm of each question to the cheapest arm
for all; the best and the cheapest single arm complete the family, since they need no router. The baseline is
random mixtures of single arms (the zero router of RouterBench). Intervals are from a bootstrap over
questions, see `intervals.present`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from armwise.agent.lab.routers import cost_quality
from armwise.agent.routers import dataset
from armwise.feedback.ope import Interval, intervals

TARGETS = (1.0, 0.99, 0.95)
"""Shares of the quality of the best single arm."""

SHOWN = 8
"""Points of a curve in a table."""


@dataclass(frozen=True, slots=True)
class Need:
    """Calls and cost for a share of the best single arm's quality, with 95 % intervals.

    Attributes:
        target: The share of its quality.
        calls: Share of the questions that go to the best single arm.
        cost: Cost, relative to that of the best single arm.
        mixture: Cost of a mixture of single arms of this quality, relative to that of the best single arm.
    """

    target: float
    calls: float
    calls_interval: Interval
    cost: float
    cost_interval: Interval
    mixture: float


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Cost and quality of a family of choices.

    Attributes:
        unit: Unit of the cost.
        single: The arm with the best mean quality.
        cost: Mean cost of a question at each weight of cost, the most expensive first, shape (n_points,).
        quality: Mean quality of a question at the same weights, shape (n_points,).
        calls: Share of the questions that go to `single`, shape (n_points,).
        area: Mean quality over the costs from the cheapest to the most expensive arm.
        interval: 95 % interval of the area.
        gain: The area minus that of mixtures of single arms.
        gain_interval: 95 % interval of the gain.
        needs: Calls and cost for each of `TARGETS`.
    """

    unit: str
    single: str
    cost: dataset.Floats
    quality: dataset.Floats
    calls: dataset.Floats
    area: float
    interval: Interval
    gain: float
    gain_interval: Interval
    needs: tuple[Need, ...]

    def table(self) -> Table:
        """Return some points of the curve as a table."""
        table = Table(title="cost and quality as the weight of cost grows")
        for column in (f"{self.unit} a question", "quality", f"{self.single} asked"):
            table.add_column(column, justify="right")
        at = np.unique(np.linspace(0, len(self.cost) - 1, SHOWN).round().astype(int))
        for cost, quality, calls in zip(self.cost[at], self.quality[at], self.calls[at], strict=True):
            table.add_row(f"{cost:.4g}", f"{quality:.4f}", f"{calls:.1%}")
        return table

    def conclusion(self) -> str:
        """Return a summary, with one line per target."""
        lines = [
            f"area {self.area:.4f}, 95 % interval {self.interval[0]:.4f} to {self.interval[1]:.4f}; "
            f"compared with mixtures of single arms {self.gain:+.4f}, {self.gain_interval[0]:+.4f} to "
            f"{self.gain_interval[1]:+.4f}",
            *(
                f"{need.target:.0%} of the quality of {self.single}: {need.calls:.1%} of its calls "
                f"({_range(need.calls_interval)}), {need.cost:.1%} of its cost "
                f"({_range(need.cost_interval)}); a mixture of single arms needs {need.mixture:.1%} of it"
                for need in self.needs
            ),
        ]
        return "\n".join(lines)


def cost_curve(
    scores: dataset.Floats,
    quality: dataset.Floats,
    cost: dataset.Floats,
    charged: dataset.Floats,
    arms: Sequence[str],
    unit: str,
    resamples: int,
    rng: np.random.Generator,
) -> CostCurve | None:
    """Sweep the scores of a router over the weight of cost.

    Args:
        scores: Scores of the router, shape (n_questions, n_arms).
        quality: Quality of each arm on each question before costs, at least 0; shape (n_questions, n_arms).
        cost: Cost of each arm alone, shape (n_questions, n_arms).
        charged: Cost of each arm if the router chooses it, including the router's inputs; the same shape.
        arms: Names of the arms.
        unit: Unit of the cost.
        resamples: Number of resamples of the bootstrap.
        rng: Random generator of the bootstrap.

    Returns:
        None: the best arm is the cheapest, or its quality is 0, so that there is nothing to save.
    """
    prices = cost.mean(axis=0)
    strong, cheap = int(quality.mean(axis=0).argmax()), int(prices.argmin())
    if not prices[strong] > prices[cheap] or not quality[:, strong].mean() > 0.0:
        return None
    picks, at = cost_quality.sweep(scores, prices), np.arange(len(scores))[:, None]
    # the first and the last choice are a single arm, without the charges of a router
    columns = {
        "cost": np.column_stack([cost[:, strong], charged[at, picks[:, :-1]], cost[:, cheap]]),
        "quality": np.column_stack([quality[:, strong], quality[at, picks]]),
        "calls": np.column_stack([np.ones(len(scores)), picks == strong]),
        "arm cost": cost,
        "arm quality": quality,
    }
    means = {name: column.mean(axis=0) for name, column in columns.items()}
    figures = _figures(means, strong, cheap)
    drawn = []
    for _ in range(resamples):
        share = np.bincount(rng.integers(len(scores), size=len(scores)), minlength=len(scores)) / len(scores)
        resampled = {name: share @ column for name, column in columns.items()}
        if resampled["arm cost"][strong] > resampled["arm cost"][cheap]:
            drawn.append(_figures(resampled, strong, cheap))
    most = max(1.0, float(quality.max()))
    possible = {"area": (0.0, most), "gain": (-most, most)}
    spans = {
        name: intervals.present(
            value,
            _interval([sample[name] for sample in drawn or [figures]]),
            possible.get(name, (0.0, 1.0)),
            n=len(scores),
        )[1]
        for name, value in figures.items()
    }
    return CostCurve(
        unit,
        arms[strong],
        means["cost"],
        means["quality"],
        means["calls"],
        figures["area"],
        spans["area"],
        figures["gain"],
        spans["gain"],
        tuple(
            Need(
                target,
                figures[f"calls {target}"],
                spans[f"calls {target}"],
                figures[f"cost {target}"],
                spans[f"cost {target}"],
                figures[f"mixture {target}"],
            )
            for target in TARGETS
        ),
    )


def _figures(means: Mapping[str, dataset.Floats], strong: int, cheap: int) -> dict[str, float]:
    """Return the figures of a family with these means, by name."""
    cost, quality, calls = means["cost"], means["quality"], means["calls"]
    alone, earned = means["arm cost"], means["arm quality"]
    low, high = float(alone[cheap]), float(alone.max())
    of_router, of_arms = (
        cost_quality.area(*points, low, high) for points in ((cost, quality), (alone, earned))
    )
    figures = {"area": of_router, "gain": of_router - of_arms}
    for target in TARGETS:
        target_quality = target * earned[strong] * (1.0 - cost_quality.ROUNDING)
        shares, mixture = (
            cost_quality.cheapest_mixture(cost, quality, target_quality),
            cost_quality.cheapest_mixture(alone, earned, target_quality),
        )
        assert shares is not None  # the best single arm is in both
        assert mixture is not None
        figures[f"calls {target}"] = float(shares @ calls)
        figures[f"cost {target}"] = float(shares @ cost / alone[strong])
        figures[f"mixture {target}"] = float(mixture @ alone / alone[strong])
    return figures


def _interval(values: Sequence[float]) -> Interval:
    """Return the 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return low, high


def _range(interval: Interval) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"
