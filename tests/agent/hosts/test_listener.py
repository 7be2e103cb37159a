"""What clients can do to the HTTP server of a process: nothing that another client notices."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from armwise.agent.config import Http
from armwise.agent.hosts import listener
from armwise.agent.hosts.listener import listening

SHORT = Http(request_s=0.2, idle_s=1.0)
"""Limits of which a test can wait for the end."""

LONG = Http(request_s=60.0, idle_s=60.0)
"""Limits of which none ends during a test."""


def small_app() -> FastAPI:
    """Return an application that answers with what it has read, or without reading."""
    app = FastAPI()

    @app.post("/")
    async def answer(request: Request) -> dict[str, object]:
        body = await request.body()
        return {"headers": request.headers.items(), "body": len(body)}

    @app.post("/refused", status_code=401)
    async def refuse() -> None: ...

    @app.get("/client")
    async def client(request: Request) -> str:
        assert request.client is not None
        return request.client.host

    @app.get("/endless")
    async def endless() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)

        return StreamingResponse(parts())

    return app


class Client:
    """A connection, by bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, sent: bytes) -> None:
        self.writer.write(sent)
        await self.writer.drain()

    async def answer(self) -> tuple[int, Any]:
        """Return status and body of an answer."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """Return what comes until the server closes the connection."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


Connect = Callable[..., Awaitable[Client]]


@asynccontextmanager
async def served(http: Http) -> AsyncIterator[Connect]:
    """Serve the application; yield what connects to it and sends some bytes."""
    bound, clients = socket.create_server(("127.0.0.1", 0)), list[Client]()

    async def connect(sent: bytes = b"") -> Client:
        clients.append(Client(*await asyncio.open_connection(*bound.getsockname())))
        await clients[-1].send(sent)
        return clients[-1]

    async with listening(small_app(), [bound], http, 1):
        try:
            yield connect
        finally:
            for client in clients:
                client.writer.transport.abort()
            await asyncio.gather(*(c.writer.wait_closed() for c in clients), return_exceptions=True)


def post(path: str = "/", length: int = 2, more: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: a\r\n%scontent-length: %d\r\n\r\n" % (path.encode(), more, length)


HALF = b"POST / HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize("trailers", [b"x-case: 1\r\n", b"authorization: Bearer a\r\n", b"a: b\r\n" * 3000])
async def test_trailers_are_not_read_as_headers(trailers: bytes) -> None:
    async with served(LONG) as connect:
        client = await connect()
        for name in (b"first", b"second"):  # on one connection
            chunks = b"x-case: %s\r\n\r\n2\r\nab\r\n0\r\n" % name
            client.writer.write(HALF + b"transfer-encoding: chunked\r\n" + chunks + trailers + b"\r\n")
            sent = [["host", "a"], ["transfer-encoding", "chunked"], ["x-case", name.decode()]]
            assert await client.answer() == (200, {"headers": sent, "body": 2})


LARGE = b"x: " + b"y" * 9000 + b"\r\n"

REFUSED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "invalid_request"),
    "a path without an end": (b"GET /" + b"a" * 20_000, 431, "header_too_large"),
    "a header without an end": (HALF + b"x: " + b"y" * 300_000, 431, "header_too_large"),
    "two large headers": (HALF + LARGE + LARGE, 431, "header_too_large"),
    "many headers": (HALF + b"a: b\r\n" * 101, 431, "header_too_large"),
    "half a header, then silence": (HALF, 408, "request_timeout"),
    "two lengths": (
        HALF + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        400,
        "invalid_request",
    ),
}


