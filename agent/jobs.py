"""Background tasks of the service: when they are due, the threads that poll them, and child processes.

    polled in a thread per task:   task.due(now) --yes--> task.run(stop)

A failing task leaves the service running: the failure is recorded, and the task polled again later; if the
log is unavailable, the task waits for it. The heavy part of a task runs in a child process of low priority:
see `armwise.agent.evaluation.evaluation_task`.

The next warm start is a function of the configuration and the log, so every process computes the same.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from armwise.agent.background import ABOUT, Work, WorkFailure, clear, record
from armwise.agent.config import DigestSpec, warm_start
from armwise.agent.run_folder import COLD
from armwise.feedback.drift import Alarm, Alarms
from armwise.feedback.errors import BehindError, LogUnavailableError, describe_error
from armwise.feedback.log import Store
from armwise.feedback.registry import Digest, DigestState, Run, digests, jobs, runs
from armwise.feedback.training_log import traffic

if TYPE_CHECKING:
    from armwise.agent.serving import Replica

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""Seconds between two heartbeats of a worker, a small part of its lease."""

POLL_S, MAX_PAUSE_S, MAX_FAILED_S = 0.25, 10.0, 60.0
"""Pause between two polls of a task; the longest while the log is unavailable, and after failures."""

STOP_S = 5.0
"""Seconds that `Jobs.stop` waits for a thread, which ends with its process in any case."""

ProgressCallback = Callable[[float], None]
"""Called about every second with the share of the work that is done, 0 to 1; raises to cancel the work."""


class JobFailedError(Exception):
    """An evaluation failed; the message is recorded."""


class RunFailedError(Exception):
    """A warm start failed, without a change of what is served; the message names its run and the step."""


class StoppedError(Exception):
    """The service stops; work under way is cancelled."""


class Task(Protocol):
    """Scheduled work. Constructed and called in one thread."""

    def due(self, now: float) -> bool:
        """Return whether to run now. Called at every poll, so it must be cheap.

        Args:
            now: Seconds since the epoch.

        Raises:
            LogUnavailableError: The log cannot be read; `due` is called again later.
        """
        ...

    def run(self, stop: threading.Event) -> None:
        """Do the work; return soon once `stop` is set.

        Raises:
            LogUnavailableError: The log cannot be used; no failure is recorded, and `due` is called again.
        """
        ...


class Jobs:
    """Runs tasks until it is stopped, each in a separate thread, as one may wait for another.

    Args:
        makes: Construct the task of each work, in its thread; called again if that fails.
        poll_s: Seconds between two polls.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        makes: Mapping[Work, Callable[[], Task]],
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._poll_s, self._clock = poll_s, clock
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work, make), name=work, daemon=True)
            for work, make in makes.items()
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise RuntimeError if a thread has ended before `stop`."""
        for thread in self._threads:
            if not thread.is_alive():
                raise RuntimeError(f"{thread.name} has ended")

    def stop(self) -> None:
        """Cancel work under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_S)

    def _run(self, work: Work, make: Callable[[], Task]) -> None:
        task: Task | None = None
        pause_s, failed, ran = 0.0, 0, False
        stands = True  # what an earlier process may have recorded
        failed_run = False  # what stands is of a run, and only another run takes it back
        while not self._stop.wait(pause_s):
            try:
                ran, task = False, task or make()
                if ran := task.due(self._clock()):
                    task.run(self._stop)
                pause_s = self._poll_s
                if stands and (ran or not failed_run) and not self._stop.is_set():
                    clear(work)
                    stands, failed = False, 0
            except (LogUnavailableError, BehindError) as error:
                pause_s = min(max(self._poll_s, 2 * pause_s), MAX_PAUSE_S)
                logger.warning("%s waits %.3g s for the log: %s", ABOUT[work][0], pause_s, error)
            except Exception as error:
                pause_s = min(max(self._poll_s, 2 * pause_s), MAX_FAILED_S)
                logger.exception("%s failed; the next attempt is in %.3g s", ABOUT[work][0], pause_s)
                stands, failed_run, failed = True, ran, failed + 1
                record(WorkFailure(work, describe_error(error), failed, self._clock() + pause_s))


def this_process() -> str:
    """Return the worker name of this process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


RETRY_S = 3600.0
"""Pause after a failed run before the next one that an alarm or new ratings start."""

RETRIES_S = (60.0, 300.0, 1500.0)
"""Pauses from the end of a failed run to each further attempt."""

