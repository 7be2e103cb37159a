"""`/v1/chat/completions`: check a question, run its turn and answer.

What a request asks of the language model is checked before an arm is drawn: a request that is refused leaves
no row in the log.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from armwise.agent.access import Caller, ForeignIdError
from armwise.agent.api import errors, plain, question, responses
from armwise.agent.api.documented import ANSWER, documented, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.openai.schemas import ChatMessage, ChatRequest
from armwise.agent.api.schemas import IdempotencyKey, Timeout
from armwise.agent.config import AppConfig
from armwise.agent.replies import (
    Annotation,
    AnswerChoice,
    AnswerMessage,
    Completion,
    Envelope,
    PromptTokens,
    UrlCitation,
    Usage,
    construct,
)
from armwise.agent.serving import Replica
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Ask, Choice, Choices, Decided, Event, Finished, decision_of_call
from armwise.arms.llm import Chunk, Message, base, catalog, prompts
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.events import Decision

logger = logging.getLogger(__name__)

router = APIRouter(tags=["answers"])

SUCCESS = {
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
    "headers": responses.HEADERS,
    **link("getDecision", decision_id="$response.header.x-decision-id"),
}
"""What the document says of an answer besides its model."""


_BODY = TypeAdapter(ChatRequest)


async def _serve(request: Request) -> Response:
    replica, caller = plain.read_caller(request, "decide")
    key, timeout_s = plain.read_key(request), plain.read_timeout(request)
    return await chat(request, replica, caller, await plain.read_body(request, _BODY), key, timeout_s)


plain.add_route(router, "/v1/chat/completions", _serve)


@router.post(
    "/v1/chat/completions",
    **documented(
        "createChatCompletion",
        Completion,
        *ANSWER,
        scopes=("decide",),
        success=SUCCESS,
        example={"model": "auto", "messages": [{"role": "user", "content": "What is a heap?"}]},
    ),
)
async def chat(
    request: Request,
    replica: AppReplica,
    caller: RequestCaller,
    body: ChatRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Answer a question: decide, retrieve, generate; server-sent events with `stream`."""
    ask = await read_ask(replica, caller, body, key)
    events = asking.stream_turn(replica, caller, ask, key, timeout_s)
    if body.stream:
        first = await asking.begun(events)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        stream = sse(first, events, replica.config, returns=body.agent.returns, include_usage=usage)
        return responses.EventStream(stream, events, responses.headers(first.decision, first.served))
    answering = asking.whole(events)  # under a key, it can be asked for again
    decided, written, finished = await (answering if key else responses.unless_left(request, answering))
    return completion(decided, written, finished, replica.config, body.agent.returns)


async def read_ask(replica: Replica, caller: Caller, body: ChatRequest, key: str | None) -> Ask:
    """Return the turn that a chat asks for. Raises ApiError."""
    asked, since = read_question(body.messages)
    given = options_of_chat(body) | {"max_completion_tokens": body.max_completion_tokens}
    ask = asking.check_ask(
        replica,
        caller,
        asked,
        body,
        key,
        messages=read_by_model(body.messages),
        options=options_asked(replica, body.model, given),
        **_read_sampling(replica, body),
    )
    ask = leave_out_blind(replica, ask)
    return await in_its_round(replica, caller, ask, since, same_arm=body.agent.same_arm)


def _read_sampling(replica: Replica, body: ChatRequest) -> dict[str, Any]:
    """Return how the model samples an answer, as `Ask` has it. Raises ApiError."""
    limit = replica.config.limits.completion_tokens
    max_tokens = body.max_completion_tokens or body.max_tokens or None
    if max_tokens is not None and max_tokens > limit:
        message = f"{max_tokens} tokens were requested; the limit is {limit}"
        param = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        raise ApiError("invalid_value", message, param)
    return {
        "max_tokens": max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
    }


def read_question(messages: Sequence[ChatMessage]) -> tuple[str, list[ChatMessage]]:
    """Return what a person asked last, and the messages after the one that has it. Raises ApiError."""
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    if not users:
        raise ApiError("invalid_value", "messages: none has the role 'user'", "messages")
    texts = [_text(messages[i], i) for i in users]
    at = question.find_question(texts)
    if at is None:
        return "", []  # refused as empty
    person = question.read_person(texts[at])
    return person if person.strip() else texts[at], list(messages[users[at] + 1 :])