@pytest.mark.parametrize(("sent", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_what_is_no_request_is_refused_and_its_connection_closed(
    sent: bytes, status: int, code: str
) -> None:
    async with served(SHORT) as connect:
        client = await connect(sent)
        answered, body = await client.answer()
        assert (answered, body["error"]["code"]) == (status, code)
        assert await client.ended() == b""


async def test_a_header_that_comes_byte_by_byte_has_one_time_limit() -> None:
    async with served(SHORT) as connect:
        client = await connect()
        sending = asyncio.create_task(trickle(client))
        assert (await client.answer())[0] == 408
        sending.cancel()


async def trickle(client: Client) -> None:
    while True:
        client.writer.write(b"\r\n")  # empty lines before a request are no part of it
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "sent",
    [b"", post() + b"ab", post() + b"ab" + HALF],
    ids=["nothing", "one request", "half a header after a request"],
)
async def test_a_silent_connection_is_closed(sent: bytes) -> None:
    async with served(SHORT) as connect:
        client = await connect(sent)
        assert (await client.ended()).count(b"HTTP/1.1 200") == bool(sent)


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"], ids=["kept", "to be closed"])
async def test_a_refused_upload_reads_why_and_is_closed(more: bytes) -> None:
    async with served(LONG) as connect:
        client = await connect(post("/refused", 16_000_000, more) + b"x" * 90_000)
        assert await client.answer() == (401, None)
        for _ in range(20):  # what is still on its way is dropped, and does not reset the connection
            await client.send(b"x" * 100_000)
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("length", "more", "closes"),
    [(2, b"", False), (3, b"", True), (2, b"connection: close\r\n", True)],
    ids=["all was read", "a part was not read", "the client closes it"],
)
async def test_a_refusal_says_whether_its_connection_ends(length: int, more: bytes, closes: bool) -> None:
    async with served(LONG) as connect:
        client = await connect(post("/refused", length, more) + b"ab")
        head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.count(b"connection: close\r\n") == closes
        assert await client.reader.readexactly(4) == b"null"
        if closes:
            assert await client.ended() == b""
        else:
            await client.send(post() + b"ab")
            assert (await client.answer())[0] == 200


async def test_a_request_in_progress_when_the_server_ends_is_answered_and_its_connection_closed() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    async with listening(small_app(), [bound], LONG, 10):
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(post() + b"a")
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_later(0.5, writer.write, b"b")
    head, _, body = (await Client(reader, writer).ended()).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert json.loads(body)["body"] == 2
    writer.close()


async def test_a_connection_is_kept_for_the_next_request_unless_its_client_closes_it() -> None:
    async with served(LONG) as connect:
        client = await connect()
        for more in (b"", b"", b"connection: close\r\n"):
            client.writer.write(post(length=60_000, more=more) + b"a" * 60_000)
            assert (await client.answer())[1]["body"] == 60_000
        assert await client.ended() == b""


async def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "READ_S", 0.2)
    async with served(LONG) as connect:
        client = await connect(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.sleep(0.5)
        assert not (await client.ended()).endswith(b"0\r\n\r\n")


async def test_few_requests_wait_on_one_connection() -> None:
    async with served(LONG) as connect:
        client = await connect((post() + b"ab") * 5000)
        answered = (await client.ended()).count(b"HTTP/1.1 200")
        assert answered <= 1, "it is closed before the second one is answered"


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with served(LONG.model_copy(update={"connections": 8, "connections_per_address": 4})) as connect:
        idle = [await connect(HALF if n % 2 else b"") for n in range(40)]
        for _ in range(8):
            client = await connect(post() + b"ab")
            assert (await client.answer())[0] == 200
        for one in idle[:36]:
            assert await one.ended() == b""


async def test_requests_in_progress_are_not_closed_for_new_ones() -> None:
    async with served(LONG.model_copy(update={"connections_per_address": 4})) as connect:
        busy = [await connect(post() + b"a") for _ in range(4)]
        await asyncio.sleep(0.1)
        refused = await connect(post() + b"ab")
        assert await refused.ended() == b""
        for one in busy:
            one.writer.write(b"b")
            assert (await one.answer())[0] == 200


@pytest.mark.parametrize(("trusted", "seen"), [((), "127.0.0.1"), (("127.0.0.0/8",), "192.0.2.7")])
async def test_the_address_of_a_client_is_that_of_its_connection_or_of_a_trusted_proxy(
    trusted: tuple[str, ...], seen: str
) -> None:
    http = Http.model_validate({"trusted_proxies": trusted, "connections_per_address": 1})
    async with served(http) as connect:
        sent = b"GET /client HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 198.51.100.1, 192.0.2.7\r\n\r\n"
        clients = [await connect(sent) for _ in range(1 + 2 * len(trusted))]
        assert [await client.answer() for client in clients] == [(200, seen)] * len(clients)