RETRIED = (runs.Trigger.FIRST, runs.Trigger.SCHEDULE, runs.Trigger.REQUEST)
"""Triggers of runs that are retried soon after a failure. The failure of a command is shown to its caller,
and runs for alarms have a separate pause."""

INTERRUPTED = (runs.RunState.RUNNING, runs.RunState.ABANDONED)
"""States of a run that is started again once its worker is dead."""

FAILED = (runs.RunState.FAILED, runs.RunState.ABANDONED)
"""States of a run that ended without a result."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The next run.

    Attributes:
        at: When it is due, seconds since the epoch, UTC.
        trigger: Why it runs.
    """

    at: float
    trigger: runs.Trigger


def next_run(
    store: Store, spec: warm_start.WarmStartSpec, configured: str, join: str, alarms: Alarms, since: float
) -> Planned | None:
    """Return the next run for a configured recipe, from the log; see `planned`."""
    last, alarm = runs.newest(store, configured), alarms.newest if alarms.warm_start_open else None
    if last is None and spec.first == "promote" and COLD not in os.environ:
        return Planned(since, runs.Trigger.FIRST)
    if alarm is not None:
        ended = runs.newest(store, configured, runs.ENDED)
        if ended is not None and ended.inputs.get("alarm") == alarm.example_seq:
            alarm = None  # a run has answered it, with any result
    retry_at = None if last is None else _retry_at(runs.read_attempts(store, last))
    rated = 0
    if spec.after_rated is not None:
        seen = 0 if last is None else last.inputs.get("examples", 0)
        rated = traffic.count_rated_decisions(store, join, seen, spec.after_rated)
    return plan_run(spec, last, alarm, since, retry_at, rated)


def _retry_at(attempts: Sequence[Run]) -> float | None:
    """Return when a failed run is tried again; None: it did not fail, or is given up.

    Args:
        attempts: The newest run, and the earlier attempts that it repeats, newest first.
    """
    last = attempts[0]
    failed = last.status is runs.RunState.FAILED and attempts[-1].trigger in RETRIED
    if not failed or len(attempts) > len(RETRIES_S):
        return None
    return last.alive_at + RETRIES_S[len(attempts) - 1]


def find_failed_run(store: Store, configured: str, next_at: Callable[[], float | None]) -> WorkFailure | None:
    """Return the failure of the newest run for a configured recipe, if it failed.

    The failure stays while another attempt is under way.

    Args:
        store: The log.
        configured: Digest of the configured recipe.
        next_at: Returns when the next run is due, if there is one.
    """
    last = runs.newest(store, configured)
    if last is None or last.status not in (*FAILED, runs.RunState.RUNNING):
        return None
    failed = [run for run in runs.read_attempts(store, last) if run.status in FAILED]
    if not failed:
        return None
    again = last.started_at if last.status is runs.RunState.RUNNING else next_at()
    why = f"run {failed[0].seq}: {failed[0].error or failed[0].status}"
    return WorkFailure(Work.WARM_START, why, len(failed), again)


def plan_run(
    spec: warm_start.Schedule,
    last: Run | None,
    alarm: Alarm | None,
    since: float,
    retry_at: float | None = None,
    rated: int = 0,
) -> Planned | None:
    """Return the next run, if one is scheduled.

    Several runs missed while the service was down are replaced by one. A run whose worker died is started
    again when its lease has ended; if that worker dies as well, the schedule decides. A failed run is retried
    a few times. A failed run for an alarm is followed by another one hour later.

    Args:
        spec: The schedule.
        last: The newest run or request.
        alarm: The newest alarm that no run has answered, and since which no labels were inserted.
        since: Start of a cron schedule before the first run.
        retry_at: When the newest run is retried, if it failed and is not given up.
        rated: Number of rated decisions that the newest run has not seen.
    """
    if last is not None and last.status is runs.RunState.ASKED:
        return Planned(last.started_at, runs.Trigger.REQUEST)
    earliest = 0.0
    if last is not None and last.status is runs.RunState.RUNNING:
        earliest = last.alive_at + jobs.LEASE_S
    plans = []
    if last is not None and last.status in INTERRUPTED and last.trigger is not runs.Trigger.RESUMED:
        plans.append(Planned(last.alive_at, runs.Trigger.RESUMED))
    if retry_at is not None:
        plans.append(Planned(retry_at, runs.Trigger.RESUMED))
    if alarm is not None:
        failed = None if last is None or last.status in runs.ENDED else last
        again = alarm.at if failed is None else failed.started_at + RETRY_S
        plans.append(Planned(max(alarm.at, again), runs.Trigger.ALARM))
    if spec.after_rated is not None and rated >= spec.after_rated:
        at = since if last is None else last.alive_at + (RETRY_S if last.status in FAILED else 0.0)
        plans.append(Planned(at, runs.Trigger.RATED))
    if spec.cron is not None:
        at = warm_start.compute_next(spec.cron, since if last is None else last.started_at)
        plans.append(Planned(at, runs.Trigger.SCHEDULE))
    if not plans:
        return None
    first = min(plans, key=lambda plan: plan.at)
    return Planned(max(first.at, earliest), first.trigger)


