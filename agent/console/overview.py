"""The first page: what the service saves, at which quality, and what goes where."""

import asyncio
import os
import shlex
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from fastapi import Request, Response

from armwise.agent.access import Caller
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.console import savings, topics
from armwise.agent.console.changes import number_colours
from armwise.agent.console.course import draw_course, read_marks
from armwise.agent.console.live import background, sight
from armwise.agent.console.page import find_address, page, pages
from armwise.agent.console.savings import BaselineComparison
from armwise.agent.console.summary import ServiceSummary, read_summary
from armwise.agent.run_folder import RUN_FOLDER, read_question
from armwise.agent.serving import Replica
from armwise.feedback.log import erasures
from armwise.feedback.registry import runs

router = pages()

SHORT = 15_000
"""Positions up to which questions are grouped whenever the log has grown; else in the background."""

TICKS = 4
"""About how many lines a chart has in each direction."""


@router.get("", dependencies=[require("decide", "read")])
async def overview(
    request: Request, replica: AppReplica, caller: RequestCaller, by: str | None = None
) -> Response:
    """What the service saves, at which quality, and what goes where."""
    values = await asyncio.to_thread(_read, replica, marked="read" in caller.scopes, named=caller.sees_all)
    routing = await _group(request, replica, caller, by)
    return page(request, "overview.html", **values, routing=routing, command=write_command(request))


async def _group(request: Request, replica: Replica, caller: Caller, by: str | None) -> topics.Routing | None:
    """Return what goes where; None: it is still being computed."""
    position = await asyncio.to_thread(_position, replica)
    made, seen, wait = background(request), sight(caller), position[0] <= SHORT
    draws = await made.value(("draws", seen), position, lambda: topics.read_draws(replica, caller), wait=wait)
    if draws is None:
        return None
    if by and by not in draws.fields:
        there = ", ".join(draws.fields) or "none"
        raise ApiError("invalid_value", f"no question has a field {by!r}; there are: {there}", "by")
    routing: topics.Routing | None = await made.value(
        ("routing", seen, by), draws, lambda: topics.group(draws, by), wait=wait
    )
    return routing


def _position(replica: Replica) -> tuple[int, object]:
    """Return how far the log and its erasures reach."""
    return replica.store.log_seq(), erasures.find_newest(replica.store)


def write_command(request: Request) -> str:
    """Return the command for a shell that asks the first question, at the address that the viewer has."""
    folder = os.environ.get(RUN_FOLDER)
    question = read_question(None if folder is None else Path(folder))
    return shlex.join(["armwise", "ask", question, "--url", find_address(request)])


def _read(replica: Replica, *, marked: bool, named: bool) -> dict[str, Any]:
    store, config = replica.store, replica.config
    known = read_summary(store)
    found = known or ServiceSummary()
    comparison, total, live = found.comparison, found.total, tuple(config.actions)
    marks = read_marks(store, config.reward, found.sums, named=named) if marked else ()
    colours = number_colours(store)
    waiting = savings.state_waiting(
        comparison,
        len(live),
        found.n_open,
        savings.write_duration(config.reward.wait_s),
        any_rating=found.any_rating,
    )
    last = runs.newest(store, replica.versions.configured.digest)
    return {
        "summarised_at": found.at,
        "asked": bool(total["decisions"]) or (known is None and store.log_seq() > 0),
        "known": known is not None,
        "arms": live,
        "comparison": comparison,
        "chosen": config.baseline is not None,
        "any_rating": found.any_rating,
        "few": savings.share_rated(comparison),
        "savings": savings.state_savings(comparison),
        "quality": savings.state_quality(comparison) or waiting,
        "spent": total["usd"],
        "finished": int(total["finished"]),
        "exploration": savings.explain_exploration(
            comparison, live, config.explores.among(max(1, len(live))) * len(live)
        ),
        "plot": place_points(comparison),
        "charts": draw_course(found.sums, comparison, marks, colours),
        "marks": marks,
        "colours": colours,
        "too_little": None if last is None else last.too_little,
    }


# -- cost and quality -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlottedArm:
    """A point of the chart of cost and quality; places are in percent of its width and height.

    Attributes:
        name: The arm; empty: what was served.
        usd: Dollars per 1,000 answers.
        score: Rating in points of 100.
        low: Lower end of the rating; that of what was served is known.
        high: Upper end of the rating.
        x: Place of the dollars.
        y: Place of the rating.
        top: Place of the upper end.
        bottom: Place of the lower end.
    """

    name: str
    usd: float
    score: float
    low: float
    high: float
    x: float
    y: float
    top: float
    bottom: float


def place_points(found: BaselineComparison) -> dict[str, Any] | None:
    """Return what the chart of cost and quality shows; None: no dollars or ratings are on record."""
    one = found.with_baseline
    if one is None or one.served is None or one.spent is None:
        return None
    served = savings.POINTS * one.served
    rows = [("", 1000.0 * one.spent, served, served, served)]
    for arm in found.arms:
        rating = found.rating(arm)
        if rating is not None and arm in found.prices:
            rows.append((arm, 1000.0 * found.prices[arm], *rating))
    if len(rows) < 2:
        return None
    x_ticks = _ticks(0.0, max(row[1] for row in rows))
    y_ticks = _ticks(min(row[3] for row in rows), min(100.0, max(row[4] for row in rows)))

    def across(usd: float) -> float:
        return 9.0 + 85.0 * (usd - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def down(score: float) -> float:
        return 88.0 - 82.0 * (score - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    return {
        "points": [
            PlottedArm(name, usd, score, low, high, across(usd), down(score), down(high), down(low))
            for name, usd, score, low, high in rows
        ],
        "x_ticks": [(tick, across(tick)) for tick in x_ticks],
        "y_ticks": [(tick, down(tick)) for tick in y_ticks],
    }


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers that cover a range.

    >>> _ticks(0.0, 1.9), _ticks(72.0, 96.0)
    ([0.0, 0.5, 1.0, 1.5, 2.0], [70.0, 80.0, 90.0, 100.0])
    """
    width = (high - low) / TICKS or 1.0
    scale = 10.0 ** floor(log10(width))
    step = next(scale * each for each in (1, 2, 5, 10) if scale * each >= width * 0.999)
    return [
        step * i for i in range(floor(low / step), max(ceil(high / step - 0.02), floor(low / step) + 1) + 1)
    ]
