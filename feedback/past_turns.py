"""Turns that were over before the log hears of them, such as labels: each is entered once, and whole."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from feedback import tables as t
from feedback.batch import Fact
from feedback.events import Decision, Execution, Feedback
from feedback.store import Store


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A decision, how it went, and what was said of it."""

    decision: Decision
    execution: Execution
    feedback: tuple[Feedback, ...]


def new_among(store: Store, turns: Sequence[PastTurn]) -> list[PastTurn]:
    """Return the turns whose decision is not in the log, in order; at most some thousand are looked up."""
    ids = [turn.decision.id for turn in turns]
    with store.reading() as connection:
        known = set(connection.scalars(sa.select(t.decisions.c.id).where(t.decisions.c.id.in_(ids))))
    return [turn for turn in turns if turn.decision.id not in known]


def enter(store: Store, turns: Sequence[PastTurn]) -> int:
    """Commit those turns that are not in the log, all at once and in order; return how many they are.

    As a decision never is without its feedback, the join finds both together, whatever the deadline.

    Raises:
        ConflictError: Somebody else enters the same turns; nothing was written.
        LogUnavailableError: Nothing was written.
    """
    new = new_among(store, turns)
    facts: list[Fact] = []
    for turn in new:
        facts += (turn.decision, turn.execution, *turn.feedback)
    if facts:
        store.append(facts)
    return len(new)


__all__ = ["PastTurn", "enter", "new_among"]
