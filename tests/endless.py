"""A server of HTTP whose bodies have no end."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from typing_extensions import override

PART = b"x" * 65_536

ENOUGH = 2_000
"""Parts after which a body ends, lest a reader without a limit takes the memory of the machine."""


class EndlessBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body for a mock transport.

    Attributes:
        parts: Parts that were read.
        closed: Whether it was closed.
    """

    def __init__(self) -> None:
        self.parts, self.closed = 0, False

    @override
    def __iter__(self) -> Iterator[bytes]:
        while self.parts < ENOUGH:
            self.parts += 1
            yield PART

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    @override
    def close(self) -> None:
        self.closed = True

    @override
    async def aclose(self) -> None:
        self.closed = True


class EndlessServer(ThreadingHTTPServer):
    """Answers every GET with a status and a body without an end.

    Attributes:
        status: The status.
        left: Set once a reader has taken the connection away.
    """

    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.left = status, threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: EndlessServer

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        with suppress(OSError):
            for _ in range(ENOUGH):
                self.wfile.write(PART)
            return
        self.server.left.set()

    @override
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def endless(status: int) -> Iterator[EndlessServer]:
    """Run a server whose bodies have no end."""
    with EndlessServer(status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
