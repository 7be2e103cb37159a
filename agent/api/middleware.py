"""What every request passes before its handler: its host, its key, its rate, its body; the replica.

Without keys the service is open: suitable for one machine, not for a network.

A request for a page of the console may have its key in a cookie. What is refused there is passed on, without
a caller, so that the console answers with a page.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from starlette.requests import cookie_parser
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from agent.access import OPEN, Caller, Hosts, Keyring, Quota, keyring, require_scope
from agent.api import pages
from agent.api.errors import HANDLED, ApiError, translate
from agent.api.personalizer import shape
from agent.config import Limits, Scope, points
from agent.serving import Replica


@functools.cache
def require(*scopes: Scope) -> Any:
    """Return a dependency that refuses a request whose key has none of these scopes."""

    # a coroutine: FastAPI runs a plain function in a thread
    async def check(request: Request) -> None:
        require_scope(request.state.caller, scopes)

    return Depends(check)


async def _service(request: Request) -> Replica:
    replica: Replica = request.app.state.replica
    return replica


ServiceReplica = Annotated[Replica, Depends(_service)]
"""The replica of the application, which is that of the default decision point: keys, limits, metrics."""


async def _service_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ServiceCaller = Annotated[Caller, Depends(_service_caller)]
"""Who sent the request."""


async def _replica(
    request: Request,
    service: ServiceReplica,
    point: Annotated[
        str, Query(description="The decision point; an id that begins with its name says the same.")
    ] = points.DEFAULT,
) -> Replica:
    """Return the replica of the point that a decision's id names, or else the query. Raises ApiError."""
    return owner_of(at_point(service, point), request.path_params.get("decision_id", ""))


AppReplica = Annotated[Replica, Depends(_replica)]
"""The replica of the decision point that a request is for."""


async def _caller(request: Request, replica: AppReplica) -> Caller:
    return caller_at(replica, request.state.caller)


RequestCaller = Annotated[Caller, Depends(_caller)]
"""Who sent the request, at its decision point."""


def at_point(replica: Replica, point: str) -> Replica:
    """Return the replica of a decision point. Raises ApiError where there is none of the name."""
    if point not in replica.points:
        there = ", ".join(replica.points)
        message = f"there is no decision point {point[:80]!r}; there are: {there}"
        raise ApiError("point_not_found", message, "point")
    return replica.points[point]


def owner_of(replica: Replica, name: str) -> Replica:
    """Return the replica of the point that an id begins with; the given one where it begins with none."""
    head, colon, _ = name.partition(":")
    return replica.points.get(head, replica) if colon and head != points.DEFAULT else replica


def location_of(replica: Replica, path: str) -> dict[str, str]:
    """Return the header that says where something of a decision point is."""
    return {"location": path if replica.point == points.DEFAULT else f"{path}?point={replica.point}"}


def caller_at(replica: Replica, caller: Caller) -> Caller:
    """Return a caller at the point of a replica."""
    others = frozenset(replica.points) - {points.DEFAULT}
    return caller.at("" if replica.point == points.DEFAULT else replica.point, others)


METRICS = "/metrics"
"""Path that needs no key, and shows more to one that may read."""

WITHOUT_KEY = frozenset(
    ("/health", "/health/decides", "/ready", METRICS, "/openapi.json", *pages.PUBLIC),
)
"""Paths that need no key; every other one does, whether there is a route or not."""

NOT_SNIFFED = (b"x-content-type-options", b"nosniff")
"""Header with which a browser takes a response for what it is declared as."""

SUBSCRIPTION_KEY = b"ocp-apim-subscription-key"
"""Header in which clients of Personalizer send their key."""

LANGFUSE = "/api/public/"
"""Where paths of Langfuse's API begin: its clients send the key as a password."""

NOBODY = Caller(None, frozenset())

CONSOLE = "/console"
"""Path of the console, below the prefix of the service."""

KNOWN_CALLER = "x-armwise-known-caller"
"""Header of a response to a caller with a valid key, for the proxy of `armwise serve`, which removes it."""

KEY_COOKIE = "armwise_key"
"""Name of the cookie that holds the key of a browser."""


