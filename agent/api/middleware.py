"""Who may do what: keys with scopes, read from the environment, never from a file.

Without keys the service is open, as it should be on a laptop and must not be
on a network.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header, HTTPException
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from agent.api.errors import ApiError
from agent.config import Key, Scope


class Access:
    """Checks the bearer token of a request.

    Args:
        keys: The keys; none leaves everything open.

    Raises:
        ValueError: A variable that should hold a key is empty.
    """

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = [(os.environ.get(key.env, ""), frozenset(key.scopes)) for key in keys]
        missing = [key.env for key, (secret, _) in zip(keys, self._keys, strict=True) if not secret]
        if missing:
            raise ValueError(f"no key in the environment variable {missing[0]}, which `keys` names")

    def require(self, scope: Scope) -> Callable[..., Awaitable[None]]:
        """Return a dependency that lets a request pass only with a key of this scope."""

        # a coroutine, as FastAPI would take a function to a thread
        async def check(authorization: Annotated[str | None, Header()] = None) -> None:
            if not self._keys:
                return
            scheme, _, key = (authorization or "").partition(" ")
            token = key.strip().encode() if scheme.lower() == "bearer" else b""
            # every key is compared, in constant time, so that the time taken tells nothing
            held = [scopes for secret, scopes in self._keys if hmac.compare_digest(secret.encode(), token)]
            if not held:
                raise ApiError(401, "unauthorized", "a key is needed: Authorization: Bearer <key>")
            if not any(scope in scopes for scopes in held):
                raise ApiError(403, "forbidden", f"this key does not have the scope {scope!r}")

        return check


class BodyLimit:
    """Answer 413 to a body over the limit, declared or streamed, without keeping it.

    Args:
        app: The application behind it.
        limit: Most bytes of a body.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
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
