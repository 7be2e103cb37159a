"""The page of the demo: one HTML file that needs nothing else, made of what has happened so far."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from armwise.agent.demo.story import WINDOW, Story, count_right
from armwise.agent.demo.world import ALONE, BEST, RULE
from armwise.agent.reporting import fill_template

SMOOTHED = 25
"""Questions of a kind over which a share is averaged."""

SHOWN = 6
"""Requests in the table."""

Points = list[tuple[int, float]]
"""Values after so many questions."""


def render(story: Story, *, live: bool) -> str:
    """Return the page; a live one fetches itself again every second."""
    marks = [(100.0 * at / len(story.turns), text) for at, text in story.marks]
    values = {"story": story, "charts": [*charts(story)], "marks": marks, "live": live, "window": WINDOW}
    template = Path(__file__).parent / "templates" / "demo.html"
    right = count_right(story.turns[-WINDOW:])
    return fill_template(template, latest=story.turns[: -SHOWN - 1 : -1], right=right, **values)


def charts(story: Story) -> Iterator[dict[str, Any]]:
    """Yield the charts: a title, the label of the top, lines, and how to read it."""
    n = len(story.turns)
    stale_at = n if story.stale_at is None else story.stale_at
    best = {kind: [arm] * n for kind, arm in BEST.items()}
    best[RULE][stale_at:] = [ALONE] * (n - stale_at)
    yield {
        "title": "Share of each kind of question that goes to its best arm",
        "top": "100 %",
        "lines": [_share(story, kind, kind, arms) for kind, arms in best.items()],
        "about": f"Best arms: {', '.join(f'{arm} for {kind}' for kind, arm in BEST.items())}, and {ALONE} "
        f"for {RULE} once the search is stale. Each point averages the logged probabilities of {SMOOTHED} "
        "questions. The service does not see the kinds. 8 % of the questions go to a random arm.",
    }
    spent = [(at, turn.usd) for at, turn in enumerate(story.turns, 1)]
    large = [(at, turn.large_usd) for at, turn in enumerate(story.turns, 1)]
    top = large[-1][1] if large else 1.0
    yield {
        "title": "Dollars spent",
        "top": f"${top:.2f}",
        "lines": [
            _line("spent", spent, n, top, "${:.2f}"),
            _line("the large model for every answer", large, n, top, "${:.2f}"),
        ],
        "about": "Counted, not estimated: the demo runs both models, so it knows what the large one would "
        "have charged for each prompt.",
    }
    yield {
        "title": f"Where the {RULE} go",
        "top": "100 %",
        "lines": [_share(story, RULE, arm, [arm] * n) for arm in (BEST[RULE], ALONE)],
        "about": "A stale search still answers, quickly and without an error, but from a withdrawn edition. "
        "Only the ratings fall.",
    }


def average(story: Story, kind: str, arms: Sequence[str]) -> Points:
    """Return the moving average of the probability of an arm for a kind of question.

    Args:
        story: What has happened so far.
        kind: The kind of question.
        arms: The arm at each turn; the average begins anew when it changes.
    """
    points: Points = []
    latest: list[float] = []
    for at, turn in enumerate(story.turns):
        if at and arms[at] != arms[at - 1]:
            latest = []
        if turn.kind == kind:
            latest = [*latest[1 - SMOOTHED :], turn.pmf.get(arms[at], 0.0)]
            points.append((at + 1, sum(latest) / len(latest)))
    return points


def _share(story: Story, kind: str, name: str, arms: Sequence[str]) -> dict[str, str]:
    return _line(name, average(story, kind, arms), len(story.turns), 1.0, "{:.0%}")


def _line(name: str, points: Points, n: int, top: float, form: str) -> dict[str, str]:
    """Return a line: its name, its newest value, and its points on a square of 100 by 100."""
    path = " ".join(f"{100.0 * at / n:.2f},{100.0 - 100.0 * value / top:.2f}" for at, value in points)
    return {"name": name, "last": form.format(points[-1][1]) if points else "", "path": path}
