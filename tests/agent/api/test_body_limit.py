"""The limit of a body, against the smallest application behind it."""

from typing import Any

import pytest
from fastapi import HTTPException
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from agent.api.middleware import BodyLimit

LIMIT = 10


class Behind:
    """An application that reads its body whole.

    Attributes:
        calls: Number of connections that reached it.
        read: Bytes of the body.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.read = b""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        del scope, send
        self.calls += 1
        while True:
            part = await receive()
            self.read += part.get("body", b"")
            if not part.get("more_body"):
                return


async def serve(
    app: Behind, parts: list[bytes], headers: dict[str, str] | None = None, kind: str = "http"
) -> list[Message]:
    """Serve one request whose body comes in parts; return what was sent."""
    sent: list[Message] = []
    left = list(parts)

    async def receive() -> Message:
        part = left.pop(0) if left else b""
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope: dict[str, Any] = {"type": kind, "method": "POST", "path": "/", "headers": raw}
    await BodyLimit(app, LIMIT)(scope, receive, send)
    return sent


@pytest.mark.parametrize("parts", [[b"x" * LIMIT], [b"x" * 4, b"x" * 6], [b""], [b"x" * 9, b"", b"x"]])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_up_to_the_limit_is_read_whole(parts: list[bytes], declared: bool) -> None:
    app, whole = Behind(), b"".join(parts)
    assert await serve(app, parts, {"content-length": str(len(whole))} if declared else {}) == []
    assert app.read == whole


async def test_a_body_declared_above_the_limit_is_refused_before_anything_reads_it() -> None:
    app = Behind()
    start, body = await serve(app, [], {"content-length": str(LIMIT + 1), "x-request-id": "r-1"})
    assert (app.calls, start["status"]) == (0, 413)
    assert b"r-1" in body["body"], "the id of the request"
    assert b"the body is larger than 10 bytes" in body["body"]


@pytest.mark.parametrize("declared", [None, "3", "many", "-1"])
async def test_a_body_that_grows_above_the_limit_is_refused_where_it_does(declared: str | None) -> None:
    app = Behind()
    headers = {} if declared is None else {"content-length": declared}
    with pytest.raises(HTTPException) as error:
        await serve(app, [b"x" * 4, b"x" * 6, b"x", b"y" * 100], headers)
    assert (error.value.status_code, error.value.detail) == (413, "the body is larger than 10 bytes")
    assert app.read == b"x" * LIMIT, "no part after the limit is kept"


async def test_what_is_no_request_has_no_limit() -> None:
    app = Behind()
    await serve(app, [b"x" * 100], {"content-length": "100"}, kind="websocket")
    assert app.read == b"x" * 100