def plan_warm_start(replica: "Replica") -> Planned | None:
    """Return the next warm start; None: none is scheduled. While one is under way, only `cron` is known."""
    spec, configured, now = replica.config.warm_start, replica.versions.configured.digest, replica.clock()
    if spec is None:
        return None
    if runs.under_way(replica.store, now):
        cron = spec.cron
        return None if cron is None else Planned(warm_start.compute_next(cron, now), runs.Trigger.SCHEDULE)
    join = replica.config.reward.join
    return next_run(replica.store, spec, configured, join, replica.versions.state.alarms, now)


DIGEST_LEASE_S = 3600.0
"""Time in which a worker must have read the log for a digest and sent it."""


AFTER_FALL_S = 1.0
"""Seconds after a class went back at which the period of its digest ends, which has to contain it."""


@dataclass(frozen=True, slots=True)
class PlannedDigest:
    """The next attempt to send a digest.

    Attributes:
        at: When it is due, seconds since the epoch, UTC.
        since: Begin of its period.
        until: End of its period.
        attempt: Number of the attempt, from 1 on.
    """

    at: float
    since: float
    until: float
    attempt: int = 1


def plan_digest(spec: DigestSpec, last: Digest, now: float, fell_at: float | None = None) -> PlannedDigest:
    """Return the next attempt to send a digest.

    One is due at each time of the schedule, and as soon as a class of requests went back to the reference of
    the guard. Of several times that were missed while the service was down, the last one counts. What may
    have arrived is never sent again, and no period that was sent is reported again.

    Args:
        spec: The schedule.
        last: The newest attempt.
        now: Seconds since the epoch.
        fell_at: When the newest class went back, seconds since the epoch, if any has.
    """
    scheduled = until = warm_start.compute_previous(spec.schedule, now)
    if fell_at is not None and fell_at + AFTER_FALL_S <= now:
        until = max(until, fell_at + AFTER_FALL_S)
    if until > last.until:
        return _cover(spec, last, until, scheduled if scheduled > last.until else until)
    if last.attempt <= len(RETRIES_S):
        if last.state is DigestState.REFUSED:
            again = last.at + RETRIES_S[last.attempt - 1]
            return PlannedDigest(again, last.since, last.until, last.attempt + 1)
        if last.state is DigestState.READING:
            return PlannedDigest(last.at + DIGEST_LEASE_S, last.since, last.until, last.attempt + 1)
    until = warm_start.compute_next(spec.schedule, now)
    return _cover(spec, last, until, until)


def _cover(spec: DigestSpec, last: Digest, until: float, scheduled: float) -> PlannedDigest:
    """Return the first attempt for a period, which begins at the time of the schedule before `scheduled`.

    It includes the period of the newest attempt, whose place it takes, if that has not arrived yet.
    """
    since = warm_start.compute_previous(spec.schedule, scheduled)
    if last.state in (DigestState.READING, DigestState.REFUSED):
        since = min(since, last.since)
    if last.state in (DigestState.SENDING, DigestState.SENT):
        since = max(since, last.until)
    return PlannedDigest(until, since, until)


def find_failed_digest(store: Store, spec: DigestSpec, now: float) -> WorkFailure | None:
    """Return the failure of the newest digest, if it failed. Raises LogUnavailableError."""
    last = digests.newest(store)
    if last is None or last.state in (DigestState.BEGUN, DigestState.SENT):
        return None
    if digests.has_failed(last, now):
        return WorkFailure(Work.DIGEST, last.why or digests.INTERRUPTED, last.attempt, None)
    if last.state is DigestState.SENDING or not last.why:
        return None
    again = last.at if last.state is DigestState.READING else plan_digest(spec, last, now).at
    return WorkFailure(Work.DIGEST, last.why, last.attempt, again)