def read_by_model(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages for the model, calls of functions under short names. Raises ApiError.

    Some endpoints refuse a long id, and some one that is not of nine letters and digits.
    """
    names: dict[str, str] = {}
    read = []
    for i, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        model_message = Message(role=role, content=_text(message, i))
        if parts := _parts(message, i):
            model_message["parts"] = parts
        if message.role == "assistant" and message.tool_calls:
            calls = [call.model_dump(exclude_none=True) for call in message.tool_calls]
            for call in calls:
                call["id"] = names.setdefault(call["id"], f"call{len(names):05d}")
            model_message["tool_calls"] = calls
        if message.role == "tool":
            if message.tool_call_id not in names:
                problem = f"{message.tool_call_id!r} is not a call of an earlier message"
                raise ApiError("invalid_value", problem, f"messages.{i}.tool_call_id")
            model_message["tool_call_id"] = names[message.tool_call_id]
            if message.is_error:
                model_message["is_error"] = True
        read.append(model_message)
    return tuple(read)


def _text(message: ChatMessage, i: int) -> str:
    """Return the text of a message, its parts joined. Raises ApiError."""
    if message.content is None:
        if message.role != "assistant":
            raise ApiError(
                "invalid_value", f"a message of the role {message.role!r} has text", f"messages.{i}.content"
            )
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for j, part in enumerate(message.content):
        if part.content is not None:
            texts.append(part.content)
        elif part.attachment is None:
            text = f"a part of the type {part.type!r} has no text, and is neither an image nor a file"
            raise ApiError("unsupported_parameter", text, f"messages.{i}.content.{j}.type")
        elif message.role != "user":
            text = f"a message of the role {message.role!r} has text alone"
            raise ApiError("invalid_value", text, f"messages.{i}.content.{j}.type")
    return "\n".join(texts)


def _parts(message: ChatMessage, i: int) -> list[dict[str, Any]]:
    """Return the parts of a message that is more than its text; empty for text alone. Raises ApiError."""
    if message.content is None or isinstance(message.content, str):
        return []
    parts = []
    for j, part in enumerate(message.content):
        try:
            parts.append(part.for_model())
        except ValueError as error:
            raise ApiError("invalid_value", str(error), f"messages.{i}.content.{j}") from None
    return parts if any(part["type"] != "text" or "cache_control" in part for part in parts) else []


def leave_out_blind(replica: Replica, ask: Ask) -> Ask:
    """Return a turn without the arms whose language model cannot read its images and files. Raises ApiError.

    Args:
        replica: Has the arms and their models.
        ask: The turn.
    """
    if not (needed := base.list_inputs(ask.messages)):
        return ask
    models, arms = replica.config.models, replica.turns.arms
    blind = {
        name: llm
        for name, llm in ((name, info.answering.llm) for name, info in arms.items())
        if needed - catalog.list_inputs(models[llm])
    }
    left = arms.keys() - blind.keys() if ask.forced is None else {ask.forced} - blind.keys()
    if blind and not left:
        names = " and ".join(sorted({repr(models[llm].engine) for llm in blind.values()}))
        kinds = " and ".join(f"{kind}s" for kind in sorted(needed))
        text = f"the language model reads no {kinds}: the engine {names} has no such `inputs`"
        raise ApiError("unsupported_parameter", text, "messages")
    return replace(ask, excluded=ask.excluded | blind.keys())


async def in_its_round(
    replica: Replica, caller: Caller, ask: Ask, since: Sequence[ChatMessage], *, same_arm: bool
) -> Ask:
    """Return the question in the round of tools that it continues, if it does.

    A question whose answer may call functions begins an episode, named after its decision unless it has
    another name. A request with their results is of the same episode, and its arm is the one that answered
    before: it is forced, and not learned, as nothing was drawn. The ids of the calls name the decision: since
    a client writes them, it counts only if the same caller asked, in the same episode.

    Args:
        replica: Reads the log.
        caller: Who asks.
        ask: The question.
        since: The messages after the question.
        same_arm: Whether the arm that answered before is forced.
    """
    results = [message.tool_call_id or "" for message in since if message.role == "tool"]
    named = [name for name in map(decision_of_call, reversed(results)) if name]
    record = None
    if named:
        tolerated = LOG_UNUSABLE if replica.outage.answers else ()
        with suppress(ForeignIdError, *tolerated):
            look_up = partial(asyncio.to_thread, replica.store.record, caller.stored(named[0]))
            record = await replica.outage.ask(look_up)
    asked = ask.question, caller.identify(replica.store.draw_secret)
    if (
        record is None
        or (record.decision.context.question, record.decision.asked_by) != asked
        or ask.episode_id not in (None, record.decision.episode_id)
    ):
        begins = bool(ask.options.get("tools")) and ask.episode_id is None
        return replace(ask, episode_id=ask.decision_id) if begins else ask
    decision, execution = record.decision, record.execution
    ask = replace(ask, episode_id=ask.episode_id or decision.episode_id, called=decision.id)
    arm = (execution and execution.served) or decision.drawn
    info = replica.turns.arms.get(arm)
    allowed = ask.allowed is None or arm in ask.allowed
    if ask.forced or not same_arm or info is None or not info.enabled or arm in ask.excluded or not allowed:
        return ask
    return replace(ask, forced=arm, continues=decision.id)


SAMPLING = ("n", "presence_penalty", "frequency_penalty", "logit_bias")

_NOTHING: Mapping[str, Any] = {"n": 1, "parallel_tool_calls": True}
"""Values that ask for what happens anyway; of other options null, 0, false and empty ones."""

_ELSEWHERE = {
    "audio": "answers are text",
    "functions": "name the functions in `tools`",
    "web_search_options": "passages come from the arm",
}


def options_asked(replica: Replica, model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that ask for something and that an engine is given. Raises ApiError, AskError.

    Args:
        replica: Has the language models.
        model: That of the request, which may name the only arm that may answer.
        given: The options of the request.
    """
    config, forced = replica.config, asking.forced_arm(replica, model)
    arms = config.actions if forced not in config.actions else [forced]
    engines = {name: config.models[name] for name in (config.find_answering(arm).llm for arm in arms)}
    supported = frozenset[str]().union(*map(catalog.list_options, engines.values()))
    options = {
        name: value
        for name, value in given.items()
        if (value not in (None, _NOTHING[name]) if name in _NOTHING else value)
    }
    for name in options.keys() - supported - base.HINTS:
        names = " and ".join(repr(engine) for engine in sorted({model.engine for model in engines.values()}))
        message = f"the engine {names} of the language model does not support {name!r}"
        raise ApiError("unsupported_parameter", message, name)
    return {name: value for name, value in options.items() if name in supported}


def options_of_chat(body: ChatRequest) -> dict[str, Any]:
    """Return the options of a chat as given, a `tool_choice` only with tools. Raises ApiError."""
    for name, why in _ELSEWHERE.items():
        if getattr(body, name):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {why}", name)
    if set(body.modalities or ()) - {"text"}:
        raise ApiError("unsupported_parameter", "'modalities' has more than 'text'", "modalities")
    given = body.model_dump(
        include={
            *("tools", "tool_choice", "parallel_tool_calls", "response_format"),
            *("logprobs", "top_logprobs", "reasoning_effort", "verbosity"),
        },
        by_alias=True,
        exclude_none=True,
    )
    _check_tools(given)
    response_format = given.get("response_format", {"type": "text"})
    if response_format["type"] == "text":
        given.pop("response_format", None)
    elif response_format["type"] == "json_schema" and "json_schema" not in response_format:
        raise ApiError("invalid_value", "a JSON schema was expected", "response_format.json_schema")
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise ApiError("invalid_value", "'top_logprobs' is only for 'logprobs': true", "top_logprobs")
    return {name: getattr(body, name) for name in SAMPLING} | given


def _check_tools(given: dict[str, Any]) -> None:
    """Refuse a choice of a tool that is not there; leave out what does not matter. Raises ApiError."""
    names = [tool["function"]["name"] for tool in given.get("tools", ())]
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict) and (name := choice["function"]["name"]) not in names:
        raise ApiError(
            "invalid_value", f"{name!r} is not a function of 'tools': {', '.join(names)}", "tool_choice"
        )
    if choice == "required" and not names:
        raise ApiError("invalid_value", "'required' needs 'tools'", "tool_choice")
    for name in {*names}:
        if names.count(name) > 1:
            raise ApiError("invalid_value", f"two functions have the name {name!r}", "tools")
    if not names:
        for field in ("tools", "tool_choice", "parallel_tool_calls"):
            given.pop(field, None)


