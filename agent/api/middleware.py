"""What every request passes before its handler: the check of its key, the limits of its body, the replica.

Keys are read from the environment. Without keys the service is open: suitable for one machine, not for a
network.
"""

import asyncio
import functools
import hmac
import os
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from agent.api.errors import ApiError
from agent.config import Key, Limits, Scope
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
        if self._keys and scope not in self.scopes_of(authorization):
            raise ApiError("forbidden", f"this key does not have the scope {scope!r}")

    def scopes_of(self, authorization: str | None) -> frozenset[Scope]:
        """Return the scopes of the key in an `Authorization` header; none where there are no keys.

        Raises:
            ApiError: There are keys, and it holds none of them.
        """
        if not self._keys:
            return frozenset()
        scheme, _, key = (authorization or "").partition(" ")
        token = key.strip().encode() if scheme.lower() == "bearer" else b""
        # every key is compared, in constant time, so that the duration reveals nothing
        held = [scopes for secret, scopes in self._keys if hmac.compare_digest(secret.encode(), token)]
        if not held:
            raise ApiError("unauthorized", "a key is needed: Authorization: Bearer <key>")
        return frozenset[Scope]().union(*held)


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


class RequestGuard:
    """Check the key of a request before its body is read, and that body; return the id of the request.

    Args:
        app: The application behind it.
        access: Knows the keys.
        limits: Bytes of a body, and seconds in which it must be there.
    """

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self._app, self._access = app, access
        self._bytes, self._seconds = limits.body_bytes, limits.body_s

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id")
        if request_id:
            send = _with_header(send, (b"x-request-id", request_id))
        try:
            if scope["path"].startswith("/v1/"):
                self._access.scopes_of(headers.get(b"authorization", b"").decode("latin-1"))
            declared = headers.get(b"content-length", b"0")
            if declared.isdigit() and int(declared) > self._bytes:
                raise self._too_large
        except ApiError as error:
            named = request_id.decode("latin-1") if request_id else None
            await error.response(named)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    @property
    def _too_large(self) -> ApiError:
        return ApiError("payload_too_large", f"the body is larger than {self._bytes} bytes")

    def _limited(self, receive: Receive) -> Receive:
        """Return a channel that refuses a body which is too large or too slow."""
        received, whole = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            nonlocal received, whole
            if whole:  # only the end of the connection can come
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    part = await receive()
            except TimeoutError:
                late = ApiError("request_timeout", f"the body was not there within {self._seconds:g} s")
                raise HTTPException(late.status) from late
            received += len(part.get("body", b""))
            whole = not part.get("more_body", False)
            if received > self._bytes:
                large = self._too_large
                raise HTTPException(large.status) from large  # FastAPI lets no other exception pass here
            return part

        return limited


def _with_header(send: Send, header: tuple[bytes, bytes]) -> Send:
    """Return a channel that adds a header to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return sending
