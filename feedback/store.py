"""Append facts and read them back: the one room that speaks SQL to the log.

SQLite runs in WAL mode with full synchronisation, so a committed row survives
a crash of the process and of the machine. A write transaction starts with
BEGIN IMMEDIATE: writers in several processes queue up instead of failing
half-way.

    StoreError                 the log cannot be read or written
    |-- LogUnavailableError    the database is away, locked or full: safe to try again
    `-- ConflictError          the same id was used for something else
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from feedback import tables as t
from feedback.events import Decision, Execution, Feedback, Mode, Status
from feedback.rows import (
    decision_row,
    execution_row,
    feedback_row,
    load_decisions,
    load_executions,
    read_feedback,
)

BUSY_S = 10.0
"""How long a SQLite writer waits for another process before it gives up."""


class StoreError(Exception):
    """The log cannot be read or written."""


class LogUnavailableError(StoreError):
    """The database is away, locked or full; nothing was acknowledged, trying again is safe."""


class ConflictError(StoreError):
    """An id was used again for something else."""


class FeedbackStatus(StrEnum):
    """What became of an item of feedback; every one of them is durable."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    PENDING_DECISION = "pending_decision"
    LATE_NOT_LEARNED = "late_not_learned"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a fact is durable.

    Attributes:
        seq: Its position in its table; 0 for executions, which have none.
        status: For feedback, what became of it.
    """

    seq: int = 0
    status: FeedbackStatus | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Everything the log knows about one decision.

    Attributes:
        decision: The decision itself.
        execution: What happened afterwards; None while it runs, or after a crash.
        feedback: In recorded order.
        metrics: Aggregated values it was learned with; None while it is not learned.
        example_seq: Position in the training log; None while it is not learned.
    """

    decision: Decision
    execution: Execution | None
    feedback: tuple[Feedback, ...]
    metrics: Mapping[str, float] | None
    example_seq: int | None


Fact = Decision | Execution | Feedback


