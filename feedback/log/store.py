"""The log: append facts, and read them.

Facts are numbered under the lock of the transaction that writes them, so positions are in the order of
commits: a reader that has reached a position has read all facts before it.
"""

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import check_clock
from armwise.feedback.errors import LogGapError, LogUnavailableError, StoreError
from armwise.feedback.events import LABELS, Decision, Execution, Feedback, Mode, Observation, Status
from armwise.feedback.log import tables as t
from armwise.feedback.log.append import Receipt, append, probe
from armwise.feedback.log.backend import ANSWER_S, CONNECTIONS, RESERVED, WAIT_S
from armwise.feedback.log.database import open_database, translate_errors
from armwise.feedback.log.facts import Fact
from armwise.feedback.log.rows import (
    DECISION,
    FEEDBACK,
    OBSERVATIONS,
    WITHOUT_FEATURES,
    load_executions,
    read_decision,
    read_feedback,
    read_observation,
    readable,
)
from armwise.feedback.log.schema import check, prepare


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """Everything in the log about one decision.

    Attributes:
        decision: The decision.
        seq: Position in the log.
        logged_at: The log's time when it was committed.
        propensity: Recorded propensity of the drawn arm; None: unknown.
        execution: The outcome; None while it runs, or after a crash.
        feedback: Feedback on it or its episode, in the order of the log.
        feedback_seqs: The position of each item.
        feedback_times: The log's time at each item.
        metrics: Aggregated values that it was learned with, once learned.
        example_seq: Position in the training log, once learned.
        joined_by: Position of the fact that made it ready to be learned, once learned.
        observations: Second answers and grades of a judge, in the order of the log.
        turns: Costs of the turns of its conversation, if it was learned for more than one.
    """

    decision: Decision
    seq: int
    logged_at: float
    propensity: float | None
    execution: Execution | None
    feedback: tuple[Feedback, ...]
    feedback_seqs: tuple[int, ...]
    feedback_times: tuple[float, ...]
    metrics: Mapping[str, float] | None
    example_seq: int | None
    joined_by: int | None
    observations: tuple[Observation, ...] = ()
    turns: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DrawSecret:
    """The secret that makes the draws of a log unpredictable. It must stay in the log and in memory.

    Attributes:
        secret: Random text, made with the log.
    """

    secret: str = field(repr=False)

    @property
    def salt(self) -> str:
        """The key of the hash that draws an arm."""
        return f"{self.secret}/armwise"

    def rater_at(self, address: str) -> str:
        """Return the rater that feedback from an address names in the place of a key: a keyed digest.

        All addresses of a /64 of IPv6 are one rater, since a subscriber has all of them.

        >>> found = DrawSecret("s3cret")
        >>> found.rater_at("192.0.2.1") == found.rater_at("192.0.2.1") != found.rater_at("192.0.2.2")
        True
        >>> found.rater_at("2001:db8::1") == found.rater_at("2001:db8::2") != found.rater_at("2001:db8:1::1")
        True
        """
        with suppress(ValueError):  # it is not one of IPv6
            ip = IPv6Address(address)
            address = str(ip.ipv4_mapped or IPv6Network((ip, 64), strict=False))
        digest = hmac.new(self.secret.encode(), b"address " + address.encode(), hashlib.sha256)
        return f"address-{digest.hexdigest()[:16]}"


def row_time(connection: sa.Connection, now: float) -> float:
    """Return the time of an operational row: now, or that of the newest fact if the clock is behind it.

    A command may run on a machine whose clock was set back, and must be able to disable a key there: a late
    clock is corrected rather than refused, so that rows are in the order of their times.
    """
    return max(now, float(connection.scalar(_HEAD_AT) or 0.0))


_HEAD_AT, _HEAD_SEQ = sa.select(t.log.c.at), sa.select(t.log.c.seq)


_d, _f, _o, _x = t.decisions.c, t.feedback.c, t.observations.c, t.examples.c

_RECORDED = sa.select(*DECISION, _d.seq, _d.logged_at, _d.propensity).where(_d.id == sa.bindparam("about"))

_FEEDBACK = FEEDBACK.where(
    (_f.decision_id == sa.bindparam("about")) | (_f.episode_id == sa.bindparam("episode"))
).order_by(_f.seq)

_OBSERVATIONS = OBSERVATIONS.where(_o.decision_id == sa.bindparam("about")).order_by(_o.seq)

_LEARNED = sa.select(_x.seq, _x.metrics, _x.turns, _x.joined_by).where(
    _x.decision_id == sa.bindparam("about"), _x.join == sa.bindparam("of_join")
)


