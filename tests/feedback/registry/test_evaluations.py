"""The queue of evaluations: each is worked on by one worker at a time, and answered once."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback.errors import QueueFullError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.registry.evaluations import (
    EvaluationRow,
    EvaluationStatus,
    StoredResult,
    claim,
    fail,
    find,
    find_newest,
    finish,
    page,
    read_html,
    read_result,
    release,
    report_progress,
    submit,
)

LEASE_S = 60.0
"""Seconds without a heartbeat after which a worker is dead."""

OURS = "ours"
"""Digest of the configuration that asks and answers."""

REQUEST = {"candidates": ["uniform"], "gate": True, "since": None, "features": {"tier": 1.0}}
RESULT = {"candidates": [{"name": "uniform", "value": 0.1 + 0.2, "note": "a\u2028b"}], "rows": 7}
ANSWER = StoredResult(RESULT, "<html>sämtlich \0 " + 1000 * "<p>" + "</html>")
WRONG = StoredResult({"wrong": True}, "")


def claimed(store: Store, *who: Any, **options: int) -> EvaluationRow:
    """Claim an evaluation that is there."""
    found = claim(store, *who, **options)
    assert found is not None
    return found


def existing(store: Store, seq: int) -> EvaluationRow:
    found = find(store, seq)
    assert found is not None
    return found


def test_what_is_asked_for_is_queued_and_found_again(store: Store) -> None:
    asked = submit(store, OURS, REQUEST, 10.0)
    assert (asked.seq, asked.configured, asked.request) == (1, OURS, REQUEST)
    assert (asked.status, asked.done) == (EvaluationStatus.QUEUED, 0.0)
    assert (asked.submitted_at, asked.started_at, asked.finished_at) == (10.0, None, None)
    assert (asked.worker, asked.error) == (None, None)
    assert find(store, 1) == asked
    assert read_result(store, 1) is read_html(store, 1) is None


def test_there_may_be_no_such_evaluation(store: Store) -> None:
    assert find(store, 1) is None
    assert read_result(store, 1) is read_html(store, 1) is None
    assert claim(store, OURS, "w", 1.0) is None
    assert find_newest(store, OURS, REQUEST) is None


def test_an_evaluation_goes_from_the_queue_over_a_worker_to_its_answer(store: Store) -> None:
    submit(store, OURS, REQUEST, 10.0)
    mine = claimed(store, OURS, "w", 11.0)
    assert mine == find(store, 1)
    assert (mine.status, mine.worker, mine.started_at, mine.alive_at) == (
        EvaluationStatus.RUNNING,
        "w",
        11.0,
        11.0,
    )
    report_progress(store, mine, 0.25, 12.0)
    seen = existing(store, 1)
    assert (seen.done, seen.started_at, seen.alive_at) == (0.25, 11.0, 12.0)
    finish(store, mine, ANSWER, 13.0)
    done = existing(store, 1)
    assert (done.status, done.done, done.finished_at, done.error) == (EvaluationStatus.DONE, 1.0, 13.0, None)
    assert read_result(store, 1) == RESULT
    assert read_html(store, 1) == ANSWER.html
    assert claim(store, OURS, "w", 14.0) is None


def test_an_evaluation_that_cannot_be_made_says_why_in_whatever_words(store: Store) -> None:
    submit(store, OURS, REQUEST, 10.0)
    mine = claimed(store, OURS, "w", 11.0)
    fail(store, mine, "no decision\0 between", 12.0)
    failed = existing(store, 1)
    assert (failed.status, failed.finished_at) == (EvaluationStatus.FAILED, 12.0)
    assert failed.error == "no decision\ufffd between"
    assert failed.status.ended
    assert claim(store, OURS, "w", 13.0) is None


def test_what_a_worker_is_silent_about_for_a_lease_is_given_to_another(store: Store) -> None:
    submit(store, OURS, REQUEST, 0.0)
    dead = claimed(store, OURS, "dead", 1.0)
    report_progress(store, dead, 0.5, 30.0)
    assert claim(store, OURS, "next", 30.0 + LEASE_S) is None, "its heartbeat renewed the lease"
    mine = claimed(store, OURS, "next", 30.1 + LEASE_S)
    assert (mine.seq, mine.worker, mine.done, mine.started_at) == (1, "next", 0.0, 30.1 + LEASE_S)


def test_only_so_many_may_be_queued_or_running(store: Store) -> None:
    for _ in range(3):
        submit(store, OURS, REQUEST, 0.0, most=3)
    mine = claimed(store, OURS, "w", 1.0)
    with pytest.raises(
        QueueFullError, match="3 evaluations are queued or running, which is the maximum \\(3"
    ):
        submit(store, OURS, REQUEST, 2.0, most=3)
    assert len(page(store, 10)) == 3
    finish(store, mine, ANSWER, 3.0)
    assert submit(store, OURS, REQUEST, 4.0, most=3).seq == 4


def of_projects(store: Store) -> dict[str | None, int]:
    """Return how many evaluations each project has in the queue."""
    return dict(Counter(one.project for one in page(store, 100)))


@pytest.mark.slow
def test_each_project_may_hold_half_of_the_places_that_the_others_leave(store: Store) -> None:
    for name in ("greedy", "second", "third", "fourth", "fifth"):
        for _ in range(21):
            with suppress(QueueFullError):
                submit(store, OURS, REQUEST, 0.0, project=name)
    found = of_projects(store)
    assert found == {"greedy": 10, "second": 5, "third": 3, "fourth": 1, "fifth": 1}
    with pytest.raises(
        QueueFullError, match="20 evaluations are queued or running, which is the maximum \\(20"
    ):
        submit(store, OURS, REQUEST, 0.0, project="sixth")


def test_a_project_with_its_share_is_refused_and_another_is_not(store: Store) -> None:
    for _ in range(10):
        submit(store, OURS, REQUEST, 0.0, project="greedy")
    with pytest.raises(QueueFullError, match=r"10 evaluations of project 'greedy' .* of the 20"):
        submit(store, OURS, REQUEST, 1.0, project="greedy")
    assert submit(store, OURS, REQUEST, 2.0, project="small").project == "small"
    assert submit(store, "theirs", REQUEST, 2.0, project="greedy").seq == 12, "a queue of its own"
    for _ in range(9):
        submit(store, OURS, REQUEST, 3.0)
    assert of_projects(store)[None] == 9, "the service itself has no share"


def test_projects_take_turns(store: Store) -> None:
    for project in ("greedy", "greedy", "greedy", "small", None, "greedy", "small"):
        submit(store, OURS, REQUEST, 0.0, project=project)
    turns = []
    for now in range(1, 8):
        mine = claimed(store, OURS, "w", float(now))
        turns.append((mine.seq, mine.project))
        finish(store, mine, ANSWER, float(now))
    assert turns == [
        *((1, "greedy"), (4, "small"), (5, None), (2, "greedy"), (7, "small"), (3, "greedy"), (6, "greedy"))
    ]


def test_what_must_not_wait_for_others_is_taken_although_the_queue_is_full(store: Store) -> None:
    submit(store, OURS, REQUEST, 0.0, most=1)
    assert submit(store, OURS, REQUEST, 1.0, most=None).seq == 2


def test_services_of_two_configurations_share_a_log_and_no_work(store: Store) -> None:
    asked = submit(store, OURS, REQUEST, 0.0, most=1)
    assert claim(store, "theirs", "w", 1.0) is None
    assert find_newest(store, "theirs", REQUEST) is None
    assert submit(store, "theirs", REQUEST, 2.0, most=1).seq == 2, "nor room in the queue"
    mine = claimed(store, OURS, "w", 3.0)
    assert (mine.seq, find_newest(store, OURS, REQUEST)) == (asked.seq, mine)


def test_a_worker_may_want_one_and_no_other(store: Store) -> None:
    for _ in range(2):
        submit(store, OURS, REQUEST, 0.0)
    mine = claimed(store, OURS, "w", 1.0, only=2)
    assert mine.seq == 2
    assert claim(store, OURS, "w2", 1.0, only=2) is None


def test_a_page_shows_the_newest_first_and_goes_on_where_the_last_one_ended(store: Store) -> None:
    asked = [submit(store, OURS, {"n": n}, float(n)) for n in range(5)]
    first = page(store, 3)
    assert first == asked[:1:-1]
    assert page(store, 3, before=first[-1].seq) == asked[1::-1]
    assert page(store, 3, before=1) == []


def test_the_newest_of_a_request_is_of_exactly_that_one(store: Store) -> None:
    submit(store, OURS, REQUEST, 0.0)
    again = submit(store, OURS, REQUEST, 1.0)
    submit(store, OURS, {**REQUEST, "gate": False}, 2.0)
    assert find_newest(store, OURS, REQUEST) == again
    assert find_newest(store, OURS, {**REQUEST, "features": {"tier": 2.0}}) is None


def test_workers_that_race_share_the_work_and_none_is_done_twice(url: str) -> None:
    jobs, workers = 12, 4
    with closing(Store(url)) as store:
        for n in range(jobs):
            submit(store, OURS, {"n": n}, 0.0)
    start = threading.Barrier(workers)

    def work(name: str) -> list[int]:
        done = []
        with closing(Store(url)) as own:
            start.wait()
            while (mine := claim(own, OURS, name, 1.0)) is not None:
                finish(own, mine, StoredResult({"by": name}, name), 2.0)
                done.append(mine.seq)
        return done

    with ThreadPoolExecutor(workers) as pool:
        shares = dict(zip("abcd", pool.map(work, "abcd"), strict=True))
    assert sorted(seq for share in shares.values() for seq in share) == list(range(1, jobs + 1))
    with closing(Store(url)) as store:
        assert all(read_result(store, seq) == {"by": name} for name, share in shares.items() for seq in share)


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "claim", "beat", "finish", "fail", "give back"]), st.integers(0, 2)),
    max_size=25,
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(steps=STEPS)
def test_whatever_happens_each_running_one_has_one_worker_and_an_end_is_the_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Three workers of which each may die at any moment: a step of time is half a lease."""
    now, ended, mine = 0.0, dict[int, EvaluationStatus](), {}
    with closing(Store(f"sqlite:///{tmp_path_factory.mktemp('log') / 'log.db'}")) as store:
        for step, number in steps:
            now += LEASE_S / 2
            held = mine.get(number)
            if step == "submit":
                submit(store, OURS, {}, now, most=100)
            elif step == "claim" and (claimed := claim(store, OURS, str(number), now)) is not None:
                assert claimed.seq not in ended
                mine[number] = claimed
            elif held is not None and step != "claim":
                try:
                    match step:
                        case "beat":
                            report_progress(store, held, 0.5, now)
                        case "finish":
                            finish(store, held, WRONG, now)
                            ended[held.seq] = EvaluationStatus.DONE
                        case "fail":
                            fail(store, held, "why", now)
                            ended[held.seq] = EvaluationStatus.FAILED
                        case "give back":
                            release(store, held)
                except SupersededError:
                    found = find(store, held.seq)
                    assert found is not None
                    assert (found.worker, found.started_at) != (
                        held.worker,
                        held.started_at,
                    ) or found.status.ended
            rows = page(store, 100)
            running = [one.worker for one in rows if one.status is EvaluationStatus.RUNNING]
            assert len(running) == len(set(running))
            assert {one.seq: one.status for one in rows if one.status.ended} == ended


def test_turns_of_projects_are_those_of_one_configuration(store: Store) -> None:
    submit(store, "theirs", REQUEST, 1.0, project="first")
    assert claim(store, "theirs", "w", 50.0) is not None
    for at, project in ((51.0, "first"), (52.0, "second")):
        submit(store, OURS, REQUEST, at, project=project)
    mine = claimed(store, OURS, "w", 60.0)
    assert mine.project == "first"
