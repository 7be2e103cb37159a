"""The panel "Is it learning?": the served reward and its alternatives over time, and shares by kind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.console.charts import band, draw_chart
from armwise.agent.console.page import COLOURS, colours
from armwise.agent.console.served_comparison import (
    LearningCurve,
    ServedComparison,
    least_floor,
    read_curve,
    shares_by_kind,
    summarise_served,
)
from armwise.agent.serving import DecisionPoint
from armwise.feedback.training_log import raters, rollups

DAY = 86_400
"""Seconds."""

NEWEST = 1000
"""Number of newest explored decisions whose kinds are counted."""


def panel(point: DecisionPoint, caller: Caller) -> dict[str, Any]:
    """Read the values of the panel for a caller from the log."""
    config = point.config
    curve = read_curve(
        point.store,
        config.reward,
        least_floor(point.store, config),
        point.versions.configured.digest,
        ranks=point.ranks,
    )
    reads = "read" in caller.scopes
    colour_numbers = colours(point)
    if reads:
        criteria = decisions.build_filter(point, caller, DecisionQuery())
        feature, kinds = shares_by_kind(
            [(draw.arm, draw.features) for draw in rollups.newest_draws(point.store, NEWEST, criteria)]
        )
    else:
        feature, kinds = "", []
    marks = curve.marks if reads else ()
    whole = curve.whole
    compared = max((arm.n for arm in whole.arms), default=0)
    now, n_arms = int(point.service.clock()), max(1, len(config.actions))
    today = rollups.read(point.store, (now - DAY) // rollups.HOUR * rollups.HOUR, now + 1, rollups.HOUR)
    counts = raters.newest_counts(point.store, config.reward.join) if reads and caller.sees_all else ()
    return {
        "sentence": summarise_served(whole),
        "exploration": explain_exploration(
            whole, config.explores.among(n_arms) * n_arms, int(today.total()["explored"])
        ),
        "whole": whole,
        "compared": compared if compared < whole.rewarded else None,
        "marks": marks,
        "promise": curve.promise,
        "kinds": kinds,
        "feature": feature,
        "raters": counts,
        "rated": sum(count.rated for count in counts),
        "left_out": sum(count.left_out for count in counts),
        "rater_share": config.reward.rater_share,
        "arms": _in_order({arm for kind in kinds for arm in kind.shares}, colour_numbers),
        "charts": charts(curve, [mark.decision for mark in marks], colour_numbers),
    }


def explain_exploration(whole: ServedComparison, share: float, per_day: int) -> str | None:
    """Return what drawing all arms alike costs, in a sentence; None where it is unknown or there is one arm.

    Args:
        whole: What was served beside a uniform choice.
        share: Share of the draws that all arms have alike, in (0, 1].
        per_day: Explored decisions of the last 24 hours.

    What is served earns v = (1 - share) p + share u with the policy's choice p and a uniform one u. So the
    share costs share (p - u) = share (v - u) / (1 - share).
    """
    if whole.uniform is None or share >= 1.0:
        return None
    cost = share * whole.uniform.lead / (1.0 - share)
    said = f"All arms alike have {100 * share:.3g} % of the draws: "
    if cost <= 0.0:
        return said + "what that costs is not distinguished from nothing so far."
    return said + f"that costs {cost:.2g} a decision, {cost * per_day:.2g} in the last 24 hours."


def charts(curve: LearningCurve, marks: Sequence[int], known: Mapping[str, int]) -> dict[str, str]:
    """Return the charts over decisions, as JSON for `console.js`.

    The range of the chart of rewards covers all estimates, and the intervals of the served reward; wide
    intervals of rarely drawn arms may exceed it.

    Args:
        curve: The learning curve.
        marks: Decisions at which something changed, in order.
        known: Numbers of the colours of arms.
    """
    rewarded = [stretch for stretch in curve.stretches if stretch.served]
    drawn = [stretch for stretch in curve.stretches if stretch.shares]
    whole = curve.whole
    rest = {"counts": "decision", "range": [0, max(1, whole.decisions)], "marks": marks}
    series = [band("what was served", "--ink", [stretch.served for stretch in rewarded])]
    if whole.uniform is not None:
        series.append(band("a uniform choice", "--grey", [stretch.uniform for stretch in rewarded]))
    if whole.best is not None and whole.best.name is not None:
        name = whole.best.name
        series.append(band(f"always {name}", _colour(known, name), [stretch.best for stretch in rewarded]))
    if curve.promise is not None:
        promise, last = curve.promise, rewarded[-1:]
        values = [
            promise.value if stretch.end > promise.decision or [stretch] == last else None
            for stretch in rewarded
        ]
        about = {"label": "expected by the warm start", "colour": "--good", "dashed": True}
        series.append({**about, "values": values})
    shares = [
        {
            "label": arm,
            "colour": _colour(known, arm),
            "values": [round(100 * stretch.shares.get(arm, 0.0), 2) for stretch in drawn],
        }
        for arm in _in_order({arm for stretch in drawn for arm in stretch.shares}, known)
    ]
    levels = [value for line in series for value in line["values"] if value is not None]
    ends = [end for stretch in rewarded if stretch.served for end in stretch.served[1]]
    low, high = min([*levels, *ends], default=0.0), max([*levels, *ends], default=1.0)
    margin = 0.05 * (high - low) or 0.05
    bounds = [low - margin, high + margin]
    return {
        "rewards": draw_chart(
            [stretch.middle for stretch in rewarded], series, unit="reward", bounds=bounds, **rest
        ),
        "shares": draw_chart([stretch.middle for stretch in drawn], shares, unit="%", stacked=True, **rest),
    }


def _in_order(arms: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    return sorted(arms, key=lambda arm: (numbers.get(arm, COLOURS), arm))


def _colour(numbers: Mapping[str, int], arm: str) -> str:
    return f"--c{numbers.get(arm, COLOURS - 1)}"
