"""When a digest is due, and what is seen of one that failed: both follow from the newest attempt."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.agent.background import Work, WorkFailure
from armwise.agent.config import DigestSpec
from armwise.agent.jobs import PlannedDigest, find_failed_digest, plan_digest
from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store
from armwise.feedback.registry import Digest, DigestState, digests

HOUR, WEEK = 3600.0, 7 * 24 * 3600.0

SPEC = DigestSpec(url="https://hooks.example.com/T0/secret")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


MONDAY = at("2026-11-30T09:00")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        yield store


def last(state: DigestState, until: float = MONDAY, attempt: int = 1, came: float = 10.0) -> Digest:
    return Digest(7, until - WEEK, until, attempt, state, until + came, "no answer")


BEGUN = Digest(1, MONDAY - 100.0, MONDAY - 100.0, 0, DigestState.BEGUN, MONDAY - 100.0)

NEXT = PlannedDigest(MONDAY + WEEK, MONDAY, MONDAY + WEEK)


@pytest.mark.parametrize(
    ("newest", "now", "planned"),
    [
        (BEGUN, MONDAY - 50.0, PlannedDigest(MONDAY, MONDAY - WEEK, MONDAY)),
        (BEGUN, MONDAY + 50.0, PlannedDigest(MONDAY, MONDAY - WEEK, MONDAY)),
        (last(DigestState.SENT), MONDAY + 50.0, NEXT),
        (last(DigestState.SENDING), MONDAY + 5 * 24 * HOUR, NEXT),
        (last(DigestState.FAILED), MONDAY + 50.0, NEXT),
        # three weeks without a service: one digest, of the last week
        (last(DigestState.SENT), MONDAY + 3.5 * WEEK, PlannedDigest(*(MONDAY + n * WEEK for n in (3, 2, 3)))),
        # it did not arrive: after a minute, five, twenty-five, and then no more
        *(
            (
                last(DigestState.REFUSED, attempt=attempt),
                MONDAY + 50.0,
                PlannedDigest(MONDAY + 10.0 + pause, MONDAY - WEEK, MONDAY, attempt + 1),
            )
            for attempt, pause in ((1, 60.0), (2, 300.0), (3, 1500.0))
        ),
        # what takes the place of one that did not arrive tells its time, too
        *(
            (newest, MONDAY + after, PlannedDigest(MONDAY + WEEK, MONDAY - WEEK, MONDAY + WEEK))
            for newest, after in (
                (last(DigestState.READING, attempt=4), 50.0),
                (last(DigestState.READING), WEEK + 1.0),
                (last(DigestState.REFUSED), WEEK + 1.0),
            )
        ),
        # its worker died before it sent anything
        (
            last(DigestState.READING),
            MONDAY + 50.0,
            PlannedDigest(MONDAY + 10.0 + HOUR, MONDAY - WEEK, MONDAY, 2),
        ),
        # a clock that went back sends nothing again
        (last(DigestState.SENT), MONDAY - 600.0, PlannedDigest(MONDAY, MONDAY, MONDAY)),
    ],
)
def test_the_next_attempt_follows_from_the_newest(newest: Digest, now: float, planned: PlannedDigest) -> None:
    assert plan_digest(SPEC, newest, now) == planned


def test_a_class_that_went_back_is_reported_at_once_and_once() -> None:
    fell, sent = MONDAY + 2 * 24 * HOUR, last(DigestState.SENT)
    assert plan_digest(SPEC, sent, fell + 0.5, fell) == NEXT, "its period has not ended"
    due = PlannedDigest(fell + 1.0, MONDAY, fell + 1.0)
    assert plan_digest(SPEC, sent, fell + 30.0, fell) == due
    reported = Digest(8, due.since, due.until, 1, DigestState.SENT, fell + 31.0)
    for now in (fell + 60.0, fell + 24 * HOUR):
        assert plan_digest(SPEC, reported, now, fell) == PlannedDigest(
            MONDAY + WEEK, fell + 1.0, MONDAY + WEEK
        )
    again = plan_digest(SPEC, replace(reported, state=DigestState.REFUSED), fell + 60.0, fell)
    assert again == PlannedDigest(fell + 91.0, MONDAY, fell + 1.0, 2)
    assert plan_digest(SPEC, sent, MONDAY + 50.0, MONDAY - 50.0) == NEXT, "the last digest has it"


def test_a_class_that_went_back_takes_no_time_from_a_digest_that_has_not_arrived() -> None:
    fell = MONDAY + HOUR
    for state in (DigestState.REFUSED, DigestState.READING):
        found = plan_digest(SPEC, last(state), fell + 5.0, fell)
        assert found == PlannedDigest(fell + 1.0, MONDAY - WEEK, fell + 1.0)
    earlier = last(DigestState.SENT, until=MONDAY - WEEK)
    for fell in (MONDAY - 0.5, MONDAY + 0.5):  # so late that the two times are due at once
        found = plan_digest(SPEC, earlier, MONDAY + 5.0, fell)
        assert found == PlannedDigest(fell + 1.0, MONDAY - WEEK, fell + 1.0)


def test_a_changed_schedule_reports_no_time_again() -> None:
    later = DigestSpec(url=SPEC.url, schedule="0 10 * * 1")
    found = plan_digest(later, last(DigestState.SENT), MONDAY + 2 * HOUR)
    assert found == PlannedDigest(MONDAY + HOUR, MONDAY, MONDAY + HOUR)
    failed = plan_digest(later, last(DigestState.FAILED), MONDAY + 2 * HOUR)
    assert failed == PlannedDigest(MONDAY + HOUR, MONDAY + HOUR - WEEK, MONDAY + HOUR)


@given(
    st.lists(st.sampled_from([DigestState.READING, DigestState.REFUSED, DigestState.SENT]), max_size=30),
    st.lists(st.tuples(st.floats(1.0, 4e5), st.floats(0.0, 1e5)), min_size=30),
)
def test_while_the_service_runs_the_periods_have_no_gap(
    states: list[DigestState], waits: list[tuple[float, float]]
) -> None:
    newest, now, covered = replace(BEGUN, until=MONDAY), MONDAY, MONDAY
    for state, (wait, ago) in zip(states, waits, strict=False):
        now += wait
        plan = plan_digest(SPEC, newest, now, now - ago)
        if plan.at > now:
            continue
        assert plan.since <= covered
        newest = Digest(newest.seq + 1, plan.since, plan.until, plan.attempt, state, now)
        covered = plan.until if state is DigestState.SENT else covered


@given(st.lists(st.sampled_from([*DigestState][1:]), max_size=30), st.lists(st.floats(1.0, 4e5), min_size=30))
def test_no_period_is_begun_again_once_it_may_have_arrived(
    states: list[DigestState], waits: list[float]
) -> None:
    newest, now, arrived = BEGUN, MONDAY, set[float]()
    for state, wait in zip(states, waits, strict=False):
        now += wait
        plan = plan_digest(SPEC, newest, now)
        if plan.at > now:
            continue
        assert plan.until not in arrived
        assert plan.until <= now
        newest = Digest(newest.seq + 1, plan.since, plan.until, plan.attempt, state, now)
        if state in (DigestState.SENDING, DigestState.SENT):
            arrived.add(plan.until)


def test_an_attempt_is_claimed_once_and_a_superseded_worker_sends_nothing(store: Store) -> None:
    assert digests.begin(store, 5.0).state is DigestState.BEGUN
    assert digests.begin(store, 6.0).at == 5.0
    first = digests.claim(store, 5.0, 10.0, 1, 10.0)
    assert first is not None
    assert digests.claim(store, 5.0, 10.0, 1, 11.0) is None
    digests.advance(store, first, DigestState.REFUSED, 12.0, "503")
    assert digests.newest(store) == Digest(first.seq, 5.0, 10.0, 1, DigestState.REFUSED, 12.0, "503")
    second = digests.claim(store, 5.0, 10.0, 2, 13.0)
    assert second is not None
    assert second.why == "503"
    with pytest.raises(SupersededError, match="attempt 1"):
        digests.advance(store, first, DigestState.SENDING, 14.0)
    assert digests.claim(store, 0.0, 9.0, 1, 15.0) is None, "an earlier period"
    digests.advance(store, second, DigestState.FAILED, 16.0, "404")
    assert [one.why for one in digests.list_failed(store, 5, 17.0)] == ["404"]


def test_a_failure_is_seen_until_the_next_one_arrives(store: Store) -> None:
    def seen(now: float = MONDAY) -> WorkFailure | None:
        return find_failed_digest(store, SPEC, now)

    digests.begin(store, MONDAY - HOUR)
    assert seen() is None
    mine = digests.claim(store, MONDAY - WEEK, MONDAY, 1, MONDAY)
    assert mine is not None
    assert seen() is None
    digests.advance(store, mine, DigestState.REFUSED, MONDAY + 1.0, "503")
    assert seen() == WorkFailure(Work.DIGEST, "503", 1, MONDAY + 61.0)
    mine = digests.claim(store, MONDAY - WEEK, MONDAY, 2, MONDAY + 61.0)
    assert mine is not None
    assert seen() == WorkFailure(Work.DIGEST, "503", 2, MONDAY + 61.0)
    digests.advance(store, mine, DigestState.SENDING, MONDAY + 62.0)
    assert seen() is None
    assert digests.list_failed(store, 5, MONDAY + 63.0) == []
    stuck = seen(MONDAY + 180.0)
    assert stuck is not None
    assert "may not have arrived" in stuck.why
    (listed,) = digests.list_failed(store, 5, MONDAY + 180.0)
    assert (listed.why, listed.at) == (stuck.why, MONDAY + 62.0)
    digests.advance(store, mine, DigestState.FAILED, MONDAY + 63.0, "404")
    assert seen() == WorkFailure(Work.DIGEST, "404", 2, None)
    digests.advance(store, mine, DigestState.SENT, MONDAY + 64.0)
    assert seen() is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "`url`, or the variable"),
        ({"url": "https://a.example", "url_env": "A"}, "`url`, or the variable"),
        ({"url": "ftp://a.example"}, "begins with https://"),
        *(
            ({"url": url}, "such as https://host/path")
            for url in (
                "https://",
                "https:///x",
                "https://h:abc/x",
                "https://h:0/x",
                "https://h\n/x",
                "http://[::1/x",
            )
        ),
        ({"url": "https://a.example", "schedule": "each week"}, "is not a cron line"),
        ({"url": "https://a.example", "form": "teams"}, "slack"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(spec: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DigestSpec(**spec)  # type: ignore[arg-type]


def test_the_address_comes_from_a_variable_or_a_file_and_is_in_no_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = DigestSpec(url_env="SLACK_URL")
    with pytest.raises(ValueError, match="SLACK_URL is not set"):
        spec.read_url()
    monkeypatch.setenv("SLACK_URL", "hooks/T0/secret")
    with pytest.raises(ValueError, match="SLACK_URL: an address that begins with https://") as caught:
        spec.read_url()
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("SLACK_URL", "https://h:secret/")
    with pytest.raises(ValueError, match="SLACK_URL: an address such as https://host/path") as caught:
        spec.read_url()
    assert "secret" not in str(caught.value)
    assert spec.shown_url is None
    monkeypatch.delenv("SLACK_URL")
    (tmp_path / "url").write_text("https://hooks.example.com/T0\n")
    monkeypatch.setenv("SLACK_URL_FILE", str(tmp_path / "url"))
    assert spec.read_url() == "https://hooks.example.com/T0"
