"""The responses of a turn: passages, headers, and the fields that decisions share."""

from collections.abc import Collection
from typing import Any

import orjson
from fastapi.responses import JSONResponse, StreamingResponse
from typing_extensions import override

from agent.config import AppConfig
from agent.serving import Decided, Finished
from arms.base import Passage
from arms.filters import shown
from feedback.events import Cost, Decision


class Json(JSONResponse):
    """A body that orjson writes: several times faster than the standard library's json."""

    @override
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


def headers(decision: Decision, served: str | None) -> dict[str, str]:
    """Return the headers that describe a decision; None serves an action, whose id may be any text."""
    return {
        "x-decision-id": decision.id,
        **({} if served is None else {"x-arm": served}),
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
    return [
        {"id": p.id, "title": p.title, "text": p.text, "score": p.score, "metadata": shown(p.metadata)}
        for p in found
    ]


def retrieval(decided: Decided, finished: Finished, config: AppConfig, returns: Collection[str]) -> Json:
    """Return passages without an answer."""
    body = {
        "object": "retrieval",
        "model": f"arm/{decided.served}",
        "passages": passages(decided.retrieval.passages),
        "agent": extended(decided, finished.execution.cost, config, set(returns) - {"passages"}),
    }
    return Json(body, headers=headers(decided.decision, decided.served))


def extended(
    decided: Decided, raw: Cost | None, config: AppConfig, returns: Collection[str]
) -> dict[str, Any]:
    """Return the fields of a decision, and what `agent.return` asks for."""
    extension = agent(decided.decision, decided.served, raw, config)
    if "passages" in returns:
        extension["passages"] = passages(decided.retrieval.passages)
    if "decision" in returns:
        extension["features"] = dict(decided.decision.context.features)
    return extension
