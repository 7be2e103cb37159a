"""Read answers from the log: pairs of two arms that a judge has compared, and texts for a judge."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.events import Execution, ObservationSource
from armwise.feedback.log import tables as t
from armwise.feedback.log.rows import load_executions
from armwise.feedback.log.store import Store

AT_ONCE = 500
"""Decisions that are read at a time."""


@dataclass(frozen=True, slots=True)
class SecondAnswer:
    """An answer that was sent, and one of another arm to the same question.

    Attributes:
        decision_id: The decision.
        drawn: Arm of the answer that was sent.
        other: Arm of the second answer.
        value: Preference of the judge for the second answer, in [-1, 1]; None: the arm or the judge failed.
        is_judged: Whether a judge was asked; the words of both answers are the same otherwise.
        swapped: Whether the judge read the second answer first.
        usd: Dollars of the first answer, of the second one, and of the judge.
        seconds: Seconds of the first answer and of the second one.
    """

    decision_id: str
    drawn: str
    other: str
    value: float | None
    is_judged: bool
    swapped: bool
    usd: tuple[float, float, float]
    seconds: tuple[float, float]


def list_second_answers(store: Store, one: str, other: str) -> list[SecondAnswer]:
    """Return the questions that both of two arms answered, in the order of the log."""
    d, e, o = t.decisions.c, t.executions.c, t.observations.c
    statement = (
        sa.select(
            *(d.id, d.drawn, o.arm, o.value, o.judge, o.swapped, e.usd.label("sent_usd"), o.usd, o.judge_usd),
            (e.retrieval_s + e.llm_s).label("sent_s"),
            (o.retrieval_s + o.llm_s).label("second_s"),
        )
        .select_from(t.observations)
        .join(t.decisions, d.id == o.decision_id)
        .join(t.executions, e.decision_id == d.id)
        .where(o.source == ObservationSource.SHADOW, d.drawn.in_([one, other]), o.arm.in_([one, other]))
        .order_by(o.seq)
    )
    with store.reading() as connection:
        return [
            SecondAnswer(
                *(row.id, row.drawn, row.arm, row.value, bool(row.judge), row.swapped),
                (row.sent_usd, row.usd, row.judge_usd),
                (row.sent_s, row.second_s),
            )
            for row in connection.execute(statement)
        ]


def list_answers(store: Store, seqs: Sequence[int]) -> dict[int, tuple[str, Execution | None]]:
    """Return question and execution of decisions, by their position in the log."""
    d, found = t.decisions.c, dict[int, tuple[str, Execution | None]]()
    for first in range(0, len(seqs), AT_ONCE):
        some = sa.select(d.id).where(d.seq.in_(seqs[first : first + AT_ONCE]))
        with store.reading() as connection:
            ids = [str(one) for one in connection.scalars(some)]
            executions = load_executions(connection, ids)
        for name, (decision, seq) in store.decisions(ids).items():
            found[seq] = decision.context.question, executions.get(name)
    return found
