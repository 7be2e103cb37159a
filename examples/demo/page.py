"""The page of a demo: one file that needs nothing else, made of what is on record, with its pictures."""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.evaluation import CandidateKind
from agent.reporting import GREY, GRID, INK, PALETTE, draw_svg, filled, moving_average
from examples.demo.record import Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORACLE = "best arm of each question"

ACROSS = 4
"""Candidates that are drawn side by side at most."""

WINDOW = 200
"""Questions that a moving average is over."""


def page(story: Story) -> str:
    """Return a story as HTML."""
    first = next(iter(story.worlds))  # the report is about what was asked at first
    pictures = {
        "rewards": draw_svg(story, rewards, "Mean reward over time"),
        "shares": draw_svg(story, shares, "Arm shares over time"),
    }
    if story.trails:
        pictures["evidence"] = draw_svg(story, evidence, "Evidence for each candidate over time")
    return filled(
        Path(__file__).parent / "templates" / "demo.html",
        pictures,
        story=story,
        summary=summary(story),
        tables={world: story.worth(world) for world in story.worlds},
        forced={f"{CandidateKind.FIXED}:{arm}": value for arm, value in story.worth(first).items()},
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


def rewards(story: Story) -> "Figure":
    """Draw what a question earned, beside what the best arm and the best arm of each question would have."""
    figure, axes = _figure(4.2)
    earned = np.array([turn.reward for turn in story.turns], dtype=np.float64)
    begun = min(WINDOW // 8, len(earned) - 1)  # the mean of a few rewards is noise
    asked = np.arange(1, len(earned) + 1)
    axes.plot(asked[begun:], moving_average(earned, WINDOW)[begun:], color=INK, linewidth=2.2, label="served")
    for first, last, world in _stretches(story):
        best, value = next(iter(story.worth(world).items()))
        colour = PALETTE[story.arms.index(best) % len(PALETTE)]
        axes.plot(
            [first, last], [value, value], color=colour, linewidth=1.4, label=f"always {best} ({world})"
        )
        oracle = story.oracle(world)
        axes.plot(
            [first, last],
            [oracle, oracle],
            color=GREY,
            linewidth=1.2,
            linestyle=":",
            label="best arm of each question",
        )
    axes.set_ylabel(f"Reward, mean of the last {WINDOW}", color=INK, fontsize=9)
    _marks(axes, story)
    _finish(axes, story)
    return figure


def shares(story: Story) -> "Figure":
    """Draw with which probability each arm was drawn."""
    figure, axes = _figure(3.2)
    pmf = np.array([[turn.pmf.get(arm, 0.0) for arm in story.arms] for turn in story.turns])
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(story.arms))]
    asked = np.arange(1, len(pmf) + 1)
    axes.stackplot(asked, moving_average(pmf, WINDOW // 4).T, colors=colours, labels=story.arms, linewidth=0)
    axes.set_ylim(0.0, 1.0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("Probability of being drawn", color=INK, fontsize=9)
    for mark in story.marks:
        axes.axvline(mark.position, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    _finish(axes, story)
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


def _stretches(story: Story) -> list[tuple[int, int, str]]:
    """Return from where to where the traffic is of one world.

    Worlds follow each other, so their turns do.
    """
    worlds = [turn.group for turn in story.turns]
    changes = [0, *(i for i, (one, next_) in enumerate(pairwise(worlds), 1) if one != next_), len(worlds)]
    return [(first, last, worlds[first]) for first, last in pairwise(changes)]


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
