"""Nobody stops others: what a caller with a decide-only key, or without any, does, delays no other caller.

Each attack is a function that yields while it goes on. Add yours to `ATTACKS`.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.live.conftest import Live, single, started, until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

ATTACKER, OTHER = "attacker-" + "a" * 32, "other-" + "b" * 32

SETTINGS: dict[str, Any] = {
    "arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}},
    "router": None,
    "llm": {"engine": "scripted", "default": "Yes."},
    "http": {},
    "keys": [
        {"env": "ATTACKER_KEY", "scopes": ["decide"]},
        {"env": "OTHER_KEY", "scopes": ["decide", "read"]},
    ],
}

CROWD = 64
"""Connections of most attacks."""

MOST_TIMES, NOISE_S = 2.0, 0.02
"""How often its usual time a request of another caller may take, and what a busy machine adds."""


@pytest.fixture(scope="module", params=["one process", "Ray Serve"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service with a key of the attacker and one of another caller."""
    folder = tmp_path_factory.mktemp("attacked")
    keys = {"ATTACKER_KEY": ATTACKER, "OTHER_KEY": OTHER}
    with pytest.MonkeyPatch.context() as patch:
        for name, key in keys.items():
            patch.setenv(name, key)
        one = request.param == "one process"
        with single(folder, **SETTINGS) if one else started(folder, keys, **SETTINGS) as live:
            yield live


# -- attacks ----------------------------------------------------------------------------------------


@dataclass
class Attacker:
    """Opens connections to a service, which are closed at the end.

    Attributes:
        host: Of the service.
        port: Of the service.
        writers: Its connections.
    """

    host: str
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def send(self, *parts: bytes) -> None:
        """Send some bytes on a new connection, and leave it open."""
        _, writer = await asyncio.open_connection(self.host, self.port)
        self.writers.append(writer)
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


def head(length: int, key: str | None, path: str = "/v1/chat/completions") -> bytes:
    """Return the header of a request."""
    authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{authorization}"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def opened(count: int, *parts: bytes) -> Callable[[Attacker], AbstractAsyncContextManager[None]]:
    """Return an attack that sends the same bytes on many connections, and then nothing."""

    @asynccontextmanager
    async def attack(attacker: Attacker) -> AsyncIterator[None]:
        await asyncio.gather(*(attacker.send(*parts) for _ in range(count)))
        yield

    return attack


def trickling(
    count: int, begin: bytes, piece: bytes
) -> Callable[[Attacker], AbstractAsyncContextManager[None]]:
    """Return an attack that sends the same bytes on many connections, and then a piece again and again."""

    @asynccontextmanager
    async def attack(attacker: Attacker) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                await asyncio.sleep(0.5)
                for writer in attacker.writers:
                    writer.write(piece)

        async with opened(count, begin)(attacker):
            going = asyncio.create_task(go_on())
            try:
                yield
            finally:
                going.cancel()

    return attack


def whole(path: str, text: str) -> tuple[bytes, bytes]:
    """Return a whole request of the attacker."""
    return head(len(text), ATTACKER, path), text.encode()


INTEGERS = ",".join(["9" * 4290] * 3_700)
"""Almost as many digits as a body may have, in numbers that Python takes long to read and to write."""

SAID = '"messages": [{"role": "user", "content": "%s"}]'

ATTACKS = {
    "long integers in a chat": opened(
        4, *whole("/v1/chat/completions", f'{{{SAID % "Why?"}, "x": [{INTEGERS}]}}')
    ),
    "long integers to count": opened(
        4, *whole("/v1/messages/count_tokens", f'{{{SAID % "Why?"}, "x": [{INTEGERS}]}}')
    ),
    "long integers in responses": opened(
        4, *whole("/v1/responses", f'{{"input": "Why?", "x": [{INTEGERS}]}}')
    ),
    "tags in a question": opened(4, *whole("/v1/chat/completions", f"{{{SAID % ('<task ' * 2_600_000)}}}")),
    "silent uploads without a key": opened(CROWD, head(16_000_000, None), b" " * 90_000),
    "silent uploads with a key": opened(CROWD, head(16_000_000, ATTACKER), b" " * 90_000),
    "silent small bodies with a key": opened(CROWD, head(40_000, ATTACKER), b" " * 30_000),
    "slow headers": trickling(CROWD, b"POST / HTTP/1.1\r\n", b"x: y\r\n"),
    "slow bodies with a key": trickling(CROWD, head(16_000_000, ATTACKER) + b" " * 70_000, b" " * 1000),
    "idle connections": opened(1000),
    "half requests": opened(1000, b"POST /v1/retrieve HTTP/1.1\r\n"),
    "a header without an end": opened(CROWD, b"GET / HTTP/1.1\r\nx: ", b"y" * 1_000_000),
    "many requests on one connection": opened(CROWD, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20),
}


# -- another caller ---------------------------------------------------------------------------------


def chat(size: int) -> dict[str, Any]:
    question = "Which bridge stands beside the mountain?"
    told = [{"role": "system", "content": "x" * size}] if size else []
    return {"json": {"model": "auto", "messages": [*told, {"role": "user", "content": question}]}}


ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "health": ("GET", "/health", {}),
    "chat": ("POST", "/v1/chat/completions", chat(0)),
    "chat of 42 kB": ("POST", "/v1/chat/completions", chat(42_000)),
    "chat of 100 kB": ("POST", "/v1/chat/completions", chat(100_000)),
}


async def times(url: str, rounds: int = 15) -> dict[str, float]:
    """Ask everything some times; return the median of each in seconds."""
    taken: dict[str, list[float]] = {name: [] for name in ASKED}
    headers = {"authorization": f"Bearer {OTHER}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        for _ in range(rounds):
            for name, (method, path, options) in ASKED.items():
                began = time.perf_counter()
                reply = await client.request(method, path, **options)
                taken[name].append(time.perf_counter() - began)
                assert reply.status_code == 200, (name, reply.text)
    return {name: statistics.median(each) for name, each in taken.items()}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_other_callers_wait_no_longer_than_twice_as_long(
    attacked: Live, attack: Callable[[Attacker], AbstractAsyncContextManager[None]]
) -> None:
    await asyncio.to_thread(until, attacked.answers)
    usual = await times(attacked.url)
    url = httpx.URL(attacked.url)
    attacker = Attacker(url.host, url.port or 80)
    async with AsyncExitStack() as stack:
        stack.callback(attacker.close)
        await stack.enter_async_context(attack(attacker))
        delayed = await times(attacked.url)
    late = {
        name: f"{1000 * delayed[name]:.1f} ms, usually {1000 * usual[name]:.1f} ms"
        for name in ASKED
        if delayed[name] > MOST_TIMES * usual[name] + NOISE_S
    }
    assert late == {}
