"""Runs of the warm start: one at a time, each a row that says what went in, what was done and how it ended.

    asked --take--> running --end--> promoted | held | nothing_new | failed
                       `---its worker is silent for a lease---> abandoned

Whoever takes the right to run holds it by a lease that it renews; a run whose worker died is abandoned by
the next one that is taken, and can write nothing more. One is done at a time, whatever it is configured by;
what a run follows from, and what is asked for, belongs to one configuration.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from feedback.clock import utc
from feedback.errors import SupersededError, UnderWayError
from feedback.log import Store, database
from feedback.log import tables as t

LEASE_S = 60.0
"""How long the worker of a run may be silent before the run is taken for dead."""


class State(StrEnum):
    """How far a run is, or how it ended."""

    ASKED = "asked"
    RUNNING = "running"
    PROMOTED = "promoted"
    """Its candidate is served."""
    HELD = "held"
    """It came to its end, and what is served stays."""
    NOTHING_NEW = "nothing_new"
    """There was nothing to learn that had not been learned, or judged, before."""
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its worker died."""


class Trigger(StrEnum):
    """What a run was started by."""

    SCHEDULE = "schedule"
    ALARM = "alarm"
    REQUEST = "request"
    COMMAND = "command"
    RESUMED = "resumed"
    """The run before it was abandoned."""


JUDGED = (State.PROMOTED, State.HELD)
"""Ends of a run whose labels were entered whole."""

ENDED = (*JUDGED, State.NOTHING_NEW)
"""Ends of a run that has done all that it was to do."""


@dataclass(frozen=True, slots=True)
class Run:
    """A warm start, from labels to a verdict.

    Attributes:
        seq: Its number; later ones have a higher one.
        trigger: What it was started by.
        status: How far it is, or how it ended.
        worker: Who does it, or did; empty while it is only asked for.
        started_at: When it began, or was asked for; seconds since the epoch, UTC, like the two below.
        alive_at: When its worker was last heard of.
        finished_at: When it ended; None before.
        inputs: What it follows from, as digests and positions.
        steps: What was done, in order: the name of each step, when, how long it took, what it found.
        candidate: The version that it published; None where it came to none.
        evaluation: The evaluation of that one; None where there is none.
        error: The step that failed and why; None where none did.
        configured: Digest of the configured recipe, which it is a run for.
    """

    seq: int
    trigger: Trigger
    status: State
    worker: str
    started_at: float
    alive_at: float
    finished_at: float | None
    inputs: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    candidate: int | None
    evaluation: int | None
    error: str | None
    configured: str

    def dead(self, now: float) -> bool:
        """Whether it is under way by its row, and its worker has been silent for longer than its lease."""
        return self.status is State.RUNNING and self.alive_at < now - LEASE_S


_r = t.runs.c

_RUN = [_r[name] for name in Run.__slots__]


def ask(store: Store, configured: str, now: float) -> Run:
    """Ask for a run, which a service of that configured recipe does soon.

    Raises:
        UnderWayError: One was asked for already, or is under way; nothing was written.
    """
    with store.writing() as connection:
        _exclude(connection, now)
        if (asked := _asked(connection, configured)) is not None:
            told = f"run {asked.seq} was asked for since {utc(asked.started_at)}: one is done at a time"
            raise UnderWayError(told)
        return _insert(connection, configured, Trigger.REQUEST, State.ASKED, "", now)


def take(store: Store, configured: str, trigger: Trigger, worker: str, now: float) -> Run:
    """Begin a run: the one that was asked for, where one was, or a new one.

    Args:
        store: The log.
        configured: Digest of the configured recipe, which it is a run for.
        trigger: What it is started by; that it was asked for counts more.
        worker: Who does it; a name that no other process has.
        now: Seconds since the epoch.

    Raises:
        UnderWayError: Another one is under way, and its worker was heard of within the lease.
    """
    with store.writing() as connection:
        _exclude(connection, now)
        asked = _asked(connection, configured)
        if asked is None:
            return _insert(connection, configured, trigger, State.RUNNING, worker, now)
        begun = {"status": State.RUNNING.value, "worker": worker, "started_at": now, "alive_at": now}
        connection.execute(sa.update(t.runs).where(_r.seq == asked.seq).values(**begun))
        return _found(connection, asked.seq)


def renew(store: Store, mine: Run, now: float) -> None:
    """Say that the worker of a run is alive. Raises SupersededError where the run was abandoned."""
    with store.writing() as connection:
        write(connection, mine, alive_at=now)


