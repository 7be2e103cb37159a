"""Verify and repair a training log by folding all facts again.

The rows that learners have joined are compared with those that the same fold gives from the first fact on.
Only rows that differ are kept, in a temporary file, so memory is bounded whatever the log or its damage.
"""

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import sqlalchemy as sa

from armwise.feedback.errors import LogGapError
from armwise.feedback.events import ARM_FAILURES, Example
from armwise.feedback.log import Store
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import (
    Fold,
    Position,
    confirm_epoch,
    rated_rows,
    read_conversation_costs,
    read_facts,
    read_head,
    read_position,
    write_position,
)

CHUNK = 2000
"""Facts that are folded at once, and rows that are written at once."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
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


@dataclass(frozen=True, slots=True)
class RaterRow:
    """A row with the rater of a decision."""

    seq: int
    decision_id: str
    rater: str
    learned: bool
    joined_by: int

    def __str__(self) -> str:
        """Return it as one line."""
        learned = "learned" if self.learned else "left out"
        return f"{self.decision_id!r} of {self.rater!r}, {learned}, by fact {self.joined_by}"


class TableComparison:
    """The rows of a table for a join, compared with the expected rows, which are numbered from 1.

    Args:
        table: The table, with the columns `join` and `seq`.
        join: Digest of the join whose rows are compared.
        row: Class of a row, whose slots are columns.

    Attributes:
        length: Number of rows that are expected so far.
        wrong: Number of rows that are missing or differ.
        surplus: Number of rows besides the expected ones.
        first: Description of the first difference, if any.
    """

    def __init__(self, table: sa.Table, join: str, row: type[TrainingRow] | type[RaterRow]) -> None:
        self._c, self._table, self._row = table.c, table, row
        self._ours = table.c.join == join
        self._join = join
        self.expected, self.actual = hashlib.sha256(), hashlib.sha256()
        self.length = self.wrong = self.surplus = 0
        self.first: str | None = None
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - the wrong rows, one a line; closed below
        weakref.finalize(self, self._spool.close)

    def compare(self, connection: sa.Connection, rows: Sequence[TrainingRow] | Sequence[RaterRow]) -> None:
        """Compare the next expected rows with the actual ones, and keep those that differ."""
        if not rows:
            return
        between = self._c.seq.between(rows[0].seq, rows[-1].seq)
        columns = sa.select(*(self._c[name] for name in self._row.__slots__)).where(self._ours, between)
        there = {values[0]: self._row(*values) for values in connection.execute(columns)}
        for row in rows:
            found = there.get(row.seq)
            self.expected.update(_canonical(row))
            if found is not None:
                self.actual.update(_canonical(found))
            if found != row:
                self.wrong += 1
                self._spool.write(_canonical(row))
                self.first = self.first or f"row {row.seq} is {found or 'missing'}; expected {row}"
        self.length = rows[-1].seq

    def end(self, connection: sa.Connection) -> None:
        """Count the rows before the first and after the last expected one."""
        count = sa.select(sa.func.count()).select_from(self._table).where(self._ours, self._beyond)
        self.surplus = int(connection.scalar(count) or 0)
        if self.surplus and self.first is None:
            self.first = f"there are {self.surplus} rows besides the expected rows 1 to {self.length}"

    def repair(self, writing: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        """Replace the rows that differ, in transactions that `writing` begins."""
        there = sa.delete(self._table).where(self._ours)
        beyond = sa.select(self._c.seq).where(self._ours, self._beyond).limit(CHUNK)
        for _ in range(0, self.surplus, CHUNK):
            with writing() as connection:
                connection.execute(there.where(self._c.seq.in_(beyond)))
        for rows in self._spooled():
            with writing() as connection:
                connection.execute(there.where(self._c.seq.in_([row["seq"] for row in rows])))
        for rows in self._spooled():  # a decision may be there once: insert after all are deleted
            with writing() as connection:
                connection.execute(sa.insert(self._table), [{"join": self._join, **row} for row in rows])

    @property
    def _beyond(self) -> sa.ColumnElement[bool]:
        return ~self._c.seq.between(1, self.length)

    def _spooled(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the expected rows where the actual rows differ, with a chunk in memory at a time."""
        self._spool.seek(0)
        while rows := [orjson.loads(line) for line in islice(self._spool, CHUNK)]:
            yield rows


