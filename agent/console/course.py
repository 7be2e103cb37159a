"""The log over decisions: the shares of the arms, and what changed when; charts are JSON for `console.js`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from typing import Any

import orjson

from armwise.agent.console.changes import COLOURS, list_changes
from armwise.agent.proof import Statements
from armwise.feedback.drift import newest_alarms
from armwise.feedback.log import Store, listing
from armwise.feedback.registry import arm_sets, guards, promotions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.summary import LogSums, total

MARKS = 12
"""Most changes that are shown, the newest ones."""

MOST_LEVELS = 40
"""Most stretches that a chart of shares has."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change: of the arms, of the recipe, or a drift alarm.

    Attributes:
        at: Time, seconds since the epoch.
        decision: Number of decisions by then.
        what: The change and its reason, as a sentence.
    """

    at: float
    decision: int
    what: str


def read_marks(store: Store, rule: RewardRule, sums: LogSums, *, named: bool = True) -> tuple[Mark, ...]:
    """Return the newest changes, in order; `named` as in `list_changes`. Raises LogUnavailableError."""
    live = arm_sets.history(store)
    changes = list_changes(
        live[1:],
        promotions.newest(store, MARKS),
        newest_alarms(store, MARKS, rule.join),
        guards.newest_falls(store, MARKS),
        named=named,
    )
    changes = changes[-MARKS:]
    positions = listing.positions_at(store, [at for at, _ in changes])
    found = zip(changes, positions, strict=True)
    return tuple(Mark(at, count_until(sums, position), what) for (at, what), position in found)


def count_until(sums: LogSums, position: int) -> int:
    """Return the number of decisions up to a position of the log, interpolated within a stretch."""
    whole, rest = divmod(min(position, sums.log_seq), sums.width)
    n = [sum(n for n, _ in stretch.values()) for stretch in sums.course]
    if not rest:
        return sum(n[:whole])
    length = min(sums.width, sums.log_seq - whole * sums.width)
    return sum(n[:whole]) + round(n[whole] * rest / length)


def list_shares(sums: LogSums) -> list[tuple[tuple[int, int], dict[str, float]]]:
    """Return the share of each arm in stretches of about equal size: begin and end, and shares."""
    until = [*accumulate(sum(n for n, _ in stretch.values()) for stretch in sums.course)]
    n = until[-1] if until else 0
    most, levels = min(MOST_LEVELS, max(1, round(sqrt(n) / 2.5))), []
    begin, explored = 0, dict[str, float]()
    for end, stretch in zip(until, sums.course, strict=True):
        explored = total([explored, {arm: some for arm, (_, some) in stretch.items()}])
        if end * most >= n * (1 + begin * most // max(1, n)):
            if drawn := sum(explored.values()):
                levels.append(((begin, end), {arm: some / drawn for arm, some in explored.items() if some}))
            begin, explored = end, {}
    return levels


def draw_course(
    sums: LogSums, found: Statements, marks: Sequence[Mark], numbers: Mapping[str, int]
) -> dict[str, str]:
    """Return the charts over decisions, as JSON for `console.js`; empty where there is nothing to draw.

    Args:
        sums: Has the course of the log.
        found: Has the quality beside the reference.
        marks: Changes, in order.
        numbers: Numbers of the colours of arms.
    """
    n = count_until(sums, sums.log_seq)
    rest = {"counts": "decision", "range": [0, max(1, n)], "marks": [mark.decision for mark in marks]}
    levels = list_shares(sums)
    arms = {arm for _, shares in levels for arm in shares}
    series = [
        {
            "label": arm,
            "colour": f"--c{numbers.get(arm, COLOURS - 1)}",
            "values": [round(100 * shares.get(arm, 0.0), 2) for _, shares in levels],
        }
        for arm in sorted(arms, key=lambda arm: (numbers.get(arm, COLOURS), arm))
    ]
    spans = [span for span, _ in levels]
    shares = draw_levels(spans, series, unit="%", stacked=True, **rest) if levels else ""
    return {"shares": shares, "quality": _draw_quality(sums, found, rest)}


def _draw_quality(sums: LogSums, found: Statements, rest: Mapping[str, object]) -> str:
    """Return the chart of quality beside the reference; its first intervals may exceed its range."""
    points = [(count_until(sums, position), ends) for position, ends in found.course]
    if len(points) < 2:
        return ""
    later = [end for _, ends in points[len(points) // 2 :] for end in ends]
    low, high = min(0.0, *later), max(0.0, *later)
    margin = 0.05 * (high - low) or 1.0
    value, least, most = zip(*(ends for _, ends in points), strict=True)
    series: list[dict[str, Any]] = [
        {"label": "what was served", "colour": "--ink", "values": value, "low": least, "high": most},
        {
            "label": f"always {found.reference}",
            "colour": "--grey",
            "dashed": True,
            "values": [0.0] * len(points),
        },
    ]
    bounds = [low - margin, high + margin]
    return draw_chart([at for at, _ in points], series, unit="points", bounds=bounds, **rest)


def draw_chart(x: Sequence[float], series: Sequence[Mapping[str, Any]], **rest: Any) -> str:
    """Return a chart as JSON for `console.js`: each series is as long as `x`."""
    return orjson.dumps({"x": x, "series": series, **rest}).decode()


def draw_levels(
    spans: Sequence[tuple[float, float]], series: Sequence[Mapping[str, Any]], **rest: Any
) -> str:
    """Return a chart of levels as JSON for `console.js`: each holds from begin to end, a gap is left between.

    A level is a mean of its span: a line from one to the next would show values that were never measured.

    Args:
        spans: Begin and end of each level, in order.
        series: Series with a value for each span.
        rest: Further fields of the chart.
    """
    x: list[float] = []
    levels: list[int | None] = []
    for number, (begin, end) in enumerate(spans):
        x.append(begin)
        levels.append(number)
        if number + 1 == len(spans):
            x.append(end)
            levels.append(number)
        elif end < spans[number + 1][0]:
            x += [end, (end + spans[number + 1][0]) / 2]
            levels += [number, None]
    drawn = [
        {**one, "values": [None if level is None else one["values"][level] for level in levels]}
        for one in series
    ]
    return draw_chart(x, drawn, levels=True, **rest)
