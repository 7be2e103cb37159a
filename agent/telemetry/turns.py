"""Spans of the decision and the commits of a turn, and of feedback on it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from armwise.arms import tracing
from armwise.arms.tracing import Attribute, Span
from armwise.feedback.events import Decision, Feedback

COMMITS = {"Decision": "decisions", "Execution": "executions", "Feedback": "feedback"}
"""Tables of the log, by the class of their facts."""


@contextmanager
def trace_decision() -> Iterator[Span | None]:
    """Trace a decision."""
    if not tracing.is_on():
        yield None
        return
    with tracing.span("armwise.decide", {}) as span:
        if span is not None:
            span.openinference("CHAIN", {})
        yield span


def record_decision(span: Span | None, decision: Decision) -> None:
    """Record a decision in its span."""
    if span is None:
        return
    span.set(
        {
            "armwise.decision.id": decision.id,
            "armwise.decision.arm": decision.drawn,
            "armwise.decision.propensity": decision.propensity,
            "armwise.decision.policy.version": decision.version,
            "armwise.decision.mode": decision.mode.value,
            "armwise.decision.eligible": decision.arms,
        }
    )
    if decision.episode_id:
        span.openinference("CHAIN", {"session.id": decision.episode_id})


def trace_commit(facts: tuple[object, ...], commit: "asyncio.Future[Any]") -> None:
    """Trace a commit, from the queue until it is durable."""
    if not tracing.is_on():  # a fast path: there are many commits
        return
    tables = ", ".join(dict.fromkeys(COMMITS[type(fact).__name__] for fact in facts))
    attributes: dict[str, Attribute] = {
        "db.operation.name": "INSERT",
        "db.operation.batch.size": len(facts),
        "db.query.summary": tables,
    }
    span = tracing.start(f"INSERT {tables}", attributes, client=True)
    if span is None:
        return

    def end_span(future: "asyncio.Future[Any]") -> None:
        if not future.cancelled() and (error := future.exception()):
            span.fail(error)
        span.end()

    commit.add_done_callback(end_span)


def record_feedback(fact: Feedback, turn: str) -> None:
    """Record feedback as an evaluation event, linked to the span of its turn.

    Args:
        fact: The feedback.
        turn: The traceparent of the turn; empty: the turn was not traced.
    """
    span = tracing.start("armwise.feedback", {}, link=turn)
    if span is None:
        return
    attributes: dict[str, Attribute | None] = {
        "gen_ai.evaluation.name": fact.metric or fact.kind.value,
        "gen_ai.response.id": fact.decision_id,
        "gen_ai.conversation.id": fact.episode_id,
        "gen_ai.evaluation.score.value": fact.value,
        "gen_ai.evaluation.score.label": fact.content.get("label"),
        "gen_ai.evaluation.explanation": fact.content.get("comment") if span.shows_content else None,
    }
    span.openinference("EVALUATOR", {})
    span.event("gen_ai.evaluation.result", attributes)
    span.end()