DONE = b"data: [DONE]\n\n"


def usage(finished: Finished) -> Usage:
    """Return the usage of a turn, as OpenAI has it."""
    raw, cached = finished.execution.cost, finished.cached_tokens
    details = construct(PromptTokens, cached_tokens=cached)
    return construct(
        Usage,
        prompt_tokens=raw.prompt_tokens,
        completion_tokens=raw.completion_tokens,
        total_tokens=raw.prompt_tokens + raw.completion_tokens,
        **({"prompt_tokens_details": details} if cached else {}),
    )


def completion(
    decided: Decided,
    written: Choices,
    finished: Finished,
    config: AppConfig,
    returns: Collection[str],
) -> responses.Json[Completion]:
    """Return a chat completion."""
    decision = decided.decision
    body = construct(
        Completion,
        **_frame(decision, decided.served, "chat.completion"),
        choices=[
            construct(
                AnswerChoice,
                index=i,
                message=_message(choice, decided, config),
                finish_reason=choice.finish_reason,
                logprobs=_logprobs(choice.logprobs),
            )
            for i, choice in enumerate(written.all)
        ],
        usage=usage(finished),
        agent=responses.agent(decided, finished, config.reward.cost, returns),
    )
    return responses.Json(body, headers=responses.headers(decision, decided.served, finished))


