"""Warm starts beside a service: due by the log, one child each, over HTTP as on record."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.agent.config import AppConfig, load
from armwise.agent.jobs import Task
from armwise.agent.lab.warmstart.job import WarmStarts, begin_child
from armwise.agent.learning import Recipe
from armwise.agent.low_priority import BUILDER_NICE
from armwise.agent.run_folder import COLD, RUN_FOLDER, UNDER_WAY, BuildingProgress
from armwise.feedback.drift import Alarm
from armwise.feedback.drift.alarms import raise_alarms
from armwise.feedback.log import Store
from armwise.feedback.registry import jobs, runs, versions
from armwise.feedback.training_log import take_epoch
from tests.agent.asking import refused
from tests.agent.evaluation.test_evaluate import ARMS, turn
from tests.agent.evaluation.test_evaluation_task import gone, until
from tests.agent.fakes import Service
from tests.agent.lab.warmstart.test_run import World, configured, outcomes_file

EVERY_HOUR: dict[str, Any] = {"cron": "0 * * * *"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    return configured(tmp_path, **EVERY_HOUR).resolve_places()


class Children:
    """Stand in for processes that do runs: each ends at once with a status.

    Attributes:
        status: Of the next one.
        script: What the next one does instead.
        begun: The run of each.
        awaited: Whether somebody waits for it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.script = ""
        self.begun: list[int] = []
        self.awaited: list[bool] = []

    def __call__(self, config: AppConfig, number: int, awaited: bool = False) -> "subprocess.Popen[bytes]":
        del config
        self.awaited.append(awaited)
        self.begun.append(number)
        script = self.script or f"raise SystemExit({self.status})"
        return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, start_new_session=True)


@pytest.fixture
def children() -> Children:
    return Children()


class Clock:
    """Says the time that it is told."""

    def __init__(self) -> None:
        self.now = 3600.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def task(store: Store, config: AppConfig, children: Children, clock: Clock) -> WarmStarts:
    return WarmStarts(store, config, 3599.5, children, clock)


def ours(config: AppConfig) -> str:
    return Recipe.from_config(config).digest


def test_the_log_says_when_a_run_is_due(store: Store, config: AppConfig, task: Task) -> None:
    assert not task.due(3599.0)
    assert task.due(3601.0)
    run = runs.claim(store, ours(config), runs.Trigger.SCHEDULE, "here:1", 3601.0)
    assert not task.due(3610.0), "it is under way"
    runs.finish(store, run, runs.RunState.HELD, 3620.0)
    assert not task.due(7100.0)
    assert task.due(7200.0)


