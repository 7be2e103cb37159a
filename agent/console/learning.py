"""The panel "Is it learning?": the served reward and its alternatives over time, and shares by kind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from armwise.agent.access import Caller
from armwise.agent.api import decisions
from armwise.agent.api.schemas import DecisionQuery
from armwise.agent.console.charts import band, draw_chart, draw_levels
from armwise.agent.console.served_comparison import (
    COLOURS,
    LearningCurve,
    ServedComparison,
    least_floor,
    name_alternative,
    number_colours,
    read_curve,
    shares_by_kind,
    summarise_served,
)
from armwise.agent.reporting import write_dollars, write_number
from armwise.agent.serving import Replica
from armwise.feedback.training_log import raters, rollups

DAY = 86_400
"""Seconds."""

NEWEST = 1000
"""Number of newest explored decisions whose kinds are counted."""


def panel(replica: Replica, caller: Caller) -> dict[str, Any]:
    """Read the values of the panel for a caller from the log."""
    config = replica.config
    curve = read_curve(
        replica.store, config.reward, least_floor(replica.store, config), replica.versions.configured.digest
    )
    reads = "read" in caller.scopes
    colour_numbers = number_colours(replica.store)
    if reads:
        criteria = decisions.build_filter(caller, DecisionQuery())
        feature, kinds = shares_by_kind(
            [(draw.arm, draw.features) for draw in rollups.newest_draws(replica.store, NEWEST, criteria)]
        )
    else:
        feature, kinds = "", []
    marks = curve.marks if reads else ()
    whole = curve.whole
    compared = max((arm.n for arm in whole.arms), default=0)
    now, n_arms = int(replica.clock()), max(1, len(config.actions))
    today = rollups.read(replica.store, (now - DAY) // rollups.HOUR * rollups.HOUR, now + 1, rollups.HOUR)
    counts = raters.newest_counts(replica.store, config.reward.join) if reads and caller.sees_all else ()
    return {
        "sentence": summarise_served(whole),
        "exploration": explain_exploration(
            whole,
            config.explores.among(n_arms) * n_arms,
            int(today.total()["explored"]),
            price_uniform(today, list(config.actions)),
        ),
        "whole": whole,
        "compared": compared if compared < whole.rewarded else None,
        "marks": marks,
        "promise": curve.promise,
        "beside": name_alternative(whole.compared) if whole.compared else None,
        "kinds": kinds,
        "feature": feature,
        "raters": counts,
        "rated": sum(count.rated for count in counts),
        "left_out": sum(count.left_out for count in counts),
        "rater_share": config.reward.rater_share,
        "arms": _in_order({arm for kind in kinds for arm in kind.shares}, colour_numbers),
        "charts": charts(curve, [mark.decision for mark in marks], colour_numbers),
    }


def price_uniform(day: rollups.Sums, arms: Sequence[str]) -> float | None:
    """Return the dollars of an answer if all arms are drawn alike, minus those of one that was served.

    Args:
        day: Sums by arm.
        arms: The live arms.

    Returns:
        The difference, negative if the served arms are dearer; None: no dollars were charged, or an arm
        has no answer.
    """
    spent, finished = (
        {arm: float(day.columns[name][day.arm == arm].sum()) for arm in arms} for name in ("usd", "finished")
    )
    if not sum(spent.values()) or not all(finished.values()):
        return None
    alike = sum(spent[arm] / finished[arm] for arm in arms) / len(arms)
    return alike - sum(spent.values()) / sum(finished.values())


def explain_exploration(
    whole: ServedComparison, share: float, per_day: int, usd: float | None = None
) -> str | None:
    """Return what drawing all arms alike costs, in words; None where it is unknown or there is one arm.

    Args:
        whole: What was served beside a uniform choice.
        share: Share of the draws that all arms have alike, in (0, 1].
        per_day: Explored decisions of the last 24 hours.
        usd: Dollars of an answer of a uniform choice, minus those of one that was served, if they are known.

    What is served earns v = (1 - share) p + share u with the policy's choice p and a uniform one u. So the
    share costs share (p - u) = share (v - u) / (1 - share), and dollars likewise.
    """
    uniform = whole.uniform
    if uniform is None or share >= 1.0:
        return None
    rate = share / (1.0 - share)
    low, high = (1000 * rate * max(0.0, end) for end in (uniform.low, uniform.high))
    said = f"Exploration draws all arms alike for {write_number(100 * share)} % of the decisions."
    if uniform.low > 0.0:
        each, ends = 1000 * rate * uniform.lead, f"{write_number(low)} to {write_number(high)}"
        said += f" That gives up a reward of {write_number(each)} ({ends}) per 1,000 decisions,"
        said += f" {write_number(each * per_day / 1000)} in the last 24 hours."
    else:
        said += " What reward that gives up cannot be told apart from nothing so far:"
        said += f" at most {write_number(high)} per 1,000 decisions."
    if usd is not None:
        extra, verb = rate * abs(usd), "saves" if usd < 0.0 else "costs"
        said += f" It {verb} {write_dollars(1000 * extra)} per 1,000 answers,"
        said += f" {write_dollars(extra * per_day)} in the last 24 hours."
    return said


def charts(curve: LearningCurve, marks: Sequence[int], known: Mapping[str, int]) -> dict[str, str]:
    """Return the charts over decisions, as JSON for `console.js`; that of the lead needs two points.

    The range of the chart of the lead covers its intervals from the first third on, and 0; the wide ones of
    the first decisions may exceed it.

    Args:
        curve: The learning curve.
        marks: Decisions at which something changed, in order.
        known: Numbers of the colours of arms.
    """
    known_leads = [stretch for stretch in curve.stretches if stretch.lead]
    drawn = [stretch for stretch in curve.stretches if stretch.shares]
    whole = curve.whole
    rest = {"counts": "decision", "range": [0, max(1, whole.decisions)], "marks": marks}
    beside = whole.compared
    series = [band("what was served", "--ink", [stretch.lead for stretch in known_leads])]
    if beside is not None:
        colour = "--grey" if beside.name is None else _colour(known, beside.name)
        level = {"label": name_alternative(beside), "colour": colour, "dashed": True}
        series.append({**level, "values": [0.0] * len(known_leads)})
    shares = [
        {
            "label": arm,
            "colour": _colour(known, arm),
            "values": [round(100 * stretch.shares.get(arm, 0.0), 2) for stretch in drawn],
        }
        for arm in _in_order({arm for stretch in drawn for arm in stretch.shares}, known)
    ]
    # the first intervals are far wider than the rest, and would flatten the line
    later = known_leads[len(known_leads) // 3 :]
    settled = [end for stretch in later if stretch.lead is not None for end in stretch.lead[1]]
    low, high = min([0.0, *settled]), max([0.0, *settled])
    margin = 0.05 * (high - low) or 0.05
    return {
        "lead": draw_chart(
            [stretch.end for stretch in known_leads],
            series,
            unit="reward",
            bounds=[low - margin, high + margin],
            **rest,
        )
        if len(known_leads) > 1
        else "",
        "shares": draw_levels(
            [(stretch.begin, stretch.end) for stretch in drawn], shares, unit="%", stacked=True, **rest
        ),
    }


def _in_order(arms: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    return sorted(arms, key=lambda arm: (numbers.get(arm, COLOURS), arm))


def _colour(numbers: Mapping[str, int], arm: str) -> str:
    return f"--c{numbers.get(arm, COLOURS - 1)}"
