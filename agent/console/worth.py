"""The estimated reward of each arm by kind of question, and the last portfolio with its value by size."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.errors import ApiError
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.console.charts import draw_chart
from armwise.agent.console.served_comparison import ERROR, Estimate, estimate_value, least_floor, say_when
from armwise.agent.policies import select_kinds
from armwise.agent.serving import Replica
from armwise.feedback.ope import Interval
from armwise.feedback.ope.confidence_sequences import Evidence
from armwise.feedback.ope.intervals import Further, forecast_more
from armwise.feedback.registry import runs
from armwise.feedback.training_log import rollups

NEWEST = 2000
"""Number of newest rewarded decisions on which kinds are compared."""

MOST = 12
"""Most kinds shown by name."""

OTHERS = "all others"

RUNS = 20
"""Number of newest warm starts that are searched for a portfolio."""


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question.

    Attributes:
        name: Value of the feature that defines the kind.
        n: Rewarded decisions of the kind.
        drawn: Number of draws of each arm on this kind.
        worth: Estimated mean reward of each arm on this kind.
        best: The arm whose interval is above those of all other drawn arms, if there is one.
        more: Least and most further decisions of the kind until the best arm is clear; None: it is, or takes
            more than can be forecast.
    """

    name: str
    n: int
    drawn: Mapping[str, int]
    worth: Mapping[str, Estimate]
    best: str | None
    more: Further | None

    @property
    def doubt(self) -> str:
        """That its arms cannot be told apart, and when they may be, in words; empty: they can."""
        if self.best is not None or len(self.worth) < 2:
            return ""
        return f"cannot be told apart{say_when(self.more)}"


def by_kind(replica: Replica, caller: Caller, by: str | None) -> dict[str, Any]:
    """Read the kinds by a feature from the log, on the decisions that a caller may see.

    Raises:
        ApiError: No question has this feature.
    """
    criteria = decisions.build_filter(caller, DecisionQuery())
    rows = rollups.newest_rewards(replica.store, replica.config.reward, NEWEST, criteria)
    frequencies = Counter(head for row in rows for head in {head for head, _ in select_kinds(row.features)})
    families = [head for head, _ in frequencies.most_common()]
    if by and by not in frequencies:
        there = ", ".join(families) or "none"
        raise ApiError("invalid_value", f"no question has a feature {by!r}=...; there are: {there}", "by")
    by = by or next(iter(families), None)
    kinds = (
        group_questions(
            rows, by, replica.config.reward.reward_range, least_floor(replica.store, replica.config)
        )
        if by
        else []
    )
    return {"rewarded": len(rows), "families": families, "by": by, "kinds": kinds}


def group_questions(
    rows: Sequence[rollups.Rewarded], by: str, rewards: Interval, floor: float
) -> list[QuestionKind]:
    """Return the kinds of rewarded decisions by a feature, the most frequent first.

    Args:
        rows: The decisions.
        by: The feature.
        rewards: Smallest and largest possible reward.
        floor: Least probability of an eligible arm.
    """
    named = [([value for head, value in select_kinds(row.features) if head == by], row) for row in rows]
    frequent_names = [
        name for name, _ in Counter(name for names, _ in named for name in names).most_common(MOST)
    ]
    members = defaultdict[str, list[rollups.Rewarded]](list)
    for names, row in named:
        for name in {name if name in frequent_names else OTHERS for name in names or (OTHERS,)}:
            members[name].append(row)
    return [_kind(name, members[name], rewards, floor) for name in (*frequent_names, OTHERS) if members[name]]


def _kind(name: str, rows: Sequence[rollups.Rewarded], rewards: Interval, floor: float) -> QuestionKind:
    drawn = Counter(row.arm for row in rows)
    worth: dict[str, Estimate] = {}
    for arm in drawn:
        of_arm = [row for row in rows if arm in row.arms]
        weight = np.array([1.0 / row.propensity if row.arm == arm else 0.0 for row in of_arm])
        reward = np.clip([row.reward for row in of_arm], *rewards)
        evidence = Evidence(weight, reward, rewards, reach=np.maximum(weight, 1.0 / floor))
        worth[arm] = estimate_value(evidence, ERROR / len(drawn))
    return QuestionKind(name, len(rows), drawn, worth, *leader(worth, len(rows)))


def leader(worth: Mapping[str, Estimate], n: int) -> tuple[str | None, Further | None]:
    """Return the arm that is significantly the best, or how many further decisions it takes until one is.

    Args:
        worth: Estimated reward of each arm.
        n: Number of decisions behind the estimates.

    >>> leader({"a": (0.9, (0.8, 1.0)), "b": (0.5, (0.4, 0.6))}, 100)
    ('a', None)
    >>> leader({"a": (0.7, (0.5, 0.9)), "b": (0.5, (0.3, 0.7))}, 100)
    (None, (61, None))
    """
    ranked = sorted(
        ((arm, *estimate) for arm, estimate in worth.items() if estimate),
        key=lambda row: row[1],
        reverse=True,
    )
    if len(ranked) < 2:
        return None, None
    (first, value, (low, high)), others = ranked[0], ranked[1:]
    if all(low > other_high for _, _, (_, other_high) in others):
        return first, None
    forecasts = [
        forecast_more(value - other, (high - low + other_high - other_low) / 2.0, n)
        for _, other, (other_low, other_high) in others
        if low <= other_high
    ]
    known = [more for more in forecasts if more is not None]
    return None, max(known, key=lambda more: more[0]) if len(known) == len(forecasts) else None


def portfolio(replica: Replica) -> dict[str, Any] | None:
    """Read the last portfolio that a warm start chose from the log, with its curve."""
    for run in runs.page(replica.store, RUNS):
        for step in run.steps:
            if step["name"] == "portfolio" and step["found"]:
                return {**step["found"], "run": run.seq, "at": step["at"], "chart": curve(step["found"])}
    return None


def curve(found: Mapping[str, Any]) -> str | None:
    """Return the chart of a portfolio's value by its size, if the run stored it."""
    if "curve" not in found:
        return None
    values = found["curve"]
    series = [
        {"label": "the portfolio", "colour": "--ink", "values": values["portfolio"]},
        {"label": "arms with the largest means", "colour": "--grey", "values": values["average"]},
        {
            "label": "the best single arm",
            "colour": "--grey",
            "dashed": True,
            "values": [found["single"]] * len(values["portfolio"]),
        },
    ]
    return draw_chart([*range(1, len(values["portfolio"]) + 1)], series, unit=found["measure"], counts="arms")
