"""What is refused before it is read: bodies over the limit, however they are sent."""

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

        async def refuse() -> None:
            error = ApiError(413, "payload_too_large", f"the body is larger than {self._limit} bytes")
            response = error.response(headers.get(b"x-request-id", b"").decode("latin-1") or None)
            await response(scope, receive, send)

        if declared.isdigit() and int(declared) > self._limit:
            await refuse()
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:  # the rest is not read: the application sees a body that ends here
                return {"type": "http.request", "body": b"", "more_body": False}
            return message

        async def corrected(message: Message) -> None:
            if seen <= self._limit:
                await send(message)
            elif message["type"] == "http.response.start":  # whatever it made of the cut body
                await refuse()

        await self._app(scope, counted, corrected)
