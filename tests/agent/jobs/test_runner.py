"""The worker beside the service: it answers what was asked for, whatever fails, and stops when it is told."""

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from armwise.agent import jobs as agent_jobs
from armwise.agent.background import Work, WorkFailure, read_failures, record
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import Evaluations
from armwise.agent.evaluation.evaluation_task import Evaluate
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.jobs import JobFailedError, Jobs, ProgressCallback
from armwise.agent.learning import digest_configuration
from armwise.agent.run_folder import RUN_FOLDER
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import BehindError, ClockError, LogUnavailableError
from armwise.feedback.log import Store
from armwise.feedback.registry import EvaluationRow, evaluations, jobs
from tests.agent.fakes import CONFIG

OURS = "ours"
REQUEST = {"candidates": ["uniform"]}
ANSWER = evaluations.StoredResult({"rows": 3}, "<html>")
NOW = 1000.0
WORK, OTHER = Work.EVALUATION, Work.WARM_START
AWAY = LogUnavailableError("the disk is full")


@pytest.fixture
def store(log_url: str) -> Iterator[Store]:
    store = Store(log_url)
    yield store
    store.close()


def answered(request: Mapping[str, Any], heard: ProgressCallback) -> evaluations.StoredResult:
    assert request == REQUEST
    heard(0.5)
    return ANSWER


def raising(error: Exception) -> Evaluate:
    def evaluate(_request: Mapping[str, Any], _heard: ProgressCallback) -> evaluations.StoredResult:
        raise error

    return evaluate


def found(store: Store, seq: int = 1) -> EvaluationRow:
    one = evaluations.find(store, seq)
    assert one is not None
    return one


def worked(store: Store, evaluate: Evaluate = answered, **others: Any) -> EvaluationRow:
    """Ask for one evaluation, let a worker work on it, and return what became of it."""
    seq = evaluations.submit(store, OURS, REQUEST, NOW).seq
    task = Evaluations(store, OURS, "w", evaluate, lambda: NOW, **others)
    assert task.due(NOW)
    task.run(threading.Event())
    return found(store, seq)


# -- one evaluation ----------------------------------------------------------------------------------


def test_nothing_is_due_where_nothing_is_asked_for(store: Store) -> None:
    assert not Evaluations(store, OURS, "w", answered).due(NOW)


def test_what_is_asked_for_is_answered_and_then_nothing_is_due(store: Store) -> None:
    one = worked(store)
    assert (one.status, one.done, one.worker, one.finished_at) == (
        evaluations.EvaluationStatus.DONE,
        1.0,
        "w",
        NOW,
    )
    assert evaluations.read_result(store, one.seq) == ANSWER.report
    assert not Evaluations(store, OURS, "w", answered).due(NOW)


def test_a_request_is_looked_for_where_the_log_is_worth_it(store: Store) -> None:
    evaluations.submit(store, OURS, REQUEST, NOW)
    worth = iter([False, True])
    task = Evaluations(store, OURS, "w", answered, changed=lambda: next(worth))
    assert [task.due(NOW), task.due(NOW)] == [False, True]


def test_an_evaluation_that_cannot_be_made_has_failed_in_the_words_of_whoever_tried(store: Store) -> None:
    one = worked(store, raising(JobFailedError("the window holds no decision")))
    assert (one.status, one.error) == (evaluations.EvaluationStatus.FAILED, "the window holds no decision")


