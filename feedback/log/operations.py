"""Operations: rows of the log that say what operators and the service decided, numbered in their order.

The newest row about a subject counts; those before it are history. Rows are few, but for prices: who asks for
more than the newest folds them in Python.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import tables as t
from armwise.feedback.log.rows import insert


class Operation(StrEnum):
    """What was decided."""

    METRIC = "metric"
    """A metric, its subject, was declared."""
    SWITCH = "switch"
    """An arm, its subject, was switched on or off."""
    ARM_SET = "arm_set"
    PROMOTE = "promote"
    """This and the next two have a configured recipe as their subject."""
    ROLLBACK = "rollback"
    CANARY = "canary"
    ALARM = "alarm"
    """The learner of a recipe, its subject, noticed drift."""
    WARM_START = "warm_start"
    """Labels were inserted."""
    DISABLED_KEY = "disabled_key"
    """A key was disabled, whose public id is in `once`."""
    PRICE = "price"
    """The price of a budget, its subject, moved."""
    GUARD = "guard"
    """State of a guard, its subject."""
    FALL = "fall"
    """A class of requests went back to the reference of a guard, its subject; or all of its classes were
    freed."""
    ERASURE = "erasure"
    """Texts were erased; its subject is a keyed hash of whose, until turns that were under way have ended."""
    RETENTION = "retention"
    """Texts were erased by age."""
    DIGEST = "digest"
    """An attempt to send a report of a period."""
    EPOCH = "epoch"
    """A learner took over; only the newest may write."""


PROMOTIONS = (Operation.PROMOTE, Operation.ROLLBACK, Operation.CANARY)
"""Kinds that say which version serves."""


def record(
    connection: sa.Connection,
    kind: Operation,
    at: float,
    document: Mapping[str, Any],
    *,
    subject: str = "",
    version: int | None = None,
    once: str | None = None,
) -> int:
    """Record an operation and return its number.

    Args:
        connection: Connection of a write transaction.
        kind: What was decided.
        at: Seconds since the epoch.
        document: The rest of it, as a JSON document.
        subject: What it is about, up to 256 characters; reads of the newest row name it.
        version: Number of the version that it is about.
        once: Text of up to 384 characters that at most one operation of the kind has.
    """
    row = {"kind": kind, "at": at, "document": dict(document)}
    return insert(connection, t.operations, {**row, "subject": subject, "version": version, "once": once})


def find_newest(connection: sa.Connection, kind: Operation, subject: str = "") -> sa.Row[Any] | None:
    """Return the newest operation of a kind about a subject, if any."""
    return connection.execute(_NEWEST, {"of_kind": kind, "about": subject}).first()


def find_newest_of_each(connection: sa.Connection, kind: Operation) -> Sequence[sa.Row[Any]]:
    """Return the newest operation of a kind about each subject, the oldest first."""
    return connection.execute(_NEWEST_OF_EACH, {"of_kind": kind}).all()


def read_all(
    connection: sa.Connection, *kinds: Operation, subject: str | None = None, after: int = 0
) -> Sequence[sa.Row[Any]]:
    """Return the operations of some kinds, of one subject or all, numbered above `after`, in order."""
    query = sa.select(t.operations).where(_o.kind.in_(kinds), _o.seq > after).order_by(_o.seq)
    return connection.execute(query if subject is None else query.where(_o.subject == subject)).all()


def change(connection: sa.Connection, number: int, at: float, document: Mapping[str, Any]) -> None:
    """Replace the time and the document of an operation."""
    connection.execute(sa.update(t.operations).where(_o.seq == number).values(at=at, document=dict(document)))


def prune(connection: sa.Connection, kind: Operation, subject: str, kept: int) -> None:
    """Remove the operations of a kind about a subject that are older than the newest `kept`."""
    about = (_o.kind == kind) & (_o.subject == subject)
    old = sa.select(_o.seq).where(about).order_by(_o.seq.desc()).offset(kept).limit(1)
    oldest = connection.scalar(old)
    if oldest is not None:
        connection.execute(sa.delete(t.operations).where(about, _o.seq <= oldest))


_o = t.operations.c

_NEWEST = (
    sa.select(t.operations)
    .where(_o.kind == sa.bindparam("of_kind"), _o.subject == sa.bindparam("about"))
    .order_by(_o.seq.desc())
    .limit(1)
)

_NEWEST_OF_EACH = (
    sa.select(t.operations)
    .where(
        _o.seq.in_(
            sa.select(sa.func.max(_o.seq)).where(_o.kind == sa.bindparam("of_kind")).group_by(_o.subject)
        )
    )
    .order_by(_o.seq)
)
