"""A service without Ray that listens on a port, for clients that bring their own connections."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.agent.fakes import Service
from tests.arms.llm.conftest import url

__all__ = ["url"]

START_S = 60.0


@dataclass(frozen=True)
class Listening:
    """A service that listens.

    Attributes:
        url: Where.
        service: The service, which runs in the event loop of another thread.
    """

    url: str
    service: Service


@contextmanager
def listening(folder: Path, **changes: Any) -> Iterator[Listening]:
    """Serve on a free port of this machine, in a thread."""
    ready = Future[Listening]()
    stop = threading.Event()

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as place:
            async with Service(folder, **changes).running() as service:
                config = uvicorn.Config(service.app, log_level="critical", lifespan="off")
                server = uvicorn.Server(config)
                serving = asyncio.create_task(server.serve(sockets=[place]))
                ready.set_result(Listening(f"http://127.0.0.1:{place.getsockname()[1]}", service))
                await asyncio.to_thread(stop.wait)
                server.should_exit = True
                await serving

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # of the thread: the test shows it
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ready.result(START_S)
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A service with three arms and a scripted model."""
    with listening(tmp_path_factory.mktemp("service")) as found:
        yield found
