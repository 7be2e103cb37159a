"""Runs of the warm start: one at a time among all processes, and none that is dead keeps the others out."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from armwise.feedback.errors import SupersededError, UnderWayError
from armwise.feedback.log import Store
from armwise.feedback.registry.runs import (
    Run,
    RunState,
    Trigger,
    claim,
    find,
    find_by_recipe,
    finish,
    list_judged,
    newest,
    page,
    renew,
    request,
    save_progress,
    under_way,
)
from armwise.feedback.registry.versions import Version, publish
from armwise.feedback.training_log import take_epoch

LEASE_S = 60.0
"""Seconds without a heartbeat after which a worker is dead."""

OURS = "ours"
"""Digest of the configured recipe."""

LONG = LEASE_S + 1.0
"""Longer than a worker may be silent."""


def claimed(store: Store, worker: str = "here:1", now: float = 100.0) -> Run:
    return claim(store, OURS, Trigger.SCHEDULE, worker, now)


def status(store: Store, run: Run) -> RunState:
    found = find(store, run.seq)
    assert found is not None
    return found.status


def test_a_run_is_read_back_as_it_was_noted(store: Store) -> None:
    run = claimed(store)
    assert run == Run(
        seq=1,
        configured=OURS,
        worker="here:1",
        submitted_at=100.0,
        started_at=100.0,
        alive_at=100.0,
        finished_at=None,
        error=None,
        trigger=Trigger.SCHEDULE,
        status=RunState.RUNNING,
        inputs={},
        steps=[],
    )
    step = {"name": "gather", "at": 101.0, "found": {"new": ["exam"]}}
    save_progress(store, run, 105.0, inputs={"log": 7}, steps=[step], candidate=3, evaluation=2)
    finish(store, run, RunState.HELD, 110.0)
    saved = replace(run, inputs={"log": 7}, steps=[step], candidate=3, evaluation=2)
    assert find(store, 1) == replace(saved, status=RunState.HELD, alive_at=110.0, finished_at=110.0)
    assert find(store, 2) is None


def test_a_run_that_is_under_way_excludes_others_until_it_ends(store: Store) -> None:
    run = claimed(store)
    with pytest.raises(UnderWayError, match="run 1 of here:1 has been running since 1970-01-01 00:01:40 UTC"):
        claimed(store, "there:2", 100.0 + LEASE_S)
    with pytest.raises(UnderWayError, match="run 1 of here:1"):
        request(store, OURS, 101.0)
    finish(store, run, RunState.FAILED, 102.0, "gather: there is no folder")
    assert claimed(store, "there:2", 103.0).seq == 2
    first = find(store, 1)
    assert first is not None
    assert first.error == "gather: there is no folder"


def test_a_worker_cannot_claim_its_own_run_again_while_it_is_under_way(store: Store) -> None:
    run = claimed(store)
    with pytest.raises(UnderWayError, match="run 1 of here:1 has been running"):
        claimed(store, now=100.0 + LEASE_S)
    again = claimed(store, now=100.0 + LONG)
    assert (again.seq, again.worker, status(store, run)) == (2, run.worker, RunState.ABANDONED)
    with pytest.raises(SupersededError, match="here:1 no longer holds run 1"):
        renew(store, run, 200.0)
    renew(store, again, 200.0)


def test_a_run_is_written_by_the_worker_that_claimed_it_and_not_by_the_requester(store: Store) -> None:
    requested = request(store, OURS, 50.0)
    run = claimed(store, now=50.0)
    with pytest.raises(SupersededError):
        finish(store, requested, RunState.FAILED, 60.0)
    assert status(store, run) is RunState.RUNNING


def test_a_run_with_a_heartbeat_is_never_abandoned(store: Store) -> None:
    run = claimed(store)
    for now in range(100, 1000, 50):
        renew(store, run, float(now))
        with pytest.raises(UnderWayError):
            claimed(store, "there:2", float(now) + 49.0)


def test_a_dead_run_is_abandoned_by_the_next_one_and_can_write_nothing_more(store: Store) -> None:
    dead = claimed(store)
    assert not dead.dead(100.0 + LEASE_S)
    assert dead.dead(100.0 + LONG)
    after = claimed(store, "there:2", 100.0 + LONG)
    assert after.seq == 2
    found = find(store, dead.seq)
    assert found is not None
    assert (found.status, found.finished_at) == (RunState.ABANDONED, 100.0 + LONG)
    assert found.error == "here:1 has sent no heartbeat since 1970-01-01 00:01:40 UTC"
    with pytest.raises(SupersededError, match="here:1 no longer holds run 1: it is abandoned"):
        renew(store, dead, 200.0)
    with pytest.raises(SupersededError):
        save_progress(store, dead, 200.0, inputs={}, steps=[])
    with pytest.raises(SupersededError):
        finish(store, dead, RunState.PROMOTED, 200.0)
    assert status(store, after) is RunState.RUNNING


def test_a_requested_run_is_claimed_once(store: Store) -> None:
    requested = request(store, OURS, 50.0)
    assert (requested.status, requested.trigger, requested.worker) == (RunState.ASKED, Trigger.REQUEST, None)
    with pytest.raises(UnderWayError, match="run 1 was requested at"):
        request(store, OURS, 51.0)
    run = claimed(store, now=60.0)
    assert (run.seq, run.trigger, run.started_at) == (1, Trigger.REQUEST, 60.0)
    with pytest.raises(UnderWayError):
        claimed(store, "there:2", 61.0)


def test_runs_are_listed_newest_first_a_page_at_a_time(store: Store) -> None:
    ends = [RunState.HELD, RunState.FAILED, RunState.PROMOTED, RunState.NOTHING_NEW]
    for number, status in enumerate(ends):
        finish(store, claimed(store, now=float(number)), status, float(number))
    assert [run.seq for run in page(store, 2)] == [4, 3]
    assert [run.seq for run in page(store, 2, before=3)] == [2, 1]
    found = [newest(store, OURS), newest(store, OURS, [RunState.HELD, RunState.PROMOTED])]
    assert [run and run.seq for run in found] == [4, 3]
    assert [(run.seq, run.status) for run in list_judged(store, OURS)] == [
        (1, RunState.HELD),
        (3, RunState.PROMOTED),
    ]


def test_a_run_belongs_to_the_configured_recipe_it_is_for_and_excludes_those_of_others(store: Store) -> None:
    requested = request(store, "theirs", 50.0)
    run = claimed(store, now=60.0)
    assert (run.seq, run.configured) == (2, OURS), "a request to another service is left to it"
    with pytest.raises(UnderWayError, match="run 2 of here:1 has been running"):
        claim(store, "theirs", Trigger.SCHEDULE, "there:2", 61.0)
    assert under_way(store, 61.0)
    finish(store, run, RunState.HELD, 62.0)
    assert not under_way(store, 63.0)
    assert (newest(store, "theirs"), newest(store, "theirs", [RunState.HELD])) == (requested, None)
    assert list_judged(store, "theirs") == []
    theirs = claim(store, "theirs", Trigger.SCHEDULE, "there:2", 64.0)
    assert (theirs.seq, theirs.trigger) == (requested.seq, Trigger.REQUEST)


def test_of_workers_that_begin_at_the_same_time_one_does(url: str) -> None:
    start = threading.Barrier(4)

    def begin(number: int) -> bool:
        with closing(Store(url)) as own:
            start.wait()
            try:
                claimed(own, f"here:{number}")
            except UnderWayError:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(begin, range(4))) == [False, False, False, True]
    with closing(Store(url)) as store:
        assert [run.status for run in page(store, 5)] == [RunState.RUNNING]


# -- what a run asks of the log ---------------------------------------------------------------------------


def test_a_recipe_comes_from_the_first_run_whose_candidate_is_of_it(store: Store) -> None:
    """A later run with a candidate of the same recipe, and one without a candidate, are not its origin."""
    epoch = take_epoch(store, "test", 1.0)
    policy = {"kind": "uniform", "params": {}}
    numbers = [
        publish(store, Version(0, None, recipe, "j", policy, 3, 5, "d", epoch, 2.0), b"")
        for recipe in ("a", "a", "b")
    ]
    for candidate in (None, numbers[0], numbers[1], numbers[2]):
        run = claimed(store)
        save_progress(store, run, 101.0, inputs={}, steps=[], candidate=candidate)
        finish(store, run, RunState.HELD, 102.0)
    found = find_by_recipe(store, ["a", "b", "nowhere"])
    assert {recipe: run.seq for recipe, run in found.items()} == {"a": 2, "b": 4}
    assert {recipe: run.candidate for recipe, run in found.items()} == {"a": numbers[0], "b": numbers[2]}
    assert [*find_by_recipe(store, ["b"])] == ["b"]


def test_a_run_may_fail_for_a_reason_that_no_database_stores(store: Store) -> None:
    run = claimed(store)
    finish(store, run, RunState.FAILED, 101.0, "bad \0 and \ud800")
    found = find(store, run.seq)
    assert found is not None
    assert found.error == "bad \ufffd and \ufffd"
