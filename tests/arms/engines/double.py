"""A server on this machine that a test puts in the place of an engine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import orjson

D = TypeVar("D", bound="Double")

BODIES = ("application/json", "application/x-ndjson")
"""What engines read."""


class RefusedError(Exception):
    """A request that the engine refuses, with its status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: "Double"
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, method: str) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        status = 200
        try:
            with self.server.lock:
                self.server.check(self.headers.get("Authorization"))
                assert not content or self.headers.get("Content-Type") in BODIES
                reply = self.server.reply(method, url.path.removeprefix("/"), parse_qs(url.query), content)
        except RefusedError as error:
            reply, status = {"error": str(error)}, error.status
        sent = orjson.dumps(reply)
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


class Double(ThreadingHTTPServer):
    """A double of an engine.

    Args:
        key: The header that it wants; None for an open one.
    """

    daemon_threads = True

    def __init__(self, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = key
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def check(self, key: str | None) -> None:
        if self.key is not None and key != self.key:
            raise RefusedError(401, "missing authentication credentials")

    def reply(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Any:
        """Return the body of the reply. Raises RefusedError."""
        raise NotImplementedError


@contextmanager
def running(double: D) -> Iterator[D]:
    """Serve a double."""
    thread = threading.Thread(target=double.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield double
    finally:
        double.shutdown()
        thread.join()
        double.server_close()
