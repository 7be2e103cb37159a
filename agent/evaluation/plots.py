"""The plots of an evaluation, as SVG for the HTML report."""

from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from agent.evaluation.candidate_names import BASELINE
from agent.evaluation.report import Report
from agent.evaluation.results import CandidateResult, Interval
from agent.reporting import GREY, GRID, INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8
"""Candidates in one plot at most."""

MOST_PANELS = 12
"""Candidates whose weights are plotted at most."""

OTHERS = "others"


def short(name: str, most: int = 30) -> str:
    """Truncate a name that is too long for a plot.

    >>> short("policy:{kind: linucb}", 12)
    'policy:{kin…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def values(report: Report) -> "Figure":
    """Draw the value of each candidate by each estimator, and the difference to the baseline."""
    shown = [one for one in report.candidates if one.headline is not None]
    names = list(dict.fromkeys(estimate.estimator for one in shown for estimate in one.estimates))
    figure = _figure(0.7 + sum(0.24 + 0.13 * len(one.estimates) for one in shown))
    value, difference = figure.subplots(1, 2, sharey=True)
    colours = dict(zip(names, _repeated(len(names)), strict=True))
    step = 0.7 / max(1, len(names))
    for place, one in enumerate(shown):
        for number, estimate in enumerate(one.estimates):
            at = place + (number - (len(one.estimates) - 1) / 2) * step
            style = "-" if estimate.covers else ":"
            _interval(value, at, estimate.value, colours[estimate.estimator], style, estimate.estimator)
            _interval(difference, at, estimate.difference, colours[estimate.estimator], style)
    value.axvline(report.earned, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    difference.axvline(0.0, color=GREY, linestyle=":", linewidth=1.2, zorder=0)
    value.set_title("Mean reward of a decision", loc="left", fontsize=10, color=INK)
    difference.set_title(f"Gain over {short(report.request.baseline)}", loc="left", fontsize=10, color=INK)
    value.set_yticks(range(len(shown)), [short(one.name) for one in shown])
    value.set_ylim(len(shown) - 0.5, -0.5)
    for axes in (value, difference):
        _plain(axes, "x")
    handles, labels = value.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(),
        unique,
        loc="outside lower center",
        ncols=6,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    return figure


def over_time(report: Report) -> "Figure":
    """Draw the value of the candidates along the log."""
    figure = _figure(3.6)
    axes: Any = figure.subplots()
    dated = report.last_at > report.first_at
    for number, one in enumerate(_foremost(report, MOST_LINES)):
        ends = accumulate(stretch.rows for stretch in one.over_time)
        points = [
            (
                datetime.fromtimestamp((stretch.since + stretch.until) / 2, UTC) if dated else end,
                stretch.value,
            )
            for end, stretch in zip(ends, one.over_time, strict=True)
            if stretch.value is not None
        ]
        along, found = zip(*points, strict=True) if points else ((), ())
        style = (
            {"color": PALETTE[number - 1], "linewidth": 1.4} if number else {"color": INK, "linewidth": 2.4}
        )
        axes.plot(along, found, marker=".", label=short(one.name), **style)
    axes.set_xlabel("When it was decided, UTC" if dated else "Decisions", color=INK, fontsize=9)
    axes.set_ylabel("Mean reward, self-normalised", color=INK, fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelcolor=INK)
    _plain(axes, "y")
    return figure


def evidence(report: Report) -> "Figure":
    """Draw the estimated gain and its lower bound along the log."""
    figure = _figure(3.2)
    axes: Any = figure.subplots()
    trails = [(one.name, trail) for one in report.candidates if (trail := trail_of(one))]
    for number, (name, trail) in enumerate(trails[:MOST_LINES]):
        rows, colour = [point["n"] for point in trail], PALETTE[number % len(PALETTE)]
        axes.plot(rows, [point["low"] for point in trail], color=colour, linewidth=1.8, label=short(name))
        axes.plot(rows, [point["gain"] for point in trail], color=colour, linewidth=0.9, linestyle="--")
    margin = next(
        one.verdict["figures"]["margin"] for one in report.candidates if trail_of(one) and one.verdict
    )
    axes.axhline(margin, color=GREY, linestyle=":", linewidth=1.2)
    # The first bounds are far below all others, and would hide them.
    settled = [point["low"] for _, trail in trails for point in trail[len(trail) // 5 :]]
    ends = [point["gain"] for _, trail in trails for point in trail[-1:]]
    axes.set_ylim(min(*settled, *ends, margin) - 0.05, max(*ends, margin) + 0.15)
    axes.set_xlabel("Decisions", color=INK, fontsize=9)
    axes.set_ylabel(f"Gain over {short(BASELINE)}: estimated (dashed), proved", color=INK, fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelcolor=INK)
    _plain(axes, "y")
    return figure


def trail_of(one: CandidateResult) -> list[dict[str, float]]:
    """Return the trail of the gate; empty without a verdict or without decisions."""
    return [] if one.verdict is None else list(one.verdict.get("trail", []))


def shares(report: Report) -> "Figure":
    """Draw how often each arm was drawn, and how often each candidate would draw it."""
    rows = {"drawn": report.drawn, **{one.name: one.shares for one in report.candidates if one.shares}}
    arms = sorted(report.drawn, key=lambda arm: -max(row.get(arm, 0.0) for row in rows.values()))
    first = arms if len(arms) <= len(PALETTE) else arms[: len(PALETTE) - 1]
    colours = dict(zip([arm for arm in report.drawn if arm in first], PALETTE, strict=False))
    figure = _figure(0.9 + 0.34 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows.values()):
        left = 0.0
        for arm, colour in colours.items():
            axes.barh(place, row.get(arm, 0.0), 0.7, left=left, color=colour)
            left += row.get(arm, 0.0)
        if left < 1.0 - 1e-9 and len(first) < len(arms):
            axes.barh(place, 1.0 - left, 0.7, left=left, color=GREY)
    axes.set_yticks(range(len(rows)), [short(name) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter("{x:.0%}")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=short(arm, 20)) for arm, colour in colours.items()]
    if len(first) < len(arms):
        handles.append(Patch(color=GREY, label=OTHERS))
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    _plain(axes, "x")
    return figure


def weights(report: Report) -> "Figure":
    """Draw the weights of rows, for each candidate other than the baseline."""
    shown = [one for one in report.candidates if one.weights and one.name != report.request.baseline]
    shown = shown[:MOST_PANELS]
    columns = min(3, max(1, len(shown)))
    lines = max(1, -(-len(shown) // columns))
    figure = _figure(0.4 + 1.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, one in zip(panels, shown, strict=False):
        assert one.weights is not None
        counts = one.weights.counts
        total = sum(counts)
        axes.bar(range(len(counts)), [count / total for count in counts], 0.9, color=PALETTE[0])
        every = -(-len(counts) // 6)
        labels = ["0", *(f"{edge:g}" for edge in one.weights.edges[1:])]
        axes.set_xticks(range(0, len(counts), every), labels[::every])
        axes.yaxis.set_major_formatter("{x:.0%}")
        axes.set_title(short(one.name), loc="left", fontsize=9, color=INK)
        _plain(axes, "y")
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    return figure


def _foremost(report: Report, most: int) -> list[CandidateResult]:
    """Return the baseline and those candidates that look best, in their order."""
    baseline, *others = report.candidates
    best = sorted(others, key=lambda one: -_headline_value(one))[: most - 1]
    return [baseline, *(one for one in others if one in best)]


def _headline_value(one: CandidateResult) -> float:
    headline = one.headline
    return headline.value.value if headline is not None and headline.value is not None else float("-inf")


def _repeated(n: int) -> list[str]:
    return [PALETTE[number % len(PALETTE)] for number in range(n)]


def _interval(
    axes: Any, at: float, found: Interval | None, colour: str, style: str, label: str | None = None
) -> None:
    if found is not None:
        axes.hlines(at, found.low, found.high, color=colour, linewidth=1.6, linestyle=style)
        axes.plot(found.value, at, "o", color=colour, markersize=4, label=label)


def _figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(9.0, max(1.6, height)), layout="constrained")


def _plain(axes: Any, grid: str) -> None:
    """Remove frame lines and add a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8, color=GREY)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