class RequestGuard:
    """Check the host, the key and the rate of a request before its body is read, and that body.

    Args:
        app: The application behind it.
        keyring: Knows the keys.
        quota: Counts their requests.
        hosts: Knows the names of the service.
        limits: Bytes of a body, and seconds in which it must be there.
        refused: Called with the code of each refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        quota: Quota,
        hosts: Hosts,
        limits: Limits,
        refused: Callable[[str], object],
    ) -> None:
        self._app, self._keyring, self._quota, self._hosts = app, keyring, quota, hosts
        self._refused = refused
        self._bytes, self._seconds = limits.body_bytes, limits.body_s

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request; return its id with the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not (request_id := headers.get(b"x-request-id")):
            request_id = uuid4().hex.encode()
            scope["headers"] = [*scope["headers"], (b"x-request-id", request_id)]
        added = [(b"x-request-id", request_id), NOT_SNIFFED]
        send = _with_headers(send, lambda: added)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        state = scope.setdefault("state", {})
        try:
            self._refuse_other_sites(scope["method"], headers)
            caller = self._caller(path, headers)
            if caller is not NOBODY:
                added.append((KNOWN_CALLER.encode(), b"1"))
            if caller.limits:
                send = _with_headers(send, lambda: self._quota.headers(caller))
            await self._quota.admit(caller)
            self._check_length(headers)
        except Exception as error:
            failure = translate(error)
            if failure.code == "internal_error":
                raise
            self._refused(failure.code)
            if failure.code == "forbidden" or not _of_console(path):  # another site gets no page
                await failure.response(request_id.decode("latin-1"), path)(scope, receive, send)
                return
            state["refusal"], caller = failure, NOBODY
        state["caller"] = caller
        await self._app(scope, self._limited(receive), send)

    def _refuse_other_sites(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a page of another site has a browser send, which may need no key.

        Pages cannot set these headers. Following a link is the one thing that another site may cause;
        programs send neither header.

        Raises:
            ApiError: The site is none of the service.
        """
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site == b"same-origin":
            return
        if origin is not None:
            page, host = origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
            if not self._hosts.has_page(page, host):
                message = f"a page of {page[:200]!r} sent the request; `hosts` names no such site"
                raise ApiError("forbidden", message)
        elif site in (b"cross-site", b"same-site") and not (
            method in ("GET", "HEAD") and headers.get(b"sec-fetch-mode") == b"navigate"
        ):
            raise ApiError("forbidden", "the page of another site had the browser send this request")

    def _caller(self, path: str, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of a request. Raises UnknownHostError, UnauthorizedError."""
        if host := headers.get(b"host"):
            self._hosts.check(host.decode("latin-1"))
        given = headers.get(b"authorization", b"").decode("latin-1")
        if path in WITHOUT_KEY and not (path == METRICS and given):
            return NOBODY
        if path.startswith(LANGFUSE):
            given = keyring.bearer(given)
        if path.startswith(shape.BASE) and SUBSCRIPTION_KEY in headers:
            given = "Bearer " + headers[SUBSCRIPTION_KEY].decode("latin-1")
        if not given and _of_console(path):
            cookies = cookie_parser(headers.get(b"cookie", b"").decode("latin-1"))
            given = f"Bearer {cookies.get(KEY_COOKIE, '')}"
        return self._keyring.caller(given)

    def _check_length(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a body that is declared too large. Raises ApiError."""
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._bytes:
            raise self._too_large

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


def _of_console(path: str) -> bool:
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def _with_headers(send: Send, headers: Callable[[], Iterable[tuple[bytes, bytes]]]) -> Send:
    """Return a channel that adds to the response the headers that it lacks, as they are when it begins."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [*message.get("headers", ())]
            names = {name.lower() for name, _ in own}
            message["headers"] = [*own, *(header for header in headers() if header[0] not in names)]
        await send(message)

    return sending


def answer_errors(app: FastAPI) -> None:
    """Answer every exception of an application with the envelope."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        failure = translate(error).shown_to(getattr(request.state, "caller", OPEN))
        response = failure.response(request.headers.get("x-request-id"), request.url.path)
        if failure.code == "method_not_allowed":
            response.headers["allow"] = _allowed(request)
        return response

    for kind in (ApiError, *HANDLED):
        app.add_exception_handler(kind, answer)


def _allowed(request: Request) -> str:
    """Return the methods of every route of a path: the framework names those of the first alone."""
    routes = (one for one in request.app.routes if one.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for one in routes for method in getattr(one, "methods", None) or ()}))