class Store:
    """The log in one database. Thread-safe; one instance a process.

    Args:
        url: URL of the database: `sqlite:///path`, or `postgresql://user@host/name`.
        join: Digest of the training log that records and counts are read from.
        clock: Returns seconds since the epoch.
        most_feedback: Values and retractions that a decision or an episode may have; None: unlimited.
        redact: Applied to every text of a fact before it is written.
        answer_s: Longest time of a statement on a server, in seconds.
        create: Whether to start a log where there is none.

    Raises:
        NoLogError: There is no log, and none is to be started.
        StoreError: The URL is malformed, or the database is not supported.
        SchemaError: The tables are those of another Armwise.
        LogUnavailableError: The database cannot be reached.
    """

    def __init__(
        self,
        url: str,
        join: str = "",
        clock: Callable[[], float] = time.time,
        most_feedback: int | None = None,
        redact: Callable[[str], str] | None = None,
        *,
        answer_s: float = ANSWER_S,
        create: bool = True,
    ) -> None:
        self._database = open_database(url, answer_s, create=create)
        self.engine = self._database.engine
        self._join = join
        self._clock = clock
        self._most, self._redact = most_feedback, redact
        self._others = threading.BoundedSemaphore(CONNECTIONS - RESERVED)
        try:
            with translate_errors(self._database):
                prepare(self.engine, create=create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def version(self) -> int | None:
        """Return a number that changes with every commit of any process; None where it is unknown."""
        return self._database.version()

    def check_clock(self) -> None:
        """Check this process's clock against the log and the database, before the first fact is written.

        Raises:
            ClockError: The clock is behind the log, or differs from that of the database.
        """
        with self.reading() as connection:
            log_at = float(connection.scalar(_HEAD_AT) or 0.0)
        with translate_errors(self._database):
            check_clock(self._clock(), log_at, self._database.time())

    def check_tables(self) -> None:
        """Check that the log can be read: it has all of its tables, in this schema, and its head.

        Raises:
            SchemaError: A table is missing, or they are those of another Armwise.
            LogGapError: The head of the log is missing.
            LogUnavailableError: The database cannot be reached.
        """
        with self.reading() as connection:
            check(connection)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, facts: Sequence[Fact]) -> list[Receipt]:
        """Commit the facts in one transaction, in order, and return a receipt for each.

        Raises:
            ConflictError: A decision id is in use, or a feedback id with another content.
            TooMuchFeedbackError: A decision or an episode has as much feedback as it may have.
            ClockError: A timestamp is in the future.
            BehindError: The clock of this process is behind the log.
            StoreError: The database refused a value. With all errors so far, nothing was written.
            LogUnavailableError: The batch was written entirely or not at all; which one is unknown if the
                response to the commit was lost. A retry is safe.
        """
        with self._appending() as connection:
            limits = self._most, self._redact
            return append(connection, facts, self._clock(), lambda: self.draw_secret.secret, *limits)

    def probe(self) -> None:
        """Check that facts can be committed, by a write that is rolled back. Raises StoreError."""
        with self._appending() as connection:
            probe(connection, self._clock())

    @contextmanager
    def _appending(self) -> Iterator[sa.Connection]:
        """Open a transaction of one of the reserved connections; it commits at the end."""
        with translate_errors(self._database):
            try:
                with self.engine.begin() as connection:
                    yield connection
            except sa.exc.IntegrityError as error:
                raise StoreError(f"the database refused a value: {error.orig}") from error

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that commits at the end; one at a time, besides those that append facts.

        Raises:
            LogUnavailableError: It was rolled back; if the response to the commit was lost, it may have been
                written.
        """
        with self._reserve(), translate_errors(self._database), self.engine.begin() as connection:
            self._database.take_control(connection)
            yield connection

    def forget(self) -> None:
        """Remove the remains of overwritten rows from the files of the database, as far as possible."""
        with translate_errors(self._database):
            self._database.forget()

    def backup(self, to: Path) -> None:
        """Write a consistent copy of an SQLite log to a file, which appears once it is complete and synced.

        Raises:
            StoreError: The file exists, the copy is damaged, or the log is on a database server.
            OSError: The file cannot be written.
        """
        if to.exists():
            raise StoreError(f"{to} already exists: name a folder without an earlier backup")
        with translate_errors(self._database):
            self._database.backup(to)

    # -- reading ---------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a consistent snapshot for reading."""
        with (
            self._reserve(),
            translate_errors(self._database),
            self.engine.connect().execution_options(reading=True) as connection,
        ):
            yield connection

    @contextmanager
    def _reserve(self) -> Iterator[None]:
        """Wait for one of the connections besides those reserved for facts."""
        if not self._others.acquire(timeout=WAIT_S):
            raise LogUnavailableError("the log cannot be used: all connections to it are busy")
        try:
            yield
        finally:
            self._others.release()

    def record(self, decision_id: str) -> LoggedDecision | None:
        """Return everything in the log about a decision, if it exists."""
        with self.reading() as connection:
            row = connection.execute(_RECORDED, {"about": decision_id}).first()
            if row is None:
                return None
            *columns, seq, logged_at, propensity = row
            decision = read_decision(columns)
            execution = load_executions(connection, [decision_id]).get(decision_id)
            about = {"about": decision_id, "episode": decision.episode_id, "of_join": self._join}
            said = connection.execute(_FEEDBACK, about).all()
            observations = tuple(map(read_observation, connection.execute(_OBSERVATIONS, about)))
            learned = connection.execute(_LEARNED, about).first()
        example_seq, metrics, turns, joined_by = learned or (None, None, None, None)
        return LoggedDecision(
            *(decision, seq, logged_at, propensity, execution),
            *(tuple(map(read_feedback, said)), tuple(row.seq for row in said)),
            tuple(row.logged_at for row in said),
            metrics=metrics,
            example_seq=example_seq,
            joined_by=joined_by,
            observations=observations,
            turns=turns,
        )

    def feedback(self, chunk: int) -> Iterator[Feedback]:
        """Yield all feedback in the order of the log, read `chunk` rows at a time."""
        f, after = t.feedback.c, 0
        while True:
            with self.reading() as connection:
                query = FEEDBACK.where(f.seq > after).order_by(f.seq).limit(chunk)
                rows = connection.execute(query).all()
            if not rows:
                return
            yield from map(read_feedback, rows)
            after = rows[-1].seq

    @cached_property
    def draw_secret(self) -> DrawSecret:
        """The secret of the draws, which is constant; read once.

        Raises:
            LogGapError: The log lacks it.
            LogUnavailableError: The database cannot be reached.
        """
        with self.reading() as connection:
            secret = connection.scalar(sa.select(t.log.c.secret))
        if secret is None:
            raise LogGapError("`log` has 0 rows: it must have one")
        return DrawSecret(secret)

    def decisions(self, ids: Sequence[str]) -> dict[str, tuple[Decision, int]]:
        """Return the decisions that exist among a few thousand ids, each with its position, by id."""
        query = sa.select(t.decisions.c.seq, *DECISION).where(t.decisions.c.id.in_(ids))
        with self.reading() as connection:
            return {row[1]: (read_decision(row[1:]), row[0]) for row in connection.execute(query)}

    def newest(self, limit: int, *, features: bool = False) -> list[Decision]:
        """Return the newest decisions of the traffic, newest first; `features`, most of a row, on request."""
        query = (
            sa.select(*(DECISION if features else WITHOUT_FEATURES))
            .where(t.decisions.c.policy != LABELS)
            .order_by(t.decisions.c.seq.desc())
            .limit(limit)
        )
        with self.reading() as connection:
            return [*readable(connection.execute(query), read_decision)]

    def log_seq(self) -> int:
        """Return the position of the newest fact; 0: the log is empty."""
        with self.reading() as connection:
            return int(connection.scalar(_HEAD_SEQ) or 0)

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table of facts."""
        tables = (t.decisions, t.executions, t.feedback, t.examples, t.versions)
        counts = {table.name: sa.select(sa.func.count()).select_from(table) for table in tables}
        counts["examples"] = counts["examples"].where(t.examples.c.join == self._join)
        with self.reading() as connection:
            return {name: int(connection.scalar(count) or 0) for name, count in counts.items()}

    def count_unlearned(self) -> dict[str, int]:
        """Return the number of decisions outside the training log, by reason.

        A reason is a mode other than `explore`, a status other than `ok`, `not finished`, or `no reward`:
        feedback is incomplete, late or missing.
        """
        x = t.examples.c
        mode, status = t.decisions.c.mode, t.executions.c.status
        unfinished, failed = (status.is_(None), "not finished"), (status != Status.OK, status)
        reason = sa.case((mode != Mode.EXPLORE, mode), unfinished, failed, else_="no reward")
        query = (
            sa.select(reason, sa.func.count())
            .outerjoin_from(t.decisions, t.executions, t.executions.c.decision_id == t.decisions.c.id)
            .where(t.decisions.c.id.not_in(sa.select(x.decision_id).where(x.join == self._join)))
            .group_by(reason)
        )
        with self.reading() as connection:
            return {name.replace("_", " "): n for name, n in connection.execute(query)}
