"""The journal of a run: each step is on record before the next begins."""

import inspect
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.warmstart.journal import HEARTBEAT_S, Journal, Step
from armwise.feedback.errors import LogUnavailableError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.registry import Run, jobs, runs
from tests.agent.evaluation.test_evaluation_task import until
from tests.agent.fakes import CONFIG


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


def found(store: Store, run: Run) -> Run:
    read = runs.find(store, run.seq)
    assert read is not None
    return read


def begun(store: Store) -> Run:
    return runs.claim(store, "ours", runs.Trigger.COMMAND, "here:1", 100.0)


def within(store: Store, run: Run, do: Callable[[Journal], None]) -> None:
    with Journal(store, run, lambda _: None, lambda: 100.0) as journal:
        do(journal)


def test_each_step_is_on_record_before_the_next_begins(store: Store) -> None:
    run, told, times = begun(store), list[Step](), count(100.0)
    with Journal(store, run, told.append, lambda: next(times)) as journal:
        journal.inputs = {"log": 3}
        with journal.step("gather") as step:
            step.found["new"] = ["exam"]
            step.said = "new labels of exam"
        read = found(store, run)
        assert (read.status, read.inputs) == (runs.RunState.RUNNING, {"log": 3})
        assert [one["name"] for one in read.steps] == ["gather"]
        journal.candidate, journal.evaluation = 7, 2
        journal.ends(runs.RunState.HELD)
        with journal.step("decide") as step:
            step.said = "held"
    assert [step.name for step in told] == ["gather", "decide"]
    read = found(store, run)
    assert (read.status, read.candidate, read.evaluation) == (runs.RunState.HELD, 7, 2)
    assert read.steps[0]["found"] == {"new": ["exam"]}
    assert read.steps[0]["at"] < read.steps[1]["at"] < (read.finished_at or 0.0)


def test_the_worker_of_an_open_journal_is_heard_of(store: Store) -> None:
    run, times = begun(store), count(200.0)
    with Journal(store, run, lambda _: None, lambda: next(times), heartbeat_s=0.005) as journal:
        until(lambda: found(store, run).alive_at >= 203.0)
        journal.ends(runs.RunState.HELD)


def test_a_journal_closes_after_the_last_renewal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    renewing, release = threading.Event(), threading.Event()

    def renew(*_: object) -> None:
        renewing.set()
        assert release.wait(30.0)

    monkeypatch.setattr(runs, "renew", renew)
    with Journal(store, begun(store), lambda _: None, lambda: 100.0, heartbeat_s=0.005) as journal:
        assert renewing.wait(30.0)
        journal.ends(runs.RunState.HELD)
        threading.Timer(0.05, release.set).start()
    assert release.is_set()


def test_durations_of_steps_have_milliseconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = SimpleNamespace(monotonic=iter([10.0, 11.23456]).__next__)
    monkeypatch.setattr("armwise.agent.lab.warmstart.journal.time", timer)
    run = begun(store)

    def do(journal: Journal) -> None:
        with journal.step("gather"):
            pass
        journal.ends(runs.RunState.HELD)

    within(store, run, do)
    assert [one["seconds"] for one in found(store, run).steps] == [1.235]


def test_a_run_renews_its_lease_several_times_before_it_ends() -> None:
    renewals = inspect.signature(Journal).parameters["heartbeat_s"].default
    assert (renewals, HEARTBEAT_S, jobs.LEASE_S) == (10.0, 10.0, 60.0)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("too many"), "enter: ValueError: too many"),
        (KeyboardInterrupt(), "enter: KeyboardInterrupt"),
    ],
    ids=["failed", "interrupted"],
)
def test_findings_of_a_failed_step_are_kept(store: Store, error: BaseException, message: str) -> None:
    run = begun(store)

    def enter(journal: Journal) -> None:
        with journal.step("gather"):
            pass
        with journal.step("enter") as step:
            step.found["exam"] = 12
            raise error

    with pytest.raises(type(error)):
        within(store, run, enter)
    read = found(store, run)
    assert (read.status, read.error) == (runs.RunState.FAILED, message)
    assert read.steps[1]["found"] == {"exam": 12}


@pytest.mark.parametrize("worker", ["there:1", "here:1"], ids=["another worker", "the same worker again"])
def test_who_has_lost_a_run_finds_out_before_the_next_step(store: Store, worker: str) -> None:
    run = begun(store)

    def decide(journal: Journal) -> None:
        runs.claim(store, "ours", runs.Trigger.RESUMED, worker, 101.0 + jobs.LEASE_S)
        with journal.step("decide"):
            raise AssertionError("it must not be begun")

    with pytest.raises(SupersededError, match="here:1 no longer holds run 1: it is abandoned"):
        within(store, run, decide)
    assert found(store, run).status is runs.RunState.ABANDONED


def test_a_missing_log_does_not_hide_the_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise LogUnavailableError("the log is away")

    run = begun(store)

    def gather(journal: Journal) -> None:
        with journal.step("gather"):
            monkeypatch.setattr("armwise.feedback.registry.runs.save_progress", away)
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        within(store, run, gather)
    assert found(store, run).status is runs.RunState.RUNNING, "it will be found dead"


# -- the verdict ------------------------------------------------------------------------------------------