def test_a_run_that_had_nothing_to_learn_is_done_again_when_the_service_starts(
    store: Store, config: AppConfig, children: Children, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = config.warm_start.model_copy(update={"first": "promote"}) if config.warm_start else None
    config = config.model_copy(update={"warm_start": spec})
    run = runs.claim(store, ours(config), runs.Trigger.FIRST, "here:1", 3601.0)
    step = {"name": "router", "found": {runs.TOO_LITTLE: "all 3 arms did equally well"}}
    runs.save_progress(store, run, 3602.0, inputs={}, steps=[step])
    runs.finish(store, run, runs.RunState.NOTHING_NEW, 3603.0)
    restarted = WarmStarts(store, config, 3610.0, children, clock)
    assert restarted.due(3611.0)
    restarted.run(threading.Event())
    assert [run.trigger for run in runs.page(store, 5)] == [runs.Trigger.FIRST, runs.Trigger.FIRST]
    assert not restarted.due(3620.0), "once"
    monkeypatch.setenv(COLD, "1")
    assert not WarmStarts(store, config, 3610.0, children, clock).due(3630.0)


def test_the_schedule_is_read_where_the_log_is_worth_it_and_once_a_second_at_most(
    store: Store, config: AppConfig, children: Children, clock: Clock
) -> None:
    worth = iter([False, True, True])
    task = WarmStarts(store, config, 3599.5, children, clock, lambda: next(worth))
    assert [task.due(now) for now in (3601.0, 3601.0, 3601.9, 3602.0)] == [False, True, False, True]


def test_runs_of_another_service_do_not_count(store: Store, task: WarmStarts, children: Children) -> None:
    runs.request(store, "theirs", 90.0)
    assert not task.due(3599.0)
    theirs = runs.claim(store, "theirs", runs.Trigger.SCHEDULE, "there:1", 3600.0)
    assert task.due(3601.0), "no run of ours was done yet"
    task.run(threading.Event())
    assert children.begun == [], "but one is done at a time"
    assert [run.seq for run in runs.page(store, 5)] == [theirs.seq]


def test_first_runs_and_retries_are_awaited(store: Store, task: WarmStarts, children: Children) -> None:
    for trigger in (runs.Trigger.FIRST, runs.Trigger.RESUMED, runs.Trigger.SCHEDULE, runs.Trigger.RESUMED):
        task._trigger = trigger  # noqa: SLF001 - as `due` has found it
        task.run(threading.Event())
        (run,) = runs.page(store, 1)
        runs.finish(store, run, runs.RunState.FAILED, 3601.0)
    assert children.awaited == [True, True, False, False]


def test_no_run_begins_while_a_first_start_builds_arms(
    task: WarmStarts, config: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    config.home_path.mkdir(exist_ok=True)
    (config.home_path / UNDER_WAY).write_text("1")
    building = BuildingProgress(tmp_path)
    building("embedding passages", 1, 10)
    assert not task.due(3601.0)
    building.end()  # an attempt that failed, which is followed by another
    assert not task.due(3601.5)
    (config.home_path / UNDER_WAY).unlink()
    assert task.due(3602.5)


@pytest.mark.slow
def test_requests_alarms_and_runs_that_died_say_what_started_the_next_one(
    store: Store, config: AppConfig, task: WarmStarts, children: Children, clock: Clock
) -> None:
    def done(at: float, state: runs.RunState, **inputs: object) -> runs.Trigger:
        """Have the next run done, and say what started it."""
        assert task.due(at)
        clock.now = at
        task.run(threading.Event())
        (run,) = runs.page(store, 1)
        assert children.begun[-1] == run.seq
        runs.save_progress(store, run, at, inputs=inputs, steps=[])
        if state is not runs.RunState.RUNNING:
            runs.finish(store, run, state, at)
        return run.trigger

    learner = Recipe.from_config(config)
    epoch = take_epoch(store, "test", 0.0)
    versions.publish(store, learner.draft(b"state", 0, 0, None, epoch, 0.0), b"state")
    assert done(3601.0, runs.RunState.HELD) is runs.Trigger.SCHEDULE
    raise_alarms(store, epoch, [Alarm(learner.digest, "reward of a", "adwin", 0.8, 0.1, 5, 50.0)])
    assert done(3700.0, runs.RunState.HELD, alarm=5) is runs.Trigger.ALARM
    assert not task.due(3750.0)
    runs.request(store, ours(config), 3800.0)
    assert done(3801.0, runs.RunState.RUNNING, alarm=5) is runs.Trigger.REQUEST
    assert not task.due(3802.0 + jobs.LEASE_S / 2)
    assert done(3803.0 + jobs.LEASE_S, runs.RunState.HELD, alarm=5) is runs.Trigger.RESUMED


def test_a_dead_child_leaves_a_failed_run(store: Store, task: WarmStarts, children: Children) -> None:
    children.status = 3
    assert task.due(3600.0)
    task.run(threading.Event())
    (run,) = runs.page(store, 5)
    assert (run.status, run.error) == (
        runs.RunState.FAILED,
        "its process ended with status 3: see its output",
    )
    assert not task.due(3610.0)
    assert task.due(7200.0)


def test_a_run_is_heard_of_for_as_long_as_its_child_lives(
    store: Store, task: WarmStarts, children: Children, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.lab.warmstart.job.HEARTBEAT_S", 0.0)
    monkeypatch.setattr("armwise.agent.lab.warmstart.job.POLL_S", 0.005)
    children.script = "import sys; sys.stdin.read()"
    assert task.due(3600.0)
    thread = threading.Thread(target=task.run, args=(threading.Event(),))
    thread.start()
    until(lambda: bool(runs.page(store, 1)))
    clock.now = 3650.0
    until(lambda: runs.page(store, 1)[0].alive_at == 3650.0)
    lost = runs.page(store, 1)[0]
    runs.claim(store, lost.configured, runs.Trigger.RESUMED, "there:1", 3651.0 + jobs.LEASE_S)
    thread.join(60)
    assert not thread.is_alive(), "a child whose run was taken for dead is ended"


def test_a_stopped_service_ends_its_child(store: Store, config: AppConfig, children: Children) -> None:
    told, stop = Path(config.home).parent / "pid", threading.Event()
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    children.script = (
        "import pathlib, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {stubborn!r}])\n"
        f"pathlib.Path({str(told)!r}).write_text(f'{{child.pid}} ')\n"
        "time.sleep(600)"
    )

    def begin(config: AppConfig, number: int, _awaited: bool) -> "subprocess.Popen[bytes]":
        child = children(config, number)
        until(lambda: told.exists() and told.read_text().endswith(" "))
        stop.set()
        return child

    WarmStarts(store, config, 0.0, begin).run(stop)
    until(lambda: gone(int(told.read_text())))


@pytest.fixture
def world(tmp_path: Path, config: AppConfig) -> Iterator[World]:
    outcomes_file(tmp_path / "exam")
    with closing(Store(config.database_url)) as store:
        world = World(config, store, tmp_path)
        world.learn()
        yield world


def taken(world: World) -> int:
    """Take a run, as who begins its child does."""
    return runs.claim(world.store, world.ours, runs.Trigger.SCHEDULE, "here:1", time.time()).seq


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.slow
def test_a_child_does_a_whole_run_with_a_real_verdict_and_gives_way(world: World, drawn: bool) -> None:
    """Where arms took turns, nothing can be estimated, and the candidate is held for that."""
    turns = np.tile(ARMS, 20)
    draws = np.random.default_rng(0).permutation(turns) if drawn else turns
    world.store.append([fact for number, arm in enumerate(draws) for fact in turn(number, str(arm))])
    world.learn()
    child = begin_child(world.config, taken(world))
    until(lambda: child.poll() is not None or _gives_way(child.pid))
    assert child.returncode is None, "it gave way while it worked"
    assert child.wait(100) == 0
    (run,) = runs.page(world.store, 5)
    assert run.trigger is runs.Trigger.SCHEDULE
    assert run.status is runs.RunState.HELD, run.error
    assert [step["name"] for step in run.steps] == ["gather", "enter", "learn", "evaluate", "decide"]
    assert run.evaluation == (run.seq + 1 if drawn else None)
    reasons = run.steps[4]["found"]["reasons"]
    assert ("Nothing can be estimated" in reasons[0]) is not drawn
    if drawn:
        verdict = run.steps[3]["found"][f"recipe:{run.candidate}"]
        assert (verdict["verdict"], verdict["reasons"]) == ("hold", reasons)
    assert world.unchanged
    assert child.stdin is not None
    child.stdin.close()


def _gives_way(pid: int) -> bool:
    return os.getpriority(os.PRIO_PROCESS, pid) == BUILDER_NICE


@pytest.mark.timeout(600)  # of low priority, it waits for everything else
@pytest.mark.slow
def test_a_child_whose_parent_is_no_more_ends_before_its_run_does(world: World) -> None:
    child = begin_child(world.config, taken(world))
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(500) == -signal.SIGKILL
    assert [run.status for run in runs.page(world.store, 2)] == [runs.RunState.RUNNING]


# -- over HTTP --------------------------------------------------------------------------------------------


@pytest.fixture
async def service(tmp_path: Path, config: AppConfig) -> Any:
    document = config.model_dump(mode="json")
    async with Service(tmp_path, warm_start=document["warm_start"]).running() as service:
        yield service


async def test_a_run_is_asked_for_once_and_looked_at(service: Service) -> None:
    asked = await service.client.post("/v1/warm-starts")
    assert (asked.status_code, asked.headers["location"]) == (202, "/v1/warm-starts/1")
    told = asked.json()
    assert (told["id"], told["status"], told["trigger"]) == (1, "asked", "request")
    again = await service.client.post("/v1/warm-starts")
    assert "run 1 was requested at" in refused(again, 409, "under_way")

    store, now = service.replica.store, service.replica.clock()
    run = runs.claim(store, ours(service.config), runs.Trigger.SCHEDULE, "here:1", now)
    listed = (await service.client.get("/v1/warm-starts")).json()
    assert [one["status"] for one in listed["warm_starts"]] == ["running"]
    assert listed["next"] == {"at": (now // 3600 + 1) * 3600, "trigger": "schedule"}, "also while one runs"
    step = {"name": "gather", "said": "no new labels", "found": {}}
    runs.save_progress(store, run, now, inputs={"log": 3}, steps=[step])
    runs.finish(store, run, runs.RunState.NOTHING_NEW, now)
    one = (await service.client.get("/v1/warm-starts/1")).json()
    assert (one["status"], one["inputs"], one["steps"]) == ("nothing_new", {"log": 3}, [step])
    listed = (await service.client.get("/v1/warm-starts")).json()
    assert listed["next"] == {"at": (now // 3600 + 1) * 3600, "trigger": "schedule"}
    assert "steps" not in listed["warm_starts"][0]


async def test_a_run_that_there_is_not_is_not_found(service: Service) -> None:
    refused(await service.client.get("/v1/warm-starts/9"), 404, "warm_start_not_found", "number")


async def test_without_a_configured_warm_start_none_can_be_asked_for(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        told = refused(await service.client.post("/v1/warm-starts"), 409, "not_configured")
        assert "the configuration has no `warm_start`" in told
        assert (await service.client.get("/v1/warm-starts")).json() == {"warm_starts": [], "next": None}


def test_the_example_configuration_can_be_used() -> None:
    found = load(Path(__file__).parents[4] / "examples" / "warm_start.yaml")
    assert found.warm_start is not None
    assert found.warm_start.cron == "0 */6 * * *"


@pytest.mark.slow
def test_a_run_gives_way_with_its_whole_session() -> None:
    script = (
        "import os, pathlib\n"
        "from armwise.agent.low_priority import lower_priority\n"
        "lower_priority()\n"
        "group = pathlib.Path('/proc/self/autogroup')\n"
        f"print(os.nice(0), group.read_text() if group.exists() else 'no groups nice {BUILDER_NICE}')\n"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True).stdout
    assert told.startswith(f"{BUILDER_NICE} ")
    assert told.strip().endswith(f"nice {BUILDER_NICE}")


@pytest.mark.slow
def test_a_run_in_the_session_of_others_leaves_that_alone() -> None:
    script = (
        "import pathlib\n"
        "from armwise.agent.low_priority import lower_priority\n"
        "group = pathlib.Path('/proc/self/autogroup')\n"
        "before = group.read_text() if group.exists() else ''\n"
        "lower_priority()\n"
        "print(before == (group.read_text() if group.exists() else ''))\n"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "True"
