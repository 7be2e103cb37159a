"""The shapes of replies: pure functions from facts to what a client reads."""

import logging
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from fastapi.responses import JSONResponse
from typing_extensions import override

from agent.api import errors
from agent.config import AppConfig
from agent.learning import DIGEST_CHARS
from agent.policies import shadow
from agent.routers import saved
from agent.serving import ArmInfo, Decided, Finished, messages
from arms.base import Passage
from arms.llm import Chunk
from arms.retrievers import ArmSpec
from feedback.drift import Alarms, DriftSpec
from feedback.events import LABELS, Cost, Decision, Example, Feedback, Kind, Status
from feedback.fold import DecisionFact as Fact
from feedback.fold import Fold
from feedback.log import Receipt, Record
from feedback.registry import ActivePolicy, Version
from feedback.registry import promotions as registry_promotions
from feedback.training_log import lag as training_log_lag

NONE: Mapping[str, Any] = {
    "version": None,
    "parent": None,
    "digest": None,
    "examples_seq": 0,
    "created_at": None,
}
"""What is told of the version where there is none yet."""


def policy(
    config: AppConfig,
    version: Version | None,
    said: ActivePolicy,
    deciding: bool,
    newest: Version | None,
    lag: training_log_lag.Lag,
    router: saved.About | None,
    compared: shadow.Agreement | None,
    alarms: Alarms,
    floor: float,
) -> dict[str, Any]:
    """Return the policy that decides now, how much of the log it has learned, and the router it hears.

    Args:
        config: What is served.
        version: What decides; None before there is a version.
        said: What operators said that holds.
        deciding: Whether a candidate takes a share of the decisions.
        newest: The newest version of the recipe that is followed.
        lag: What of the log the served version has learned.
        router: What is known of the router; None where there is none.
        compared: How the policy in the shadow agrees with the one that decides; None without one.
        alarms: Of drift.
        floor: Least probability of every eligible arm, now.
    """
    pin, promotion, canary = said.pin, said.promotion, said.canary
    configured = config.policy.model_dump(mode="json")
    return {
        **{name: (version.policy if version else configured)[name] for name in ("kind", "params")},
        "floor": config.floor,
        **(NONE if version is None else {name: getattr(version, name) for name in NONE}),
        "applied_seq": lag.applied_seq,
        "log_seq": lag.log_seq,
        "serving": {
            "version": version and version.version,
            "pinned": pin is not None,
            "chosen": pin and pin.version,
            "since": pin and pin.at,
            "reason": pin and pin.reason,
        },
        "promotion": promotion
        and {
            "version": promotion.version,
            "since": promotion.at,
            "reason": promotion.reason,
            "forced": promotion.forced,
            "evaluation": promotion.evaluation,
            "deciding": version is not None and version.recipe == said.recipe,
        },
        "canary": canary
        and {
            "version": canary.version,
            "share": canary.share,
            "since": canary.at,
            "reason": canary.reason,
            "deciding": deciding,
        },
        "newest": newest and {name: getattr(newest, name) for name in NONE},
        "apprentice": compared
        and {
            "decisions": compared.decisions,
            "agreement": compared.shared if compared.decisions else None,
            "same_best": compared.same_arm if compared.decisions else None,
        },
        "drift": config.drift and _drift(config.drift, alarms, floor, raised=floor > config.floor),
        "reward": config.reward.model_dump(mode="json"),
        "router": router
        and {
            "kind": router.kind,
            "params": router.params,
            "stage": router.stage,
            "digest": router.digest,
            "arms": router.arms,
        },
    }


def _drift(spec: DriftSpec, alarms: Alarms, floor: float, *, raised: bool) -> dict[str, Any]:
    """Return what is known of alarms, what they do to the floor, and whether they ask for labels."""
    last = alarms.newest
    return {
        "alarms": alarms.count,
        "last": last
        and {
            "subject": last.subject,
            "detector": last.detector,
            "before": last.before,
            "after": last.after,
            "example_seq": last.example_seq,
            "at": last.at,
        },
        "floor": floor,
        "until": alarms.raised_until(spec) if raised else None,
        "warm_start_open": alarms.warm_start_open,
    }


def versions(
    page: Sequence[tuple[Version, bool]],
    promotions: Sequence[registry_promotions.Promotion],
    serving: Version | None,
) -> dict[str, Any]:
    """Return versions, with whether their bytes are kept and whether they serve, and what was said of any."""
    return {
        "versions": [
            {
                "version": version.version,
                "parent": version.parent,
                "recipe": version.recipe[:DIGEST_CHARS],
                "kind": version.policy.get("kind"),
                "params": version.policy.get("params"),
                "start": version.start,
                "examples_seq": version.examples_seq,
                "applied_seq": version.applied_seq,
                "digest": version.digest,
                "created_at": version.created_at,
                "kept": kept,
                "serving": version == serving,
            }
            for version, kept in page
        ],
        "promotions": [
            {
                "seq": one.seq,
                "version": one.version,
                "action": one.action.value,
                "reason": one.reason,
                "at": one.at,
                "forced": one.forced,
                "share": one.share,
                "evaluation": one.evaluation,
            }
            for one in promotions
        ],
    }


