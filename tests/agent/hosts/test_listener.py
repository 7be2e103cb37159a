"""What a replica reads of a connection to its socket."""

import asyncio
import json
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from fastapi import FastAPI, Request

from armwise.agent.hosts.listener import listening

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"


def app_with_headers() -> FastAPI:
    """Return an application that answers with the headers of a request, read after its body."""
    app = FastAPI()

    @app.post("/")
    async def answer(request: Request) -> dict[str, object]:
        body = await request.body()
        return {"headers": request.headers.items(), "body": body.decode()}

    return app


@pytest.mark.parametrize("trailers", [b"x-case: 1\r\n", b"authorization: Bearer a\r\n", b"a: b\r\n" * 3000])
async def test_trailers_are_not_read_as_headers(trailers: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="armwise-") as folder:
        app = listening(app_with_headers(), Path(folder))
        async with app.router.lifespan_context(app):
            reader, writer = await asyncio.open_unix_connection(Path(folder) / "ingress-0.sock")
            with closing(writer):
                for name in (b"first", b"second"):  # on one connection
                    chunks = b"x-case: %s\r\n\r\n2\r\nab\r\n0\r\n" % name
                    writer.write(HEAD + chunks + trailers + b"\r\n")
                    async with asyncio.timeout(5):
                        head = await reader.readuntil(b"\r\n\r\n")
                        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                        answer = json.loads(await reader.readexactly(length))
                    sent = [["host", "a"], ["transfer-encoding", "chunked"], ["x-case", name.decode()]]
                    assert answer == {"headers": sent, "body": "ab"}
