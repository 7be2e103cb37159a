"""A real HAProxy with our configuration, in front of an application on a socket."""

import asyncio
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from agent.config import parse
from agent.proxy import (
    Listening,
    Proxy,
    ProxyError,
    haproxy_binary,
    listening,
    socket_path,
    write_configuration,
)

pytestmark = pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform")

HTTP = {"request_s": 0.4, "queue": 1, "queue_s": 0.2, "connections_per_address": 12, "header_bytes": 2048}
SETTINGS = {
    "arms": {"none": {"kind": "none"}},
    "llm": {"engine": "scripted", "default": ""},
    "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    "http": HTTP,
    "limits": {"in_flight": 2},
}


class Behind:
    """An application that answers when its gate opens.

    Attributes:
        seen: Paths of the requests that reached it.
        decides: Whether it says that it chooses arms.
        gate: Set while it answers.
    """

    def __init__(self, decides: bool = True) -> None:
        self.seen: list[str] = []
        self.decides = decides
        self.gate = asyncio.Event()
        self.gate.set()
        self.app = FastAPI()
        self.app.add_api_route("/{path:path}", self.answer, methods=["GET", "POST"])

    async def answer(self, request: Request, path: str) -> JSONResponse:
        self.seen.append(path)
        if path.startswith("v1"):
            await self.gate.wait()
        status = 503 if path == "health/decides" and not self.decides else 200
        return JSONResponse({"path": path, "bytes": len(await request.body())}, status)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a socket may have about 100 characters."""
    with tempfile.TemporaryDirectory(prefix="armwise-") as name:
        yield Path(name)


@pytest.fixture
def proxy(folder: Path, free_port: int) -> Iterator[Proxy]:
    """A proxy on a free port; no replica is behind it yet."""
    place = Listening("127.0.0.1", free_port, folder)
    running = Proxy(write_configuration(parse(SETTINGS), place))
    yield running
    running.stop()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
async def client(proxy: Proxy, free_port: int) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the proxy, which listens and has looked for replicas."""
    del proxy
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}", timeout=20) as client:
        while error_of(await answered(client, 503))["code"] != "not_ready":
            await asyncio.sleep(0.01)
        yield client


@asynccontextmanager
async def replica(folder: Path, behind: Behind) -> AsyncIterator[None]:
    """Run the application on a socket, as a replica does."""
    async with listening(behind.app, folder).router.lifespan_context(behind.app):
        yield


async def decides(folder: Path, replicas: int = 1) -> None:
    """Wait, for ten seconds, until HAProxy sends questions and feedback to that many replicas."""
    async with asyncio.timeout(10):
        up = -1
        while up != replicas:
            reader, writer = await asyncio.open_unix_connection(folder / "admin.sock")
            writer.write(b"show stat json\n")
            fields = [
                {field["field"]["name"]: field["value"]["value"] for field in row}
                for row in json.loads(await reader.read())
            ]
            writer.close()
            servers = [row for row in fields if row["svname"].startswith("replica") and row["status"] == "UP"]
            up = min(sum(row["pxname"] == lane for row in servers) for lane in ("work", "feedback"))


