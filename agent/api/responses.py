"""The responses of a turn: passages, headers, and the fields that decisions share."""

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

import orjson
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Send
from typing_extensions import override

from armwise.agent.access import is_unlogged
from armwise.agent.replies import Agent, AnswerCost, Passage, Reply, construct
from armwise.agent.turn import Decided, Finished
from armwise.arms import base
from armwise.arms.filters import hide_groups
from armwise.feedback.events import Cost, Decision
from armwise.feedback.reward import Prices

AWAY = "away"
"""Value of the header `x-armwise-log`, and of `agent.log`, where an answer is not in the log."""

HEADERS = {
    name: {"description": text, "schema": {"type": kind}}
    for name, kind, text in (
        ("x-decision-id", "string", "The decision."),
        ("x-arm", "string", "The arm that answered."),
        ("x-propensity", "number", "Probability with which it was drawn."),
        ("x-policy-version", "integer", "The version that decided."),
        ("x-armwise-log", "string", "`away`: the log was away, so the answer is not in it. Else left out."),
    )
}
"""Headers of the replies of a turn, for the OpenAPI document."""


def dump_fields(model: object) -> Any:
    """Return a model as JSON has it: of a reply, the fields that it was constructed with."""
    if isinstance(model, Reply):
        return model.__dict__
    if isinstance(model, BaseModel):
        return model.model_dump(mode="json")
    raise TypeError(f"{type(model).__name__} is not JSON")


Sent = TypeVar("Sent")
T = TypeVar("T")


