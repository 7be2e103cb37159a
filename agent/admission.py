"""What is refused before it is read: bodies over the limit, however they are sent."""

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.errors import ApiError


class BodyLimit:
    """Answer 413 to a body over the limit, declared or streamed, without keeping it.

    Args:
        app: The application behind it.
        limit: Most bytes of a body.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        message = f"the body is larger than {self._limit} bytes"
        if declared.isdigit() and int(declared) > self._limit:
            request_id = headers.get(b"x-request-id", b"").decode("latin-1") or None
            refusal = ApiError(413, "payload_too_large", message).response(request_id)
            await refusal(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            part = await receive()
            seen += len(part.get("body", b""))
            if seen > self._limit:
                raise HTTPException(
                    413, message
                )  # the only kind that FastAPI lets pass where it reads a body
            return part

        await self._app(scope, counted, send)
