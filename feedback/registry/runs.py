"""Runs of the warm start: each is a row with its inputs, its steps and its outcome.

    asked --claim--> running --finish--> promoted | held | nothing_new | failed
                        `---no heartbeat for a lease---> abandoned

A claim marks a run with an expired lease as abandoned. One run is under way at a time among all
configurations; requests and inputs belong to a configuration.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import utc
from armwise.feedback.errors import UnderWayError
from armwise.feedback.log import Store, storable
from armwise.feedback.log import tables as t
from armwise.feedback.registry.jobs import LEASE_S, Job, JobKind


class RunState(StrEnum):
    """Status of a run."""

    ASKED = "asked"
    RUNNING = "running"
    PROMOTED = "promoted"
    """The candidate was promoted."""
    HELD = "held"
    """The candidate was evaluated and not promoted."""
    NOTHING_NEW = "nothing_new"
    """An earlier run learned or evaluated the same inputs, or they say too little to learn from."""
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


TOO_LITTLE = "too_little"
"""What a step found if its labels say too little to learn from: the reason, by this name."""


@dataclass(frozen=True, slots=True)
class Run(Job):
    """A warm start, from labels to a verdict.

    Attributes:
        trigger: What started it.
        status: Status of the run.
        started_at: When it was claimed, before that when it was requested.
        alive_at: Last heartbeat of its worker.
        inputs: Digests and positions of its inputs.
        steps: Completed steps in order: name, time, duration and findings of each.
        candidate: Number of the version that it published.
        evaluation: Number of the evaluation of the candidate.
    """

    trigger: Trigger
    status: RunState
    started_at: float
    alive_at: float
    inputs: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    candidate: int | None = None
    evaluation: int | None = None

    @property
    def too_little(self) -> str | None:
        """Why there was nothing to learn yet; None for a run that learned, failed or had nothing new."""
        if self.status is not RunState.NOTHING_NEW:
            return None
        reasons = [step.get("found", {}).get(TOO_LITTLE) for step in self.steps]
        return next((reason for reason in reasons if reason), None)

    def dead(self, now: float) -> bool:
        """Return whether its row says that it is running, but its lease has expired."""
        return self.status is RunState.RUNNING and self.alive_at < now - LEASE_S


_r = t.jobs.c

_JOBS = JobKind("run", Run, status=RunState, trigger=Trigger)

find, page, update = _JOBS.find, _JOBS.page, _JOBS.update


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
        return _add(connection, configured, Trigger.REQUEST, now)


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
        run = requested or _add(connection, configured, trigger, now)
        return _JOBS.begin(connection, run.seq, worker, now)


def renew(store: Store, mine: Run, now: float) -> None:
    """Renew the lease of a run. Raises SupersededError if the run was abandoned."""
    _JOBS.write(store, mine, alive_at=now)


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
    found = {"candidate": candidate, "evaluation": evaluation, "alive_at": now}
    _JOBS.write(store, mine, inputs=dict(inputs), steps=list(steps), **found)


def finish(store: Store, mine: Run, status: RunState, now: float, error: str | None = None) -> None:
    """Record how a run ended. Raises SupersededError if it was abandoned."""
    reason = None if error is None else storable(error)
    _JOBS.write(store, mine, status=status, alive_at=now, finished_at=now, error=reason)


def find_by_recipe(store: Store, recipes: Collection[str]) -> dict[str, Run]:
    """Return the first run whose candidate has each of these recipes, by digest, where there is one."""
    v = t.versions.c
    first = (
        sa.select(v.recipe, sa.func.min(_r.seq))
        .join_from(t.jobs, t.versions, v.version == _r.candidate)
        .where(v.recipe.in_(recipes))
        .group_by(v.recipe)
    )
    with store.reading() as connection:
        numbers = dict(connection.execute(first).all())
        found = {run.seq: run for run in _JOBS.read(connection, _r.seq.in_(numbers.values()))}
    return {recipe: found[seq] for recipe, seq in numbers.items()}


def newest(store: Store, configured: str, states: Collection[RunState] = tuple(RunState)) -> Run | None:
    """Return the newest run for a configured recipe that is in one of the states, if any."""
    return _JOBS.find_newest(store, _r.configured == configured, _r.status.in_(states))


def read_attempts(store: Store, run: Run) -> list[Run]:
    """Return a run and the runs that it resumes, newest first; the last is the one that began afresh."""
    attempts = [run]
    while attempts[-1].trigger is Trigger.RESUMED:
        earlier = (_r.configured == run.configured) & (_r.seq < attempts[-1].seq)
        before = _JOBS.find_newest(store, earlier)
        if before is None:
            break
        attempts.append(before)
    return attempts


def under_way(store: Store, now: float) -> bool:
    """Return whether a run of any configuration is under way."""
    with store.reading() as connection:
        return any(not run.dead(now) for run in _JOBS.read(connection, _r.status == RunState.RUNNING))


def list_judged(store: Store, configured: str) -> list[Run]:
    """Return the runs that came to a verdict, in order: all their labels are in the log."""
    with store.reading() as connection:
        return _JOBS.read(connection, _r.configured == configured, _r.status.in_(JUDGED))[::-1]


def _find_requested(connection: sa.Connection, configured: str) -> Run | None:
    asked = _JOBS.read(connection, _r.configured == configured, _r.status == RunState.ASKED)
    return asked[0] if asked else None


def _exclude(connection: sa.Connection, now: float) -> None:
    """Mark a dead run as abandoned. Raises UnderWayError if a live one is under way."""
    for run in _JOBS.read(connection, _r.status == RunState.RUNNING):
        if not run.dead(now):
            running = f"run {run.seq} of {run.worker} has been running since {utc(run.started_at)}"
            raise UnderWayError(f"{running}: only one can run at a time")
        error = f"{run.worker} has sent no heartbeat since {utc(run.alive_at)}"
        update(connection, run, status=RunState.ABANDONED, finished_at=now, error=error)


def _add(connection: sa.Connection, configured: str, trigger: Trigger, now: float) -> Run:
    times = dict.fromkeys(("submitted_at", "started_at", "alive_at"), now)
    about = {"configured": configured, "trigger": trigger, "status": RunState.ASKED}
    return _JOBS.add(connection, inputs={}, steps=[], **about, **times)
