"""Warm starts beside a service: due by the log, one child each, over HTTP as on record."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.config import AppConfig, load
from agent.jobs import JobFailedError, Task
from agent.warm_start_job import WarmStarts, begin_child
from feedback.alarms import Alarm, raise_alarms
from feedback.joins import take_epoch
from feedback.runs import LEASE_S, State, Trigger, ask, end, note, page, take
from feedback.store import Store
from tests.agent.asking import refused
from tests.agent.fakes import Service
from tests.agent.test_warm_start_run import World, configured, outcomes_file

EVERY_HOUR: dict[str, Any] = {"every": "PT1H"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    return configured(tmp_path, **EVERY_HOUR).settled()


class Children:
    """Stand in for processes that do runs: each ends at once with a status.

    Attributes:
        status: Of the next one.
        script: What the next one does instead.
        begun: What each was started by.
    """

    def __init__(self) -> None:
        self.status = 0
        self.script = ""
        self.begun: list[Trigger] = []

    def __call__(self, config: AppConfig, trigger: Trigger) -> "subprocess.Popen[bytes]":
        del config
        self.begun.append(trigger)
        script = self.script or f"raise SystemExit({self.status})"
        return subprocess.Popen([sys.executable, "-c", script], start_new_session=True)


@pytest.fixture
def children() -> Children:
    return Children()


def task_of(store: Store, config: AppConfig, children: Children, since: float = 100.0) -> WarmStarts:
    return WarmStarts(store, config, since, children)


def test_the_log_says_when_a_run_is_due(store: Store, config: AppConfig, children: Children) -> None:
    task: Task = task_of(store, config, children)
    assert not task.due(99.0)
    assert task.due(101.0)
    run = take(store, Trigger.SCHEDULE, "here:1", 101.0)
    assert not task.due(110.0), "it is under way"
    end(store, run, State.HELD, 120.0)
    assert not task.due(3000.0)
    assert task.due(101.0 + 3600.0)


def test_the_log_is_looked_at_once_a_second(store: Store, config: AppConfig, children: Children) -> None:
    task = task_of(store, config, children, since=100.0)
    assert not task.due(99.5)
    assert not task.due(100.2), "not looked at"
    assert task.due(100.6)


def test_requests_alarms_and_runs_that_died_say_what_started_the_next_one(
    store: Store, config: AppConfig, children: Children
) -> None:
    task = task_of(store, config, children)
    run = take(store, Trigger.SCHEDULE, "here:1", 100.0)
    end(store, run, State.HELD, 100.0)
    epoch = take_epoch(store, "test", 0.0)
    raise_alarms(store, epoch, [Alarm("r", "reward of a", "adwin", 0.8, 0.1, 5, 200.0)])
    assert task.due(200.0)
    task.run(threading.Event())
    end(store, take(store, Trigger.ALARM, "here:1", 201.0), State.HELD, 201.0)
    ask(store, 300.0)
    assert task.due(301.0)
    task.run(threading.Event())
    take(store, Trigger.SCHEDULE, "here:1", 301.0)
    assert not task.due(302.0 + LEASE_S / 2)
    assert task.due(303.0 + LEASE_S)
    task.run(threading.Event())
    assert children.begun == [Trigger.ALARM, Trigger.REQUEST, Trigger.RESUMED]


def test_a_child_that_ends_before_it_has_recorded_anything_is_told(
    store: Store, config: AppConfig, children: Children
) -> None:
    task = task_of(store, config, children)
    children.status = 3
    with pytest.raises(JobFailedError, match="the process of a warm start ended with status 3"):
        task.run(threading.Event())


def test_a_service_that_stops_takes_the_child_and_what_it_started_along(
    store: Store, config: AppConfig, children: Children
) -> None:
    told, stop = Path(config.home).parent / "pid", threading.Event()
    children.script = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(told)!r}).write_text(f'{{child.pid}} ')\n"
        "time.sleep(600)"
    )

    def begin(config: AppConfig, trigger: Trigger) -> "subprocess.Popen[bytes]":
        child = children(config, trigger)
        until(lambda: told.exists() and told.read_text().endswith(" "))
        stop.set()
        return child

    WarmStarts(store, config, 0.0, begin).run(stop)
    until(lambda: _gone(int(told.read_text())))


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"  # nobody has asked for its status


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def world(tmp_path: Path, config: AppConfig) -> Iterator[World]:
    outcomes_file(tmp_path / "exam")
    with closing(Store(config.database_url)) as store:
        world = World(config, store, tmp_path)
        world.learn()
        world.ask(range(60))
        yield world


def test_a_child_does_a_whole_run_with_a_real_verdict_and_gives_way(world: World) -> None:
    child = begin_child(world.config, Trigger.SCHEDULE)
    until(lambda: child.poll() is not None or _gives_way(child.pid))
    assert child.returncode is None, "it gave way while it worked"
    assert child.wait(100) == 0
    (run,) = page(world.store, 5)
    assert run.trigger is Trigger.SCHEDULE
    assert run.status is State.HELD, run.error
    assert [step["name"] for step in run.steps] == ["gather", "enter", "learn", "evaluate", "decide"]
    assert run.evaluation == 1
    verdict = run.steps[3]["found"][f"recipe:{run.candidate}"]
    assert verdict["verdict"] == "hold"
    assert run.steps[4]["found"]["reasons"] == verdict["reasons"] != []
    assert world.unchanged
    assert child.stdin is not None
    child.stdin.close()


def _gives_way(pid: int) -> bool:
    return os.getpriority(os.PRIO_PROCESS, pid) == 19


def test_a_child_whose_parent_is_no_more_ends_before_its_run_does(world: World) -> None:
    child = begin_child(world.config, Trigger.SCHEDULE)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(100) == -signal.SIGKILL
    assert all(run.status is State.RUNNING for run in page(world.store, 1))


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
    assert "run 1 was asked for since" in refused(again, 409, "under_way")

    store, now = service.replica.store, service.replica.clock()
    run = take(store, Trigger.SCHEDULE, "here:1", now)
    listed = (await service.client.get("/v1/warm-starts")).json()
    assert [one["status"] for one in listed["warm_starts"]] == ["running"]
    assert listed["next"] is None
    step = {"name": "gather", "said": "no new labels", "found": {}}
    note(store, run, now, inputs={"log": 3}, steps=[step])
    end(store, run, State.NOTHING_NEW, now)
    one = (await service.client.get("/v1/warm-starts/1")).json()
    assert (one["status"], one["inputs"], one["steps"]) == ("nothing_new", {"log": 3}, [step])
    listed = (await service.client.get("/v1/warm-starts")).json()
    assert listed["next"] == {"at": pytest.approx(now + 3600.0), "trigger": "schedule"}
    assert "steps" not in listed["warm_starts"][0]


async def test_a_run_that_there_is_not_is_not_found(service: Service) -> None:
    refused(await service.client.get("/v1/warm-starts/9"), 404, "warm_start_not_found", "number")


async def test_without_a_configured_warm_start_none_can_be_asked_for(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        told = refused(await service.client.post("/v1/warm-starts"), 409, "not_configured")
        assert "the configuration has no `warm_start`" in told
        assert (await service.client.get("/v1/warm-starts")).json() == {"warm_starts": [], "next": None}


def test_the_example_configuration_can_be_used() -> None:
    found = load(Path(__file__).parents[2] / "examples" / "warm_start.yaml")
    assert found.warm_start is not None
    assert found.warm_start.every == "PT6H"
