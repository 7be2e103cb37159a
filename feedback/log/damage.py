"""Rows with values beyond their limits: which decision, which column, which value, and what is read instead.

Readers get the nearest value within the limits, see `limits`, and go on; here the rows are counted and named.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import is_within, parsed
from armwise.feedback.log.limits import Limited, Numbers, Word, numeric
from armwise.feedback.log.rows import numeric_features
from armwise.feedback.log.store import Store

WINDOW = 2000
"""Newest positions that a page checks; the learner checks all."""

PORTION = 100
"""Positions that a `DamageCount` checks in a step: milliseconds, even with embeddings."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A value beyond the limits of its column.

    Attributes:
        seq: Position of the row in the log.
        subject: Id of the decision or the episode; empty if the row lacks it.
        column: The column, as `table.column`.
        value: The value; None for a document, which may quote texts.
        instead: The value that readers get; None for null and for a document.
        expected: What was expected.
    """

    seq: int
    subject: str
    column: str
    value: object
    instead: object
    expected: str

    def __str__(self) -> str:
        """Return it as one line.

        >>> print(Damaged(7, "d", "executions.usd", 1e308, 1e9, "0 to 1e+09"))
        position 7, decision 'd': executions.usd is 1e+308, where 0 to 1e+09 was expected; it is read as 1e+09
        """
        where = f"position {self.seq}, decision {self.subject!r}: {self.column}"
        if self.value is None:
            return f"{where} has {self.expected}"
        value, read_as = _shown(self.value), _shown(self.instead)
        return f"{where} is {value}, where {self.expected} was expected; it is read as {read_as}"


MOST_SHOWN = 40
"""Characters of a value in a line."""


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, int | float) else repr(value)[:MOST_SHOWN]


def newest(store: Store) -> list[Damaged]:
    """Return the values beyond their limits in the newest `WINDOW` positions. Raises LogUnavailableError."""
    head = store.log_seq()
    return read(store, head - WINDOW, head)


class DamageCount:
    """Count the values beyond their limits in the newest `WINDOW` positions, a `PORTION` in each step.

    After the newest position it starts again at the oldest, so it notices rows that are changed later.

    Args:
        store: The log.

    Attributes:
        positions: Positions of the values so far; a position with two such values appears twice.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._after = 0
        self.positions: list[int] = []

    def step(self) -> None:
        """Check the next positions. Raises LogUnavailableError."""
        head = self._store.log_seq()
        oldest = max(0, head - WINDOW)
        after = self._after if oldest <= self._after < head else oldest
        upto = min(after + PORTION, head)
        rest = [seq for seq in self.positions if oldest < seq <= after or upto < seq]
        self.positions = rest + [damaged.seq for damaged in read(self._store, after, upto)]
        self._after = upto


def read(store: Store, after: int, upto: int) -> list[Damaged]:
    """Return the values beyond their limits in the facts from position `after` + 1 to `upto`, in order.

    Raises:
        LogUnavailableError: Try again later.
    """
    if upto <= after:  # as at most steps of a learner without traffic
        return []
    with store.reading() as connection:
        rows = [row for check in _CHECKS for row in check.read(connection, after, upto)]
    return sorted(rows, key=lambda damaged: damaged.seq)


@dataclass(frozen=True, slots=True)
class _TableCheck:
    """Finds the values beyond their limits in a table of facts.

    Attributes:
        name: The table.
        limited: Types of the columns that have limits, by name.
        beyond: Query of position, subject and these columns, of the rows that have a value beyond its limits.
        documents: Columns that hold documents.
        texts: Query of position, subject and these columns as texts, of all rows.
    """

    name: str
    limited: Mapping[str, Limited | Word]
    beyond: sa.Select[Any]
    documents: Sequence[sa.Column[Any]]
    texts: sa.Select[Any]

    def read(self, connection: sa.Connection, after: int, upto: int) -> Iterator[Damaged]:
        """Yield the values beyond their limits from position `after` + 1 to `upto`."""
        here = {"after": after, "upto": upto}
        for seq, subject, *values in connection.execute(self.beyond, here):
            for (column, kind), value in zip(self.limited.items(), values, strict=True):
                if kind.within(value) != value:
                    if isinstance(kind, Word):
                        expected = " or ".join(kind.words)
                    else:
                        expected = f"{kind.low:g} to {kind.high:g}"
                    yield Damaged(
                        *(seq, subject or "", f"{self.name}.{column}", value, kind.within(value), expected)
                    )
        for seq, subject, *values in connection.execute(self.texts, here):
            for document, text in zip(self.documents, values, strict=True):
                if text is not None and not (is_within(text) and _has_its_numbers(document, text)):
                    what = "a number or a text beyond its limits, or no number: readers get the nearest, or 0"
                    yield Damaged(seq, subject or "", f"{self.name}.{document.name}", None, None, what)


def _check(table: sa.Table, subject: sa.ColumnElement[Any]) -> _TableCheck:
    """Return the check of a table whose rows are on a subject: a decision or an episode."""
    c = table.c
    here = c.seq > sa.bindparam("after"), c.seq <= sa.bindparam("upto")
    limited = {column.name: column.type for column in c if isinstance(column.type, Limited | Word)}
    beyond = sa.or_(*(kind.beyond(c[name]) for name, kind in limited.items()))
    raw = (sa.type_coerce(c[name], kind.impl_instance) for name, kind in limited.items())
    documents = [column for column in c if isinstance(column.type, sa.JSON)]
    texts = (sa.cast(column, sa.Text) for column in documents)
    return _TableCheck(
        table.name,
        limited,
        sa.select(c.seq, subject, *raw).where(*here, beyond),
        documents,
        sa.select(c.seq, subject, *texts).where(*here),
    )


_CHECKS = (
    _check(t.decisions, t.decisions.c.id),
    _check(t.executions, t.executions.c.decision_id),
    _check(t.observations, t.observations.c.decision_id),
    _check(t.feedback, sa.func.coalesce(t.feedback.c.decision_id, t.feedback.c.episode_id)),
)


def _has_its_numbers(column: sa.Column[Any], text: str) -> bool:
    """Return whether a document has numbers wherever its column holds them."""
    if column is t.decisions.c.features:
        value = parsed(text)
        return numeric_features(value) is value
    if not isinstance(column.type, Numbers):
        return True
    value = parsed(text)
    return value is None or numeric(value) is value