class Refold:
    """The training log of a rule, folded again up to the position of its join.

    Args:
        store: The log.
        rule: How the log is joined.

    Attributes:
        recorded: The recorded position of the join, as last read.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._join = rule.join
        self._fold = Fold(rule)
        self._examples = TableComparison(t.examples, self._join, TrainingRow)
        self._raters = TableComparison(t.raters, self._join, RaterRow)
        self._ended = False
        self.recorded = Position(0, 0.0, 0)

    @property
    def wrong(self) -> int:
        """Number of rows that are missing or differ."""
        return self._examples.wrong + self._raters.wrong

    @property
    def surplus(self) -> int:
        """Number of rows before the first or after the last expected one."""
        return self._examples.surplus + self._raters.surplus

    @property
    def first(self) -> str | None:
        """Description of the first difference, if any."""
        if self._examples.first is not None:
            return self._examples.first
        if self._ended and self.position != self.recorded:
            return f"the join is recorded at {self.recorded}; expected {self.position}"
        return self._raters.first and f"of the raters, {self._raters.first}"

    @property
    def position(self) -> Position:
        """The position of the fold; at its end, the expected position of the join."""
        return Position(self._fold.seq, self._fold.at, self._examples.length, self._fold.idle_seq)

    @property
    def digests(self) -> tuple[str, str]:
        """SHA-256 of the expected rows and position, and of the actual rows and position."""
        expected, actual = self._examples.expected.copy(), self._examples.actual.copy()
        if self._raters.length or self._raters.surplus:
            expected.update(self._raters.expected.digest())
            actual.update(self._raters.actual.digest())
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
            on_progress: Called with the number of folded facts, and of all facts.

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
        """Replace the rows that differ, in short transactions, so that other writers wait briefly.

        An interruption leaves rows missing: repeat it then. `finish` writes the position of the join
        afterwards.

        Args:
            epoch: The right to write; learners must not have written since the last fact was folded.

        Raises:
            SupersededError: A learner has taken over.
            LogUnavailableError: Try again later.
        """
        for rows in (self._examples, self._raters):
            rows.repair(lambda: self._writing(epoch))

    def finish(self, connection: sa.Connection) -> None:
        """Write the position of the join, after `repair`."""
        write_position(connection, self._join, self.position)

    @contextmanager
    def _writing(self, epoch: int) -> Iterator[sa.Connection]:
        with self._store.writing() as connection:
            confirm_epoch(connection, epoch)
            yield connection

    def _go_on(self, connection: sa.Connection) -> list[TrainingRow] | None:
        """Fold and compare the next facts, and return the rows they complete; None: the end is reached."""
        self.recorded, head = read_position(connection, self._join), read_head(connection)
        start, end = self._fold.seq, min(self._fold.seq + CHUNK, self.recorded.log_seq)
        if self.recorded.log_seq > head:
            raise LogGapError(f"the log ends at {head}, and was read up to {self.recorded.log_seq} before")
        if start == end:
            self._examples.end(connection)
            self._raters.end(connection)
            self._ended = True
            return None
        ready = [each for fact in read_facts(connection, start, end) for each in self._fold.apply(fact)]
        joined = [each for each in ready if each.learned]
        turns = read_conversation_costs(connection, joined)
        rows = [
            TrainingRow(seq, each.decision_id, each.metrics, each.by, turns.get(each.decision_id))
            for seq, each in enumerate(joined, start=self._examples.length + 1)
        ]
        if self._fold.seq != end:
            raise LogGapError(
                f"the log goes on after {end}, and rows from {self._fold.seq + 1} on are missing"
            )
        self._examples.compare(connection, rows)
        self._raters.compare(connection, [RaterRow(**row) for row in rated_rows(ready, self._raters.length)])
        return rows


def _examples(connection: sa.Connection, rows: Sequence[TrainingRow]) -> list[Example]:
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
                done.status in ARM_FAILURES,
                row.joined_by,
                done.index_version,
                done.cached,
                tokens,
                n_turns,
            )
        )
    return examples


def _canonical(row: TrainingRow | RaterRow) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _chunks(rows: Sequence[TrainingRow]) -> Iterator[Sequence[TrainingRow]]:
    return (rows[first : first + CHUNK] for first in range(0, len(rows), CHUNK))
