"""Requests that ask for another protocol on the connection: agents offer WebSockets first."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.config import Http
from armwise.agent.hosts.listener import listening
from armwise.agent.hosts.port import open_socket
from tests.agent.asking import CHAT
from tests.agent.fakes import Service

WEBSOCKET = (
    b"Connection: %s\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://evil.test\r\n"
)


@asynccontextmanager
async def connected(service: Service, folder: Path, *, has_port: bool) -> AsyncIterator["Connection"]:
    """Yield a connection to a service, on a port as in one process or on a socket as behind HAProxy."""
    opened = socket.create_server(("127.0.0.1", 0)) if has_port else open_socket(folder)
    with opened as bound:
        async with listening(service.app, [bound], Http(), 1):
            place = bound.getsockname()
            if has_port:
                reader, writer = await asyncio.open_connection(*place)
            else:
                reader, writer = await asyncio.open_unix_connection(place)
            try:
                yield Connection(reader, writer)
            finally:
                writer.transport.abort()


class Connection:
    """A connection, by bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, sent: bytes, size: int = 1 << 20) -> tuple[int, dict[str, str], Any]:
        """Send a request in parts of a size; return status, headers and body of its answer."""
        for start in range(0, len(sent), size):
            self._writer.write(sent[start : start + size])
            await asyncio.sleep(0)  # so that the service reads each by itself
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, json.loads(body)


def chat(headers: bytes = b"") -> bytes:
    body = json.dumps(CHAT).encode()
    start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return start + headers + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("has_port", [True, False], ids=["one process", "behind HAProxy"])
async def test_a_websocket_is_refused_at_once_on_every_path_and_the_connection_goes_on(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_port: bool
) -> None:
    caplog.set_level(logging.DEBUG, "uvicorn")
    caplog.set_level(logging.INFO)
    async with connected(service, tmp_path, has_port=has_port) as connection:
        for path in (b"/v1/responses", b"/v1/chat/completions", b"/mcp", b"/", b"/nothing"):
            for said in ((b"Upgrade", b"websocket"), (b"keep-alive, upgrade", b"WebSocket")):
                head = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path, WEBSOCKET % said)
                status, headers, body = await connection.ask(head)
                assert (status, body["error"]["code"]) == (426, "upgrade_required"), path
                assert (headers["upgrade"], headers["connection"]) == ("HTTP/1.1", "upgrade")
        assert (await connection.ask(chat()))[0] == 200
    assert [record.getMessage() for record in caplog.records if "HTTP Request" not in record.message] == []


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"


@pytest.mark.parametrize("size", [10_000, 150, 1])
async def test_a_request_that_offers_another_protocol_is_answered_with_its_body(
    service: Service, tmp_path: Path, size: int
) -> None:
    """Java's client offers HTTP/2 with each request."""
    async with connected(service, tmp_path, has_port=True) as connection:
        for sent in (
            chat(H2C),
            chat(),
            b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + H2C + b"\r\n",
            chat(H2C),
        ):
            assert (await connection.ask(sent, size))[0] == 200


async def test_a_body_after_such_an_offer_is_never_read_as_a_request(
    service: Service, tmp_path: Path
) -> None:
    hidden = b"DELETE /v1/decisions/d HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lines = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(hidden)
    async with connected(service, tmp_path, has_port=True) as connection:
        for size in (10_000, 1):
            head = b"POST /v1/retrieve HTTP/1.1\r\n" + lines + H2C + b"\r\n"
            status, _, body = await connection.ask(head + hidden, size)
            assert (status, "JSON" in body["error"]["message"]) == (400, True)
        status, _, body = await connection.ask(chat(H2C) + chat())
        assert (status, body["object"]) == (200, "chat.completion")
        assert (await connection.ask(b""))[0] == 200, "the second one of both"


async def test_a_plain_get_of_a_route_without_one_is_no_upgrade(service: Service) -> None:
    for headers in ({}, {"upgrade": "websocket"}, {"connection": "upgrade", "upgrade": "h2c"}):
        assert (await service.client.get("/v1/responses", headers=headers)).status_code == 405
