"""Ask from the browser: the arm that the policy draws, a named arm, or all arms side by side."""

import asyncio

from fastapi import APIRouter, Depends, Request, Response
from pydantic import TypeAdapter

from armwise.agent.api import decisions as api
from armwise.agent.api.doors import read_sent
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.protocols import chat
from armwise.agent.api.protocols.schemas import ChatRequest
from armwise.agent.api.schemas import DecisionId
from armwise.agent.console.changes import number_colours
from armwise.agent.console.page import ACTION, CONSOLE, page, pages, unless_refused

router = pages()

DECIDE = require("decide")

_CHAT = TypeAdapter(ChatRequest)


async def _require_access(request: Request) -> None:
    unless_refused(request)


answers = APIRouter(prefix=CONSOLE, include_in_schema=False)
"""Routes for scripts of a page; failures are answered as by the API."""


@router.get("/playground", dependencies=[DECIDE])
async def playground(request: Request, replica: AppReplica) -> Response:
    """The form for a question."""
    arms = [name for name, info in replica.turns.arms.items() if info.enabled]
    most = replica.config.limits.question_chars
    return page(request, "playground.html", arms=arms, most=most)


@answers.post("/playground/ask", dependencies=[Depends(_require_access), DECIDE, ACTION])
async def ask(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Answer as `/v1/chat/completions` does, with the key of the cookie."""
    sent = await read_sent(request, _CHAT)
    return await chat.chat(request, replica, caller, sent)


@router.get("/playground/{decision_id}", dependencies=[DECIDE])
async def show_decision(
    request: Request, replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> Response:
    """The decision behind an answer, and buttons to rate it."""
    record = (await api.decision(replica, caller, decision_id)).reply
    arms, metrics = await asyncio.to_thread(number_colours, replica.store), replica.config.reward.metrics
    return page(request, "asked.html", one=record, colours=arms, metrics=metrics)
