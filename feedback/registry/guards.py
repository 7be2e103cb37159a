"""What a guard has seen and decided, in the log: the learner writes it, and every replica reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from armwise.feedback.guard import Fall, Returned
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from armwise.feedback.training_log import confirm_epoch

LIFTED = "lifted"
"""Field of a row that says that the classes of a guard no longer go back."""


def read_state(store: Store, name: str) -> Mapping[str, Any] | None:
    """Return the newest state of a guard, if any."""
    with store.reading() as connection:
        row = operations.find_newest(connection, Operation.GUARD, name)
    return None if row is None else row.document


def publish(
    store: Store, epoch: int, name: str, state: Mapping[str, Any], falls: Sequence[Fall], now: float
) -> None:
    """Replace the state of a guard, and record classes that go back.

    Args:
        store: The log.
        epoch: The right to write, from `take_epoch`.
        name: Name of the guard.
        state: What it has seen, with the time at which it began as `since`.
        falls: Classes that go back.
        now: Seconds since the epoch.

    Raises:
        SupersededError: Another learner has taken over.
    """
    with store.writing() as connection:
        confirm_epoch(connection, epoch)
        operations.record(connection, Operation.GUARD, now, state, subject=name)
        operations.prune(connection, Operation.GUARD, name, 1)
        for fall in falls:
            document, once = asdict(fall), f"{name} {state['since']} {fall.key}"
            del document["at"]
            operations.record(connection, Operation.FALL, now, document, subject=name, once=once)


def lift(store: Store, epoch: int, name: str | None, now: float) -> int:
    """Forget all guards but one; return how many classes of theirs are free again. Raises as `publish`."""
    with store.reading() as connection:
        rows = operations.find_newest_of_each(connection, Operation.GUARD)
    others = [row.subject for row in rows if row.subject != name]
    if not others:
        return 0
    freed = sum(len(read_returned(store, other).falls) for other in others)
    with store.writing() as connection:
        confirm_epoch(connection, epoch)
        for other in others:
            o = t.operations.c
            connection.execute(sa.delete(t.operations).where(o.kind == Operation.GUARD, o.subject == other))
            operations.record(connection, Operation.FALL, now, {LIFTED: True}, subject=other)
    return freed


def read_returned(store: Store, name: str) -> Returned:
    """Return the classes that a guard has sent back."""
    with store.reading() as connection:
        rows = operations.read_all(connection, Operation.FALL, subject=name)
    falls = list[Fall]()
    for row in rows:
        if LIFTED in row.document:
            falls.clear()
        else:
            falls.append(_read_fall(row))
    return Returned(tuple(falls))


def newest_falls(store: Store, limit: int) -> list[Fall]:
    """Return the newest falls of all guards, the newest first."""
    with store.reading() as connection:
        rows = operations.read_all(connection, Operation.FALL)
    found = [_read_fall(row) for row in rows if LIFTED not in row.document]
    return found[::-1][:limit]


def _read_fall(row: sa.Row[Any]) -> Fall:
    return Fall(**{**row.document, "at": row.at, "apart": tuple(row.document["apart"])})