def note(
    store: Store,
    mine: Run,
    now: float,
    *,
    inputs: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    candidate: int | None = None,
    evaluation: int | None = None,
) -> None:
    """Write down how far a run is. Raises SupersededError where it was abandoned."""
    told = {"inputs": dict(inputs), "steps": list(steps), "candidate": candidate, "evaluation": evaluation}
    with store.writing() as connection:
        write(connection, mine, alive_at=now, **told)


def end(store: Store, mine: Run, status: State, now: float, error: str | None = None) -> None:
    """Write down how a run ended. Raises SupersededError where it was abandoned."""
    told = None if error is None else database.kept(error)
    with store.writing() as connection:
        write(connection, mine, status=status.value, alive_at=now, finished_at=now, error=told)


def write(connection: sa.Connection, mine: Run, **values: Any) -> None:
    """Write columns of a run within a transaction. Raises SupersededError where it is no longer under way."""
    ours = (_r.seq == mine.seq) & (_r.status == State.RUNNING.value)
    ours &= (_r.worker == mine.worker) & (_r.started_at == mine.started_at)
    if not connection.execute(sa.update(t.runs).where(ours).values(**values)).rowcount:
        status = connection.scalar(sa.select(_r.status).where(_r.seq == mine.seq))
        raise SupersededError(f"run {mine.seq} of {mine.worker} is no longer under way: it is {status}")


def find(store: Store, seq: int) -> Run | None:
    """Return the run of a number; None where there is none."""
    with store.reading() as connection:
        row = connection.execute(sa.select(*_RUN).where(_r.seq == seq)).first()
        return None if row is None else _run_of(row)


def page(store: Store, limit: int, before: int | None = None) -> list[Run]:
    """Return the newest runs, newest first, whatever they are configured by.

    Args:
        store: The log.
        limit: How many at most.
        before: Only those whose number is below; None for the newest of all.
    """
    query = sa.select(*_RUN).order_by(_r.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_r.seq < before)
    with store.reading() as connection:
        return [_run_of(row) for row in connection.execute(query)]


def newest(store: Store, configured: str, states: Collection[State] = tuple(State)) -> Run | None:
    """Return the newest run for a configured recipe that is in one of these states; None for none."""
    query = _in(configured, states).order_by(_r.seq.desc()).limit(1)
    with store.reading() as connection:
        row = connection.execute(query).first()
        return None if row is None else _run_of(row)


def under_way(store: Store, now: float) -> bool:
    """Whether a run is done now, whatever it is configured by."""
    running = sa.select(*_RUN).where(_r.status == State.RUNNING.value)
    with store.reading() as connection:
        return any(not _run_of(row).dead(now) for row in connection.execute(running))


def judged(store: Store, configured: str) -> list[Run]:
    """Return the runs that came to a verdict, in order: their labels were entered whole."""
    query = _in(configured, JUDGED).order_by(_r.seq)
    with store.reading() as connection:
        return [_run_of(row) for row in connection.execute(query)]


def _in(configured: str, states: Collection[State]) -> "sa.Select[Any]":
    listed = _r.status.in_([state.value for state in states])
    return sa.select(*_RUN).where(listed, _r.configured == configured)


def _asked(connection: sa.Connection, configured: str) -> Run | None:
    row = connection.execute(_in(configured, [State.ASKED])).first()
    return None if row is None else _run_of(row)


def _exclude(connection: sa.Connection, now: float) -> None:
    """Abandon a run that is dead; refuse where one is under way. Raises UnderWayError."""
    running = sa.select(*_RUN).where(_r.status == State.RUNNING.value)
    for run in map(_run_of, connection.execute(running).all()):
        if not run.dead(now):
            told = f"run {run.seq} of {run.worker} is under way since {utc(run.started_at)}"
            raise UnderWayError(f"{told}: one is done at a time")
        error = f"nothing was heard of {run.worker} since {utc(run.alive_at)}"
        gone = {"status": State.ABANDONED.value, "finished_at": now, "error": error}
        connection.execute(sa.update(t.runs).where(_r.seq == run.seq).values(**gone))


def _insert(
    connection: sa.Connection, configured: str, trigger: Trigger, status: State, worker: str, now: float
) -> Run:
    row: dict[str, object] = {
        "configured": configured,
        "trigger": trigger.value,
        "status": status.value,
        "worker": worker,
        "started_at": now,
        "alive_at": now,
        "inputs": {},
        "steps": [],
    }
    result = connection.execute(sa.insert(t.runs), row)
    assert result.inserted_primary_key is not None
    return _found(connection, int(result.inserted_primary_key[0]))


def _found(connection: sa.Connection, seq: int) -> Run:
    return _run_of(connection.execute(sa.select(*_RUN).where(_r.seq == seq)).one())


def _run_of(row: Any) -> Run:
    seq, trigger, status, *rest = row
    return Run(seq, Trigger(trigger), State(status), *rest)
