"""`/v1/messages`: chat in Anthropic's protocol, and `/v1/messages/count_tokens`."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Request, Response
from pydantic import TypeAdapter

from armwise.agent.access import Caller
from armwise.agent.api import plain, responses
from armwise.agent.api.documented import ANSWER, documented
from armwise.agent.api.errors import ApiError, translate
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.openai import chat
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.gateways.anthropic.replies import (
    PATH,
    CountedTokens,
    MessageError,
    MessageEvents,
    WrittenMessage,
    write_message,
)
from armwise.agent.gateways.anthropic.requests import Conversation, MessagesRequest, ReadChat, read_chat
from armwise.agent.replies import construct
from armwise.agent.serving import Replica
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Ask, Event, Finished, attached_tokens, tokens_in
from armwise.arms.llm import Chunk, Message

router = APIRouter(tags=["answers"])

Version = Annotated[
    str | None,
    Header(
        alias="anthropic-version",
        pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
        description="Version of the protocol; that of 2023-06-01 is answered.",
    ),
]


_VERSION, _MESSAGES, _CONVERSATION = (
    TypeAdapter[str | None](Version),
    TypeAdapter(MessagesRequest),
    TypeAdapter(Conversation),
)


async def _serve(request: Request) -> Response:
    replica, caller = plain.read_caller(request, "decide")
    key, timeout_s = plain.read_key(request), plain.read_timeout(request)
    plain.read_header(request, "anthropic-version", _VERSION)
    return await create_message(
        request, replica, caller, await plain.read_body(request, _MESSAGES), key, timeout_s
    )


async def _serve_count(request: Request) -> Response:
    replica, _ = plain.read_caller(request, "decide")
    plain.read_header(request, "anthropic-version", _VERSION)
    return await count_tokens(request, replica, await plain.read_body(request, _CONVERSATION))


plain.add_route(router, PATH, _serve)
plain.add_route(router, f"{PATH}/count_tokens", _serve_count)


@router.post(
    PATH,
    **documented(
        "createMessage",
        WrittenMessage,
        *ANSWER,
        scopes=("decide",),
        success=chat.SUCCESS,
        failure=MessageError,
        example={
            "model": "auto",
            "max_tokens": 256,
            "messages": [{"role": "user", "content": "What is a heap?"}],
        },
    ),
)
async def create_message(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: MessagesRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    version: Version = None,
) -> Response:
    """Answer as chat does, in Anthropic's protocol; server-sent events with `stream`."""
    del version  # one is answered
    read = await plain.call_beside(request, partial(read_chat, body, replica.config.limits.completion_tokens))
    ask = await _read_ask(replica, caller, read, key)
    events = asking.stream_turn(replica, caller, ask, key, timeout_s)
    named = {"request-id": request.headers.get("x-request-id", "")}
    if body.stream:
        first = await asking.begun(events)
        read_tokens = _count(ask.messages, ask.options.get("tools", ()))
        growing = MessageEvents(first, replica.config, body.agent.returns, read_tokens)
        headers = responses.headers(first.decision, first.served) | named
        return responses.EventStream(_sse(growing, events), events, headers)
    answering = asking.whole(events)  # under a key, it can be asked for again
    decided, written, finished = await (answering if key else responses.unless_left(request, answering))
    message = write_message(decided, written, finished, replica.config, body.agent.returns)
    return responses.Json(
        message, headers=responses.headers(decided.decision, decided.served, finished) | named
    )


@router.post(
    f"{PATH}/count_tokens",
    **documented(
        "countMessageTokens",
        CountedTokens,
        *("model_not_found", "unsupported_parameter"),
        scopes=("decide",),
        failure=MessageError,
        example={"model": "auto", "messages": [{"role": "user", "content": "What is a heap?"}]},
    ),
)
async def count_tokens(
    request: Request, replica: AppReplica, body: Conversation, version: Version = None
) -> Response:
    """Estimate the tokens of a request, for any model; nothing is decided, and the log gets no row."""
    del version
    read = await plain.call_beside(request, partial(read_chat, body, replica.config.limits.completion_tokens))
    if (arm := asking.forced_arm(replica, read.body.model)) is not None:
        asking.require_model(replica, arm)
    try:
        messages = chat.read_by_model(read.body.messages)
    except ApiError as error:
        raise read.name_field(error) from None
    tools = [tool.model_dump(exclude_none=True) for tool in read.body.tools or ()]
    return responses.StdlibJson(construct(CountedTokens, input_tokens=_count(messages, tools)))


async def _read_ask(replica: Replica, caller: Caller, read: ReadChat, key: str | None) -> Ask:
    """Return the turn that a request asks for. Raises ApiError, which names the field of the request."""
    try:
        return await chat.read_ask(replica, caller, read.body, key)
    except (ApiError, asking.AskError) as error:
        raise read.name_field(translate(error)) from None


def _count(messages: Iterable[Message], tools: Iterable[Mapping[str, Any]]) -> int:
    """Estimate the tokens of messages and of tools."""
    messages = [*messages]
    texts = [message["content"] for message in messages]
    for message in messages:
        texts += [orjson.dumps(call).decode() for call in message.get("tool_calls", ())]
    texts += [orjson.dumps(tool).decode() for tool in tools]
    return sum(map(tokens_in, texts)) + attached_tokens(messages)


async def _sse(message: MessageEvents, events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the decision first, then the answer, then its cost."""
    try:
        for event in message.begin():
            yield _named(event)
        async for turn_event in events:
            if isinstance(turn_event, Chunk):
                for event in message.add(turn_event):
                    yield _named(event)
            elif isinstance(turn_event, Finished):
                for event in message.end(turn_event):
                    yield _named(event)
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        for event in message.fail(chat.failed(error)):
            yield _named(event)


def _named(event: dict[str, object]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + chat.event(event)
