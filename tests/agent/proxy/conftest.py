"""A real HAProxy with our configuration, and an application on a socket behind it."""

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from armwise.agent.api import KNOWN_CALLER
from armwise.agent.config import parse
from armwise.agent.hosts.listener import listening
from armwise.agent.proxy import Listening, Proxy, write_configuration

HTTP = {"request_s": 0.4, "connections_per_address": 12}
SETTINGS = {
    "arms": {"none": {"kind": "none"}},
    "llm": {"engine": "scripted", "default": ""},
    "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    "http": HTTP,
    "limits": {"in_flight": 2},
}


KEY = {"authorization": "Bearer good"}
"""A key that the application behind the proxy accepts."""


class Behind:
    """An application that answers when its gate opens, and has a key.

    Attributes:
        seen: Paths of the requests that reached it.
        decides: Whether it says that it chooses arms.
        gate: Set while it answers.
        well: Set while it answers health checks.
    """

    def __init__(self, decides: bool = True) -> None:
        self.seen: list[str] = []
        self.decides = decides
        self.gate = asyncio.Event()
        self.gate.set()
        self.well = asyncio.Event()
        self.well.set()
        self.app = FastAPI()
        self.app.add_api_route("/{path:path}", self.answer, methods=["GET", "POST"])

    async def answer(self, request: Request, path: str) -> JSONResponse:
        self.seen.append(path)
        if path.startswith("v1"):
            await self.gate.wait()
        if path.startswith("health"):
            await self.well.wait()
        status = 503 if path == "health/decides" and not self.decides else 200
        known = path.startswith("v1") and request.headers.get("authorization") == KEY["authorization"]
        if path.startswith("v1") and "authorization" in request.headers and not known:
            status = 401
        document = {
            "path": path,
            "bytes": len(await request.body()),
            "forwarded": {name: value for name, value in request.headers.items() if "forwarded" in name},
            "from": f"{request.url.scheme}://{request.client.host if request.client else ''}",
        }
        return JSONResponse(document, status, {KNOWN_CALLER: "1"} if known else {})


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


async def command(folder: Path, line: str) -> str:
    """Return what HAProxy answers to a command, as soon as it runs."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(folder / "admin.sock")
        except OSError:
            await asyncio.sleep(0.01)
            continue
        writer.write(f"{line}\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()


async def statistics(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each frontend, backend and server."""
    rows = json.loads(await command(folder, "show stat json"))
    return [{field["field"]["name"]: field["value"]["value"] for field in row} for row in rows]


async def decides(folder: Path, replicas: int = 1) -> None:
    """Wait, for ten seconds, until HAProxy sends questions and feedback to that many replicas."""
    async with asyncio.timeout(10):
        up = -1
        while up != replicas:
            rows = await statistics(folder)
            servers = [row for row in rows if row["svname"].startswith("replica") and row["status"] == "UP"]
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
