"""The training log made again, from the facts and from nothing else.

What a learner has joined is compared, row by row, with what the same fold makes of the facts from
the first one on. Only rows that ought to be others are kept, to be written, and these in a file: no
log takes memory, however long and however damaged it is.
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

from feedback.errors import LogGapError
from feedback.events import Example, Status
from feedback.fold import Fold
from feedback.log import Store
from feedback.log import rows as log_rows
from feedback.log import tables as t
from feedback.reward import RewardRule
from feedback.training_log.epochs import confirm_epoch
from feedback.training_log.joiner import Position, head_of, position_of, write_position
from feedback.training_log.read_facts import read_facts

CHUNK = 2000
"""Facts that are folded at once, and rows that are written at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a training log."""

    seq: int
    decision_id: str
    metrics: Mapping[str, float]
    joined_by: int

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.decision_id!r} with {dict(self.metrics)} by fact {self.joined_by}"


class Refold:
    """The training log of a rule, folded again up to where a learner has joined it.

    Args:
        store: The log.
        rule: How it is joined.

    Attributes:
        found: How far the join says that it is, at the last look.
        wrong: How many rows ought to be where others are, or none.
        surplus: How many rows there are before the first and after the last that ought to be.
        first: The first difference, in words; None where there is none.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._join = rule.join
        self._fold = Fold(rule)
        self._length = 0
        self._ought, self._is = hashlib.sha256(), hashlib.sha256()
        self.found = Position(0, 0.0, 0)
        self.wrong = 0
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - these, one a line; goes when we do
        weakref.finalize(self, self._spool.close)
        self.surplus = 0
        self.first: str | None = None

    @property
    def position(self) -> Position:
        """How far it is, which at its end is where the join ought to be."""
        return Position(self._fold.seq, self._fold.at, self._length)

    @property
    def digests(self) -> tuple[str, str]:
        """SHA-256 of the rows that ought to be there and of where they end, and of those that are there."""
        ought, found = self._ought.copy(), self._is.copy()
        ought.update(repr((0, self.position)).encode())
        found.update(repr((self.surplus, self.found)).encode())
        return ought.hexdigest(), found.hexdigest()

    @property
    def sound(self) -> bool:
        """Whether the training log is what it ought to be, as far as it was compared."""
        return not (self.wrong or self.surplus) and self.position == self.found

    def examples(self, tell: Callable[[int, int], None] = lambda *_: None) -> Iterator[Example]:
        """Fold the log to the end of the join, and yield what ought to be learned, in order.

        Args:
            tell: Told now and then how many facts are folded, and how many will be.

        Raises:
            LogGapError: Facts are missing: nobody can tell what ought to be there.
        """
        while True:
            with self._store.reading() as connection:
                rows = self._go_on(connection)
            tell(self._fold.seq, self.found.log_seq)
            if rows is None:
                return
            for some in _chunks(rows):  # one fact can close any number of decisions
                with self._store.reading() as connection:
                    examples = _examples(connection, some)
                yield from examples

    def repair(self, epoch: int) -> None:
        """Put in place what ought to be there, in transactions that are short, as facts wait for them.

        One that is stopped half-way has left rows out, and is to be done again. How far the join is
        remains to be noted, by `finish`.

        Args:
            epoch: Under which no learner has written since the last fact was folded.

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
        for rows in self._spooled():  # a decision is there once: after all have left
            with self._writing(epoch) as connection:
                connection.execute(sa.insert(t.examples), [{"join": self._join, **row} for row in rows])

    def finish(self, connection: sa.Connection) -> None:
        """Note how far the join is, once it is repaired."""
        write_position(connection, self._join, self.position)

    @contextmanager
    def _writing(self, epoch: int) -> Iterator[sa.Connection]:
        with self._store.writing() as connection:
            confirm_epoch(connection, epoch)
            yield connection

    def _spooled(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows that ought to be others, a chunk in memory at a time."""
        self._spool.seek(0)
        while rows := [orjson.loads(line) for line in islice(self._spool, CHUNK)]:
            yield rows

    def _go_on(self, connection: sa.Connection) -> list[Row] | None:
        """Fold and compare the next facts, and return the rows that they make; None at the end."""
        self.found, head = position_of(connection, self._join), head_of(connection)
        start, end = self._fold.seq, min(self._fold.seq + CHUNK, self.found.log_seq)
        if self.found.log_seq > head:
            raise LogGapError(f"the log ends at {head}, and was read up to {self.found.log_seq} before")
        if start == end:
            self._end(connection)
            return None
        rows = []
        for fact in read_facts(connection, start, end):
            for one in self._fold.apply(fact):
                self._length += 1
                rows.append(Row(self._length, one.decision_id, one.metrics, one.by))
        if self._fold.seq != end:
            raise LogGapError(
                f"the log goes on after {end}, and nothing is there from {self._fold.seq + 1} on"
            )
        self._compare(connection, rows)
        return rows

    def _compare(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        there = _between(connection, self._join, rows[0].seq - 1, rows[-1].seq) if rows else {}
        for row in rows:
            found = there.get(row.seq)
            self._ought.update(_canonical(row))
            if found is not None:
                self._is.update(_canonical(found))
            if found != row:
                self.wrong += 1
                self._spool.write(_canonical(row))
                self.first = self.first or f"row {row.seq} is {found or 'missing'}; it ought to be {row}"

    @property
    def _beyond(self) -> sa.ColumnElement[bool]:
        return ~t.examples.c.seq.between(1, self._length)

    def _end(self, connection: sa.Connection) -> None:
        """See what is there beyond the end."""
        ours = sa.select(sa.func.count()).where(t.examples.c.join == self._join)
        self.surplus = int(connection.scalar(ours.where(self._beyond)) or 0)
        if self.surplus and self.first is None:
            self.first = (
                f"there are {self.surplus} rows beside rows 1 to {self._length}, which ought to be all"
            )
        if self.position != self.found and self.first is None:
            self.first = f"the join is said to be at {self.found}; it ought to be at {self.position}"


def _between(connection: sa.Connection, join: str, after: int, upto: int) -> dict[int, Row]:
    x = t.examples.c
    columns = sa.select(*(x[name] for name in Row.__slots__))
    found = connection.execute(columns.where(x.join == join, x.seq > after, x.seq <= upto))
    return {values[0]: Row(*values) for values in found}


def _examples(connection: sa.Connection, rows: Sequence[Row]) -> list[Example]:
    ids = [row.decision_id for row in rows]
    decisions, executions = (
        log_rows.load_decisions(connection, ids),
        log_rows.load_executions(connection, ids),
    )
    return [
        Example(
            row.seq,
            decisions[row.decision_id],
            executions[row.decision_id].cost,
            row.metrics,
            executions[row.decision_id].status is not Status.OK,
        )
        for row in rows
    ]


def _canonical(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK))
