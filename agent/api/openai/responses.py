"""`/v1/responses`: the newer form of chat. A request is read as one of chat, and answered with items."""

import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, ValidationError

from armwise.agent.api import responses
from armwise.agent.api.documented import ANSWER, documented
from armwise.agent.api.errors import ApiError, translate
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.openai import chat
from armwise.agent.api.openai.schemas import ChatRequest, ResponsesRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import AppConfig
from armwise.agent.replies import Agent, Reply
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Decided, Finished
from armwise.agent.turn import Event as TurnEvent
from armwise.arms.llm import Chunk

router = APIRouter(tags=["answers"])

Event = dict[str, Any]


class OutputItem(Reply):
    """A message, or the call of a function."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    type: Literal["message", "function_call"]
    status: str


class ResponseObject(Reply):
    """A response, as OpenAI's Responses API has it; it repeats what the request set."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str = Field(description="`arm/<name>`: the arm that answered.")
    output: list[OutputItem]
    usage: dict[str, Any]
    agent: Agent


LOGPROBS = "message.output_text.logprobs"

_REFUSED = {
    "background": "send the request without it, and wait",
    "previous_response_id": "no conversation is kept; send the earlier items in 'input'",
    "conversation": "no conversation is kept; send the earlier items in 'input'",
    "prompt": "no prompt is kept; send 'instructions'",
}

_PARAMS = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
}
"""Fields of a response by those of the chat that it is read as."""