async def answered(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Ask until the answer has a status, for ten seconds."""
    async with asyncio.timeout(10):
        while True:
            try:
                response = await client.get("/health")
                if response.status_code == status:
                    return response
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()["error"]
    return found


async def test_without_a_replica_every_route_is_503_in_the_envelope(client: httpx.AsyncClient) -> None:
    for path in ("/ready", "/health", "/v1/retrieve", "/nothing"):
        response = await client.post(path, json={}, headers={"x-request-id": "a\"b'%c"})
        error = error_of(response)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert (error["code"], error["retryable"], error["request_id"]) == ("not_ready", True, "a\"b'%c")
        assert response.headers["x-request-id"] == "a\"b'%c"
    assert error_of(await client.get("/ready"))["request_id"] is None


async def test_requests_reach_a_replica_and_again_the_one_that_replaces_it(
    client: httpx.AsyncClient, folder: Path
) -> None:
    for _ in range(2):
        async with replica(folder, Behind()):
            await answered(client, 200)
            response = await client.post("/v1/retrieve", content=b"x" * 70_000)
            assert response.json() == {"path": "v1/retrieve", "bytes": 70_000}
        await answered(client, 503)


async def test_questions_go_to_the_replicas_that_decide_and_feedback_to_all(
    client: httpx.AsyncClient, folder: Path
) -> None:
    loading, loaded = Behind(decides=False), Behind()
    async with replica(folder, loading):
        await answered(client, 200)
        await client.post("/v1/retrieve", json={})  # while none decides, it says itself what it waits for
        assert loading.seen.count("v1/retrieve") == 1
        async with replica(folder, loaded):
            await decides(folder)
            for _ in range(4):
                for path in ("/v1/retrieve", "/v1/chat/completions", "/ready", "/v1/feedback"):
                    assert (await client.post(path, json={})).status_code == 200
            assert [loaded.seen.count(path) for path in ("v1/retrieve", "v1/chat/completions", "ready")] == [
                4
            ] * 3
            assert loading.seen.count("v1/retrieve") == 1
            assert loading.seen.count("v1/feedback") + loaded.seen.count("v1/feedback") == 4
            assert "v1/feedback" in loading.seen
            loading.decides = True
            await decides(folder, 2)


async def test_half_a_request_never_reaches_a_replica_and_is_closed(
    client: httpx.AsyncClient, folder: Path, free_port: int
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await answered(client, 200)
        behind.seen.clear()
        head = b"POST /v1/retrieve HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n"
        for part in (head, head + b"\r\n{"):
            reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
            writer.write(part)
            async with asyncio.timeout(5):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            writer.close()
        assert b'"code": "request_timeout"' in answer
        assert not [path for path in behind.seen if path.startswith("v1")]


@pytest.mark.parametrize("header", [{"x": "y" * 3000}, {f"x-{i}": "y" for i in range(120)}])
async def test_a_header_that_is_too_large_is_refused(
    client: httpx.AsyncClient, folder: Path, header: dict[str, str]
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await answered(client, 200)
        response = await client.get("/v1/arms", headers=header)
        assert (response.status_code, error_of(response)["code"]) == (431, "header_too_large")
        assert "v1/arms" not in behind.seen


async def test_a_header_without_an_end_is_refused(client: httpx.AsyncClient, free_port: int) -> None:
    del client
    reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
    writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000)
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_full_lane_refuses_at_once_and_the_others_go_on(
    client: httpx.AsyncClient, folder: Path
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await decides(folder)
        behind.gate.clear()
        held = [asyncio.create_task(client.post("/v1/retrieve", json={})) for _ in range(2)]
        async with asyncio.timeout(5):
            while behind.seen.count("v1/retrieve") < 2:
                await asyncio.sleep(0.001)
        waiting = await client.post("/v1/retrieve", json={})
        assert (waiting.status_code, error_of(waiting)["code"]) == (503, "overloaded")
        assert error_of(waiting)["message"] == "no replica had room within 0.2 s"
        both = await asyncio.gather(*(client.post("/v1/retrieve", json={}) for _ in range(2)))
        messages = {error_of(response)["message"] for response in both}
        assert messages == {"1 requests wait already", "no replica had room within 0.2 s"}
        assert (await client.get("/ready")).status_code == 200
        reported = asyncio.create_task(client.post("/v1/feedback", json={}))
        async with asyncio.timeout(5):
            while "v1/feedback" not in behind.seen:
                await asyncio.sleep(0.001)
        behind.gate.set()
        assert [response.status_code for response in await asyncio.gather(*held, reported)] == [200] * 3


async def test_a_replica_that_ends_while_it_answers_is_a_503_that_may_be_repeated(
    client: httpx.AsyncClient, folder: Path
) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET /health"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(cut, socket_path(folder, 0))
    async with server:
        await answered(client, 200)
        response = await client.get("/v1/arms")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert (error_of(response)["code"], error_of(response)["retryable"]) == ("replica_lost", True)


async def test_a_proxy_that_drains_refuses_what_is_new_and_waits_for_what_is_under_way(
    client: httpx.AsyncClient, folder: Path, proxy: Proxy
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await decides(folder)
        behind.gate.clear()
        answers = [asyncio.create_task(client.post("/v1/retrieve", json={})) for _ in range(2)]
        while behind.seen.count("v1/retrieve") < 2:
            await asyncio.sleep(0.01)
        drained = asyncio.create_task(asyncio.to_thread(proxy.drain, 60.0))
        refused = await answered(client, 503)
        assert (error_of(refused)["code"], refused.headers["retry-after"]) == ("not_ready", "1")
        assert error_of(await client.post("/v1/feedback", json={}))["code"] == "not_ready"
        assert not drained.done()
        behind.gate.set()
        assert [response.status_code for response in await asyncio.gather(*answers)] == [200, 200]
        async with asyncio.timeout(10):
            await drained
        assert (await client.get("/ready")).status_code == 503


async def test_a_proxy_that_has_ended_has_nothing_to_drain(proxy: Proxy, client: httpx.AsyncClient) -> None:
    del client
    proxy.stop()
    proxy.drain(60.0)


async def test_a_request_that_does_not_end_delays_the_end_for_a_limited_time(
    client: httpx.AsyncClient, folder: Path, proxy: Proxy
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await decides(folder)
        behind.gate.clear()
        asked = asyncio.create_task(client.post("/v1/retrieve", json={}))
        while "v1/retrieve" not in behind.seen:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(proxy.drain, 0.1)
        assert not asked.done()
        behind.gate.set()
        assert (await asked).status_code == 200


async def test_one_address_cannot_hold_every_connection(client: httpx.AsyncClient, free_port: int) -> None:
    del client  # holds one

    def opened() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", free_port), timeout=5)
        except ConnectionResetError:  # closed before this end had looked
            return None

    def is_open(one: socket.socket) -> bool:
        one.settimeout(0.2)
        try:
            return one.recv(1) != b""
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False

    with ExitStack() as stack:
        sockets = [stack.enter_context(one) for _ in range(14) if (one := opened())]
        first, *rest = await asyncio.to_thread(lambda: [is_open(one) for one in (sockets[0], *sockets[11:])])
        assert first
        assert not any(rest)


async def test_a_proxy_that_was_killed_is_started_again(proxy: Proxy, client: httpx.AsyncClient) -> None:
    assert not proxy.watch()
    before = proxy.pid
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(5):
        while not proxy.watch():
            await asyncio.sleep(0.001)
    assert proxy.pid != before
    await answered(client, 503)


def test_a_proxy_whose_address_is_taken_gives_up(folder: Path, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        proxy = Proxy(write_configuration(parse(SETTINGS), Listening("127.0.0.1", free_port, folder)))

        def watched() -> None:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                proxy.watch()

        with pytest.raises(ProxyError, match="ends again and again"):
            watched()
    proxy.stop()


def test_a_configuration_that_haproxy_refuses_is_an_error(folder: Path) -> None:
    path = folder / "haproxy.cfg"
    path.write_text("frontend clients\n    bind nowhere\n")
    with pytest.raises(ProxyError, match="bind"):
        Proxy(path)


async def test_replicas_of_one_machine_take_slots_of_their_own(folder: Path) -> None:
    one, two = Behind(), Behind()
    async with replica(folder, one):
        async with replica(folder, two):
            assert {path.name for path in folder.glob("*.sock")} == {"ingress-0.sock", "ingress-1.sock"}
        assert {path.name for path in folder.glob("*.sock")} == {"ingress-0.sock"}
    (folder / "ingress-0.sock").touch()  # as a replica that was killed leaves it
    async with replica(folder, Behind()):
        assert (folder / "ingress-0.sock").is_socket()
