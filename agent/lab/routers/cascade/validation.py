"""The reward of a cascade on held-out questions, compared with its arms and the oracle."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from armwise.agent.lab.routers.cascade.fitted import Cascade, CascadeDataset, Integers
from armwise.agent.routers.dataset import Floats
from armwise.arms.lab.portfolio import Outcomes

if TYPE_CHECKING:
    from armwise.feedback.ope import Interval

BINS = 10
"""Bins of the calibration error."""

RESAMPLES = 2000
"""Default number of resamples for intervals."""

CASCADE, ORACLE = "cascade", "oracle"


@dataclass(frozen=True, slots=True)
class CascadeRow:
    """Mean results of an arm, a stage, the cascade or the oracle.

    Attributes:
        right: Mean of the predicted kind of score.
        reward: Utility net of the cost of all arms that answered.
        scores: EM and F1 of the answer, if known.
        costs: Known costs of all arms that answered, by name.
    """

    right: float
    reward: float
    scores: Mapping[str, float]
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CascadeValidation:
    """The results of a cascade on held-out questions.

    Attributes:
        questions: Number of questions.
        rows: Results of each arm alone, of each stage if all questions stop there, of the cascade, and of the
            oracle, the best arm of each question.
        stops: Share of the questions that stop at each stage.
        single: The arm with the highest reward.
        gain: Interval of the reward gained over that arm.
        gap: Share of the gap in `right` between the best arm and the oracle that the cascade closes; None:
            no gap.
        gap_interval: Interval of that share.
        gap_of_all: The same share for the best arm and the oracle among all arms of the outcomes; None: the
            cascade has all of these arms, or there is no gap.
        lost: Mean `right` after all stages minus that of the cascade; negative: a gain.
        lost_interval: Interval of `lost`.
        calibration: Mean distance of the predicted probability from the score, over `BINS` bins.
        bias: Mean predicted probability minus mean score.
        bias_interval: Interval of the bias.
    """

    questions: int
    rows: Mapping[str, CascadeRow]
    stops: tuple[float, ...]
    single: str
    gain: "Interval"
    gap: float | None
    gap_interval: "Interval | None"
    gap_of_all: float | None
    lost: float
    lost_interval: "Interval"
    calibration: float
    bias: float
    bias_interval: "Interval"

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        names, scores = list(self.rows[ORACLE].costs), list(self.rows[ORACLE].scores)
        for column in ("", "right", "reward", *scores, *names):
            table.add_column(column, justify="right" if column else "left")
        for name, row in self.rows.items():
            costs = (
                f"{row.costs[cost]:,.2f}" if row.costs[cost] < 100 else f"{row.costs[cost]:,.0f}"
                for cost in names
            )
            style = "bold" if name == CASCADE else None
            others = (f"{row.scores[score]:.4f}" for score in scores)
            table.add_row(name, f"{row.right:.4f}", f"{row.reward:.4f}", *others, *costs, style=style)
        return table

    def conclusion(self) -> str:
        """Return a summary."""
        stops = ", ".join(f"{share:.0%}" for share in self.stops)
        gain = self.rows[CASCADE].reward - self.rows[self.single].reward
        gap = ""
        if self.gap is not None and self.gap_interval is not None:
            low, high = self.gap_interval
            gap = f", and closes {self.gap:.1%} [{low:.1%}, {high:.1%}] of the gap to the oracle"
        if self.gap_of_all is not None:
            gap += f" ({self.gap_of_all:.1%} of the gap to all arms of the outcomes)"
        return (
            f"the cascade gains {gain:+.4f} {_format_interval(self.gain)} of reward over {self.single}{gap}; "
            f"of the questions, {stops} stop at its stages; it loses {self.lost:.4f} "
            f"{_format_interval(self.lost_interval)} against all stages; its probability is off by "
            f"{self.calibration:.3f}, on average {self.bias:+.3f} {_format_interval(self.bias_interval)}; "
            "intervals are 95 % ones over questions"
        )


def _format_interval(interval: "Interval") -> str:
    return f"[{interval[0]:+.4f}, {interval[1]:+.4f}]"


def validate_cascade(
    cascade: Cascade,
    labels: CascadeDataset,
    outcomes: Outcomes,
    *,
    right: Floats | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> CascadeValidation:
    """Evaluate a cascade on held-out questions.

    Args:
        cascade: Cascade fitted to other questions.
        labels: The questions.
        outcomes: Outcomes of the same questions, with the arms in the cascade's order, for their costs.
        right: Score of all arms of the outcomes, shape (n, n_all), NaN where unknown; None: the cascade has
            all arms.
        resamples: Number of resamples of the questions, for intervals.
        seed: Seed of the resamples.

    Raises:
        RouterError: The features differ from those of its training.
    """
    from armwise.feedback.ope import Terms, intervals

    features = cascade.features(labels)
    counts, row = np.array(cascade.spec.counts), np.arange(len(labels))
    costs = {name: values for name, values in collect_costs(outcomes).items() if np.isfinite(values).all()}
    others = {name: outcomes.scores[name] for name in ("em", "f1") if name in outcomes.scores}
    others = {name: values for name, values in others.items() if np.isfinite(values).all()}

    def measure_earned(picks: Integers, calls: NDArray[Any]) -> Floats:
        return np.asarray(labels.quality[row, picks] - (labels.cost * calls).sum(axis=1))

    def result(picks: Integers, calls: NDArray[Any]) -> CascadeRow:
        return CascadeRow(
            float(labels.right[row, picks].mean()),
            float(measure_earned(picks, calls).mean()),
            {name: float(values[row, picks].mean()) for name, values in others.items()},
            {name: float((values * calls).sum(axis=1).mean()) for name, values in costs.items()},
        )

    n_arms = labels.right.shape[1]
    alone = np.eye(n_arms)
    rows = {
        arm: result(np.full(len(labels), at), np.tile(alone[at], (len(labels), 1)))
        for at, arm in enumerate(outcomes.arms)
    }
    single = max(rows, key=lambda arm: rows[arm].reward)
    most_right = int(labels.right.mean(axis=0).argmax())
    for stage in range(len(counts)):
        limits = np.where(np.arange(len(counts) - 1) < stage, -np.inf, np.inf)
        walk = cascade.walk(features, limits)
        rows[f"stage {stage + 1}, always"] = result(
            walk.pick, np.arange(n_arms) < counts[walk.stage][:, None]
        )
    last = labels.right[row, walk.pick]
    walk = cascade.walk(features)
    calls = np.arange(n_arms) < counts[walk.stage][:, None]
    rows[CASCADE] = result(walk.pick, calls)
    best = (labels.right + 1e-6 * (labels.quality - labels.cost)).argmax(axis=1)
    rows[ORACLE] = result(best, alone[best])
    picked, at = labels.right[row, walk.pick], outcomes.arms.index(single)
    ones = np.ones(len(labels))
    gain = measure_earned(walk.pick, calls) - measure_earned(np.full(len(labels), at), alone[at][None])
    lost, bias = last - picked, walk.probability - picked
    terms = [Terms("ips", values, ones, ones) for values in (gain, lost, bias)]
    ahead, way = picked - labels.right[:, most_right], labels.right[row, best] - labels.right[:, most_right]
    if has_way := way.mean() > 0.0:
        terms.append(Terms("snips", ahead, way, ones, ratio=True))
    least, most = labels.quality.min() - labels.cost.sum(axis=1).max(), labels.quality.max()
    span = max(1.0, float(most - least))
    possible = [(-span, span), (-1.0, 1.0), (-1.0, 1.0)]
    drawn = intervals.bootstrap(terms, np.random.default_rng(seed), resamples)
    if has_way:
        worst = float((labels.right.min(axis=1) - labels.right[:, most_right]).mean() / way.mean())
        possible.append((min(worst, terms[3].value, drawn[3][0]), 1.0))
    spans = [
        intervals.present(each.value, ends, within, n=len(labels))[1]
        for each, ends, within in zip(terms, drawn, possible, strict=True)
    ]
    return CascadeValidation(
        len(labels),
        rows,
        tuple(float((walk.stage == stage).mean()) for stage in range(len(counts))),
        single,
        spans[0],
        terms[3].value if has_way else None,
        spans[3] if has_way else None,
        None if right is None else _share_of_all(picked, right),
        terms[1].value,
        spans[1],
        calibration_error(walk.probability, picked),
        terms[2].value,
        spans[2],
    )


def _share_of_all(picked: Floats, right: Floats) -> float | None:
    """Return the closed share of the gap between the best of all arms and their oracle; None: no gap."""
    whole = ~np.isnan(right).any(axis=1)
    if not whole.any():
        return None
    best = right[whole].mean(axis=0).max()
    way = right[whole].max(axis=1).mean() - best
    return float((picked[whole].mean() - best) / way) if way > 0.0 else None


def collect_costs(outcomes: Outcomes) -> dict[str, Floats]:
    """Return the steps, tokens and dollars that the outcomes have, by name."""
    costs = outcomes.costs
    amounts = {name: costs[name] for name in ("steps", "usd") if name in costs}
    if {"prompt_tokens", "completion_tokens"} <= costs.keys():
        amounts["tokens"] = costs["prompt_tokens"] + costs["completion_tokens"]
    return amounts


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
