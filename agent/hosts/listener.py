"""The HTTP server of an ingress replica behind the proxy, on a Unix socket."""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from armwise.agent.proxy import socket_path

if TYPE_CHECKING:
    from fastapi import FastAPI

SLOTS = 64
"""Most replicas of a machine."""

STOP_S = 10
"""Seconds that open requests get to finish when the replica stops."""

logger = logging.getLogger(__name__)


def listening(app: "FastAPI", folder: Path) -> "FastAPI":
    """Have an application listen on a socket in a folder while it is started."""
    inner_lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(starting: "FastAPI") -> AsyncIterator[None]:
        async with inner_lifespan(starting), _serve(starting, folder):
            yield

    app.router.lifespan_context = lifespan
    return app


@asynccontextmanager
async def _serve(app: "FastAPI", folder: Path) -> AsyncIterator[None]:
    with _slot(folder) as path, _bind(path) as listener:
        server = _Server(
            uvicorn.Config(
                app,
                http=_WithoutTrailers,
                ws="none",
                lifespan="off",  # Ray Serve starts and stops the application
                log_config=None,
                access_log=False,
                server_header=False,
                forwarded_allow_ips="*",  # only the proxy reaches the socket, and it names one client
                timeout_keep_alive=3600,  # the proxy closes connections
                timeout_graceful_shutdown=STOP_S,
            )
        )
        serving = asyncio.create_task(server.serve([listener]), name="listener")
        try:
            yield
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    """A server in the event loop of a replica; signals are left to Ray."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _WithoutTrailers(HttpToolsProtocol):
    """A connection that drops trailers: uvicorn adds them to the headers, which were checked by then."""

    _in_header = True

    @override
    def on_message_begin(self) -> None:
        self._in_header = True
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._in_header = False
        super().on_headers_complete()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header:
            super().on_header(name, value)


@contextmanager
def _slot(folder: Path) -> Iterator[Path]:
    """Hold a free slot by a lock that the kernel releases with the process; yield its socket's path."""
    for number in range(SLOTS):
        with contextlib.ExitStack() as stack:
            path = socket_path(folder, number)
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield path
            return
    raise RuntimeError(f"{folder}: {SLOTS} replicas already listen there")


@contextmanager
def _bind(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)  # of a replica that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1024)
        logger.info("listening on %s", path)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)
