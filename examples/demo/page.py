"""The page of a demo: one file that needs nothing else, made of what is on record, with its pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from armwise.agent.evaluation import CandidateKind
from armwise.agent.reporting import GREY, GRID, INK, PALETTE, draw_svg, filled
from examples.demo.record import Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

ACROSS = 4
"""Candidates that are drawn side by side at most."""

WINDOW = 200
"""Questions that a moving average of rewards is over."""

SMOOTHED = 25
"""Questions of a kind that one of shares is over."""


def page(story: Story) -> str:
    """Return a story as HTML."""
    pictures = {
        "rewards": draw_svg(story, rewards, "Mean reward over time, by kind of question"),
        "shares": draw_svg(story, shares, "Arm shares over time, by kind of question"),
    }
    if story.trails:
        pictures["evidence"] = draw_svg(story, evidence, "Evidence for each candidate over time")
    tables = {
        f"{kind}, {when}": (story.worth(when, kind), story.oracle(when, kind))
        for when, kinds in story.truth.items()
        for kind in kinds
    }
    when, first_kinds = next(iter(story.truth.items()))  # the report is about what was asked at first
    return filled(
        Path(__file__).parent / "templates" / "demo.html",
        pictures,
        story=story,
        summary=summary(story),
        tables=tables,
        forced={
            f"{CandidateKind.FIXED}:{arm}": value for arm, value in story.worth(when, *first_kinds).items()
        },
    )


def summary(story: Story) -> str:
    """Say what came of it, in a few sentences."""
    missed = [chapter.title for chapter in story.chapters if not chapter.succeeded]
    promoted = sum(mark.label.endswith("promoted") for mark in story.marks)
    summary = (
        f"{len(story.turns):,} questions in {story.took_s / 60:.1f} minutes. {promoted} of "
        f"{len(story.trails)} candidates that the gate judged went live. "
    )
    return summary + (
        f"Not all came about: {', '.join(missed)}." if missed else "All that the story is about has happened."
    )


def moving_average(values: Floats, window: int) -> Floats:
    """Return the mean of each value and the `window - 1` before it, or of as many as there are.

    Args:
        values: Shape (n,) or (n, d); averaged along the first axis.
        window: At least 1.

    >>> moving_average(np.array([0.0, 1.0, 1.0, 4.0]), 2).tolist()
    [0.0, 0.5, 1.0, 2.5]
    """
    total = np.cumsum(np.concatenate([np.zeros_like(values[:1]), values]), axis=0)
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - window)
    mean: Floats = ((total[end] - total[start]).T / (end - start)).T
    return mean


def rewards(story: Story) -> "Figure":
    """Draw what a question earned, all together and by kind."""
    figure, axes = _figure(3.8)
    for number, kind in enumerate((None, *story.kinds)):
        turns = [turn for turn in story.turns if kind in (None, turn.group)]
        earned = np.array([turn.reward for turn in turns], dtype=np.float64)
        window = WINDOW if kind is None else WINDOW // 2
        begun = min(window // 4, len(earned) - 1)  # the mean of a few rewards is noise
        at = np.array([turn.position + 1 for turn in turns])
        axes.plot(
            at[begun:],
            moving_average(earned, window)[begun:],
            color=INK if kind is None else PALETTE[(len(story.arms) + number - 1) % len(PALETTE)],
            linewidth=2.2 if kind is None else 1.3,
            label="all questions" if kind is None else f"{kind} questions",
        )
    axes.set_ylabel(f"Reward, mean of the last {WINDOW}", color=INK, fontsize=9)
    _marks(axes, story)
    _finish(axes, story)
    return figure


def shares(story: Story) -> "Figure":
    """Draw with which probability each arm was drawn, a panel for each kind of question."""
    from matplotlib.figure import Figure

    kinds = story.kinds
    figure = Figure(figsize=(10, 1.2 + 1.9 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), 1, squeeze=False, sharex=True).ravel()
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(story.arms))]
    for axes, kind in zip(panels, kinds, strict=True):
        turns = [turn for turn in story.turns if turn.group == kind]
        pmf = np.array([[turn.pmf.get(arm, 0.0) for arm in story.arms] for turn in turns])
        at = [turn.position + 1 for turn in turns]
        axes.stackplot(at, moving_average(pmf, SMOOTHED).T, colors=colours, labels=story.arms, linewidth=0)
        axes.set_ylim(0.0, 1.0)
        axes.yaxis.set_major_formatter("{x:.0%}")
        axes.set_ylabel(f"{kind} questions", color=INK, fontsize=9)
        axes.set_xlim(1, max(2, len(story.turns)))
        _plain(axes)
        for mark in story.marks:
            axes.axvline(mark.position, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    _marks(panels[0], story)
    _finish(panels[-1], story)
    return figure


def evidence(story: Story) -> "Figure":
    """Draw the gain of each candidate and its lower bound, decision by decision."""
    from matplotlib.figure import Figure

    columns = min(ACROSS, len(story.trails))
    lines = -(-len(story.trails) // columns)
    figure = Figure(figsize=(10, 2.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(story.trails) :]:
        axes.set_axis_off()
    for axes, trail in zip(panels, story.trails.values(), strict=False):
        at, gain, low = np.array(trail.points).T
        axes.plot(at, gain, color=PALETTE[0], linewidth=1.4, label="gain, estimated")
        axes.plot(at, low, color=INK, linewidth=2.0, label=f"lower bound, {trail.level:.0%}")
        axes.axhline(trail.margin, color=GREY, linewidth=1.2, linestyle=":")
        late = slice(len(at) // 8, None)  # the bound of a few decisions is far below
        span = np.concatenate([gain[late], low[late], [trail.margin]])
        room = 0.1 * max(float(np.ptp(span)), 1e-3)
        axes.set_ylim(span.min() - room, span.max() + room)
        verdict = "promoted" if trail.promote else "held"
        axes.set_title(f"version {trail.candidate}: {verdict}", loc="left", fontsize=10, color=INK)
        axes.set_xlabel("Decisions that it is judged by", color=INK, fontsize=9)
        _plain(axes)
    panels[0].set_ylabel("Reward beyond what was served", color=INK, fontsize=9)
    panels[0].legend(fontsize=8, frameon=False, labelcolor=INK, loc="lower right")
    return figure


def _marks(axes: Any, story: Story) -> None:
    """Label the events above the plot; labels that would overlap move up a line."""
    total, heights = max(1, len(story.turns)), [-1.0, -1.0, -1.0]
    for mark in story.marks:
        axes.axvline(mark.position, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        along = mark.position / total
        line = next((i for i, end in enumerate(heights) if end <= along), len(heights) - 1)
        heights[line] = along + 0.011 * len(mark.label) + 0.01
        axes.annotate(
            mark.label,
            (mark.position, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 3 + 11 * line),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )


def _figure(height: float) -> tuple["Figure", Any]:
    # Imported here as it takes a second, which no other command of the program should wait for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    return figure, figure.subplots()


def _finish(axes: Any, story: Story) -> None:
    axes.set_xlim(1, max(2, len(story.turns)))
    axes.set_xlabel("Questions answered", color=INK, fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.figure.legend(
        unique.values(),
        unique,
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        frameon=False,
        labelcolor=INK,
    )
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
