"""What every request passes before its handler: the body limit, the check of its key, the replica.

Keys are read from the environment. Without keys the service is open: suitable for one machine, not for a
network.
"""

import functools
import hmac
import os
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from agent.api.errors import ERRORS, ApiError
from agent.config import Key, Scope
from agent.serving import Replica


class Access:
    """Checks the bearer token of a request.

    Args:
        keys: The keys; without any, every request passes.

    Raises:
        ValueError: The environment variable of a key is not set or empty.
    """

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = [(os.environ.get(key.env, ""), frozenset(key.scopes)) for key in keys]
        missing = [key.env for key, (secret, _) in zip(keys, self._keys, strict=True) if not secret]
        if missing:
            raise ValueError(f"no key in the environment variable {missing[0]}, which `keys` names")

    def check(self, authorization: str | None, scope: Scope) -> None:
        """Refuse a request whose `Authorization` header holds no key of this scope. Raises ApiError."""
        if not self._keys:
            return
        scheme, _, key = (authorization or "").partition(" ")
        token = key.strip().encode() if scheme.lower() == "bearer" else b""
        # every key is compared, in constant time, so that the duration reveals nothing
        held = [scopes for secret, scopes in self._keys if hmac.compare_digest(secret.encode(), token)]
        if not held:
            raise ApiError("unauthorized", "a key is needed: Authorization: Bearer <key>")
        if not any(scope in scopes for scopes in held):
            raise ApiError("forbidden", f"this key does not have the scope {scope!r}")


@functools.cache
def require(scope: Scope) -> Any:
    """Return a dependency that refuses a request without a key of this scope."""

    # a coroutine: FastAPI runs a plain function in a thread
    async def check(request: Request, authorization: Annotated[str | None, Header()] = None) -> None:
        request.app.state.access.check(authorization, scope)

    return Depends(check)


async def _replica(request: Request) -> Replica:
    replica: Replica = request.app.state.replica
    return replica


AppReplica = Annotated[Replica, Depends(_replica)]
"""The replica of the application that a request is for."""


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
            refusal = ApiError("payload_too_large", message).response(request_id)
            await refusal(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            part = await receive()
            received += len(part.get("body", b""))
            if received > self._limit:
                # FastAPI lets no other exception pass while it reads a body
                raise HTTPException(ERRORS["payload_too_large"].status, message)
            return part

        await self._app(scope, counted, send)
