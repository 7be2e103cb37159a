"""Facts as rows of the log, and rows as facts."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from feedback.archived import resolved
from feedback.events import (
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    Kind,
    Mode,
    Observation,
    Source,
    Status,
)
from feedback.log import tables as t
from feedback.log.database import storable


def decision_row(d: Decision, seq: int, logged_at: float, erased: int | None = None) -> dict[str, object]:
    """Return the row of a decision at a position and a time of the log; `erased` by an erasure or not."""
    return {
        "seq": seq,
        "id": d.id,
        "decided_at": d.decided_at,
        "deadline": d.deadline,
        "logged_at": logged_at,
        "mode": d.mode.value,
        "policy": d.policy,
        "version": d.version,
        "floor": d.floor,
        "drawn": d.drawn,
        "propensity": d.propensity,
        "deferred": d.deferred,
        "episode_id": d.episode_id,
        "request_digest": d.request_digest,
        "question": storable(d.context.question),
        "arms": d.arms,
        "probabilities": d.probabilities,
        "shadow": d.shadow,
        "features": {
            "sparse": d.context.features,
            "embedding": d.context.embedding,
            "arms": d.context.arms,
            **({"masked": d.masked} if d.masked else {}),
            **({"trace": d.trace} if d.trace else {}),
        },
        "candidate": d.candidate,
        "share": d.share,
        "price": d.price,
        "costs": d.costs,
        "cost_weight": d.cost_weight,
        "candidate_scores": d.candidate_scores,
        "user_digest": d.user_digest,
        "erased": erased,
    }


def execution_row(e: Execution, seq: int) -> dict[str, object]:
    """Return the row of an execution at a position of the log."""
    return {
        "seq": seq,
        "decision_id": e.decision_id,
        "served": e.served,
        "status": e.status.value,
        "steps": e.cost.steps,
        "prompt_tokens": e.cost.prompt_tokens,
        "completion_tokens": e.cost.completion_tokens,
        "retrieval_s": e.cost.retrieval_s,
        "llm_s": e.cost.llm_s,
        "usd": e.cost.usd,
        "passages": e.passages,
        "answer": None if e.answer is None else storable(e.answer),
        "error": storable(e.error),
        "finished_at": e.finished_at,
        "stages": e.stages,
        "index_version": e.index_version or None,
        "cached": e.cached,
        "tokens_by_model": dict(e.tokens_by_model) or None,
    }


def observation_row(o: Observation, seq: int) -> dict[str, object]:
    """Return the row of an observation at a position of the log."""
    judged = o.judge_cost
    return {
        "seq": seq,
        "decision_id": o.decision_id,
        "source": o.source.value,
        "arm": o.arm,
        "share": o.share,
        "propensity": o.propensity,
        "value": o.value,
        "steps": o.cost.steps,
        "prompt_tokens": o.cost.prompt_tokens,
        "completion_tokens": o.cost.completion_tokens,
        "retrieval_s": o.cost.retrieval_s,
        "llm_s": o.cost.llm_s,
        "usd": o.cost.usd,
        "judge": storable(o.judge),
        "judge_tokens": judged.prompt_tokens + judged.completion_tokens,
        "judge_s": judged.llm_s,
        "judge_usd": judged.usd,
        "swapped": o.swapped,
        "passages": o.passages,
        "answer": None if o.answer is None else storable(o.answer),
        "error": storable(o.error),
        "observed_at": o.observed_at,
    }


def observation_of(row: sa.Row[Any]) -> Observation:
    """Return the fact in a row of `observations`; the judge's tokens count as read."""
    return Observation(
        row.decision_id,
        Source(row.source),
        row.arm,
        row.share,
        row.propensity,
        row.value,
        cost_of(row),
        row.judge,
        Cost(prompt_tokens=row.judge_tokens, llm_s=row.judge_s, usd=row.judge_usd),
        row.swapped,
        tuple(row.passages),
        row.answer,
        row.error,
        row.observed_at,
    )


def feedback_row(f: Feedback, seq: int, early: bool) -> dict[str, object]:
    """Return the row of feedback at a position of the log; `early` if its decision is not in the log yet."""
    return {
        "seq": seq,
        "id": f.id,
        "kind": f.kind.value,
        "decision_id": f.decision_id,
        "episode_id": f.episode_id,
        "early": early,
        "more": False,
        "metric": f.metric,
        "value": f.value,
        "received_at": f.received_at,
        "event_time": f.event_time,
        "tags": dict(f.tags),
        "source": f.source,
        "key": f.key,
        "content": dict(f.content) or None,
    }


