"""When the next warm start is due: an interval, a cron line, an alarm, a request or one that was cut short.

A function of what is configured and of what the log says, and of nothing else: whoever looks, and however
often, comes to the same.
"""

from dataclasses import dataclass

from agent.config import Schedule, warm_start
from feedback.drift import Alarm, Alarms
from feedback.log import Store
from feedback.registry import Run, runs

RETRY_S = 3600.0
"""How long an alarm waits for the next run where one has failed."""

CUT_SHORT = (runs.State.RUNNING, runs.State.ABANDONED)
"""How a run stands that is begun again, once its worker is dead."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is to come.

    Attributes:
        at: From when on it is due, seconds since the epoch, UTC.
        trigger: What it is started by.
    """

    at: float
    trigger: runs.Trigger


def look(store: Store, spec: Schedule, configured: str, alarms: Alarms, since: float) -> Planned | None:
    """Return the next run for a configured recipe, as the log says; see `planned`."""
    last, alarm = runs.newest(store, configured), alarms.newest if alarms.warm_start_open else None
    if alarm is not None:
        ended = runs.newest(store, configured, runs.ENDED)
        if ended is not None and ended.inputs.get("alarm") == alarm.example_seq:
            alarm = None  # a run has done what can be done, whatever came of it
    return planned(spec, last, alarm, since)


def planned(spec: Schedule, last: Run | None, alarm: Alarm | None, since: float) -> Planned | None:
    """Return the next run, which is due once its time has come; None where none is to come by itself.

    What was missed while no service ran is made up for once. A run whose worker died is begun again as
    soon as its lease is over; where that one dies as well, the schedule's time is waited for. An alarm
    that a run has failed to answer waits for an hour.

    Args:
        spec: The schedule.
        last: The newest run, or request for one; None where there was none.
        alarm: The drift that no labels were entered for since, and that no run has answered; None where
            there is none.
        since: From when on a cron line counts where there was no run.
    """
    if last is not None and last.status is runs.State.ASKED:
        return Planned(last.started_at, runs.Trigger.REQUEST)
    earliest = 0.0
    if last is not None and last.status is runs.State.RUNNING:
        earliest = last.alive_at + runs.LEASE_S
    found = []
    if last is not None and last.status in CUT_SHORT and last.trigger is not runs.Trigger.RESUMED:
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
