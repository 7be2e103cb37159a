"""The schedule: what is due follows from the newest run, the alarm and the configuration, whoever looks."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.agent.background import Work, WorkFailure
from armwise.agent.config import warm_start
from armwise.agent.jobs import RETRIES_S, RETRY_S, Planned, find_failed_run, next_run, plan_run
from armwise.agent.run_folder import COLD
from armwise.feedback.drift import Alarm, Alarms
from armwise.feedback.log import Store
from armwise.feedback.registry import Run, jobs, runs
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, take_epoch
from tests.feedback.conftest import decision, execution, value

OURS, JOIN = "ours", "join"
NO_ALARM = Alarms(0, None, False)
times = st.floats(0.0, 4e9)
ENDS = [runs.RunState.PROMOTED, runs.RunState.HELD, runs.RunState.NOTHING_NEW, runs.RunState.FAILED]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        yield store


def run(
    status: runs.RunState = runs.RunState.HELD,
    started_at: float = 1000.0,
    alive_at: float = 1100.0,
    trigger: runs.Trigger = runs.Trigger.SCHEDULE,
) -> Run:
    times = {"submitted_at": started_at, "started_at": started_at, "alive_at": alive_at, "finished_at": None}
    kinds = {"trigger": trigger, "status": status}
    return Run(1, OURS, "here:1", error=None, inputs={}, steps=[], **kinds, **times)  # type: ignore[arg-type]


def alarm(at: float, example_seq: int = 5) -> Alarm:
    return Alarm("r", "reward of a", "adwin", 0.8, 0.1, example_seq, at)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_without_a_schedule_and_an_alarm_nothing_comes_by_itself() -> None:
    assert plan_run(warm_start.Schedule(), None, None, 0.0) is None
    assert plan_run(warm_start.Schedule(), run(), None, 0.0) is None


def test_the_next_run_follows_the_start_of_the_last_one_however_it_ended() -> None:
    spec = warm_start.Schedule(cron="0 */6 * * *")
    assert plan_run(spec, None, None, 500.0) == Planned(6 * 3600.0, runs.Trigger.SCHEDULE)
    for status in ENDS:
        last = run(status, started_at=7 * 3600.0)
        assert plan_run(spec, last, None, 500.0) == Planned(12 * 3600.0, runs.Trigger.SCHEDULE)


def test_a_cron_line_is_read_in_utc_and_what_was_missed_is_made_up_for_once() -> None:
    spec = warm_start.Schedule(cron="30 3 * * 1")
    friday, monday = at("2026-11-20T17:00"), at("2026-11-23T03:30")
    assert plan_run(spec, None, None, friday) == Planned(monday, runs.Trigger.SCHEDULE)
    weeks_ago = run(started_at=friday - 30 * 86400.0)
    found = plan_run(spec, weeks_ago, None, friday)
    assert found is not None
    assert found.at <= friday, "it is due"
    assert plan_run(spec, run(started_at=friday), None, friday) == Planned(monday, runs.Trigger.SCHEDULE)


@pytest.fixture(params=["Asia/Kolkata", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine is in another time zone than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("time_zone")
def test_a_cron_line_means_utc_whatever_the_time_zone_of_the_machine() -> None:
    assert time.localtime(0).tm_hour != 0
    assert warm_start.compute_next("0 3 * * *", 0.0) == 3 * 3600.0
    night = at("2026-03-07T00:00")  # New York changes to summer time then
    assert warm_start.compute_next("30 2 * * *", night + 86400.0) == at("2026-03-08T02:30")


@given(times, st.sampled_from(["0 3 * * *", "*/5 * * * *", "15 4 1 * *", "0 0 29 2 *", "7 7 * * SUN"]))
def test_the_next_time_of_a_cron_line_is_later_and_the_first(now: float, cron: str) -> None:
    found = warm_start.compute_next(cron, now)
    assert found > now
    assert warm_start.compute_next(cron, found) > found
    between = now + (found - now) / 2
    assert warm_start.compute_next(cron, between) == found


@given(times, st.integers(1, 10_000))
def test_a_cron_line_of_every_day_comes_within_a_day_at_its_time(now: float, minutes: int) -> None:
    hour, minute = divmod(minutes % 1440, 60)
    moment = datetime.fromtimestamp(warm_start.compute_next(f"{minute} {hour} * * *", now), UTC)
    assert (moment.hour, moment.minute, moment.second) == (hour, minute, 0)
    assert timedelta(0) < moment - datetime.fromtimestamp(now, UTC) <= timedelta(days=1)


def test_an_alarm_starts_a_run_however_long_before_the_newest_one_it_was_dated() -> None:
    spec = warm_start.Schedule()
    assert plan_run(spec, None, alarm(2000.0), 0.0) == Planned(2000.0, runs.Trigger.ALARM)
    for started_at in (1999.0, 2001.0):
        assert plan_run(spec, run(started_at=started_at), alarm(2000.0), 0.0) == Planned(
            2000.0, runs.Trigger.ALARM
        )


def test_an_alarm_that_a_run_failed_to_answer_waits_for_an_hour() -> None:
    failed = run(runs.RunState.FAILED, started_at=2001.0)
    assert plan_run(warm_start.Schedule(), failed, alarm(2000.0), 0.0) == Planned(
        2001.0 + 3600.0, runs.Trigger.ALARM
    )
    assert plan_run(warm_start.Schedule(), failed, alarm(9000.0), 0.0) == Planned(9000.0, runs.Trigger.ALARM)
    died = run(runs.RunState.ABANDONED, started_at=2001.0, trigger=runs.Trigger.RESUMED)
    assert plan_run(warm_start.Schedule(), died, alarm(2000.0), 0.0) == Planned(
        2001.0 + 3600.0, runs.Trigger.ALARM
    )


def test_an_alarm_is_answered_by_a_run_that_named_it_and_came_to_its_end(store: Store) -> None:
    def due(example_seq: int) -> Planned | None:
        return next_of(store, Alarms(1, alarm(50.0, example_seq), True))

    def done(configured: str, named: int | None, state: runs.RunState) -> None:
        mine = runs.claim(store, configured, runs.Trigger.ALARM, "here:1", 100.0)
        runs.save_progress(store, mine, 100.0, inputs={"alarm": named}, steps=[])
        runs.finish(store, mine, state, 101.0)

    assert due(5) == Planned(50.0, runs.Trigger.ALARM)
    done(OURS, None, runs.RunState.NOTHING_NEW)  # it began before the alarm was on record
    done("theirs", 5, runs.RunState.HELD)
    assert due(5) == Planned(50.0, runs.Trigger.ALARM)
    done(OURS, 5, runs.RunState.FAILED)
    assert due(5) == Planned(100.0 + 3600.0, runs.Trigger.ALARM)
    done(OURS, 5, runs.RunState.HELD)
    assert due(5) is None, "held, it stays open"
    assert due(9) == Planned(50.0, runs.Trigger.ALARM), "a later one starts another"
    assert next_of(store, Alarms(1, alarm(50.0, 9), False)) is None


def test_what_comes_first_is_next() -> None:
    spec = warm_start.Schedule(cron="0 * * * *")
    assert plan_run(spec, run(), alarm(2000.0), 0.0) == Planned(2000.0, runs.Trigger.ALARM)
    assert plan_run(spec, run(), alarm(9000.0), 0.0) == Planned(3600.0, runs.Trigger.SCHEDULE)


def test_a_request_is_due_at_once() -> None:
    asked = run(runs.RunState.ASKED, trigger=runs.Trigger.REQUEST)
    assert plan_run(warm_start.Schedule(cron="0 3 * * *"), asked, None, 0.0) == Planned(
        1000.0, runs.Trigger.REQUEST
    )


@pytest.mark.parametrize("status", [runs.RunState.RUNNING, runs.RunState.ABANDONED])
def test_a_run_whose_worker_died_is_begun_again_after_its_lease_but_only_once(status: runs.RunState) -> None:
    spec = warm_start.Schedule(cron="0 0 * * *")
    begun = 1100.0 + jobs.LEASE_S if status is runs.RunState.RUNNING else 1100.0
    assert plan_run(spec, run(status), None, 0.0) == Planned(begun, runs.Trigger.RESUMED)
    again = run(status, trigger=runs.Trigger.RESUMED)
    assert plan_run(spec, again, None, 0.0) == Planned(86400.0, runs.Trigger.SCHEDULE)
    assert plan_run(warm_start.Schedule(), again, None, 0.0) is None


# -- a run that failed ------------------------------------------------------------------------------------


def failed_at(store: Store, trigger: runs.Trigger, now: float, why: str = "no node started") -> Run:
    """Do a run that fails."""
    mine = runs.claim(store, OURS, trigger, "here:1", now)
    runs.finish(store, mine, runs.RunState.FAILED, now, why)
    return mine


SOURCES: dict[str, Any] = {"made": {"kind": "synthetic"}}


def next_of(store: Store, alarms: Alarms = NO_ALARM, **settings: Any) -> Planned | None:
    router = {"kind": "ridge"}
    spec = warm_start.WarmStartSpec.model_validate({"sources": SOURCES, "router": router, **settings})
    return next_run(store, spec, OURS, JOIN, alarms, 500.0)


# -- the first run, and runs by ratings ---------------------------------------------------------------------


def test_the_first_run_is_due_once_and_before_the_schedule(store: Store) -> None:
    settings = {"first": "promote", "cron": "0 3 * * *"}
    assert next_of(store, **settings) == Planned(500.0, runs.Trigger.FIRST)
    mine = runs.claim(store, OURS, runs.Trigger.FIRST, "here:1", 1000.0)
    runs.finish(store, mine, runs.RunState.HELD, 1100.0)
    assert next_of(store, **settings) == Planned(3 * 3600.0, runs.Trigger.SCHEDULE)


def test_another_configured_recipe_has_a_first_run_of_its_own(store: Store) -> None:
    runs.finish(
        store,
        runs.claim(store, "theirs", runs.Trigger.FIRST, "here:1", 1000.0),
        runs.RunState.PROMOTED,
        1100.0,
    )
    assert next_of(store, first="promote") == Planned(500.0, runs.Trigger.FIRST)


def test_a_service_told_to_stay_cold_does_no_first_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COLD, "1")
    assert next_of(store, first="promote") is None
    monkeypatch.delenv(COLD)
    assert next_of(store, first="hold") is None


@pytest.mark.parametrize(("rated", "is_due"), [(2, False), (3, True), (7, True)])
def test_a_run_is_due_after_so_many_new_ratings(rated: int, is_due: bool) -> None:
    spec = warm_start.Schedule(after_rated=3)
    found = plan_run(spec, run(alive_at=1100.0), None, 500.0, rated=rated)
    assert found == (Planned(1100.0, runs.Trigger.RATED) if is_due else None)
    assert plan_run(spec, None, None, 500.0, rated=rated) == (
        Planned(500.0, runs.Trigger.RATED) if is_due else None
    )


def test_ratings_count_from_what_the_last_run_has_seen(store: Store) -> None:
    rule = RewardRule(metrics={"right": Metric()}, correction_time="PT0S", wait_time="PT1M")
    for name in ("d1", "d2", "d3"):
        store.append([decision(name), execution(name), value(name)])
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(110.0)
    mine = runs.claim(store, OURS, runs.Trigger.SCHEDULE, "here:1", 200.0)
    runs.save_progress(store, mine, 200.0, inputs={"examples": 1}, steps=[])
    runs.finish(store, mine, runs.RunState.HELD, 300.0)

    def due(after_rated: int) -> Planned | None:
        spec = warm_start.WarmStartSpec.model_validate(
            {"sources": SOURCES, "router": {"kind": "ridge"}, "after_rated": after_rated}
        )
        return next_run(store, spec, OURS, rule.join, NO_ALARM, 500.0)

    assert due(2) == Planned(300.0, runs.Trigger.RATED)
    assert due(3) is None


def test_after_a_failed_run_ratings_wait_an_hour() -> None:
    spec, failed = warm_start.Schedule(after_rated=3), run(runs.RunState.FAILED, alive_at=1100.0)
    assert plan_run(spec, failed, None, 0.0, rated=9) == Planned(1100.0 + RETRY_S, runs.Trigger.RATED)


def test_no_ratings_start_a_run_unless_configured() -> None:
    assert plan_run(warm_start.Schedule(), run(), None, 0.0, rated=10**6) is None


def failure_of(store: Store) -> WorkFailure | None:
    def next_at() -> float | None:
        due = next_of(store)
        return None if due is None else due.at

    return find_failed_run(store, OURS, next_at)


@pytest.mark.parametrize("trigger", [runs.Trigger.FIRST, runs.Trigger.SCHEDULE, runs.Trigger.REQUEST])
def test_a_failed_run_is_tried_again_and_then_given_up(store: Store, trigger: runs.Trigger) -> None:
    assert list(RETRIES_S) == sorted(RETRIES_S)
    now = 1000.0
    for attempts, pause_s in enumerate(RETRIES_S, start=1):
        failed_at(store, trigger if attempts == 1 else runs.Trigger.RESUMED, now)
        now += pause_s
        assert next_of(store) == Planned(now, runs.Trigger.RESUMED)
        why = f"run {attempts}: no node started"
        assert failure_of(store) == WorkFailure(Work.WARM_START, why, attempts, now)
    last = failed_at(store, runs.Trigger.RESUMED, now)
    assert next_of(store) is None
    given_up = WorkFailure(Work.WARM_START, f"run {last.seq}: no node started", last.seq, None)
    assert failure_of(store) == given_up
    failed_at(store, runs.Trigger.REQUEST, now)
    assert next_of(store) == Planned(now + RETRIES_S[0], runs.Trigger.RESUMED), "another one begins anew"


def test_runs_of_other_services_between_two_attempts_do_not_count(store: Store) -> None:
    failed_at(store, runs.Trigger.FIRST, 1000.0)
    theirs = runs.claim(store, "theirs", runs.Trigger.SCHEDULE, "there:1", 1001.0)
    runs.finish(store, theirs, runs.RunState.HELD, 1002.0)
    failed_at(store, runs.Trigger.RESUMED, 1100.0)
    assert next_of(store) == Planned(1100.0 + RETRIES_S[1], runs.Trigger.RESUMED)


def test_a_command_that_failed_is_left_to_who_gave_it_and_shown(store: Store) -> None:
    failed_at(store, runs.Trigger.COMMAND, 1000.0)
    assert next_of(store) is None
    found = failure_of(store)
    assert found is not None
    assert (found.attempts, found.next_at) == (1, None)


def test_a_failure_stands_until_a_run_ends_well(
    store: Store,
) -> None:
    assert failure_of(store) is None
    failed_at(store, runs.Trigger.FIRST, 1000.0)
    again = runs.claim(store, OURS, runs.Trigger.RESUMED, "here:1", 1060.0)
    assert failure_of(store) == WorkFailure(Work.WARM_START, "run 1: no node started", 1, 1060.0)
    runs.finish(store, again, runs.RunState.HELD, 1090.0)
    assert failure_of(store) is None
    assert next_of(store) is None
    runs.claim(store, OURS, runs.Trigger.SCHEDULE, "here:1", 2000.0)
    assert failure_of(store) is None, "one that is under way has not failed"


@given(
    st.sampled_from([None, "* * * * *", "0 */6 * * *"]),
    st.none() | times,
    times,
    st.floats(0.0, 1e6),
    st.sampled_from(runs.Trigger),
)
def test_nothing_is_due_while_a_worker_is_heard_of(
    cron: str | None, alarm_at: float | None, started_at: float, took_s: float, trigger: runs.Trigger
) -> None:
    under_way = run(runs.RunState.RUNNING, started_at, started_at + took_s, trigger)
    seen = None if alarm_at is None else alarm(alarm_at)
    found = plan_run(warm_start.Schedule(cron=cron), under_way, seen, started_at)
    assert found is None or found.at >= under_way.alive_at + jobs.LEASE_S


@given(st.sampled_from(ENDS), times, times)
def test_the_schedule_never_goes_back_and_does_not_depend_on_who_looks(
    status: runs.RunState, started_at: float, since: float
) -> None:
    spec = warm_start.Schedule(cron="0 * * * *")
    found = plan_run(spec, run(status, started_at), None, since)
    assert found is not None
    assert started_at < found.at <= started_at + 3600.0
    assert found == plan_run(spec, run(status, started_at), None, since + 1.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"cron": "0 25 * * *"},
            "'0 25 \\* \\* \\*' is not a cron line, such as `0 3 \\* \\* \\*`: Bad hour",
        ),
        ({"cron": "daily"}, "'daily' is not a cron line.*: Wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "is not a cron line.*: Bad day-of-month"),
    ],
)
def test_a_schedule_that_is_none_is_refused_and_the_error_names_it(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        warm_start.Schedule.model_validate(given)
