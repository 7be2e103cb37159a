"""Insert and read turns that happened before they were logged, such as labels; each is inserted as a unit."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.events import LABELS, Decision, Execution, Feedback, FeedbackKind
from armwise.feedback.log import Fact, Store, rows
from armwise.feedback.log import tables as t

CHUNK = 1000
"""Turns in one query."""


@dataclass(frozen=True, slots=True)
class LabelTurn:
    """A decision with its execution and its feedback."""

    decision: Decision
    execution: Execution
    feedback: tuple[Feedback, ...]


def missing_from_log(store: Store, turns: Sequence[LabelTurn]) -> list[LabelTurn]:
    """Return the turns whose decision the log lacks, in order; pass a few thousand turns at most."""
    ids = [turn.decision.id for turn in turns]
    with store.reading() as connection:
        logged = set(connection.scalars(sa.select(t.decisions.c.id).where(t.decisions.c.id.in_(ids))))
    return [turn for turn in turns if turn.decision.id not in logged]


def insert(store: Store, turns: Sequence[LabelTurn]) -> int:
    """Commit the turns that the log lacks, in order and in one transaction; return their number.

    A decision and its feedback are committed together, so the join finds both, whatever the deadline.

    Raises:
        ConflictError: Another process inserts the same turns.
    """
    new = missing_from_log(store, turns)
    facts: list[Fact] = []
    for turn in new:
        facts += (turn.decision, turn.execution, *turn.feedback)
    if facts:
        store.append(facts)
    return len(new)


def read_turns(store: Store, episodes: Sequence[str]) -> Iterator[LabelTurn]:
    """Yield the labels of some episodes as they were inserted, in the order of the log.

    Later feedback on a label is left out, as in the training log.
    """
    d, f = t.decisions.c, t.feedback.c
    query = sa.select(d.seq, d.id).where(d.policy == LABELS, d.episode_id.in_(episodes))
    after = 0
    while True:
        with store.reading() as connection:
            rows_of_chunk = connection.execute(query.where(d.seq > after).order_by(d.seq).limit(CHUNK)).all()
            ids = [row.id for row in rows_of_chunk]
            decisions, executions = (
                rows.load_decisions(connection, ids),
                rows.load_executions(connection, ids),
            )
            feedback: defaultdict[str, list[Feedback]] = defaultdict(list)
            values = rows.FEEDBACK.where(f.decision_id.in_(ids), f.kind == FeedbackKind.VALUE.value)
            for row in connection.execute(values.order_by(f.seq)):
                feedback[row.decision_id].append(rows.read_feedback(row))
        for name in ids:
            decision = decisions[name]
            inserted = tuple(item for item in feedback[name] if item.received_at <= decision.decided_at)
            yield LabelTurn(decision, executions[name], inserted)
        if len(rows_of_chunk) < CHUNK:
            return
        after = rows_of_chunk[-1].seq
