"""When the next warm start is due: by interval, cron line, alarm or request, or after an interrupted run.

A function of the configuration and the log alone: every process computes the same.
"""

from dataclasses import dataclass

from agent.config import warm_start
from feedback.drift import Alarm, Alarms
from feedback.log import Store
from feedback.registry import Run, runs

RETRY_S = 3600.0
"""Pause after a failed run for an alarm before the next one."""

INTERRUPTED = (runs.State.RUNNING, runs.State.ABANDONED)
"""States of a run that is started again once its worker is dead."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The next run.

    Attributes:
        at: When it is due, seconds since the epoch, UTC.
        trigger: What it is started by.
    """

    at: float
    trigger: runs.Trigger


def next_run(
    store: Store, spec: warm_start.Schedule, configured: str, alarms: Alarms, since: float
) -> Planned | None:
    """Return the next run for a configured recipe, from the log; see `planned`."""
    last, alarm = runs.newest(store, configured), alarms.newest if alarms.warm_start_open else None
    if alarm is not None:
        ended = runs.newest(store, configured, runs.ENDED)
        if ended is not None and ended.inputs.get("alarm") == alarm.example_seq:
            alarm = None  # a run has answered it, with whatever result
    return planned(spec, last, alarm, since)


def planned(spec: warm_start.Schedule, last: Run | None, alarm: Alarm | None, since: float) -> Planned | None:
    """Return the next run; None where none is scheduled.

    Runs missed while no service ran are replaced by one. A run whose worker died is started again as soon
    as its lease has ended; where that one dies as well, the next is that of the schedule. After a failed
    run for an alarm the next one is an hour later.

    Args:
        spec: The schedule.
        last: The newest run or request; None where there was none.
        alarm: The newest alarm since which no labels were inserted and that no run has answered; None
            for none.
        since: Start of a cron schedule before the first run.
    """
    if last is not None and last.status is runs.State.ASKED:
        return Planned(last.started_at, runs.Trigger.REQUEST)
    earliest = 0.0
    if last is not None and last.status is runs.State.RUNNING:
        earliest = last.alive_at + runs.LEASE_S
    found = []
    if last is not None and last.status in INTERRUPTED and last.trigger is not runs.Trigger.RESUMED:
        found.append(Planned(last.alive_at, runs.Trigger.RESUMED))
    if spec.on_alarm and alarm is not None:
        failed = None if last is None or last.status in runs.ENDED else last
        again = alarm.at if failed is None else failed.started_at + RETRY_S
        found.append(Planned(max(alarm.at, again), runs.Trigger.ALARM))
    if spec.every is not None:
        at = since if last is None else last.started_at + warm_start.seconds_of(spec.every)
        found.append(Planned(at, runs.Trigger.SCHEDULE))
    if spec.cron is not None:
        at = warm_start.next_of(spec.cron, since if last is None else last.started_at)
        found.append(Planned(at, runs.Trigger.SCHEDULE))
    if not found:
        return None
    first = min(found, key=lambda one: one.at)
    return Planned(max(first.at, earliest), first.trigger)