def connect(url: str) -> sa.Engine:
    """Return an engine for a database URL, with durable settings. Raises StoreError."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise StoreError(f"{url!r} is no database URL, such as sqlite:////var/lib/armwise/log.db") from None
    options: dict[str, Any] = {"json_serializer": _dumps, "json_deserializer": orjson.loads}
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"the log is kept in SQLite; {parsed.get_backend_name()!r} is not supported yet")
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(parsed, connect_args={"timeout": BUSY_S}, **options)
    sa.event.listen(engine, "connect", _durable)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def _durable(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


class Store:
    """The log in one database. Safe to use from many threads; one instance a process.

    Args:
        url: An SQLAlchemy database URL.

    Raises:
        StoreError: The URL is malformed.
        LogUnavailableError: The database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.engine = connect(url)
        self._insert_execution = sqlite.insert(t.executions).on_conflict_do_nothing()
        self._insert_feedback = (
            sqlite.insert(t.feedback)
            .on_conflict_do_nothing()
            .returning(t.feedback.c.id, t.feedback.c.seq, _DEADLINE, _LEARNED)
        )
        self._insert_decision = sa.insert(t.decisions)
        with self.writing() as connection:
            t.metadata.create_all(connection)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that commits at the end. Raises LogUnavailableError."""
        with _translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a consistent snapshot for reading. Raises LogUnavailableError."""
        with _translated(), self.engine.connect().execution_options(reading=True) as connection:
            yield connection

    # -- writing ---------------------------------------------------------------------------------

    def append(self, facts: Sequence[Fact]) -> list[Receipt]:
        """Commit the facts in one transaction and return a receipt for each, in order.

        Raises:
            ConflictError: A decision id, or a feedback id with another content, is taken.
                Nothing of the batch was written.
            LogUnavailableError: Nothing of the batch was written.
        """
        decisions = [fact for fact in facts if isinstance(fact, Decision)]
        executions = [fact for fact in facts if isinstance(fact, Execution)]
        feedback = [fact for fact in facts if isinstance(fact, Feedback)]
        with self.writing() as connection:
            if decisions:
                try:
                    connection.execute(self._insert_decision, [decision_row(fact) for fact in decisions])
                except IntegrityError as error:
                    raise ConflictError(f"a decision id is already taken: {error.orig}") from error
            if executions:
                connection.execute(self._insert_execution, [execution_row(fact) for fact in executions])
            receipts = iter(self._append_feedback(connection, feedback)) if feedback else iter(())
        return [next(receipts) if isinstance(fact, Feedback) else Receipt() for fact in facts]

    def _append_feedback(self, connection: sa.Connection, items: Sequence[Feedback]) -> list[Receipt]:
        unique: dict[str, Feedback] = {}
        for item in items:
            if not math.isfinite(item.value):
                raise StoreError(f"feedback {item.id!r} has the value {item.value}: it is not finite")
            _same_or_conflict(unique.setdefault(item.id, item), item)
        rows = [feedback_row(item) for item in unique.values()]
        fresh = {
            key: Receipt(seq, _status(unique[key], deadline, learned))
            for key, seq, deadline, learned in connection.execute(self._insert_feedback, rows)
        }
        seqs = {key: receipt.seq for key, receipt in fresh.items()}
        if known := unique.keys() - seqs.keys():
            for stored, seq in read_feedback(connection, t.feedback.c.id.in_(known)):
                _same_or_conflict(stored, unique[stored.id])
                seqs[stored.id] = seq
        return [
            fresh.pop(item.id) if item.id in fresh else Receipt(seqs[item.id], FeedbackStatus.DUPLICATE)
            for item in items
        ]

    # -- reading ---------------------------------------------------------------------------------

    def record(self, decision_id: str) -> Record | None:
        """Return everything known about a decision; None when there is no such decision."""
        with self.reading() as connection:
            found = load_decisions(connection, [decision_id]).get(decision_id)
            if found is None:
                return None
            execution = load_executions(connection, [decision_id]).get(decision_id)
            feedback = tuple(
                item for item, _ in read_feedback(connection, t.feedback.c.decision_id == decision_id)
            )
            learned = connection.execute(
                sa.select(t.examples.c.seq, t.examples.c.metrics).where(
                    t.examples.c.decision_id == decision_id
                )
            ).first()
        seq, metrics = learned if learned else (None, None)
        return Record(found, execution, feedback, metrics, seq)

    def log_seq(self) -> int:
        """Return the position of the newest feedback; 0 for none."""
        with self.reading() as connection:
            return int(connection.scalar(sa.select(sa.func.coalesce(sa.func.max(t.feedback.c.seq), 0))) or 0)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table of facts."""
        with self.reading() as connection:
            return {
                table.name: int(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
                for table in (t.decisions, t.executions, t.feedback, t.examples, t.versions)
            }

    def unlearned(self) -> dict[str, int]:
        """Return how many decisions are not in the training log, by reason.

        That is a mode other than `explore`, a status other than `ok`, `not finished`, or `not
        judged`: feedback is incomplete, came too late, or never came.
        """
        mode, status = t.decisions.c.mode, t.executions.c.status
        unfinished, failed = (status.is_(None), "not finished"), (status != Status.OK, status)
        reason = sa.case((mode != Mode.EXPLORE, mode), unfinished, failed, else_="not judged")
        query = (
            sa.select(reason, sa.func.count())
            .outerjoin_from(t.decisions, t.executions, t.executions.c.decision_id == t.decisions.c.id)
            .where(t.decisions.c.id.not_in(sa.select(t.examples.c.decision_id)))
            .group_by(reason)
        )
        with self.reading() as connection:
            return {name.replace("_", " "): n for name, n in connection.execute(query)}


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what a driver raises into an error of ours; a full disk and a lock are both worth a retry."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise LogUnavailableError(f"the log cannot be used: {error.orig}") from error
    except sa.exc.TimeoutError as error:  # all connections are busy
        raise LogUnavailableError(f"the log cannot be used: {error}") from error


def _same_or_conflict(stored: Feedback, item: Feedback) -> None:
    if (stored.decision_id, stored.metric, stored.value) != (item.decision_id, item.metric, item.value):
        raise ConflictError(
            f"feedback id {item.id!r} was used for {stored.metric}={stored.value:g} on {stored.decision_id}; "
            f"it cannot also be {item.metric}={item.value:g} on {item.decision_id}"
        )


# What an insert of feedback returns of its decision, so that nothing more is to be asked. The name is
# written out, as a returned column loses its table's; without the cast SQLite would use no index.
_ITS = sa.cast(sa.literal_column("feedback.decision_id"), sa.Text)
_DEADLINE = sa.select(t.decisions.c.deadline).where(t.decisions.c.id == _ITS).scalar_subquery()
_LEARNED = sa.select(t.examples.c.seq).where(t.examples.c.decision_id == _ITS).scalar_subquery()


def _status(item: Feedback, deadline: float | None, learned: int | None) -> FeedbackStatus:
    """Say what becomes of new feedback; a decision that is not visible has no deadline."""
    if deadline is None:
        return FeedbackStatus.PENDING_DECISION
    if learned is not None or item.received_at > deadline:
        return FeedbackStatus.LATE_NOT_LEARNED
    return FeedbackStatus.ACCEPTED
