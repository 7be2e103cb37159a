"""Facts as rows of the log, and rows as facts."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from feedback import tables as t
from feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status


def decision_row(d: Decision) -> dict[str, object]:
    """Return the row of a decision."""
    return {
        "id": d.id,
        "decided_at": d.decided_at,
        "deadline": d.deadline,
        "mode": d.mode.value,
        "policy": d.policy,
        "version": d.version,
        "drawn": d.drawn,
        "propensity": d.propensity,
        "episode_id": d.episode_id,
        "request_digest": d.request_digest,
        "question": d.context.question,
        "arms": d.arms,
        "probabilities": d.probabilities,
        "features": {
            "sparse": d.context.features,
            "embedding": d.context.embedding,
            "arms": d.context.arms,
        },
    }


def execution_row(e: Execution) -> dict[str, object]:
    """Return the row of an execution."""
    return {
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
        "answer": e.answer,
        "error": e.error,
        "finished_at": e.finished_at,
    }


def feedback_row(f: Feedback) -> dict[str, object]:
    """Return the row of an item of feedback."""
    return {
        "id": f.id,
        "decision_id": f.decision_id,
        "metric": f.metric,
        "value": f.value,
        "received_at": f.received_at,
        "event_time": f.event_time,
        "tags": dict(f.tags),
    }


def read_feedback(connection: sa.Connection, where: sa.ColumnElement[bool]) -> Iterator[tuple[Feedback, int]]:
    """Yield feedback with its position, in recorded order."""
    for row in connection.execute(sa.select(t.feedback).where(where).order_by(t.feedback.c.seq)):
        yield (
            Feedback(
                row.id, row.decision_id, row.metric, row.value, row.received_at, row.event_time, row.tags
            ),
            row.seq,
        )


def load_feedback(
    connection: sa.Connection, decision_ids: Sequence[str], upto: int
) -> dict[str, list[tuple[Feedback, int]]]:
    """Return the feedback of each decision with its position, in recorded order, up to position `upto`."""
    found: dict[str, list[tuple[Feedback, int]]] = {}
    where = t.feedback.c.decision_id.in_(decision_ids) & (t.feedback.c.seq <= upto)
    for item, seq in read_feedback(connection, where):
        found.setdefault(item.decision_id, []).append((item, seq))
    return found


def load_decisions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Decision]:
    """Return the decisions that exist among `ids`."""
    rows = connection.execute(sa.select(t.decisions).where(t.decisions.c.id.in_(ids)))
    return {row.id: decision_of(row) for row in rows}


def decision_of(row: sa.Row[Any]) -> Decision:
    """Return the fact in a row of `decisions`."""
    features = row.features
    context = Context(row.question, features["sparse"], tuple(features["embedding"]), features["arms"])
    return Decision(
        id=row.id,
        context=context,
        arms=tuple(row.arms),
        probabilities=tuple(row.probabilities),
        drawn=row.drawn,
        policy=row.policy,
        version=row.version,
        mode=Mode(row.mode),
        decided_at=row.decided_at,
        deadline=row.deadline,
        episode_id=row.episode_id,
        request_digest=row.request_digest,
    )


def cost_of(row: sa.Row[Any]) -> Cost:
    """Return the raw cost vector in a row of `executions`."""
    return Cost(row.steps, row.prompt_tokens, row.completion_tokens, row.retrieval_s, row.llm_s, row.usd)


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
        )
        for row in rows
    }
