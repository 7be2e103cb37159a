"""The first page: what the service saves, at which quality, and what goes where."""

import asyncio
import os
import shlex
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
from armwise.agent.console.summary import ServiceSummary, read_summary
from armwise.agent.proof import About, state_kept_audit
from armwise.agent.run_folder import RUN_FOLDER, read_question
from armwise.agent.serving import Replica
from armwise.feedback.log import erasures
from armwise.feedback.registry import runs

router = pages()

SHORT = 15_000
"""Positions up to which questions are grouped whenever the log has grown; else in the background."""


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
    said, total, live = found.statements, found.total, tuple(config.actions)
    marks = read_marks(store, config.reward, found.sums, named=named) if marked else ()
    colours = number_colours(store)
    quality = savings.state_quality(
        said,
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
        "statements": said,
        "chosen": config.baseline is not None,
        "any_rating": found.any_rating,
        "few": savings.share_rated(said),
        "savings": said.find(About.DOLLARS),
        "quality": quality,
        "audited": None if said.doubt else state_kept_audit(config),
        "spent": total["usd"],
        "finished": int(total["finished"]),
        "exploration": savings.explain_exploration(
            len(live), config.explores.among(max(1, len(live))) * len(live)
        ),
        "charts": draw_course(found.sums, said, marks, colours),
        "marks": marks,
        "colours": colours,
        "too_little": None if last is None else last.too_little,
    }
