"""`/v1/responses`: the newer form of chat. A request is read as one of chat, and answered with items."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from agent.api import asking, responses
from agent.api.documented import ANSWER, documented
from agent.api.errors import ApiError, translate
from agent.api.middleware import AppReplica, RequestCaller
from agent.api.openai import chat, replies
from agent.api.openai.response_events import Event, GrowingResponse
from agent.api.openai.schemas import ChatRequest, ResponsesRequest
from agent.api.replies import openai
from agent.api.schemas import IdempotencyKey, Timeout
from agent.serving import Finished, messages
from arms.llm import Chunk

router = APIRouter(tags=["answers"])

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


@router.post(
    "/v1/responses",
    **documented(
        "createResponse",
        openai.ResponseObject,
        *ANSWER,
        scopes=("decide",),
        success=chat.SUCCESS,
        example={"model": "auto", "input": "What is a heap?"},
    ),
)
async def respond(
    replica: AppReplica,
    caller: RequestCaller,
    body: ResponsesRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer as chat does, with items and their events."""
    replica, caller = asking.at_model(replica, caller, body.model)
    found, origins = _messages(body)
    try:
        ask = await chat.ask_of(replica, caller, _chat(body, found), key)
    except ApiError as error:
        raise _of_response(error, origins) from None
    events = asking.events_of(replica, caller, ask, key, timeout_s)
    first = await asking.begun(events)
    response = GrowingResponse(first, body, replica.config)
    headers = responses.headers(first.decision, first.served)
    if body.stream:
        return responses.EventStream(_sse(response, events), headers=headers)
    async for _ in _grown(response, events):
        pass
    return responses.Json(response.document, headers=headers)


def _of_response(error: ApiError, origins: Sequence[str]) -> ApiError:
    """Return an error of a chat with the name of the field of a response, where each message came from."""
    first, *rest = (error.param or "").split(".")
    if first == "messages" and rest:
        first, rest = origins[int(rest[0])], rest[1:]
    return replace(error, param=".".join([_PARAMS.get(first, first), *rest]) or None)


async def _grown(
    response: GrowingResponse, events: AsyncGenerator[messages.Event, None]
) -> AsyncGenerator[Event, None]:
    """Yield the events of a response from those of its turn."""
    async with aclosing(events):
        for event in response.begin():
            yield event
        async for found in events:
            if isinstance(found, Chunk):
                for event in response.add(found):
                    yield event
            elif isinstance(found, Finished):
                for event in response.end(found):
                    yield event


async def _sse(
    response: GrowingResponse, events: AsyncGenerator[messages.Event, None]
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(_grown(response, events)) as found:
            async for event in found:
                yield _named(event)
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        failure = replies.failed(error)
        for event in response.fail(failure.code, failure.message):
            yield _named(event)


def _named(event: Event) -> bytes:
    kind: str = event["type"]
    return b"event: " + kind.encode() + b"\n" + replies.event(event)


def _chat(body: ResponsesRequest, conversation: list[dict[str, Any]]) -> ChatRequest:
    """Return the chat that a response is read as. Raises ApiError."""
    for name, why in _REFUSED.items():
        if getattr(body, name):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {why}", name)
    given = body.model_dump(exclude={"agent", "input"}, by_alias=True, exclude_none=True)
    wanted = given.get("text", {}).pop("format", {"type": "text"})
    kind, choice = wanted.pop("type"), given.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    found: dict[str, Any] = {
        **{name: given.get(name) for name in ("model", "temperature", "top_p", "parallel_tool_calls")},
        "messages": conversation,
        "max_completion_tokens": body.max_output_tokens,
        "tools": [{"type": "function", "function": tool} for tool in given["tools"]],
        "tool_choice": choice,
        "response_format": {"type": kind, **({"json_schema": wanted} if kind == "json_schema" else {})},
        "logprobs": LOGPROBS in body.include or bool(body.top_logprobs),
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": given.get("reasoning", {}).get("effort"),
        "verbosity": given.get("text", {}).get("verbosity"),
        "agent": body.agent,
    }
    try:
        return ChatRequest.model_validate(found)
    except ValidationError as error:
        raise translate(RequestValidationError(error.errors())) from None


def _messages(body: ResponsesRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages of a chat, and the field that each came from; calls in a row are one message."""
    found: list[tuple[dict[str, Any], str]] = []
    if body.instructions:
        found.append(({"role": "system", "content": body.instructions}, "instructions"))
    if isinstance(body.input, str):
        found.append(({"role": "user", "content": body.input}, "input"))
    for i, item in enumerate(() if isinstance(body.input, str) else body.input):
        origin = f"input.{i}"
        match item.type:
            case "message":
                found.append(({"role": item.role, "content": item.content}, origin))
            case "function_call":
                function = {"name": item.name, "arguments": item.arguments}
                if not found or found[-1][0]["role"] != "assistant":
                    found.append(({"role": "assistant", "content": None}, origin))
                calls = found[-1][0].setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "function": function})
            case "function_call_output":
                result = {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
                found.append((result, origin))
    return [message for message, _ in found], [origin for _, origin in found]
