"""Verify and repair a training log by folding all facts again.

The rows that learners have joined are compared with those that the same fold gives from the first fact on.
Only rows that differ are kept, in a temporary file, so memory does not grow with the log or its damage.
"""

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import sqlalchemy as sa

from armwise.feedback.errors import LogGapError
from armwise.feedback.events import Example, Status
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import (
    Fold,
    Position,
    confirm_epoch,
    head_of,
    position_of,
    read_facts,
    read_turns_of,
    write_position,
)

CHUNK = 2000
"""Facts that are folded at once, and rows that are written at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a training log."""

    seq: int
    decision_id: str
    metrics: Mapping[str, float]
    joined_by: int
    turns: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        """Return it as one line."""
        of_turns = "" if self.turns is None else f" over {self.turns['n']} turns"
        return f"{self.decision_id!r} with {dict(self.metrics)} by fact {self.joined_by}{of_turns}"


class Refold:
    """The training log of a rule, folded again up to the position of its join.

    Args:
        store: The log.
        rule: How it is joined.

    Attributes:
        found: The recorded position of the join, as read last.
        wrong: Number of rows that are missing or differ.
        surplus: Number of rows before the first or after the last expected one.
        first: Description of the first difference; None if there is none.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._join = rule.join
        self._fold = Fold(rule)
        self._length = 0
        self._expected, self._actual = hashlib.sha256(), hashlib.sha256()
        self.recorded = Position(0, 0.0, 0)
        self.wrong = 0
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - the wrong rows, one a line; closed below
        weakref.finalize(self, self._spool.close)
        self.surplus = 0
        self.first: str | None = None

    @property
    def position(self) -> Position:
        """The position of the fold; at its end, the expected position of the join."""
        return Position(self._fold.seq, self._fold.at, self._length, self._fold.idle_seq)

    @property
    def digests(self) -> tuple[str, str]:
        """SHA-256 of the expected rows and position, and of the actual ones."""
        expected, actual = self._expected.copy(), self._actual.copy()
        expected.update(repr((0, self.position)).encode())
        actual.update(repr((self.surplus, self.recorded)).encode())
        return expected.hexdigest(), actual.hexdigest()

    @property
    def sound(self) -> bool:
        """Whether the training log is as expected, as far as it was compared."""
        return not (self.wrong or self.surplus) and self.position == self.recorded

    def examples(self, on_progress: Callable[[int, int], None] = lambda *_: None) -> Iterator[Example]:
        """Fold the log to the position of the join, and yield the expected examples, in order.

        Args:
            on_progress: Called with the number of facts that are folded, and of all facts.

        Raises:
            LogGapError: Facts are missing, so the expected examples are unknown.
        """
        while True:
            with self._store.reading() as connection:
                rows = self._go_on(connection)
            on_progress(self._fold.seq, self.recorded.log_seq)
            if rows is None:
                return
            for some in _chunks(rows):  # one fact can close any number of decisions
                with self._store.reading() as connection:
                    examples = _examples(connection, some)
                yield from examples

    def repair(self, epoch: int) -> None:
        """Replace the rows that differ, in short transactions, so that other writers need not wait long.

        If it is interrupted, rows are missing and it must be repeated. `finish` writes the position of the
        join afterwards.

        Args:
            epoch: The right to write; no learner has written since the last fact was folded.

        Raises:
            SupersededError: A learner has taken over.
            LogUnavailableError: Try again later.
        """
        x = t.examples.c
        there = sa.delete(t.examples).where(x.join == self._join)
        beyond = sa.select(x.seq).where(x.join == self._join, self._beyond).limit(CHUNK)
        for _ in range(0, self.surplus, CHUNK):
            with self._writing(epoch) as connection:
                connection.execute(there.where(x.seq.in_(beyond)))
        for rows in self._spooled():
            with self._writing(epoch) as connection:
                connection.execute(there.where(x.seq.in_([row["seq"] for row in rows])))
        for rows in self._spooled():  # a decision may be there once: insert after all are deleted
            with self._writing(epoch) as connection:
                connection.execute(sa.insert(t.examples), [{"join": self._join, **row} for row in rows])

    def finish(self, connection: sa.Connection) -> None:
        """Write the position of the join, after `repair`."""
        write_position(connection, self._join, self.position)

    @contextmanager
    def _writing(self, epoch: int) -> Iterator[sa.Connection]:
        with self._store.writing() as connection:
            confirm_epoch(connection, epoch)
            yield connection

    def _spooled(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the expected rows where the actual ones differ, with one chunk in memory at a time."""
        self._spool.seek(0)
        while rows := [orjson.loads(line) for line in islice(self._spool, CHUNK)]:
            yield rows

    def _go_on(self, connection: sa.Connection) -> list[Row] | None:
        """Fold and compare the next facts, and return the rows they complete; None at the end."""
        self.recorded, head = position_of(connection, self._join), head_of(connection)
        start, end = self._fold.seq, min(self._fold.seq + CHUNK, self.recorded.log_seq)
        if self.recorded.log_seq > head:
            raise LogGapError(f"the log ends at {head}, and was read up to {self.recorded.log_seq} before")
        if start == end:
            self._end(connection)
            return None
        joined = [ready for fact in read_facts(connection, start, end) for ready in self._fold.apply(fact)]
        turns = read_turns_of(connection, joined)
        first = self._length + 1
        self._length += len(joined)
        rows = [
            Row(seq, ready.decision_id, ready.metrics, ready.by, turns.get(ready.decision_id))
            for seq, ready in enumerate(joined, start=first)
        ]
        if self._fold.seq != end:
            raise LogGapError(
                f"the log goes on after {end}, and rows from {self._fold.seq + 1} on are missing"
            )
        self._compare(connection, rows)
        return rows

    def _compare(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        there = _between(connection, self._join, rows[0].seq - 1, rows[-1].seq) if rows else {}
        for row in rows:
            actual = there.get(row.seq)
            self._expected.update(_canonical(row))
            if actual is not None:
                self._actual.update(_canonical(actual))
            if actual != row:
                self.wrong += 1
                self._spool.write(_canonical(row))
                self.first = self.first or f"row {row.seq} is {actual or 'missing'}; expected {row}"

    @property
    def _beyond(self) -> sa.ColumnElement[bool]:
        return ~t.examples.c.seq.between(1, self._length)

    def _end(self, connection: sa.Connection) -> None:
        """Count surplus rows, and compare the position of the join."""
        ours = sa.select(sa.func.count()).where(t.examples.c.join == self._join)
        self.surplus = int(connection.scalar(ours.where(self._beyond)) or 0)
        if self.surplus and self.first is None:
            self.first = f"there are {self.surplus} rows besides the expected rows 1 to {self._length}"
        if self.position != self.recorded and self.first is None:
            self.first = f"the join is recorded at {self.recorded}; expected {self.position}"


def _between(connection: sa.Connection, join: str, after: int, upto: int) -> dict[int, Row]:
    x = t.examples.c
    columns = sa.select(*(x[name] for name in Row.__slots__))
    result = connection.execute(columns.where(x.join == join, x.seq > after, x.seq <= upto))
    return {values[0]: Row(*values) for values in result}


def _examples(connection: sa.Connection, rows: Sequence[Row]) -> list[Example]:
    ids = [row.decision_id for row in rows]
    decisions, executions = (
        log_rows.load_decisions(connection, ids),
        log_rows.load_executions(connection, ids),
    )
    examples = []
    for row in rows:
        done = executions[row.decision_id]
        cost, tokens, n_turns = log_rows.spent_by(row.turns, done.cost, done.tokens_by_model)
        examples.append(
            Example(
                row.seq,
                decisions[row.decision_id],
                cost,
                row.metrics,
                done.status is not Status.OK,
                row.joined_by,
                done.index_version,
                done.cached,
                tokens,
                n_turns,
            )
        )
    return examples


def _canonical(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK))
