"""The replies of chat: a completion, or server-sent events."""

import logging
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from agent.api import errors, responses
from agent.api.openai.citations import annotations
from agent.config import AppConfig
from agent.serving import Decided, Finished, choices, messages
from arms.llm import Chunk
from feedback.events import Cost, Decision

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def usage(raw: Cost) -> dict[str, int]:
    """Return token counts, as OpenAI clients read them."""
    return {
        "prompt_tokens": raw.prompt_tokens,
        "completion_tokens": raw.completion_tokens,
        "total_tokens": raw.prompt_tokens + raw.completion_tokens,
    }


def completion(
    decided: Decided,
    written: choices.Choices,
    finished: Finished,
    config: AppConfig,
    returns: Collection[str],
) -> responses.Json:
    """Return a chat completion."""
    decision, raw = decided.decision, finished.execution.cost
    body = _chat(decision, decided.served, "chat.completion") | {
        "choices": [
            _choice("message", _message(one, decided, config), one.finish_reason, i, one.logprobs)
            for i, one in enumerate(written.all)
        ],
        "usage": usage(raw),
        "agent": responses.extended(decided, raw, config, returns),
    }
    return responses.Json(body, headers=responses.headers(decision, decided.served))


def cited(text: str, decided: Decided, config: AppConfig) -> list[dict[str, Any]]:
    """Return where a text cites the passages of its decision."""
    return annotations(text, decided.retrieval.passages, config, decided.served)


def _message(one: choices.Choice, decided: Decided, config: AppConfig) -> dict[str, Any]:
    found = cited(one.text, decided, config)
    return {
        "role": "assistant",
        "content": None if one.tool_calls and not one.text else one.text,
        **({"tool_calls": one.tool_calls} if one.tool_calls else {}),
        **({"annotations": found} if found else {}),
    }


async def sse(
    first: Decided,
    events: AsyncGenerator[messages.Event, None],
    config: AppConfig,
    *,
    returns: Collection[str],
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: the decision first, then the answer, then its cost."""
    frame = _chat(first.decision, first.served, "chat.completion.chunk")
    written = choices.Choices()
    async with aclosing(events):
        begun = {"role": "assistant", "content": ""}
        extension = responses.extended(first, None, config, returns)
        yield event(frame | {"choices": [_choice("delta", begun, None)], "agent": extension})
        try:
            async for found in events:
                if isinstance(found, Chunk) and (found.text or found.tool_calls or found.logprobs):
                    written.add(found)
                    yield event(frame | {"choices": [_delta(found)]})
                elif isinstance(found, Finished):
                    for each in _ending(frame, first, written, found, config):
                        yield event(each)
                    if include_usage:
                        yield event(frame | {"choices": [], "usage": usage(found.execution.cost)})
        except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
            yield event(failed(error).body(None))
    yield DONE


def failed(error: Exception) -> errors.ApiError:
    """Return what a stream says of an exception, which is logged where nobody expects it."""
    failure = errors.translate(error)
    if failure.code == "internal_error":
        logger.error("a stream failed", exc_info=error)
    return failure


def event(body: Mapping[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _delta(chunk: Chunk) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": chunk.text} if chunk.text else {}
    if chunk.tool_calls:
        delta["tool_calls"] = list(chunk.tool_calls)
    return _choice("delta", delta, None, chunk.index, chunk.logprobs)


def _ending(
    frame: dict[str, Any], first: Decided, written: choices.Choices, finished: Finished, config: AppConfig
) -> list[dict[str, Any]]:
    """Return an event for each choice with its finish reason, the last one with the cost."""
    raw = finished.execution.cost
    extension = responses.agent(first.decision, first.served, raw, config)
    found = []
    for i, reason in enumerate(finished.finish_reasons):
        notes = cited(written.all[i].text, first, config) if i < len(written.all) else []
        delta = {"annotations": notes} if notes else {}
        found.append(frame | {"choices": [_choice("delta", delta, reason, i)]})
    found[-1]["agent"] = extension
    return found


def _chat(decision: Decision, served: str, kind: str) -> dict[str, Any]:
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
    key: str,
    message: Mapping[str, Any],
    finish_reason: str | None,
    index: int = 0,
    logprobs: Collection[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "index": index,
        key: message,
        "finish_reason": finish_reason,
        "logprobs": {"content": list(logprobs), "refusal": None} if logprobs else None,
    }
