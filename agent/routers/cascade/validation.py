"""The reward of a cascade on questions that it was not fitted to, beside its arms and the oracle."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from agent.routers.cascade.fitted import Cascade, CascadeDataset, Integers
from agent.routers.dataset import Floats
from arms.portfolio import Outcomes

BINS = 10
"""Bins of the calibration error."""

CASCADE, ORACLE = "cascade", "oracle"


@dataclass(frozen=True, slots=True)
class Row:
    """The mean result of one way to answer.

    Attributes:
        right: The score that is predicted.
        reward: Utility net of the cost of all that was asked.
        costs: What was asked, by name, where it is known.
    """

    right: float
    reward: float
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CascadeValidation:
    """The results of a cascade on held-out questions.

    Attributes:
        questions: Number of questions.
        rows: Results of each arm alone, of each stage if all questions stop there, of the cascade, and of the
            best arm of each question.
        stops: Share of the questions that stop at each stage.
        single: The arm with the highest reward.
        gap: Share of the gap in the predicted score between the best arm and the oracle that the cascade
            closes; None without a gap.
        lost: Mean score that is lost against running all stages; below 0 where it is gained.
        calibration: Mean distance of the predicted probability from the score, over bins of ten.
    """

    questions: int
    rows: Mapping[str, Row]
    stops: tuple[float, ...]
    single: str
    gap: float | None
    lost: float
    calibration: float

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        names = list(self.rows[ORACLE].costs)
        for column in ("", "right", "reward", *names):
            table.add_column(column, justify="right" if column else "left")
        for name, row in self.rows.items():
            costs = (
                f"{row.costs[cost]:,.2f}" if row.costs[cost] < 100 else f"{row.costs[cost]:,.0f}"
                for cost in names
            )
            style = "bold" if name == CASCADE else None
            table.add_row(name, f"{row.right:.4f}", f"{row.reward:.4f}", *costs, style=style)
        return table

    def conclusion(self) -> str:
        """Return a summary."""
        stops = ", ".join(f"{share:.0%}" for share in self.stops)
        gain = self.rows[CASCADE].reward - self.rows[self.single].reward
        gap = "" if self.gap is None else f", and closes {self.gap:.1%} of the gap to the oracle"
        return (
            f"the cascade gains {gain:+.4f} of reward over {self.single}{gap}; of the questions, "
            f"{stops} stop at its stages; it loses {self.lost:.4f} against all stages, and its probability "
            f"is off by {self.calibration:.3f}"
        )


def validate_cascade(cascade: Cascade, labels: CascadeDataset, outcomes: Outcomes) -> CascadeValidation:
    """Evaluate a cascade on held-out questions.

    Args:
        cascade: Fitted to others.
        labels: The questions.
        outcomes: Outcomes of the same questions and of the arms in the cascade's order, for their costs.

    Raises:
        RouterError: The features are not those of its training.
    """
    features = cascade.features(labels)
    counts, row = np.array(cascade.spec.counts), np.arange(len(labels))
    costs = {name: values for name, values in known_costs(outcomes).items() if np.isfinite(values).all()}

    def result(picks: Integers, asked: NDArray[Any]) -> Row:
        spent = (labels.cost * asked).sum(axis=1)
        return Row(
            float(labels.right[row, picks].mean()),
            float((labels.quality[row, picks] - spent).mean()),
            {name: float((values * asked).sum(axis=1).mean()) for name, values in costs.items()},
        )

    n_arms = labels.right.shape[1]
    alone = np.eye(n_arms)
    rows = {
        arm: result(np.full(len(labels), at), np.tile(alone[at], (len(labels), 1)))
        for at, arm in enumerate(outcomes.arms)
    }
    single = max(rows, key=lambda arm: rows[arm].reward)
    best_right = max(one.right for one in rows.values())
    for stage in range(len(counts)):
        limits = np.where(np.arange(len(counts) - 1) < stage, -np.inf, np.inf)
        walk = cascade.walk(features, limits)
        rows[f"stage {stage + 1}, always"] = result(
            walk.pick, np.arange(n_arms) < counts[walk.stage][:, None]
        )
    everything = rows[f"stage {len(counts)}, always"].right
    walk = cascade.walk(features)
    rows[CASCADE] = result(walk.pick, np.arange(n_arms) < counts[walk.stage][:, None])
    best = (labels.right + 1e-6 * (labels.quality - labels.cost)).argmax(axis=1)
    rows[ORACLE] = result(best, alone[best])
    way = rows[ORACLE].right - best_right
    return CascadeValidation(
        len(labels),
        rows,
        tuple(float((walk.stage == stage).mean()) for stage in range(len(counts))),
        single,
        (rows[CASCADE].right - best_right) / way if way > 0.0 else None,
        everything - rows[CASCADE].right,
        calibration_error(walk.probability, labels.right[row, walk.pick]),
    )


def known_costs(outcomes: Outcomes) -> dict[str, Floats]:
    """Return steps, tokens and dollars of the outcomes, as far as they have them."""
    costs = outcomes.costs
    found = {name: costs[name] for name in ("steps", "usd") if name in costs}
    if {"prompt_tokens", "completion_tokens"} <= costs.keys():
        found["tokens"] = costs["prompt_tokens"] + costs["completion_tokens"]
    return found


def calibration_error(probability: Floats, right: Floats) -> float:
    """Return the mean distance of a probability from the mean score, over `BINS` bins of equal size.

    >>> calibration_error(np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    0.5
    """
    parts = np.array_split(np.argsort(probability, kind="stable"), BINS)
    errors = [
        abs(float(probability[part].mean() - right[part].mean())) * len(part) for part in parts if len(part)
    ]
    return float(np.sum(errors) / len(probability))