def feedback_of(row: sa.Row[Any]) -> Feedback:
    """Return the fact in a row of `feedback`."""
    return Feedback(
        row.id,
        row.decision_id,
        row.metric,
        row.value,
        row.received_at,
        row.event_time,
        row.tags,
        row.episode_id,
        Kind(row.kind),
        row.source,
        row.key,
        row.content or {},
    )


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Return a JSON column as text, so that it is decoded row by row and not for all rows at once."""
    return sa.cast(column, sa.Text)


DECISION = (
    t.decisions.c.id,
    t.decisions.c.question,
    _text(t.decisions.c.features),
    _text(t.decisions.c.arms),
    _text(t.decisions.c.probabilities),
    t.decisions.c.drawn,
    t.decisions.c.policy,
    t.decisions.c.version,
    t.decisions.c.mode,
    t.decisions.c.decided_at,
    t.decisions.c.deadline,
    t.decisions.c.episode_id,
    t.decisions.c.request_digest,
    t.decisions.c.floor,
    t.decisions.c.deferred,
    _text(t.decisions.c.shadow),
    t.decisions.c.candidate,
    t.decisions.c.share,
    t.decisions.c.price,
    _text(t.decisions.c.costs),
    t.decisions.c.cost_weight,
    _text(t.decisions.c.candidate_scores),
    t.decisions.c.erased,
)
"""The columns that `decision_of` reads, in its order."""


def decision_of(row: Sequence[Any]) -> Decision:
    """Return the fact in the columns `DECISION`."""
    name, question, features, arms, probabilities, drawn, policy, version, mode, *rest = row
    decided_at, deadline, episode_id, request_digest, floor, deferred, shadow, *rest = rest
    candidate, share, price, costs, cost_weight, candidate_scores, erased = rest
    seen = resolved(orjson.loads(features))
    return Decision(
        name,
        Context(question, seen["sparse"], tuple(seen["embedding"]), seen["arms"]),
        tuple(orjson.loads(arms)),
        tuple(orjson.loads(probabilities)),
        drawn,
        policy,
        version,
        Mode(mode),
        decided_at,
        deadline,
        episode_id,
        request_digest,
        floor,
        deferred,
        tuple(orjson.loads(shadow)),
        candidate,
        share,
        price,
        tuple(orjson.loads(costs or "[]")),  # null in rows of earlier schemas
        cost_weight,
        orjson.loads(candidate_scores or "null"),
        seen.get("masked", {}),
        seen.get("trace", ""),
        erased=erased is not None,
    )


def load_decisions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Decision]:
    """Return the decisions that exist among `ids`."""
    rows = connection.execute(sa.select(*DECISION).where(t.decisions.c.id.in_(ids)))
    return {row[0]: decision_of(row) for row in rows}


COST = (
    t.executions.c.steps,
    t.executions.c.prompt_tokens,
    t.executions.c.completion_tokens,
    t.executions.c.retrieval_s,
    t.executions.c.llm_s,
    t.executions.c.usd,
)
"""The raw cost vector of an execution, in the order of `Cost`."""


def cost_of(row: sa.Row[Any]) -> Cost:
    """Return the raw cost vector in a row of `executions`."""
    return Cost(row.steps, row.prompt_tokens, row.completion_tokens, row.retrieval_s, row.llm_s, row.usd)


SOURCES = (t.executions.c.index_version, t.executions.c.cached, t.executions.c.tokens_by_model)
"""Where passages and answer of an execution are from: the last fields of an `Example`."""


def tokens_of(stored: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, int, int]]:
    """Return the tokens by model of a row of `executions`."""
    return {name: (read, written, cached) for name, (read, written, cached) in (stored or {}).items()}


def load_executions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Execution]:
    """Return the executions that exist among the decisions `ids`."""
    rows = connection.execute(sa.select(t.executions).where(t.executions.c.decision_id.in_(ids)))
    return {
        row.decision_id: Execution(
            row.decision_id,
            row.served,
            Status(row.status),
            cost_of(row),
            tuple(row.passages),
            row.answer,
            row.error,
            row.finished_at,
            tuple(row.stages or ()),
            row.index_version or "",
            row.cached,
            tokens_of(row.tokens_by_model),
        )
        for row in rows
    }
