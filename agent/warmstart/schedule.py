"""When the next warm start is due: an interval, a cron line, an alarm, a request or one that was cut short.

A function of what is configured and of what the log says, and of nothing else: whoever looks, and however
often, comes to the same.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from feedback.alarms import Alarm, Alarms
from feedback.runs import ENDED, LEASE_S, Run, State, Trigger, newest
from feedback.store import Store

LEAST_S = 60.0
"""Shortest interval."""

RETRY_S = 3600.0
"""How long an alarm waits for the next run where one has failed."""

CUT_SHORT = (State.RUNNING, State.ABANDONED)
"""How a run stands that is begun again, once its worker is dead."""

_DURATION = TypeAdapter(timedelta)


def seconds_of(duration: str) -> float:
    """Return the seconds of an ISO 8601 duration.

    Raises:
        ValueError: It is none, or it is not above 0.

    >>> seconds_of("PT6H"), seconds_of("P7D")
    (21600.0, 604800.0)
    """
    try:
        found = _DURATION.validate_python(duration).total_seconds()
    except ValidationError:
        raise ValueError(f"{duration!r} is no ISO 8601 duration, such as PT6H") from None
    if found <= 0.0:
        raise ValueError(f"{duration!r} is no time at all: a duration above 0 was expected, such as PT6H")
    return found


class Schedule(BaseModel):
    """When warm starts are done by themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: str | None = Field(
        default=None,
        description="ISO 8601 duration from the start of a run to that of the next: PT1M or more.",
    )
    cron: str | None = Field(
        default=None, description="Times of the runs instead, as cron has it, in UTC: `0 3 * * *` is 3:00."
    )
    on_alarm: bool = Field(
        default=True, description="Whether an alarm of drift starts a run, once for each alarm."
    )

    @field_validator("every")
    @classmethod
    def _long_enough(cls, every: str | None) -> str | None:
        if every is not None and seconds_of(every) < LEAST_S:
            raise ValueError(f"every {every} is too often: PT1M or more was expected")
        return every

    @field_validator("cron")
    @classmethod
    def _sound(cls, cron: str | None) -> str | None:
        if cron is not None:
            try:
                next_of(cron, 0.0)
            except (CronSimError, StopIteration) as error:
                why = str(error) or "no such day ever comes"
                raise ValueError(f"{cron!r} is no cron line, such as `0 3 * * *`: {why}") from None
        return cron

    @model_validator(mode="after")
    def _one_of_two(self) -> "Schedule":
        if self.every is not None and self.cron is not None:
            raise ValueError(f"every {self.every} and cron {self.cron!r} are two schedules: give one of them")
        return self


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is to come.

    Attributes:
        at: From when on it is due, seconds since the epoch, UTC.
        trigger: What it is started by.
    """

    at: float
    trigger: Trigger


def next_of(cron: str, after: float) -> float:
    """Return the first time of a cron line after another time, seconds since the epoch, UTC.

    Raises:
        CronSimError: It is no cron line.
        StopIteration: No such time comes within fifty years.

    >>> next_of("0 3 * * *", 0.0), next_of("0 3 * * *", 10800.0)
    (10800.0, 97200.0)
    """
    return next(CronSim(cron, datetime.fromtimestamp(after, UTC))).timestamp()


def look(store: Store, spec: Schedule, configured: str, alarms: Alarms, since: float) -> Planned | None:
    """Return the next run for a configured recipe, as the log says; see `planned`."""
    last, alarm = newest(store, configured), alarms.newest if alarms.warm_start_open else None
    if alarm is not None:
        ended = newest(store, configured, ENDED)
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
    if last is not None and last.status is State.ASKED:
        return Planned(last.started_at, Trigger.REQUEST)
    earliest = 0.0
    if last is not None and last.status is State.RUNNING:
        earliest = last.alive_at + LEASE_S
    found = []
    if last is not None and last.status in CUT_SHORT and last.trigger is not Trigger.RESUMED:
        found.append(Planned(last.alive_at, Trigger.RESUMED))
    if spec.on_alarm and alarm is not None:
        failed = None if last is None or last.status in ENDED else last
        again = alarm.at if failed is None else failed.started_at + RETRY_S
        found.append(Planned(max(alarm.at, again), Trigger.ALARM))
    if spec.every is not None:
        at = since if last is None else last.started_at + seconds_of(spec.every)
        found.append(Planned(at, Trigger.SCHEDULE))
    if spec.cron is not None:
        at = next_of(spec.cron, since if last is None else last.started_at)
        found.append(Planned(at, Trigger.SCHEDULE))
    if not found:
        return None
    first = min(found, key=lambda one: one.at)
    return Planned(max(first.at, earliest), first.trigger)


__all__ = ["Planned", "Schedule", "look", "next_of", "planned", "seconds_of"]