def test_a_bug_fails_the_evaluation(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    one = worked(store, raising(KeyError("arm")))
    assert (one.status, one.error) == (evaluations.EvaluationStatus.FAILED, "KeyError: 'arm'")
    (said,) = caplog.records
    assert said.getMessage() == "evaluation 1 failed"
    assert said.exc_info is not None


def test_an_answer_that_no_json_can_hold_is_a_failure(store: Store) -> None:
    one = worked(store, lambda _request, _heard: evaluations.StoredResult({"rows": object()}, ""))
    assert one.status is evaluations.EvaluationStatus.FAILED
    assert one.error is not None


def test_a_log_that_is_away_fails_nothing_and_the_same_worker_tries_again(store: Store) -> None:
    evaluations.submit(store, OURS, REQUEST, NOW)
    outcomes = iter([raising(AWAY), answered])
    task = Evaluations(store, OURS, "w", lambda *told: next(outcomes)(*told), lambda: NOW)
    assert task.due(NOW)
    with pytest.raises(LogUnavailableError):
        task.run(threading.Event())
    assert found(store).status is evaluations.EvaluationStatus.RUNNING
    assert not Evaluations(store, OURS, "another", answered).due(NOW + 1)
    assert task.due(NOW + 1)
    task.run(threading.Event())
    assert found(store).status is evaluations.EvaluationStatus.DONE


def test_what_is_under_way_at_a_stop_is_given_back(store: Store) -> None:
    asked = evaluations.submit(store, OURS, REQUEST, NOW)
    stop = threading.Event()

    def evaluate(_request: Mapping[str, Any], heard: ProgressCallback) -> evaluations.StoredResult:
        stop.set()
        heard(0.1)
        raise AssertionError("it was to end")

    task = Evaluations(store, OURS, "w", evaluate, lambda: NOW)
    assert task.due(NOW)
    task.run(stop)
    assert found(store) == asked


def test_a_worker_says_every_now_and_then_that_it_is_alive_and_how_far_it_is(store: Store) -> None:
    timer, seen = iter([0.0, 1.9, 2.0, 2.0, 3.9, 4.0, 4.0]), []

    def evaluate(_request: Mapping[str, Any], heard: ProgressCallback) -> evaluations.StoredResult:
        for share in (0.1, 0.2, 0.3, 0.4):
            heard(share)
            seen.append(found(store).done)
        return ANSWER

    worked(store, evaluate, timer=lambda: next(timer))
    assert seen == [0.0, 0.2, 0.2, 0.4], "two seconds after the last report, and not before"


@pytest.mark.parametrize("silent_s", [6.0, 59.0])
def test_a_worker_keeps_its_evaluation_through_some_lost_reports(store: Store, silent_s: float) -> None:
    evaluations.submit(store, OURS, REQUEST, NOW)
    assert Evaluations(store, OURS, "w", answered).due(NOW)
    another = Evaluations(store, OURS, "another", answered)
    assert not another.due(NOW + silent_s)
    assert another.due(NOW + 61.0), "a minute of silence means that it is dead"


def test_a_worker_taken_for_dead_gives_up(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    heirs = []

    def evaluate(_request: Mapping[str, Any], heard: ProgressCallback) -> evaluations.StoredResult:
        heirs.append(
            evaluations.claim(store, OURS, "heir", NOW + 2 * jobs.LEASE_S)
        )  # as if this one had been asleep
        heard(0.5)
        raise AssertionError("it was to end")

    timer = iter([0.0, 2.0])
    assert worked(store, evaluate, timer=lambda: next(timer)) == heirs[0]
    assert "w no longer holds evaluation 1: it is running, last claimed by heir" in caplog.text


@pytest.mark.parametrize("end", [None, JobFailedError("too late")], ids=["answer", "failure"])
def test_what_a_worker_comes_to_too_late_is_dropped(store: Store, end: Exception | None) -> None:
    heirs = []

    def evaluate(_request: Mapping[str, Any], _heard: ProgressCallback) -> evaluations.StoredResult:
        heirs.append(evaluations.claim(store, OURS, "heir", NOW + 2 * jobs.LEASE_S))
        if end is not None:
            raise end
        return ANSWER

    assert worked(store, evaluate) == heirs[0]


# -- the threads -------------------------------------------------------------------------------------


class Scripted:
    """A task that is due, or fails, as it is told; due no more once the script is at its end.

    Attributes:
        ran: How often it was run.
        done: Set at the end of the script.
    """

    def __init__(
        self, *script: bool | Exception, run: Callable[[threading.Event], None] | None = None
    ) -> None:
        self._script = iter(script)
        self._run = run
        self.ran = 0
        self.done = threading.Event()

    def due(self, now: float) -> bool:
        assert now == NOW
        for told in self._script:
            if isinstance(told, Exception):
                raise told
            return told
        self.done.set()
        return False

    def run(self, stop: threading.Event) -> None:
        self.ran += 1
        if self._run is not None:
            self._run(stop)


def test_a_task_is_run_as_often_as_it_is_due() -> None:
    task = Scripted(True, False, True, True)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.check()
    jobs.stop()
    assert task.ran == 3


def test_tasks_do_not_wait_for_each_other() -> None:
    met = threading.Barrier(2)
    tasks = [Scripted(True, run=lambda _stop: met.wait(30) and None) for _ in range(2)]
    jobs = Jobs({WORK: lambda: tasks[0], OTHER: lambda: tasks[1]}, 0.001, lambda: NOW)
    assert all(task.done.wait(30) for task in tasks)
    jobs.stop()
    assert not met.broken


def test_a_task_waits_for_a_log_that_is_away_the_longer_the_longer_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent_jobs.MAX_PAUSE_S == 10.0, "a log that is back is used soon"
    monkeypatch.setattr(agent_jobs, "MAX_PAUSE_S", 0.004)
    task = Scripted(AWAY, BehindError("so is the clock"), AWAY, AWAY, False, AWAY)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    waited = [record.getMessage().split(" s ")[0].split()[-1] for record in caplog.records]
    assert waited == ["0.001", "0.002", "0.004", "0.004", "0.002"]


def test_a_task_that_fails_is_told_of_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    task = Scripted(KeyError("a bug"), True)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.check()
    jobs.stop()
    assert task.ran == 1
    (said,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert said.getMessage() == "evaluations failed; the next attempt is in 0.001 s"
    assert said.exc_info is not None
    assert said.exc_info[0] is KeyError


def test_a_task_that_goes_on_failing_is_tried_again_after_a_minute_at_most(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent_jobs.MAX_FAILED_S == 60.0
    monkeypatch.setattr(agent_jobs, "MAX_FAILED_S", 0.004)
    task = Scripted(*[KeyError("a bug")] * 4)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    said = [record.getMessage().rpartition(" in ")[2] for record in caplog.records]
    assert said == ["0.001 s", "0.002 s", "0.004 s", "0.004 s"]


def test_the_failure_of_a_task_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    record(WorkFailure(WORK, "of a process that has ended", 7, None))
    seen = list[list[WorkFailure]]()
    task = Scripted(
        KeyError("a bug"), ValueError("another"), True, run=lambda _: seen.append(read_failures())
    )
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    assert seen == [[WorkFailure(WORK, "ValueError: another", 2, NOW + 0.002)]]
    assert read_failures() == []


def test_a_task_clears_earlier_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    record(WorkFailure(WORK, "of a process that has ended", 7, None))
    task = Scripted(False)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    assert read_failures() == []


def test_the_failure_of_a_run_stands_until_another_run_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))

    def fail(_stop: threading.Event) -> None:
        raise KeyError("a bug")

    task = Scripted(True, False, False, run=fail)
    jobs = Jobs({WORK: lambda: task}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    assert [failure.why for failure in read_failures()] == ["KeyError: 'a bug'"]


def test_a_task_that_could_not_be_made_is_made_again() -> None:
    task, tries = Scripted(True), iter([AWAY, KeyError("a bug"), None])

    def make() -> Scripted:
        if (error := next(tries)) is not None:
            raise error
        return task

    jobs = Jobs({WORK: make}, 0.001, lambda: NOW)
    assert task.done.wait(30)
    jobs.stop()
    assert task.ran == 1


def test_a_stop_ends_what_is_under_way_and_nobody_looks_after_it() -> None:
    began = threading.Event()

    def run(stop: threading.Event) -> None:
        began.set()
        assert stop.wait(30)

    task = Scripted(True, run=run)
    jobs = Jobs({WORK: lambda: task}, 3600.0, lambda: NOW)
    assert began.wait(30)
    jobs.stop()
    assert not task.done.is_set()
    with pytest.raises(RuntimeError, match="evaluation has ended"):
        jobs.check()


# -- the deployment ----------------------------------------------------------------------------------


def test_a_task_that_cannot_be_made_leaves_no_log_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, twice = list[Store](), threading.Event()

    def close(store: Store) -> None:
        closed.append(store)
        if len(closed) == 2:
            twice.set()

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("armwise.agent.hosts.jobs.Evaluations", fail)
    monkeypatch.setattr(Store, "close", close)
    host = JobsHost(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), [WORK], 0.001)
    assert twice.wait(30), "one for each attempt"
    host.stop()


def test_a_host_answers_by_its_configuration_and_stops_when_it_is_told(
    store: Store, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse({**CONFIG, "log_url": log_url})
    answers = threading.Event()

    def evaluate(
        given: AppConfig, request: Mapping[str, Any], heard: ProgressCallback
    ) -> evaluations.StoredResult:
        assert given == config
        if found(store, 2).status is evaluations.EvaluationStatus.RUNNING:
            answers.set()
        return answered(request, heard)

    monkeypatch.setattr("armwise.agent.hosts.jobs.evaluate_apart", evaluate)
    for _ in range(2):
        evaluations.submit(store, digest_configuration(config), REQUEST, NOW)
    host = JobsHost(config)
    assert answers.wait(30)
    host.check_health()
    host.__del__()  # as Ray Serve does
    assert found(store, 1).status is evaluations.EvaluationStatus.DONE
    assert found(store, 1).worker == f"{socket.gethostname()}:{os.getpid()}"
    with pytest.raises(RuntimeError, match="has ended"):
        host.check_health()


def test_a_host_polls_all_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"users": {"kind": "feedback"}}
    spec = {"cron": "0 * * * *", "sources": sources, "portfolio": {"measure": "thumb"}}
    polled = Counter[str]()
    often = threading.Event()
    tasks = {"Learning", "Evaluations", "WarmStarts", "AutomaticCanaries", "Digests"}

    class Polled:
        def __init__(self, kind: str) -> None:
            self._name = kind

        def due(self, now: float) -> bool:
            del now
            polled[self._name] += 1
            if min(polled[task] for task in tasks) > 1:
                often.set()
            return False

    lab = "armwise.agent.lab.warmstart"
    for kind, module in {
        "Learning": "armwise.agent.hosts.jobs",
        "Evaluations": "armwise.agent.hosts.jobs",
        "WarmStarts": lab,
        "AutomaticCanaries": lab,
        "Digests": "armwise.agent.console.digest_task",
    }.items():
        make = partial(lambda kind, *_, **__: Polled(kind), kind)
        monkeypatch.setattr(f"{module}.{kind}", make)
    settings = {"warm_start": {**spec, "canary": "auto"}, "digest": {"url": "https://hooks.example.com/T0"}}
    host = JobsHost(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}", **settings}))
    assert often.wait(30)
    host.check_health()

    def jumped(_clock: SteadyClock) -> None:
        raise ClockError("the clock jumped")

    monkeypatch.setattr(SteadyClock, "check", jumped)
    with pytest.raises(ClockError):
        host.check_health()
    host.__del__()
    assert set(polled) == tasks
