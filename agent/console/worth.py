"""The estimated reward of each arm by kind of question, and the last portfolio with its value by size."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose
from typing import Any

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.errors import ApiError
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.console.charts import draw_chart
from armwise.agent.console.details import WEIGHTED
from armwise.agent.console.served_comparison import MOST_MORE, least_floor, say_when
from armwise.agent.policies import select_kinds
from armwise.agent.serving import Replica
from armwise.feedback.ope import intervals
from armwise.feedback.registry import runs
from armwise.feedback.training_log import rollups

NEWEST = 2000
"""Number of newest rewarded decisions on which kinds are compared."""

MOST = 12
"""Most kinds shown by name."""

OTHERS = "all others"

RUNS = 20
"""Number of newest warm starts that are searched for a portfolio."""

ROUNDING = 1e-9
"""Difference up to which two estimates are tied: the order of a sum may cause it."""

Estimate = tuple[float, intervals.Interval] | None


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question.

    Attributes:
        name: Value of the feature that defines the kind.
        n: Rewarded decisions of the kind.
        drawn: Number of draws of each arm on this kind.
        worth: Estimated mean reward of each arm on this kind.
        best: The arm whose interval is above those of all other drawn arms, if there is one.
        more: Least number of further decisions of the kind until the best arm is clear, if the estimates are
            right; None: it is clear, or takes more than can be forecast.
    """

    name: str
    n: int
    drawn: Mapping[str, float]
    worth: Mapping[str, Estimate]
    best: str | None
    more: int | None

    @property
    def doubt(self) -> str:
        """That its arms cannot be told apart, and when they may be, in words; empty: they can."""
        if self.best is not None or len(self.worth) < 2:
            return ""
        return "cannot be told apart" + (f", {say_when(self.more)}" if self.more else "")


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
    rows: Sequence[rollups.Rewarded], by: str, rewards: intervals.Interval, floor: float
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


def _kind(
    name: str, rows: Sequence[rollups.Rewarded], rewards: intervals.Interval, floor: float
) -> QuestionKind:
    sums = defaultdict[str, Counter[str]](Counter)
    for row in rows:
        sums[row.arm].update(row.sums)
    drawn = {arm: amounts["rewarded"] for arm, amounts in sums.items()}
    worth = {
        arm: intervals.from_sums(
            len(rows), *(amounts[name] for name in WEIGHTED), reach=1.0 / floor, rewards=rewards
        )
        for arm, amounts in sums.items()
    }
    return QuestionKind(name, len(rows), drawn, worth, *leader(worth, len(rows)))


def leader(worth: Mapping[str, Estimate], n: int) -> tuple[str | None, int | None]:
    """Return the arm that is significantly the best, or the least number of further decisions until one is.

    The widths of intervals fall with the square root of the number of decisions; intervals that are clipped
    to the range of rewards are wider than they appear.

    Args:
        worth: Estimated reward of each arm.
        n: Number of decisions behind the estimates.

    >>> leader({"a": (0.9, (0.8, 1.0)), "b": (0.5, (0.4, 0.6))}, 100)
    ('a', None)
    >>> leader({"a": (0.7, (0.5, 0.9)), "b": (0.5, (0.3, 0.7))}, 100)
    (None, 300)
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
    factors = [
        ((high - low + other_high - other_low) / (2.0 * (value - other))) ** 2
        for _, other, (other_low, other_high) in others
        if not isclose(other, value, abs_tol=ROUNDING)
    ]
    tied = len(factors) < len(others)
    more = inf if tied else max(1, round(n * (max(factors) - 1.0)))
    return None, int(more) if more <= MOST_MORE * n else None


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
