"""A real HAProxy with our configuration, in front of an application on a socket."""

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
from fastapi import Request
from starlette.routing import Route

from armwise.agent.api.middleware import ErrorBoundary
from armwise.agent.config import parse
from armwise.agent.proxy import (
    ADMIN_SOCKET,
    Listening,
    Proxy,
    ProxyError,
    ends_with_its_parent,
    haproxy_binary,
    socket_path,
    wait_for_end,
    write_configuration,
)
from tests.agent.proxy.conftest import SETTINGS, Behind, answered, decides, error_of, replica, statistics

pytestmark = pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make headers and queues small."""
    for name, value in {"HEADER_BYTES": 2048, "QUEUE": 1, "QUEUE_S": 0.2}.items():
        monkeypatch.setattr(f"armwise.agent.proxy.configuration.{name}", value)


async def begin(client: httpx.AsyncClient, behind: Behind) -> "asyncio.Task[httpx.Response]":
    """Send a request, and return it once it has reached the application, which does not answer yet."""
    behind.gate.clear()
    asked = asyncio.create_task(client.post("/v1/retrieve", json={}))
    while "v1/retrieve" not in behind.seen:
        await asyncio.sleep(0.01)
    return asked


async def test_without_a_replica_every_route_is_503_in_the_envelope(client: httpx.AsyncClient) -> None:
    for path in ("/ready", "/health", "/v1/retrieve", "/nothing"):
        response = await client.post(path, json={}, headers={"x-request-id": "a\"b'%c"})
        error = error_of(response)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert (error["code"], error["retryable"], error["request_id"]) == ("not_ready", True, "a\"b'%c")
        assert response.headers["x-request-id"] == "a\"b'%c"
    assert error_of(await client.get("/ready"))["request_id"] is None


@pytest.mark.slow
async def test_requests_reach_the_replica_that_replaces_another(
    client: httpx.AsyncClient, folder: Path
) -> None:
    for _ in range(2):
        async with replica(folder, Behind()):
            await answered(client, 200)
            response = await client.post("/v1/retrieve", content=b"x" * 70_000)
            assert (response.json()["path"], response.json()["bytes"]) == ("v1/retrieve", 70_000)
        await answered(client, 503)


@pytest.mark.slow
async def test_questions_go_to_replicas_that_decide(client: httpx.AsyncClient, folder: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(("patience_s", "is_down"), [(60.0, False), (0.05, True)])
async def test_a_replica_whose_health_check_is_late_is_down_after_a_while(
    monkeypatch: pytest.MonkeyPatch, folder: Path, free_port: int, patience_s: float, is_down: bool
) -> None:
    settings = {"CHECK_MS": 20, "DOWN_CHECK_MS": 10, "CHECK_PATIENCE_S": patience_s}
    for name, value in settings.items():
        monkeypatch.setattr(f"armwise.agent.proxy.configuration.{name}", value)
    proxy = Proxy(write_configuration(parse(SETTINGS), Listening("127.0.0.1", free_port, folder)))
    behind = Behind()
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}") as client,
            replica(folder, behind),
        ):
            await answered(client, 200)
            behind.well.clear()
            ends = time.monotonic() + 0.5  # many times the pause between two checks
            seen = set[int]()
            while time.monotonic() < ends:
                seen.add((await client.post("/v1/feedback", json={})).status_code)
            assert seen == ({200, 503} if is_down else {200})
    finally:
        proxy.stop()


@pytest.mark.slow
async def test_a_proxy_has_looked_once_it_knows_empty_places(folder: Path, free_port: int) -> None:
    proxy = Proxy(write_configuration(parse(SETTINGS), Listening("127.0.0.1", free_port, folder, 2)))
    try:
        async with asyncio.timeout(10):
            while not proxy.has_looked():
                await asyncio.sleep(0)
        servers = [row for row in await statistics(folder) if row["svname"].startswith("replica")]
        assert {row["status"] for row in servers} == {"DOWN"}
    finally:
        proxy.stop()
    assert not proxy.has_looked()


@pytest.mark.slow
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


TOO_LARGE: list[dict[str, str]] = [
    {"x": "y" * 2048},
    {f"x-{number}": "y" for number in range(120)},
    {f"x-{number}": "" for number in range(3000)},
    {"x": "y" * 61_000},
]


@pytest.mark.parametrize("header", TOO_LARGE, ids=["bytes", "lines", "3000 lines", "61 kB"])
@pytest.mark.slow
async def test_a_header_that_is_too_large_is_refused(
    client: httpx.AsyncClient, folder: Path, header: dict[str, str]
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await answered(client, 200)
        response = await client.get("/v1/arms", headers=header)
        assert (response.status_code, error_of(response)["code"]) == (431, "header_too_large")
        assert "v1/arms" not in behind.seen


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"GET / HTTP/1.1\r\nx: " + b"y" * 62_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n" * 2,
    ],
    ids=["without an end", "above 61 kB", "lines above a buffer", "no header line", "TLS"],
)
async def test_what_cannot_be_parsed_is_refused_by_haproxy_itself_and_closed(
    client: httpx.AsyncClient, free_port: int, sent: bytes
) -> None:
    del client
    reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
    writer.write(sent)
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.slow
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
        assert error_of(waiting)["message"] == "all replicas were busy for 0.2 s"
        both = await asyncio.gather(*(client.post("/v1/retrieve", json={}) for _ in range(2)))
        messages = {error_of(response)["message"] for response in both}
        assert messages == {"1 requests are already waiting", "all replicas were busy for 0.2 s"}
        assert (await client.get("/ready")).status_code == 200
        reported = asyncio.create_task(client.post("/v1/feedback", json={}))
        async with asyncio.timeout(5):
            while "v1/feedback" not in behind.seen:
                await asyncio.sleep(0.001)
        behind.gate.set()
        assert [response.status_code for response in await asyncio.gather(*held, reported)] == [200] * 3


async def test_a_replica_that_ends_while_it_answers_is_a_503(client: httpx.AsyncClient, folder: Path) -> None:
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


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [("GET", {}, 200), ("POST", {"idempotency-key": "k"}, 200), ("POST", {}, 503)],
)
async def test_a_request_that_was_not_answered_is_sent_again_where_that_is_safe(
    client: httpx.AsyncClient, folder: Path, method: str, headers: dict[str, str], status: int
) -> None:
    seen = 0

    async def cut_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        request = await reader.readuntil(b"\r\n\r\n")
        is_probe = request.startswith(b"GET /health")
        seen += not is_probe
        if is_probe or seen > 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(cut_once, socket_path(folder, 0))
    async with server:
        await answered(client, 200)
        seen = 0
        response = await client.request(method, "/v1/arms", headers=headers)
    assert (response.status_code, seen) == (status, 2 if status == 200 else 1)


async def test_a_connection_outlasts_an_answered_exception(folder: Path) -> None:
    behind = Behind()

    async def broken(request: Request) -> None:
        raise ZeroDivisionError(request.url.path)

    behind.app.router.routes.insert(0, Route("/bug", broken))
    behind.app.add_middleware(ErrorBoundary)
    async with replica(folder, behind):
        reader, writer = await asyncio.open_unix_connection(socket_path(folder, 0))
        for path, line in ((b"bug", b"500 Internal Server Error"), (b"v1/arms", b"200 OK")):
            writer.write(b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + line)
            length = next(row for row in head.lower().split(b"\r\n") if row.startswith(b"content-length"))
            json.loads(await reader.readexactly(int(length.split()[1])))
        writer.close()


@pytest.mark.slow
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


async def test_a_proxy_takes_the_address_of_another_which_ends_with_its_last_request(
    client: httpx.AsyncClient, folder: Path, proxy: Proxy, free_port: int
) -> None:
    old, new, place = Behind(), Behind(), f"http://127.0.0.1:{free_port}"
    with tempfile.TemporaryDirectory(prefix="armwise-") as name:
        other = Path(name)
        async with replica(folder, old), replica(other, new), asyncio.timeout(60):
            await decides(folder)
            asked = await begin(client, old)
            configuration = write_configuration(parse(SETTINGS), Listening("127.0.0.1", free_port, other))
            taking = Proxy(configuration, taking=folder / ADMIN_SOCKET)
            try:
                await decides(other)
                left = asyncio.create_task(asyncio.to_thread(proxy.leave, 60.0))
                in_a_row = 0
                while in_a_row < 20:  # until none of them reaches the old one
                    before = new.seen.count("first")
                    async with httpx.AsyncClient() as fresh:
                        assert (await fresh.get(f"{place}/first")).status_code == 200
                    in_a_row = in_a_row + 1 if new.seen.count("first") > before else 0
                assert not left.done()
                old.gate.set()
                assert (await asked).status_code == 200
                await left
                assert not psutil.pid_exists(proxy.pid)
                assert (await client.get("/second")).status_code == 200, "the client connects again"
                assert "second" in new.seen
            finally:
                taking.stop()


async def test_a_proxy_that_has_ended_has_nothing_to_drain(proxy: Proxy, client: httpx.AsyncClient) -> None:
    del client
    proxy.stop()
    proxy.drain(60.0)


@pytest.mark.parametrize("end", [pytest.param(Proxy.drain, marks=pytest.mark.slow), Proxy.leave])
async def test_a_request_that_does_not_end_delays_the_end_for_a_limited_time(
    client: httpx.AsyncClient, folder: Path, proxy: Proxy, end: Callable[[Proxy, float], None]
) -> None:
    behind = Behind()
    async with replica(folder, behind):
        await decides(folder)
        asked = await begin(client, behind)
        await asyncio.to_thread(end, proxy, 0.1)
        assert not asked.done()
        behind.gate.set()
        assert (await asked).status_code == 200


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_proxy_that_was_killed_is_started_again(proxy: Proxy, client: httpx.AsyncClient) -> None:
    assert not proxy.watch()
    before = proxy.pid
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(5):
        while not proxy.watch():
            await asyncio.sleep(0.001)
    assert proxy.pid != before
    await answered(client, 503)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has the call")
@pytest.mark.parametrize(("platform", "found"), [("linux", signal.SIGTERM), ("darwin", 0)])
def test_on_linux_a_process_is_terminated_when_its_parent_ends(
    monkeypatch: pytest.MonkeyPatch, platform: str, found: int
) -> None:
    libc, asked = ctypes.CDLL(None), ctypes.c_int()
    monkeypatch.setattr(sys, "platform", platform)
    try:
        ends_with_its_parent()
        libc.prctl(2, ctypes.byref(asked))  # PR_GET_PDEATHSIG
    finally:
        libc.prctl(1, 0)
    assert asked.value == found


@pytest.mark.parametrize(("pause_s", "gives_up"), [(1.25, False), (1.24, True)])
@pytest.mark.slow
def test_a_proxy_that_ends_five_times_within_five_seconds_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float, gives_up: bool
) -> None:
    now = 100.0
    monkeypatch.setattr("armwise.agent.proxy.process.haproxy_binary", lambda: Path("true"))
    monkeypatch.setattr("armwise.agent.proxy.process.time", SimpleNamespace(monotonic=lambda: now))
    proxy = Proxy(folder / "haproxy.cfg")

    def ended() -> bool:
        os.waitid(os.P_PID, proxy.pid, os.WEXITED | os.WNOWAIT)
        return proxy.watch()

    for _ in range(4):
        assert ended()
        now += pause_s
    if gives_up:
        with pytest.raises(ProxyError, match=f"keeps stopping.*{folder}/haproxy.cfg"):
            ended()
    else:
        assert ended()
    proxy.stop()


@pytest.mark.slow
def test_two_proxies_do_not_share_a_port(folder: Path, free_port: int, proxy: Proxy) -> None:
    while not proxy.has_looked():
        time.sleep(0.01)
    (other := folder / "other").mkdir()
    second = Proxy(write_configuration(parse(SETTINGS), Listening("127.0.0.1", free_port, other)))
    try:
        assert wait_for_end(second._process, 10.0) == 1  # noqa: SLF001
    finally:
        second.stop()


def test_a_silent_proxy_is_waited_for_five_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float | None]()

    class Impatient(socket.socket):
        def settimeout(self, value: float | None, /) -> None:
            waits.append(value)
            super().settimeout(0.01)

    sockets = SimpleNamespace(socket=Impatient, AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM)
    monkeypatch.setattr("armwise.agent.proxy.process.haproxy_binary", lambda: Path("true"))
    monkeypatch.setattr("armwise.agent.proxy.process.socket", sockets)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(folder / "admin.sock"))
        silent.listen()
        proxy = Proxy(folder / "haproxy.cfg")
        proxy.drain(60.0)
        proxy.stop()
    assert waits == [5.0]


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
            assert {path.stat().st_mode & 0o777 for path in folder.glob("*.lock")} == {0o600}
        assert {path.name for path in folder.glob("*.sock")} == {"ingress-0.sock"}
    (folder / "ingress-0.sock").touch()  # as a replica that was killed leaves it
    async with replica(folder, Behind()):
        assert (folder / "ingress-0.sock").is_socket()
        (folder / "ingress-0.sock").unlink()  # as where the whole folder is removed first
    assert not [*folder.glob("*.sock")]


async def test_a_replica_leaves_idle_connections_to_the_proxy_and_gives_open_requests_ten_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured, settings = uvicorn.Config, list[uvicorn.Config]()

    def keep(*args: Any, **options: Any) -> uvicorn.Config:
        settings.append(configured(*args, **options))
        return settings[-1]

    monkeypatch.setattr("uvicorn.Config", keep)
    before = signal.getsignal(signal.SIGTERM)
    async with replica(folder, Behind()):
        assert signal.getsignal(signal.SIGTERM) is before, "signals belong to Ray"
    (found,) = settings
    assert (found.timeout_keep_alive, found.timeout_graceful_shutdown) == (3600, 10)
    assert (found.lifespan, found.access_log, found.forwarded_allow_ips) == ("off", False, "*")
    assert found.log_config is None, "records belong to Ray"


async def test_a_machine_has_room_for_64_replicas(folder: Path) -> None:
    with ExitStack() as held:
        for number in range(64):
            lock = held.enter_context((folder / f"ingress-{number}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="64 replicas already listen there"):
            async with replica(folder, Behind()):
                pass


async def test_a_replica_says_nothing_of_its_server_and_opens_no_socket_of_the_web(folder: Path) -> None:
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    async with replica(folder, Behind()):
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "ingress-0.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
            for headers in ({}, upgrade):
                response = await client.get("/health", headers=headers)
                assert response.status_code == 200
                assert response.json()["path"] == "health"
                assert "server" not in response.headers


def started(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.abort()", -6), ("", 0)]
)
def test_a_process_is_waited_for_whose_poll_an_interrupt_has_ended(code: str, status: int) -> None:
    """A signal may come between the lock that `poll` takes and what gives it back."""
    process = started(code)
    process._waitpid_lock.acquire()  # type: ignore[attr-defined]  # noqa: SLF001
    assert wait_for_end(process, 60.0) == status
    assert process.returncode == status
    assert wait_for_end(process) == status


def test_a_process_that_does_not_end_is_waited_for_no_longer_than_the_limit() -> None:
    with started("import time; time.sleep(60)") as process:
        with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.1 seconds"):
            wait_for_end(process, 0.1)
        process.kill()
        assert wait_for_end(process) == -9


def test_the_exit_code_of_a_process_that_somebody_else_waited_for_is_lost() -> None:
    process = started("raise SystemExit(3)")
    assert os.waitpid(process.pid, 0)[1]
    assert wait_for_end(process) == 0
