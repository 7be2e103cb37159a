"""The schedule: what is due follows from the newest run, the alarm and the configuration, whoever looks."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent.schedule import Planned, Schedule, next_of, planned, seconds_of
from feedback.runs import LEASE_S, Run, State, Trigger

times = st.floats(0.0, 4e9)
ENDS = [State.PROMOTED, State.HELD, State.NOTHING_NEW, State.FAILED]


def run(
    status: State = State.HELD,
    started_at: float = 1000.0,
    alive_at: float = 1100.0,
    trigger: Trigger = Trigger.SCHEDULE,
) -> Run:
    return Run(1, trigger, status, "here:1", started_at, alive_at, None, {}, [], None, None, None)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_without_a_schedule_and_an_alarm_nothing_comes_by_itself() -> None:
    assert planned(Schedule(), None, None, 0.0) is None
    assert planned(Schedule(), run(), None, 0.0) is None


def test_an_interval_runs_from_the_start_of_one_run_to_that_of_the_next() -> None:
    spec = Schedule(every="PT6H")
    assert planned(spec, None, None, 500.0) == Planned(500.0, Trigger.SCHEDULE)
    for status in ENDS:
        assert planned(spec, run(status), None, 500.0) == Planned(1000.0 + 6 * 3600.0, Trigger.SCHEDULE)


def test_a_cron_line_is_read_in_utc_and_what_was_missed_is_made_up_for_once() -> None:
    spec = Schedule(cron="30 3 * * 1")
    friday, monday = at("2026-11-20T17:00"), at("2026-11-23T03:30")
    assert planned(spec, None, None, friday) == Planned(monday, Trigger.SCHEDULE)
    weeks_ago = run(started_at=friday - 30 * 86400.0)
    found = planned(spec, weeks_ago, None, friday)
    assert found is not None
    assert found.at <= friday, "it is due"
    assert planned(spec, run(started_at=friday), None, friday) == Planned(monday, Trigger.SCHEDULE)


@given(times, st.sampled_from(["0 3 * * *", "*/5 * * * *", "15 4 1 * *", "0 0 29 2 *", "7 7 * * SUN"]))
def test_the_next_time_of_a_cron_line_is_later_and_the_first(now: float, cron: str) -> None:
    found = next_of(cron, now)
    assert found > now
    assert next_of(cron, found) > found
    between = now + (found - now) / 2
    assert next_of(cron, between) == found


@given(times, st.integers(1, 10_000))
def test_a_cron_line_of_every_day_comes_within_a_day_at_its_time(now: float, minutes: int) -> None:
    hour, minute = divmod(minutes % 1440, 60)
    moment = datetime.fromtimestamp(next_of(f"{minute} {hour} * * *", now), UTC)
    assert (moment.hour, moment.minute, moment.second) == (hour, minute, 0)
    assert timedelta(0) < moment - datetime.fromtimestamp(now, UTC) <= timedelta(days=1)


def test_an_alarm_starts_one_run_and_a_later_one_another() -> None:
    spec = Schedule()
    assert planned(spec, None, 2000.0, 0.0) == Planned(2000.0, Trigger.ALARM)
    assert planned(spec, run(started_at=1999.0), 2000.0, 0.0) == Planned(2000.0, Trigger.ALARM)
    assert planned(spec, run(started_at=2001.0), 2000.0, 0.0) is None, "it was answered; held, it stays open"
    assert planned(spec, run(started_at=2001.0), 3000.0, 0.0) == Planned(3000.0, Trigger.ALARM)
    assert planned(Schedule(on_alarm=False), None, 2000.0, 0.0) is None


def test_what_comes_first_is_next() -> None:
    spec = Schedule(every="PT1H")
    assert planned(spec, run(), 2000.0, 0.0) == Planned(2000.0, Trigger.ALARM)
    assert planned(spec, run(), 9000.0, 0.0) == Planned(4600.0, Trigger.SCHEDULE)


def test_a_request_is_due_at_once() -> None:
    asked = run(State.ASKED, trigger=Trigger.REQUEST)
    assert planned(Schedule(every="PT6H"), asked, None, 0.0) == Planned(1000.0, Trigger.REQUEST)


@pytest.mark.parametrize("status", [State.RUNNING, State.ABANDONED])
def test_a_run_whose_worker_died_is_begun_again_after_its_lease_but_only_once(status: State) -> None:
    spec = Schedule(every="P1D")
    begun = 1100.0 + LEASE_S if status is State.RUNNING else 1100.0
    assert planned(spec, run(status), None, 0.0) == Planned(begun, Trigger.RESUMED)
    again = run(status, trigger=Trigger.RESUMED)
    assert planned(spec, again, None, 0.0) == Planned(1000.0 + 86400.0, Trigger.SCHEDULE)
    assert planned(Schedule(), again, None, 0.0) is None


@given(
    st.sampled_from([None, "PT1M", "PT6H"]),
    st.none() | times,
    times,
    st.floats(0.0, 1e6),
    st.sampled_from(Trigger),
)
def test_nothing_is_due_while_a_worker_is_heard_of(
    every: str | None, alarm_at: float | None, started_at: float, took_s: float, trigger: Trigger
) -> None:
    under_way = run(State.RUNNING, started_at, started_at + took_s, trigger)
    found = planned(Schedule(every=every), under_way, alarm_at, started_at)
    assert found is None or found.at >= under_way.alive_at + LEASE_S


@given(st.sampled_from(ENDS), times, st.none() | times, times)
def test_the_schedule_never_goes_back_and_does_not_depend_on_who_looks(
    status: State, started_at: float, alarm_at: float | None, since: float
) -> None:
    spec = Schedule(every="PT1H")
    found = planned(spec, run(status, started_at), alarm_at, since)
    assert found is not None
    assert found.at > started_at
    assert found.at <= started_at + 3600.0
    assert found == planned(spec, run(status, started_at), alarm_at, since + 1.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"every": "6h"}, "'6h' is no ISO 8601 duration, such as PT6H"),
        ({"every": "PT0S"}, "'PT0S' is no time at all"),
        ({"every": "-PT6H"}, "is no time at all"),
        ({"every": "PT59S"}, "every PT59S is too often: PT1M or more"),
        ({"cron": "0 25 * * *"}, "'0 25 \\* \\* \\*' is no cron line, such as `0 3 \\* \\* \\*`: Bad hour"),
        ({"cron": "daily"}, "'daily' is no cron line.*: Wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "is no cron line.*: Bad day-of-month"),
        ({"every": "PT6H", "cron": "0 3 * * *"}, "every PT6H and cron '0 3 \\* \\* \\*' are two schedules"),
    ],
)
def test_a_schedule_that_is_none_is_refused_and_the_error_names_it(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Schedule.model_validate(given)


def test_durations_are_those_of_iso_8601() -> None:
    assert seconds_of("P1DT30M") == 88200.0
