"""The newest or the oldest explored decisions, with what was asked, and the class of each decision."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import NOT_SERVED, Mode
from armwise.feedback.log import Store, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.texts import find_text
from armwise.feedback.training_log.position import read_head


class NewestDraw(NamedTuple):
    """An explored decision.

    Attributes:
        seq: Position in the log.
        arm: The drawn arm.
        features: Named features of the question.
        question: The question; empty if its text was erased.
        embedding: Dense features of the question; empty if the policy has none.
        id: Id of the decision.
    """

    seq: int
    arm: str
    features: Mapping[str, float]
    question: str = ""
    embedding: Sequence[float] = ()
    id: str = ""


PAGE = 4096
"""Positions of the log that are read at a time."""


def newest_draws(
    store: Store,
    limit: int,
    criteria: listing.DecisionFilter,
    upto: int | None = None,
    *,
    oldest: bool = False,
) -> list[NewestDraw]:
    """Return the newest explored decisions, with the features of their questions, the newest first.

    Args:
        store: The log.
        limit: Largest length of the list.
        criteria: Conditions on the decisions; the newest `listing.WINDOW_BY_REWARD` positions are read.
        upto: Position of the newest that counts; None: the end of the log.
        oldest: Whether to return the oldest of the log, the oldest first, in place of the newest.
    """
    d = t.decisions.c
    query = (
        sa.select(d.id, d.seq, d.drawn, sa.cast(d.features, sa.Text).label("features"))
        .add_columns(log_rows.select_texts(t.decisions))
        .where(d.mode == Mode.EXPLORE, d.policy.not_in(NOT_SERVED), *criteria.conditions())
        .order_by(d.seq if oldest else d.seq.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        last = read_head(connection) if upto is None else upto
        first = 0 if oldest else last - listing.WINDOW_BY_REWARD
        here = d.seq > first, d.seq <= min(last, first + listing.WINDOW_BY_REWARD)
        rows = connection.execute(query.where(*here)).all()

    def read(row: Any) -> NewestDraw:
        seen = log_rows.read_context(row.texts, loads(row.features))
        return NewestDraw(row.seq, row.drawn, seen.features, seen.question, seen.embedding, row.id)

    return [*log_rows.readable(rows, read)]


def read_classes(store: Store, field: str, first: int, last: int) -> dict[int, str]:
    """Return the class of each explored decision that has one: the text that its caller sent in a field.

    Args:
        store: The log.
        field: Name of the field, such as `topic`.
        first: Position of the first decision.
        last: Position of the last decision.
    """
    d = t.decisions.c
    query = (
        sa.select(d.seq, sa.cast(d.features, sa.Text).label("features"))
        .add_columns(log_rows.select_texts(t.decisions))
        .where(d.mode == Mode.EXPLORE, d.policy.not_in(NOT_SERVED))
        .order_by(d.seq)
    )

    def read(row: Any) -> tuple[int, str]:
        names = log_rows.read_context(row.texts, loads(row.features)).features
        return row.seq, find_text(names, field)

    found: dict[int, str] = {}
    for begin in range(first, last + 1, PAGE):
        with store.reading() as connection:
            rows = connection.execute(query.where(d.seq >= begin, d.seq < min(begin + PAGE, last + 1))).all()
        found |= {seq: name for seq, name in log_rows.readable(rows, read) if name}
    return found
