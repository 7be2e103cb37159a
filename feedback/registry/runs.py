"""Runs of the warm start: each is a row with its inputs, its steps and its outcome.

    asked --claim--> running --finish--> promoted | held | nothing_new | failed
                        `---no heartbeat for a lease---> abandoned

The worker of a run holds a lease that it renews. A claim marks a run with an expired lease as abandoned, and
further writes of its worker are refused. One run is under way at a time among all configurations; requests
and inputs belong to a configuration.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import utc
from armwise.feedback.errors import SupersededError, UnderWayError
from armwise.feedback.log import Store, insert, storable
from armwise.feedback.log import tables as t

LEASE_S = 60.0
"""Time without a heartbeat after which the worker of a run counts as dead."""


class RunState(StrEnum):
    """Status of a run."""

    ASKED = "asked"
    RUNNING = "running"
    PROMOTED = "promoted"
    """The candidate was promoted."""
    HELD = "held"
    """The candidate was evaluated and not promoted."""
    NOTHING_NEW = "nothing_new"
    """An earlier run learned or evaluated the same inputs."""
    FAILED = "failed"
    ABANDONED = "abandoned"
    """The worker died."""


class Trigger(StrEnum):
    """What started a run."""

    SCHEDULE = "schedule"
    RATED = "rated"
    """Enough decisions were rated since the last run."""

    ALARM = "alarm"
    REQUEST = "request"
    COMMAND = "command"
    FIRST = "first"
    """No run has been done for this configured policy and reward yet."""

    RESUMED = "resumed"
    """It continues the run before it, which was abandoned or failed."""


JUDGED = (RunState.PROMOTED, RunState.HELD)
"""Final states of a run that inserted all its labels and came to a verdict."""

ENDED = (*JUDGED, RunState.NOTHING_NEW)
"""Final states of a run that succeeded."""


@dataclass(frozen=True, slots=True)
class Run:
    """A warm start, from labels to a verdict.

    Attributes:
        seq: Number of the run, increasing.
        trigger: What started it.
        status: Status of the run.
        worker: Name of the worker; empty until it is claimed.
        started_at: When it was claimed, before that when it was requested; all times are seconds since the
            epoch, UTC.
        alive_at: Last heartbeat of its worker.
        finished_at: When it ended.
        inputs: Digests and positions of its inputs.
        steps: Completed steps in order: name, time, duration and findings of each.
        candidate: Number of the version that it published.
        evaluation: Number of the evaluation of the candidate.
        error: The step that failed, and why.
        configured: Digest of the configured recipe that it belongs to.
    """

    seq: int
    trigger: Trigger
    status: RunState
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
        """Return whether its row says that it is running, but its lease has expired."""
        return self.status is RunState.RUNNING and self.alive_at < now - LEASE_S


_r = t.runs.c

_RUN = [_r[name] for name in Run.__slots__]


def request(store: Store, configured: str, now: float) -> Run:
    """Request a run, which a service with that configured recipe will claim.

    Raises:
        UnderWayError: One is requested already, or under way; nothing was written.
    """
    with store.writing() as connection:
        _exclude(connection, now)
        if (waiting := _find_requested(connection, configured)) is not None:
            requested = f"run {waiting.seq} was requested at {utc(waiting.started_at)}"
            raise UnderWayError(f"{requested}: only one can run at a time")
        return _insert(connection, configured, Trigger.REQUEST, RunState.ASKED, "", now)


def claim(store: Store, configured: str, trigger: Trigger, worker: str, now: float) -> Run:
    """Begin a run: the requested one, if there is one, or a new one.

    Args:
        store: The log.
        configured: Digest of the configured recipe that it belongs to.
        trigger: What starts it; a requested run keeps `REQUEST`.
        worker: Name of the worker, unique among processes.
        now: Seconds since the epoch.

    Raises:
        UnderWayError: Another run holds a valid lease.
    """
    with store.writing() as connection:
        _exclude(connection, now)
        requested = _find_requested(connection, configured)
        if requested is None:
            return _insert(connection, configured, trigger, RunState.RUNNING, worker, now)
        begun = {"status": RunState.RUNNING.value, "worker": worker, "started_at": now, "alive_at": now}
        connection.execute(sa.update(t.runs).where(_r.seq == requested.seq).values(**begun))
        return _read(connection, requested.seq)


def renew(store: Store, mine: Run, now: float) -> None:
    """Renew the lease of a run. Raises SupersededError if the run was abandoned."""
    with store.writing() as connection:
        update(connection, mine, alive_at=now)


def save_progress(
    store: Store,
    mine: Run,
    now: float,
    *,
    inputs: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    candidate: int | None = None,
    evaluation: int | None = None,
) -> None:
    """Save the progress of a run and renew its lease. Raises SupersededError if it was abandoned."""
    columns = {"inputs": dict(inputs), "steps": list(steps), "candidate": candidate, "evaluation": evaluation}
    with store.writing() as connection:
        update(connection, mine, alive_at=now, **columns)


def finish(store: Store, mine: Run, status: RunState, now: float, error: str | None = None) -> None:
    """Record how a run ended. Raises SupersededError if it was abandoned."""
    reason = None if error is None else storable(error)
    with store.writing() as connection:
        update(connection, mine, status=status.value, alive_at=now, finished_at=now, error=reason)


def update(connection: sa.Connection, mine: Run, **values: Any) -> None:
    """Update columns of a run within a transaction. Raises SupersededError if it is no longer under way."""
    ours = (_r.seq == mine.seq) & (_r.status == RunState.RUNNING.value)
    ours &= (_r.worker == mine.worker) & (_r.started_at == mine.started_at)
    if not connection.execute(sa.update(t.runs).where(ours).values(**values)).rowcount:
        status = connection.scalar(sa.select(_r.status).where(_r.seq == mine.seq))
        raise SupersededError(f"run {mine.seq} of {mine.worker} is no longer running: it is {status}")


def find(store: Store, seq: int) -> Run | None:
    """Return the run with a number, if any."""
    with store.reading() as connection:
        row = connection.execute(sa.select(*_RUN).where(_r.seq == seq)).first()
        return None if row is None else _read_run(row)


def page(store: Store, limit: int, before: int | None = None) -> list[Run]:
    """Return the newest runs of all configurations, newest first.

    Args:
        store: The log.
        limit: Largest length of the page.
        before: Number that all must be below.
    """
    query = sa.select(*_RUN).order_by(_r.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_r.seq < before)
    with store.reading() as connection:
        return [_read_run(row) for row in connection.execute(query)]


def find_by_recipe(store: Store, recipes: Collection[str]) -> dict[str, Run]:
    """Return the first run whose candidate has each of these recipes, by digest, where there is one."""
    v = t.versions.c
    first = (
        sa.select(sa.func.min(_r.seq))
        .join_from(t.runs, t.versions, v.version == _r.candidate)
        .where(v.recipe.in_(recipes))
        .group_by(v.recipe)
    )
    query = sa.select(*_RUN, v.recipe).join_from(t.runs, t.versions, v.version == _r.candidate)
    with store.reading() as connection:
        return {recipe: _read_run(row) for *row, recipe in connection.execute(query.where(_r.seq.in_(first)))}


def newest(store: Store, configured: str, states: Collection[RunState] = tuple(RunState)) -> Run | None:
    """Return the newest run for a configured recipe that is in one of the states, if any."""
    query = _in(configured, states).order_by(_r.seq.desc()).limit(1)
    with store.reading() as connection:
        row = connection.execute(query).first()
        return None if row is None else _read_run(row)


def read_attempts(store: Store, run: Run) -> list[Run]:
    """Return a run and the runs that it resumes, newest first; the last is the one that began afresh."""
    attempts = [run]
    with store.reading() as connection:
        while attempts[-1].trigger is Trigger.RESUMED:
            earlier = (_r.configured == run.configured) & (_r.seq < attempts[-1].seq)
            row = connection.execute(sa.select(*_RUN).where(earlier).order_by(_r.seq.desc()).limit(1)).first()
            if row is None:
                break
            attempts.append(_read_run(row))
    return attempts


def under_way(store: Store, now: float) -> bool:
    """Return whether a run of any configuration is under way."""
    running = sa.select(*_RUN).where(_r.status == RunState.RUNNING.value)
    with store.reading() as connection:
        return any(not _read_run(row).dead(now) for row in connection.execute(running))


def list_judged(store: Store, configured: str) -> list[Run]:
    """Return the runs that came to a verdict, in order: all their labels are in the log."""
    query = _in(configured, JUDGED).order_by(_r.seq)
    with store.reading() as connection:
        return [_read_run(row) for row in connection.execute(query)]


def _in(configured: str, states: Collection[RunState]) -> "sa.Select[Any]":
    listed = _r.status.in_([state.value for state in states])
    return sa.select(*_RUN).where(listed, _r.configured == configured)


def _find_requested(connection: sa.Connection, configured: str) -> Run | None:
    row = connection.execute(_in(configured, [RunState.ASKED])).first()
    return None if row is None else _read_run(row)


def _exclude(connection: sa.Connection, now: float) -> None:
    """Mark a dead run as abandoned. Raises UnderWayError if a live one is under way."""
    query = sa.select(*_RUN).where(_r.status == RunState.RUNNING.value)
    for run in map(_read_run, connection.execute(query).all()):
        if not run.dead(now):
            running = f"run {run.seq} of {run.worker} has been running since {utc(run.started_at)}"
            raise UnderWayError(f"{running}: only one can run at a time")
        error = f"{run.worker} has sent no heartbeat since {utc(run.alive_at)}"
        gone = {"status": RunState.ABANDONED.value, "finished_at": now, "error": error}
        connection.execute(sa.update(t.runs).where(_r.seq == run.seq).values(**gone))


def _insert(
    connection: sa.Connection, configured: str, trigger: Trigger, status: RunState, worker: str, now: float
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
    return _read(connection, insert(connection, t.runs, row))


def _read(connection: sa.Connection, seq: int) -> Run:
    return _read_run(connection.execute(sa.select(*_RUN).where(_r.seq == seq)).one())


def _read_run(row: Any) -> Run:
    seq, trigger, status, *rest = row
    return Run(seq, Trigger(trigger), RunState(status), *rest)
