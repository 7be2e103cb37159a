"""Parts of a service in one process: what is opened when, and how it ends."""

import asyncio
import signal
import socket
import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from armwise.agent.background import Work
from armwise.agent.config import parse
from armwise.agent.hosts import single_process
from armwise.agent.hosts.single_process import open_generators
from armwise.agent.run_folder import HAND_OVER
from armwise.arms.deployments import LateGenerator, generator_host
from armwise.feedback.errors import ClockError
from tests.agent.fakes import CONFIG


class Starting:
    """A replica that is ready at its third look; Ctrl-C is pressed at the fifth."""

    def __init__(self) -> None:
        self.ready, self.looks, self.ready_at = False, 0, 3

    def check(self) -> None:
        self.looks += 1
        self.ready = self.looks >= self.ready_at
        if self.looks == 5:
            signal.raise_signal(signal.SIGINT)


class Parts:
    """The parts of a service, opened by a test, and its port."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replica, self.opened, self.bound = Starting(), list[tuple[str, int]](), list[bool]()
        self.sockets, self.stopped, self.check = list[socket.socket](), list[str](), lambda: None
        monkeypatch.setattr(single_process, "open_service", lambda *_: self.replica)
        monkeypatch.setattr(single_process, "JobsHost", self._open_host)
        monkeypatch.setattr(single_process, "create_app", lambda _: FastAPI())
        monkeypatch.setattr(single_process, "open_port", self._open_port)
        monkeypatch.setattr(single_process, "LOOK_S", 0.01)
        monkeypatch.setattr(single_process, "HAND_OVER_S", 0.01)

    def _open_host(self, _config: object, works: Collection[Work]) -> SimpleNamespace:
        name = "learner" if [*works] == [Work.LEARNER] else "jobs"
        self.opened.append((name, self.replica.looks))
        assert (Work.LEARNER in works) is (name == "learner")
        return SimpleNamespace(check_health=self.check, stop=lambda: self.stopped.append(name))

    def _open_port(self, *_: object, shared: bool) -> list[socket.socket]:
        self.opened.append(("port", self.replica.looks))
        self.bound.append(shared)
        self.sockets = [socket.create_server(("127.0.0.1", 0))]
        return self.sockets

    async def serve(self, tmp_path: Path, *, stops: bool = False, **options: Any) -> int:
        def ready() -> bool:
            self.opened.append(("ready", self.replica.looks))
            return stops

        address = "127.0.0.1", 1
        return await single_process.serve(parse(CONFIG), tmp_path, address, ready=ready, **options)


async def test_what_runs_jobs_is_opened_once_questions_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch)
    await parts.serve(tmp_path)
    assert parts.opened == [("port", 0), ("learner", 0), ("ready", 3), ("jobs", 3)]
    assert (parts.replica.looks, parts.bound, parts.stopped) == (5, [False], ["jobs", "learner"])


async def test_a_service_that_is_stopped_before_it_is_ready_begins_no_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch)
    parts.replica.looks = 3  # of the five until Ctrl-C
    parts.replica.ready_at = 9
    await parts.serve(tmp_path)
    assert [name for name, _ in parts.opened] == ["port", "learner"]


async def test_a_host_that_fails_ends_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch)

    def fail() -> None:
        raise ClockError("the clock jumped")

    parts.check = fail
    with pytest.raises(ClockError):
        await parts.serve(tmp_path)
    assert parts.stopped == ["learner"]


async def test_a_service_that_has_done_its_work_when_it_is_ready_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch)
    await parts.serve(tmp_path, stops=True)
    assert parts.replica.looks == 3


@pytest.mark.parametrize("alive", [True, False])
async def test_a_service_listens_in_place_of_another_one_once_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    parts = Parts(monkeypatch)
    await parts.serve(tmp_path, replaces=lambda: alive)
    assert parts.opened[:3] == [("learner", 0), ("port", 3), ("ready", 3)]
    assert parts.bound == [alive]


async def test_a_service_that_waits_for_its_log_stops_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, waiting = Parts(monkeypatch), threading.Event()

    def wait_for_the_log(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        waiting.wait()

    monkeypatch.setattr(single_process, "open_service", wait_for_the_log)
    async with asyncio.timeout(10):
        await parts.serve(tmp_path)
    assert parts.opened == [("port", 0)]
    waiting.set()


async def test_what_is_asked_while_the_service_prepares_gets_a_503_and_then_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, prepared, app = Parts(monkeypatch), threading.Event(), FastAPI()
    monkeypatch.setattr(Starting, "check", lambda self: setattr(self, "ready", True))
    monkeypatch.setattr(single_process, "create_app", lambda _: app)
    app.get("/")(lambda: "answer")
    serving = asyncio.create_task(parts.serve(tmp_path, prepare=lambda: prepared.wait() and 0))
    async with httpx.AsyncClient(trust_env=False) as client:
        while not parts.sockets:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{parts.sockets[0].getsockname()[1]}/"
        early = await client.get(url)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert early.json()["error"]["code"] == "not_ready"
        prepared.set()
        while (answer := await client.get(url)).status_code == 503:
            await asyncio.sleep(0.01)
        assert answer.json() == "answer"
        signal.raise_signal(signal.SIGINT)
    await serving


async def test_what_cannot_be_prepared_ends_the_service_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch)
    assert await parts.serve(tmp_path, prepare=lambda: 7) == 7
    assert parts.opened == [("port", 0)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, HAND_OVER])
async def test_requests_finish_before_the_service_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    parts, went_on = Parts(monkeypatch), asyncio.Event()
    monkeypatch.setattr(Starting, "check", lambda self: setattr(self, "ready", True))
    app, bound = FastAPI(), socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(single_process, "create_app", lambda _: app)
    monkeypatch.setattr(single_process, "open_port", lambda *_, **__: [bound])
    begun = asyncio.Event()

    @app.get("/")
    async def slow() -> str:
        begun.set()
        await went_on.wait()
        return "whole"

    url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
    serving = asyncio.create_task(parts.serve(tmp_path))
    async with httpx.AsyncClient(trust_env=False) as client:
        await asyncio.sleep(0.3)
        asked = asyncio.create_task(client.get(url))
        await begun.wait()
        signal.raise_signal(number)
        await asyncio.sleep(0.3)
        assert not serving.done()
        with pytest.raises(httpx.ConnectError):
            await client.get(url, headers={"connection": "close"})
        went_on.set()
        assert (await asked).json() == "whole"
    async with asyncio.timeout(10):
        await serving


@pytest.mark.parametrize(
    ("own", "late"),
    [
        ({}, {"default", "judge"}),
        ({"rrf": {"llm": "judge"}}, {"default"}),
    ],
)
def test_a_model_whose_passages_are_quoted_is_loaded_with_its_first_answer(
    own: dict[str, Any], late: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[str]()
    monkeypatch.setattr(generator_host, "build_generator", lambda spec: loaded.append(spec.model))
    arms = {"bm25": {"kind": "bm25"}, "dense": {"kind": "bm25"}, "rrf": {"kind": "bm25"}}
    config = parse(
        {
            "arms": {name: {**arm, "answering": own.get(name, {})} for name, arm in arms.items()},
            "reward": {"metrics": {"thumb": {}}},
            "answering": {"quote": True},
            "llm": {"engine": "embedded", "model": "/default.gguf"},
            "llms": {"judge": {"engine": "embedded", "model": "/judge.gguf"}},
        }
    )
    generators = open_generators(config)
    assert {name for name, one in generators.items() if isinstance(one, LateGenerator)} == late
    assert loaded == [f"/{name}.gguf" for name in generators if name not in late]