logger = logging.getLogger(__name__)


class Json(JSONResponse):
    """A body that orjson writes: several times faster than the standard library."""

    @override
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def headers(decision: Decision, served: str) -> dict[str, str]:
    """Return what every answer says of its decision."""
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
    """Return our own fields."""
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
    """Yield server-sent events: the decision first, then the words, then what they cost."""
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
                    ours = agent(first.decision, first.served, raw, config)
                    yield _event(
                        frame | {"choices": [_choice("delta", {}, event.finish_reason)], "agent": ours}
                    )
                    if include_usage:
                        yield _event(frame | {"choices": [], "usage": usage(raw)})
        except Exception as error:
            # The status line has left: the failure travels as an event.
            failure = errors.translate(error)
            if failure.status == errors.BUG:
                logger.exception("a stream broke off")
            yield _event(failure.body(None))
    yield b"data: [DONE]\n\n"


def receipt(fact: Feedback, kept: Receipt) -> dict[str, Any]:
    """Return what became of an item of feedback."""
    assert kept.status is not None
    return {
        "feedback_id": fact.id,
        "decision_id": fact.decision_id,
        "episode_id": fact.episode_id,
        "status": kept.status.value,
        "log_seq": kept.seq,
    }


def record(found: Record, config: AppConfig, now: float) -> dict[str, Any]:
    """Return everything known about a decision."""
    decision, execution = found.decision, found.execution
    served = execution.served if execution else None
    fold, fact = Fold(config.reward), _folded(found)
    metrics = found.metrics
    if metrics is None:
        metrics = fold.metrics(fact, execution.status if execution else Status.OK)
    reward = None
    if execution:
        failed = execution.status in (Status.ARM_FAILED, Status.FELL_BACK)
        reward = config.reward.reward_of(Example(0, decision, execution.cost, metrics, failed))
    return agent(decision, served, execution.cost if execution else None, config) | {
        "question": decision.context.question,
        "features": dict(decision.context.features),
        "embedding": list(decision.context.embedding),
        "arm_features": {name: dict(features) for name, features in decision.context.arms.items()},
        "policy": decision.policy,
        "decided_at": decision.decided_at,
        "floor": decision.floor,
        "deferred": decision.deferred,
        "activated": any(item.kind is Kind.ACTIVATION for item in found.feedback),
        "shadow": dict(zip(decision.arms, decision.shadow, strict=False)) or None,
        "canary": {"version": decision.candidate, "share": decision.share} if decision.share else None,
        "status": execution.status.value if execution else None,
        "error": execution.error if execution else None,
        "answer": execution.answer if execution else None,
        "passage_ids": list(execution.passages) if execution else [],
        "feedback": [
            {
                "feedback_id": item.id,
                "kind": item.kind.value,
                "episode_id": item.episode_id,
                "metric_name": item.metric,
                "value": item.value,
                "received_at": item.received_at,
                "event_time": item.event_time,
                "tags": dict(item.tags),
            }
            for item in found.feedback
        ],
        "metrics": dict(metrics),
        "reward": reward,
        "example_seq": found.example_seq,
        "state": _state(found, now <= fold.closing(fact)),
    }


def _folded(found: Record) -> Fact:
    """Return a decision with all that was said of it, as it is joined with that."""
    one = found.decision
    over = one.policy == LABELS
    seen = one.id, one.decided_at, found.logged_at, one.mode, one.episode_id, one.deferred, over
    return Fact(found.seq, *seen, found.feedback)


def _state(found: Record, waits: bool) -> str:
    """Say where a decision stands: learned, open to feedback, or closed without being learned."""
    if found.example_seq is not None:
        return "learned"
    if not waits:
        return "closed"
    return "running" if found.execution is None else "open"


def arm(name: str, spec: ArmSpec, info: ArmInfo) -> dict[str, Any]:
    """Return an arm as it is configured and as it is switched."""
    return {
        "name": name,
        "kind": spec.kind,
        "params": spec.params,
        "host": spec.host,
        "backbones": sorted(info.backbones),
        "features": dict(info.features),
        "enabled": info.enabled,
    }


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
    ours = agent(decided.decision, decided.served, raw, config)
    if "passages" in returns:
        ours["passages"] = passages(decided.retrieval.passages)
    if "decision" in returns:
        ours["features"] = dict(decided.decision.context.features)
    return ours


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
