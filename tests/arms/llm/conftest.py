"""Fixtures for the tests of models behind an endpoint."""

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve the application `endpoint` of a module of tests on this machine."""
    config = uvicorn.Config(
        request.module.endpoint, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