class Json(JSONResponse, Generic[Sent]):
    """A body that orjson writes: several times faster than the standard library's json.

    Attributes:
        reply: What the body holds.
    """

    def __init__(self, reply: Sent, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.reply = reply
        super().__init__(reply, status, headers)

    @override
    def render(self, content: Any) -> bytes:
        return write(content)


class StdlibJson(Json[Sent]):
    """A body that the standard library writes."""

    @override
    def render(self, content: Any) -> bytes:
        return _write_slowly(content)


def write(content: Any) -> bytes:
    """Return a body as JSON, with replies as objects and integers of any size."""
    try:
        return orjson.dumps(content, default=dump_fields)
    except TypeError:  # orjson writes integers of up to 64 bits
        return _write_slowly(content)


def _write_slowly(content: Any) -> bytes:
    text = json.dumps(
        content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dump_fields
    )
    return text.encode()


async def unless_left(request: Request, answering: Coroutine[Any, Any, T]) -> T:
    """Return an answer; it is cancelled where its client has left, whom nothing reaches any more.

    Raises:
        ClientDisconnect: The client has left.
    """
    answer, end = asyncio.ensure_future(answering), asyncio.ensure_future(_await_disconnect(request))
    try:
        await asyncio.wait((answer, end), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return await answer
    finally:
        for task in (answer, end):
            task.cancel()
        await asyncio.gather(answer, end, return_exceptions=True)


async def _await_disconnect(request: Request) -> None:
    """Return once the client of a request, whose body is read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


READ_S = 30.0
"""Seconds in which a client must have read enough of a stream that more can be written."""


FIRST_PING_S, PING_S = 1.0, 10.0
"""Seconds without a byte after which a stream says that it goes on: at first, and from then on."""


class Closing(Protocol):
    """What ends with a stream."""

    async def aclose(self) -> None:
        """End it."""
        ...


class EventStream(StreamingResponse):
    """Server-sent events. A client that stops reading them, or reads a few bytes a second, is left.

    Otherwise it would hold a place among the requests in progress for as long as it likes. The turn ends
    with its stream, at once: Python would end a generator that nobody reads when it collects garbage.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        turn: Closing,
        headers: Mapping[str, str],
        ping: bytes,
    ) -> None:
        """Send the events of a turn that has begun, and `ping` where there was nothing for a while."""
        super().__init__(events, headers=headers)
        self._turn, self._ping = turn, ping

    @override
    async def stream_response(self, send: Send) -> None:
        loop, silent_since = asyncio.get_running_loop(), 0.0

        async def sending(message: Message) -> None:
            nonlocal silent_since
            try:
                async with asyncio.timeout(READ_S):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None
            silent_since = loop.time()

        async def keep_alive() -> None:
            wait_s = FIRST_PING_S
            while True:
                if (left_s := silent_since + wait_s - loop.time()) > 0.0:
                    await asyncio.sleep(left_s)
                    continue
                await sending({"type": "http.response.body", "body": self._ping, "more_body": True})
                wait_s = PING_S

        left = False
        try:
            async with aclosing(self._turn):
                head = {"status": self.status_code, "headers": self.raw_headers}
                await sending({"type": "http.response.start", **head})
                async with asyncio.TaskGroup() as group:  # a ping that cannot be sent ends the turn
                    pings = group.create_task(keep_alive())
                    async for part in self.body_iterator:
                        await sending({"type": "http.response.body", "body": part, "more_body": True})
                    pings.cancel()
                await sending({"type": "http.response.body", "body": b"", "more_body": False})
        except* (ClientDisconnect, OSError):
            left = True
        if left:
            raise ClientDisconnect


def headers(decision: Decision, served: str, finished: Finished | None = None) -> dict[str, str]:
    """Return the headers that describe a decision."""
    return {
        "x-decision-id": decision.id,
        "x-arm": served,
        **({"x-armwise-log": AWAY} if _is_away(decision, finished) else {}),
        "x-propensity": f"{decision.propensity:.6g}",
        "x-policy-version": str(decision.version),
    }


def _is_away(decision: Decision, finished: Finished | None) -> bool:
    """Return whether the log was away when a decision was made, or when it had been carried out."""
    return is_unlogged(decision.id) or (finished is not None and not finished.logged)


def cost(raw: Cost, prices: Prices) -> AnswerCost:
    """Return the cost vector with its priced sum."""
    return construct(
        AnswerCost,
        total=prices.total(raw),
        tokens=raw.prompt_tokens + raw.completion_tokens,
        retrieval_ms=round(raw.retrieval_s * 1000, 3),
        llm_ms=round(raw.llm_s * 1000, 3),
        steps=raw.steps,
        usd=raw.usd,
    )


def describe_choice(
    decision: Decision, served: str | None, finished: Finished | None, prices: Prices
) -> dict[str, Any]:
    """Return the fields of `Chosen`: how an arm was chosen, and what it cost once the turn has ended."""
    return {
        "decision_id": decision.id,
        "episode_id": decision.episode_id,
        "policy_version": decision.version,
        "mode": decision.mode.value,
        "arm_drawn": decision.drawn,
        "arm_served": served,
        "propensity": decision.propensity if decision.probabilities else None,
        "pmf": dict(zip(decision.arms, decision.probabilities, strict=False)),
        "cost": None if finished is None else cost(finished.execution.cost, prices),
        "reward_deadline": decision.deadline,
        **({"log": AWAY} if _is_away(decision, finished) else {}),
    }


def passages(retrieved: Collection[base.Passage]) -> list[Passage]:
    """Return the passages of an arm as they are sent."""
    return [
        construct(
            Passage, id=p.id, title=p.title, text=p.text, score=p.score, metadata=hide_groups(p.metadata)
        )
        for p in retrieved
    ]


def agent(decided: Decided, finished: Finished | None, prices: Prices, returns: Collection[str]) -> Agent:
    """Return the fields that OpenAI's API does not have, with what `agent.return` names."""
    more: dict[str, Any] = {}
    if "passages" in returns:
        more["passages"] = passages(decided.retrieval.passages)
    if "decision" in returns:
        more["features"] = dict(decided.decision.context.features)
    return construct(Agent, **describe_choice(decided.decision, decided.served, finished, prices), **more)
