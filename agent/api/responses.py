"""The responses of a turn: JSON, server-sent events, headers, and the fields that decisions share."""

import logging
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from fastapi.responses import JSONResponse
from typing_extensions import override

from agent.api import errors
from agent.config import AppConfig
from agent.serving import Decided, Finished, messages
from arms.base import Passage
from arms.llm import Chunk
from feedback.events import Cost, Decision

logger = logging.getLogger(__name__)


class Json(JSONResponse):
    """A body that orjson writes: several times faster than the standard library's json."""

    @override
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def headers(decision: Decision, served: str) -> dict[str, str]:
    """Return the headers that describe a decision."""
    return {
        "x-decision-id": decision.id,
        "x-arm": served,
        "x-propensity": f"{decision.propensity:.6g}",
        "x-policy-version": str(decision.version),
    }


def cost(raw: Cost, config: AppConfig) -> dict[str, float]:
    """Return the cost vector with its priced sum."""
    return {
        "total": config.reward.cost.total(raw),
        "tokens": raw.prompt_tokens + raw.completion_tokens,
        "retrieval_ms": round(raw.retrieval_s * 1000, 3),
        "llm_ms": round(raw.llm_s * 1000, 3),
        "steps": raw.steps,
        "usd": raw.usd,
    }


def agent(decision: Decision, served: str | None, raw: Cost | None, config: AppConfig) -> dict[str, Any]:
    """Return the fields of a decision that OpenAI's API does not have."""
    return {
        "decision_id": decision.id,
        "episode_id": decision.episode_id,
        "policy_version": decision.version,
        "mode": decision.mode.value,
        "arm_drawn": decision.drawn,
        "arm_served": served,
        "propensity": decision.propensity,
        "pmf": dict(zip(decision.arms, decision.probabilities, strict=True)),
        "cost": None if raw is None else cost(raw, config),
        "reward_deadline": decision.deadline,
    }


def passages(found: Collection[Passage]) -> list[dict[str, Any]]:
    """Return passages as objects."""
    return [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in found]


def usage(raw: Cost) -> dict[str, int]:
    """Return token counts, as OpenAI clients read them."""
    return {
        "prompt_tokens": raw.prompt_tokens,
        "completion_tokens": raw.completion_tokens,
        "total_tokens": raw.prompt_tokens + raw.completion_tokens,
    }


def completion(
    decided: Decided, text: str, finished: Finished, config: AppConfig, returns: Collection[str]
) -> Json:
    """Return a chat completion."""
    decision, raw = decided.decision, finished.execution.cost
    body = _chat(decision, decided.served, "chat.completion") | {
        "choices": [_choice("message", {"role": "assistant", "content": text}, finished.finish_reason)],
        "usage": usage(raw),
        "agent": _extended(decided, raw, config, returns),
    }
    return Json(body, headers=headers(decision, decided.served))


def retrieval(decided: Decided, finished: Finished, config: AppConfig, returns: Collection[str]) -> Json:
    """Return passages without an answer."""
    body = {
        "object": "retrieval",
        "model": f"arm/{decided.served}",
        "passages": passages(decided.retrieval.passages),
        "agent": _extended(decided, finished.execution.cost, config, set(returns) - {"passages"}),
    }
    return Json(body, headers=headers(decided.decision, decided.served))


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
    async with aclosing(events):
        yield _event(
            frame
            | {
                "choices": [_choice("delta", {"role": "assistant", "content": ""}, None)],
                "agent": _extended(first, None, config, returns),
            }
        )
        try:
            async for event in events:
                if isinstance(event, Chunk) and event.text:
                    yield _event(frame | {"choices": [_choice("delta", {"content": event.text}, None)]})
                elif isinstance(event, Finished):
                    raw = event.execution.cost
                    extension = agent(first.decision, first.served, raw, config)
                    yield _event(
                        frame | {"choices": [_choice("delta", {}, event.finish_reason)], "agent": extension}
                    )
                    if include_usage:
                        yield _event(frame | {"choices": [], "usage": usage(raw)})
        except Exception as error:
            # The status was sent already: the failure is sent as an event.
            failure = errors.translate(error)
            if failure.code == "internal_error":
                logger.exception("a stream failed")
            yield _event(failure.body(None))
    yield b"data: [DONE]\n\n"


def _chat(decision: Decision, served: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{decision.id}",
        "object": kind,
        "created": int(decision.decided_at or time.time()),
        "model": f"arm/{served}",
    }


def _choice(key: str, message: Mapping[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, key: message, "finish_reason": finish_reason, "logprobs": None}


def _extended(
    decided: Decided, raw: Cost | None, config: AppConfig, returns: Collection[str]
) -> dict[str, Any]:
    extension = agent(decided.decision, decided.served, raw, config)
    if "passages" in returns:
        extension["passages"] = passages(decided.retrieval.passages)
    if "decision" in returns:
        extension["features"] = dict(decided.decision.context.features)
    return extension


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