class GrowingResponse:
    """Turns the events of a turn into those of a response, in the order of OpenAI.

    Args:
        decided: The decision.
        body: The request, parts of which the response repeats.
        config: Has the prices, and says how much of the passages the model was shown.

    Attributes:
        document: The response so far.
        finished: The end of the turn, once there is one.
    """

    def __init__(self, decided: Decided, body: ResponsesRequest, config: AppConfig) -> None:
        self._decided, self._body, self._config = decided, body, config
        self._name = decided.decision.id
        self.finished: Finished | None = None
        self._open: dict[str, Any] | None = None  # the item that is being written
        self._call: int | None = None  # the call that it is; None for text
        self._numbers = itertools.count()
        given = body.model_dump(exclude={"agent", "input"}, by_alias=True, exclude_none=True)
        self.document: dict[str, Any] = {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": chat.created(decided.decision),
            "status": "in_progress",
            "model": f"arm/{decided.served}",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": given.get("text", {"format": {"type": "text"}}),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_p": body.top_p,
            "usage": None,
            "agent": responses.agent(decided, None, config.reward.cost, body.agent.returns),
        }

    def begin(self) -> Iterator[Event]:
        """Yield the events of a response that has no item yet."""
        yield self._event("created", response=self.document)
        yield self._event("in_progress", response=self.document)

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """Yield the events of a piece of the answer."""
        if chunk.text:
            if self._open is None or self._call is not None:
                yield from self._close()
                yield from self._begin_text()
            part = self._part
            part["text"] += chunk.text
            part["logprobs"] += chunk.logprobs
            logprobs = list(chunk.logprobs)
            yield self._of_part("output_text.delta", delta=chunk.text, logprobs=logprobs)
        for piece in chunk.tool_calls:
            if self._open is None or self._call != piece["index"]:
                yield from self._close()
                yield from self._begin_call(piece)
            function = piece.get("function", {})
            item = self._item
            item["name"] += function.get("name", "")
            if arguments := function.get("arguments"):
                item["arguments"] += arguments
                yield self._of_item("function_call_arguments.delta", delta=arguments)

    def end(self, finished: Finished) -> Iterator[Event]:
        """Yield the events of the end of the answer."""
        if self._open is None and not self.document["output"]:
            yield from self._begin_text()
        cut = finished.finish_reasons[0] == "length"
        yield from self._close("incomplete" if cut else "completed")
        self.finished, cost = finished, finished.execution.cost
        agent = responses.agent(self._decided, finished, self._config.reward.cost, self._body.agent.returns)
        self.document["status"] = "incomplete" if cut else "completed"
        self.document["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self.document["usage"] = {
            "input_tokens": cost.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": finished.cached_tokens,
                "cache_write_tokens": finished.cache_written_tokens,
            },
            "output_tokens": cost.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": cost.prompt_tokens + cost.completion_tokens,
        }
        self.document["agent"] = agent
        yield self._event(self.document["status"], response=self.document)

    def fail(self, code: str, message: str) -> Iterator[Event]:
        """Yield the event of a failure."""
        self.document["status"] = "failed"
        self.document["error"] = {"code": code, "message": message}
        yield self._event("failed", response=self.document)

    @property
    def _item(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._item["content"][0]
        return part

    def _begin_text(self) -> Iterator[Event]:
        name = f"msg_{len(self.document['output'])}_{self._name}"
        item = {"id": name, "type": "message", "role": "assistant", "status": "in_progress"}
        yield from self._begin(item, None, {**item, "content": []})
        self._item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        yield self._of_part("content_part.added", part=self._part)

    def _begin_call(self, piece: Any) -> Iterator[Event]:
        name = f"fc_{len(self.document['output'])}_{self._name}"
        item = {"id": name, "type": "function_call", "status": "in_progress", "call_id": piece.get("id", "")}
        item |= {"name": "", "arguments": ""}
        shown = {**item, "name": piece.get("function", {}).get("name", "")}
        yield from self._begin(item, piece["index"], shown)

    def _begin(self, item: dict[str, Any], call: int | None, shown: dict[str, Any]) -> Iterator[Event]:
        """Yield the event of an item that begins, as it is shown there."""
        self._open, self._call = item, call
        self.document["output"].append(item)
        yield self._of_output("output_item.added", item=shown)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        """Yield the events of the end of the item that is being written."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        if self._call is None:
            part = self._part
            for i, note in enumerate(chat.cited(part["text"], self._decided, self._config)):
                flat = {"type": note.type, **vars(note.url_citation)}
                part["annotations"].append(flat)
                yield self._of_part("output_text.annotation.added", annotation_index=i, annotation=flat)
            yield self._of_part("output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._of_part("content_part.done", part=part)
        else:
            arguments, name = item["arguments"], item["name"]
            yield self._of_item("function_call_arguments.done", arguments=arguments, name=name)
        yield self._of_output("output_item.done", item=item)
        self._open = None

    def _of_part(self, kind: str, **fields: Any) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        return self._of_output(kind, item_id=self._item["id"], **fields)

    def _of_output(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, output_index=len(self.document["output"]) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}


@router.post(
    "/v1/responses",
    **documented(
        "createResponse",
        ResponseObject,
        *ANSWER,
        scopes=("decide",),
        success=chat.SUCCESS,
        example={"model": "auto", "input": "What is a heap?"},
    ),
)
async def respond(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: ResponsesRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer as chat does, with items and their events."""
    conversation, origins = _messages(body)
    try:
        ask = await chat.read_ask(replica, caller, _chat(body, conversation), key)
    except (ApiError, asking.AskError) as error:
        raise _of_response(translate(error), origins) from None
    events = asking.stream_turn(replica, caller, ask, key, timeout_s)
    if body.stream:
        first = await asking.begun(events)
        growing = GrowingResponse(first, body, replica.config)
        headers = responses.headers(first.decision, first.served)
        return responses.EventStream(_sse(growing, events), events, headers)
    answering = _whole(events, body, replica.config)  # under a key, it can be asked for again
    return await (answering if key else responses.unless_left(request, answering))


def _of_response(error: ApiError, origins: Sequence[str]) -> ApiError:
    """Return an error of a chat with the name of the field of a response, where each message came from."""
    first, *rest = (error.param or "").split(".")
    if first == "messages" and rest:
        first, rest = origins[int(rest[0])], rest[1:]
    return replace(error, param=".".join([_PARAMS.get(first, first), *rest]) or None)


async def _whole(
    events: AsyncGenerator[TurnEvent, None], body: ResponsesRequest, config: AppConfig
) -> Response:
    """Read a turn to its end, and return the response."""
    first = await asking.begun(events)
    response = GrowingResponse(first, body, config)
    async for _ in _grown(response, events):
        pass
    headers = responses.headers(first.decision, first.served, response.finished)
    return responses.Json(response.document, headers=headers)


async def _grown(
    response: GrowingResponse, events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[Event, None]:
    """Yield the events of a response from those of its turn."""
    async with aclosing(events):
        for event in response.begin():
            yield event
        async for turn_event in events:
            if isinstance(turn_event, Chunk):
                for event in response.add(turn_event):
                    yield event
            elif isinstance(turn_event, Finished):
                for event in response.end(turn_event):
                    yield event


async def _sse(
    response: GrowingResponse, events: AsyncGenerator[TurnEvent, None]
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(_grown(response, events)) as grown:
            async for event in grown:
                yield _named(event)
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        failure = chat.failed(error)
        for event in response.fail(failure.code, failure.message):
            yield _named(event)


def _named(event: Event) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\n" + chat.event(event)


def _chat(body: ResponsesRequest, conversation: list[dict[str, Any]]) -> ChatRequest:
    """Return the chat that a response is read as. Raises ApiError."""
    for name, why in _REFUSED.items():
        if getattr(body, name):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {why}", name)
    given = body.model_dump(exclude={"agent", "input"}, by_alias=True, exclude_none=True)
    text_format = given.get("text", {}).pop("format", {"type": "text"})
    kind, choice = text_format.pop("type"), given.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    fields: dict[str, Any] = {
        **{name: given.get(name) for name in ("model", "temperature", "top_p", "parallel_tool_calls")},
        "messages": conversation,
        "max_completion_tokens": body.max_output_tokens,
        "tools": [{"type": "function", "function": tool} for tool in given["tools"]],
        "tool_choice": choice,
        "response_format": {"type": kind, **({"json_schema": text_format} if kind == "json_schema" else {})},
        "logprobs": LOGPROBS in body.include or bool(body.top_logprobs),
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": given.get("reasoning", {}).get("effort"),
        "verbosity": given.get("text", {}).get("verbosity"),
        **{name: given.get(name) for name in ("metadata", "prompt_cache_key")},
        "agent": body.agent,
    }
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise translate(RequestValidationError(error.errors())) from None


def _messages(body: ResponsesRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages of a chat, and the field that each came from; calls in a row are one message."""
    messages_of: list[tuple[dict[str, Any], str]] = []
    if body.instructions:
        messages_of.append(({"role": "system", "content": body.instructions}, "instructions"))
    if isinstance(body.input, str):
        messages_of.append(({"role": "user", "content": body.input}, "input"))
    for i, item in enumerate(() if isinstance(body.input, str) else body.input):
        origin = f"input.{i}"
        match item.type:
            case "message":
                messages_of.append(({"role": item.role, "content": item.content}, origin))
            case "function_call":
                function = {"name": item.name, "arguments": item.arguments}
                if not messages_of or messages_of[-1][0]["role"] != "assistant":
                    messages_of.append(({"role": "assistant", "content": None}, origin))
                calls = messages_of[-1][0].setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "function": function})
            case "function_call_output":
                result = {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
                messages_of.append((result, origin))
    return [message for message, _ in messages_of], [origin for _, origin in messages_of]
