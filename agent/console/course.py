"""The log over decisions: the shares of the arms, and what changed when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from armwise.agent.console.charts import draw_chart, draw_levels
from armwise.agent.console.savings import BaselineComparison
from armwise.agent.console.served_comparison import COLOURS, list_changes
from armwise.feedback.drift import newest_alarms
from armwise.feedback.log import Store, listing
from armwise.feedback.registry import arm_sets, promotions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import rollups

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


class Course:
    """The decisions of a log, from the sums by position.

    Args:
        rows: The sums; the slot of a row is the first position of its stretch.
        last: Position of the last decision.

    Attributes:
        n: Number of decisions.
        total: Sums of all of them, by column of the rollups.
    """

    def __init__(self, rows: rollups.Sums, last: int) -> None:
        self._rows = rows
        self._starts, self._index = np.unique(rows.slot, return_inverse=True)
        widths = np.array([rollups.find_stretch(int(start))[1] for start in self._starts], dtype=np.int64)
        self._widths = np.minimum(widths, np.maximum(1, last + 1 - self._starts))
        counted = np.bincount(self._index, rows.columns["decisions"], len(self._starts))
        self._until = np.cumsum(counted).astype(np.int64)
        self.n = int(self._until[-1]) if len(self._until) else 0
        self.total = rows.total()

    def decisions_until(self, position: int) -> int:
        """Return the number of decisions up to a position, interpolated within a stretch."""
        at = int(np.searchsorted(self._starts, position, side="right")) - 1
        if at < 0:
            return 0
        before = int(self._until[at - 1]) if at else 0
        share = min(1.0, (position - int(self._starts[at]) + 1) / int(self._widths[at]))
        return before + round((int(self._until[at]) - before) * share)

    def shares(self) -> list[tuple[tuple[int, int], dict[str, float]]]:
        """Return the share of each arm in stretches of about equal size: begin and end, and shares."""
        most = min(MOST_LEVELS, max(1, round(sqrt(self.n) / 2.5)))
        middles = self._until - np.diff(self._until, prepend=0) / 2
        of_start = np.minimum((middles * most / max(1, self.n)).astype(np.int64), most - 1)
        begin, levels = 0, []
        for number in np.unique(of_start).tolist():
            end = int(self._until[of_start == number][-1])
            here, explored = of_start[self._index] == number, self._rows.columns["explored"]
            counts = {
                arm: float(explored[here & (self._rows.arm == arm)].sum())
                for arm in set(self._rows.arm[here])
            }
            if total := sum(counts.values()):
                levels.append(((begin, end), {arm: n / total for arm, n in counts.items() if n}))
            begin = end
        return levels


def read_course(store: Store, rule: RewardRule) -> tuple[Course, tuple[Mark, ...]]:
    """Return the course of a log and what changed. Raises LogUnavailableError."""
    live = arm_sets.history(store)
    changes = list_changes(live[1:], promotions.newest(store, MARKS), newest_alarms(store, MARKS, rule.join))
    changes = changes[-MARKS:]
    *positions, last = listing.positions_at(store, [*(at for at, _ in changes), np.inf])
    course = Course(rollups.by_position(store), last)
    found = zip(changes, positions, strict=True)
    return course, tuple(Mark(at, course.decisions_until(position), what) for (at, what), position in found)


def draw_course(
    course: Course, comparison: BaselineComparison, marks: Sequence[Mark], numbers: Mapping[str, int]
) -> dict[str, str]:
    """Return the charts over decisions, as JSON for `console.js`; empty where there is nothing to draw.

    Args:
        course: The log.
        comparison: Has the quality compared with the baseline.
        marks: Changes, in order.
        numbers: Numbers of the colours of arms.
    """
    rest = {"counts": "decision", "range": [0, max(1, course.n)], "marks": [mark.decision for mark in marks]}
    levels = course.shares()
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
    return {"shares": shares, "quality": _draw_quality(course, comparison, rest)}


def _draw_quality(course: Course, comparison: BaselineComparison, rest: Mapping[str, object]) -> str:
    """Return the chart of quality compared with the baseline; its first intervals may exceed its range."""
    scale = comparison.points(comparison.span[0] + 1.0)
    points = [
        (course.decisions_until(position), [scale * end for end in ends])
        for position, ends in comparison.course
    ]
    if len(points) < 2:
        return ""
    later = [end for _, ends in points[len(points) // 2 :] for end in ends]
    low, high = min(0.0, *later), max(0.0, *later)
    margin = 0.05 * (high - low) or 1.0
    value, least, most = zip(*(ends for _, ends in points), strict=True)
    series: list[dict[str, Any]] = [
        {"label": "what was served", "colour": "--ink", "values": value, "low": least, "high": most},
        {
            "label": f"always {comparison.baseline}",
            "colour": "--grey",
            "dashed": True,
            "values": [0.0] * len(points),
        },
    ]
    bounds = [low - margin, high + margin]
    return draw_chart([at for at, _ in points], series, unit="points", bounds=bounds, **rest)