def _message(choice: Choice, decided: Decided, config: AppConfig) -> AnswerMessage:
    notes = cited(choice.text, decided, config)
    more: dict[str, Any] = {
        **({"tool_calls": choice.tool_calls} if choice.tool_calls else {}),
        **({"annotations": notes} if notes else {}),
    }
    content = None if choice.tool_calls and not choice.text else choice.text
    return construct(AnswerMessage, role="assistant", content=content, **more)


async def sse(
    first: Decided,
    events: AsyncGenerator[Event, None],
    config: AppConfig,
    *,
    returns: Collection[str],
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the decision first, then the answer, then its cost."""
    frame = _frame(first.decision, first.served, "chat.completion.chunk")
    written = Choices()
    begun = {"role": "assistant", "content": ""}
    extension = responses.agent(first, None, config.reward.cost, returns)
    yield event(frame | {"choices": [_choice(begun, None)], "agent": extension})
    try:
        async for turn_event in events:
            if isinstance(turn_event, Chunk) and (
                turn_event.text or turn_event.tool_calls or turn_event.logprobs
            ):
                written.add(turn_event)
                yield event(frame | {"choices": [_delta(turn_event)]})
            elif isinstance(turn_event, Finished):
                for each in _ending(frame, first, written, turn_event, config):
                    yield event(each)
                if include_usage:
                    yield event(frame | {"choices": [], "usage": usage(turn_event)})
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        yield event(failed(error).envelope(None))
    yield DONE


def failed(error: Exception) -> errors.ApiError:
    """Return what a stream says of an exception, which is logged where nobody expects it."""
    failure = errors.translate(error)
    if failure.code == "internal_error":
        logger.error("a stream failed", exc_info=error)
    return failure


def event(body: Mapping[str, Any] | Envelope) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + orjson.dumps(body, default=responses.dump_fields) + b"\n\n"


def _delta(chunk: Chunk) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": chunk.text} if chunk.text else {}
    if chunk.tool_calls:
        delta["tool_calls"] = list(chunk.tool_calls)
    return _choice(delta, None, chunk.index, chunk.logprobs)


def _ending(
    frame: dict[str, Any], first: Decided, written: Choices, finished: Finished, config: AppConfig
) -> list[dict[str, Any]]:
    """Return an event for each choice with its finish reason, the last one with the cost."""
    extension = responses.chosen(first.decision, first.served, finished, config.reward.cost)
    ends = []
    for i, reason in enumerate(finished.finish_reasons):
        notes = cited(written.all[i].text, first, config) if i < len(written.all) else []
        delta = {"annotations": notes} if notes else {}
        ends.append(frame | {"choices": [_choice(delta, reason, i)]})
    ends[-1]["agent"] = extension
    return ends


def _frame(decision: Decision, served: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{decision.id}",
        "object": kind,
        "created": created(decision),
        "model": f"arm/{served}",
    }


def created(decision: Decision) -> int:
    """Return when a decision was made, in seconds since the epoch."""
    return int(decision.decided_at or time.time())


def _choice(
    delta: Mapping[str, Any],
    finish_reason: str | None,
    index: int = 0,
    logprobs: Collection[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a part of an answer of a stream."""
    return {
        "index": index,
        "delta": delta,
        "finish_reason": finish_reason,
        "logprobs": _logprobs(logprobs),
    }


def _logprobs(logprobs: Collection[Mapping[str, Any]]) -> dict[str, Any] | None:
    return {"content": list(logprobs), "refusal": None} if logprobs else None


_MARKER = re.compile(r"\[(\d{1,3})\]")


def cited(text: str, decided: Decided, config: AppConfig) -> list[Annotation]:
    """Return a citation for each number of a shown passage in an answer: `[1]` is the first one.

    Args:
        text: The answer.
        decided: What was retrieved for it, best first, and the arm that answers.
        config: Says how much of the passages the model was shown.
    """
    markers, passages = list(_MARKER.finditer(text)), decided.retrieval.passages
    words = config.find_answering(decided.served).word_budget
    shown = sum(1 for _ in prompts.numbered(passages, words)) if markers else 0
    return [
        construct(
            Annotation,
            type="url_citation",
            url_citation=construct(
                UrlCitation,
                start_index=marker.start(),
                end_index=marker.end(),
                title=passages[number - 1].cited,
                url=name_source(passages[number - 1].id, config),
            ),
        )
        for marker in markers
        if 1 <= (number := int(marker[1])) <= shown
    ]


def name_source(passage_id: str, config: AppConfig) -> str:
    """Return the id of a passage where it is a URL, else a name that is unique."""
    corpus, local_id = config.locate_passage(passage_id)
    if local_id[:8].lower().startswith(("https://", "http://")):  # a scheme has no case
        return local_id
    return ":".join(["urn:armwise", *(quote(part, safe="") for part in (corpus, local_id) if part)])
