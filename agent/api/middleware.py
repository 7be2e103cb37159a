"""The checks of every request before its handler: host, key, rate and body.

Without keys the service is open, which suits a single machine but not a network. An `ApiDialect` describes
how the clients of another API send their key.
"""

import difflib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as FrameworkError
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from armwise.agent.access import OPEN, Caller, Hosts, Keyring, Quota, count_as, require_scope
from armwise.agent.api import encodings, pages
from armwise.agent.api.bodies import SMALL_BODY, BodyReader, Uploads
from armwise.agent.api.errors import HANDLED, ApiError, translate
from armwise.agent.config import Limits, Scope
from armwise.agent.serving import Replica

logger = logging.getLogger(__name__)

LONGEST_PATH = 100
"""Most characters of a path that has no route, in the message about it."""


@functools.cache
def require(*scopes: Scope) -> Any:
    """Return a dependency that checks that the key of a request has one of these scopes."""

    # a coroutine: FastAPI runs a plain function in a thread
    async def check(request: Request) -> None:
        require_scope(request.state.caller, scopes)

    return Depends(check)


async def _replica(request: Request) -> Replica:
    replica: Replica = request.app.state.replica
    return replica


AppReplica = Annotated[Replica, Depends(_replica)]
"""The replica that answers."""


def identify_caller(request: Request) -> Caller:
    """Return the caller of a request, with its address if it has no key."""
    caller: Caller = request.state.caller
    return caller if caller.key is not None else replace(caller, address=read_address(request))


async def _caller(request: Request) -> Caller:
    return identify_caller(request)


RequestCaller = Annotated[Caller, Depends(_caller)]
"""Who sent the request."""


def read_address(request: Request) -> str | None:
    """Return the address that a request came from, if known.

    HAProxy sends it to replicas that listen on a socket, and removes what clients have sent.
    """
    if request.client is not None and request.client.host:
        return request.client.host
    return request.headers.get("x-forwarded-for")


METRICS = "/metrics"
"""Path that needs no key, and shows more with the scope `read`."""

WITHOUT_KEY = frozenset(
    ("/health", "/health/decides", "/ready", METRICS, "/openapi.json", *pages.PUBLIC),
)
"""Paths that need no key; all others do, with or without a route."""

NOT_SNIFFED = (b"x-content-type-options", b"nosniff")
"""Header by which a browser trusts the declared type of a response."""

FOR_ANY_SITE = (
    (b"access-control-allow-origin", b"*"),
    (b"cross-origin-resource-policy", b"cross-origin"),
)
"""Headers with which pages of any site may read a response, including refusals."""

ADDED_TO: Mapping[str, Iterable[tuple[bytes, bytes]]] = {
    "upgrade_required": ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")),  # what RFC 9110 asks for
}
"""Headers of some refusals, by their codes."""

NOBODY = Caller(None, frozenset())

PUBLIC_KEY = frozenset[Scope](("chat",))
"""Scopes of a key that everybody can read: its callers are known by their addresses alone."""


def _authorization(headers: Mapping[bytes, bytes]) -> str:
    return headers.get(b"authorization", b"").decode("latin-1")


@dataclass(frozen=True)
class ApiDialect:
    """How the clients of another API differ from OpenAI's.

    Attributes:
        path: Prefix of the paths of the API.
        authorization: Returns the equivalent of the header `Authorization`, from the headers of a request.
        respond: Returns the response of an error, from the error and the id of its request.
        answers_refusals: Whether its routes answer refused requests, except from pages of other sites: the
            refusal is passed on in the state of the request, without a caller.
    """

    path: str
    authorization: Callable[[Mapping[bytes, bytes]], str] = _authorization
    respond: Callable[[ApiError, str | None], JSONResponse] = ApiError.response
    answers_refusals: bool = False

    def speaks(self, path: str) -> bool:
        """Return whether a path belongs to the API."""
        return path == self.path or path.startswith(f"{self.path}/")


OURS = ApiDialect("")
"""The dialect of all other paths: the key is in the header `Authorization`."""


def _find_dialect(path: str, dialects: Sequence[ApiDialect]) -> ApiDialect:
    return next((dialect for dialect in dialects if dialect.speaks(path)), OURS)


OF_PACKED = frozenset((b"content-encoding", b"content-length"))
"""Headers that describe a body as it was sent, and not as it is read."""


class RequestGuard:
    """Checks the host, the key and the rate of a request before its body is read, and then the body.

    Args:
        app: The application behind it.
        keyring: The keys.
        quota: Counts requests of keys.
        hosts: The host names of the service.
        limits: Most bytes of a body.
        refused: Called with the code of each refusal.
        dialects: Dialects of other APIs.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        quota: Quota,
        hosts: Hosts,
        limits: Limits,
        refused: Callable[[str], object],
        dialects: Sequence[ApiDialect] = (),
    ) -> None:
        self._app, self._keyring, self._quota, self._hosts = app, keyring, quota, hosts
        self._refused, self._dialects = refused, dialects
        self._bytes, self._uploads = limits.body_bytes, Uploads()

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
        any_site = path in pages.ANY_SITE
        if any_site:
            added += FOR_ANY_SITE
        dialect = _find_dialect(path, self._dialects)
        state = scope.setdefault("state", {})
        state["dialect"] = dialect
        caller, coding = NOBODY, ""
        try:
            _refuse_websocket(headers)
            if not any_site:
                self._refuse_other_sites(scope["method"], headers)
            caller = self._caller(path, headers, dialect)
            if caller.limits:
                send = _with_headers(send, lambda: self._quota.headers(caller))
            await self._quota.admit(caller)
            self._check_length(headers, self._most_bytes(caller))
            coding = _take_coding(scope, _list_readable(caller))
        except Exception as error:
            failure = translate(error)
            if failure.code == "internal_error":
                raise
            self._refused(failure.code)
            added += ADDED_TO.get(failure.code, ())
            if failure.code == "unsupported_encoding":
                added.append(encodings.list_accepted(_list_readable(caller)))
            if failure.code in ("forbidden", "upgrade_required") or not dialect.answers_refusals:
                await dialect.respond(failure, request_id.decode("latin-1"))(scope, receive, send)
                return
            state["refusal"], caller = failure, NOBODY
        state["caller"] = caller
        hold = partial(self._uploads.hold, _find_sender(caller, scope))
        async with BodyReader(receive, self._most_bytes(caller), hold, coding) as body:
            await self._app(scope, body.receive, send)

    def _refuse_other_sites(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse requests that a page of another site makes a browser send, other than following a link.

        Pages cannot set the headers that are checked, and programs send neither of them.

        Raises:
            ApiError: The request comes from a page of another site.
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
            raise ApiError("forbidden", "a page of another site sent this request")

    def _caller(self, path: str, headers: Mapping[bytes, bytes], dialect: ApiDialect) -> Caller:
        """Return the caller of a request. Raises UnknownHostError, UnauthorizedError."""
        if host := headers.get(b"host"):
            self._hosts.check(host.decode("latin-1"))
        if path in WITHOUT_KEY and not (path == METRICS and headers.get(b"authorization")):
            return NOBODY
        return self._keyring.caller(dialect.authorization(headers))

    def _most_bytes(self, caller: Caller) -> int:
        """Return the size of the largest body of a caller; one without a key holds no place for an upload."""
        return min(self._bytes, SMALL_BODY) if caller is NOBODY else self._bytes

    def _check_length(self, headers: Mapping[bytes, bytes], most: int) -> None:
        """Check the declared length of a body. Raises ApiError."""
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            raise encodings.too_large(most)


def _refuse_websocket(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a request that begins a WebSocket: agents then send it over HTTP at once. Raises ApiError."""
    upgrades = b"upgrade" in headers.get(b"connection", b"").lower()
    if upgrades and headers.get(b"upgrade", b"").strip().lower() == b"websocket":
        message = "there are no WebSockets here: send the request with POST, and `stream` for events"
        raise ApiError("upgrade_required", message)


def _list_readable(caller: Caller) -> Sequence[str]:
    """Return the codings that bodies of a caller may have: none on paths that need no key."""
    return () if caller is NOBODY else encodings.READABLE


def _take_coding(scope: AsgiScope, readable: Sequence[str]) -> str:
    """Return the coding of a body, and remove the headers that describe it packed. Raises ApiError."""
    if coding := encodings.read_encoding(scope["headers"], readable):
        scope["headers"] = [header for header in scope["headers"] if header[0] not in OF_PACKED]
    return coding


def _find_sender(caller: Caller, scope: AsgiScope) -> str | None:
    """Return the key that sends a request, or its address where anybody may use the key."""
    if caller.key is not None and caller.scopes != PUBLIC_KEY:
        return f"key {caller.key}"
    client = scope.get("client")
    return count_as(client[0]) if client else None


def _with_headers(send: Send, headers: Callable[[], Iterable[tuple[bytes, bytes]]]) -> Send:
    """Return a channel that adds missing headers to a response, evaluated when it begins."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            response_headers = [*message.get("headers", ())]
            names = {name.lower() for name, _ in response_headers}
            message["headers"] = [
                *response_headers,
                *(header for header in headers() if header[0] not in names),
            ]
        await send(message)

    return sending


class ErrorBoundary:
    """Answers unexpected exceptions with 500, so that they never leave the application.

    If they did, the server would close the connection even after an answer, and the proxy may have sent the
    next request, of any client, on it. After a response has begun, the server closes the connection, so that
    the response does not appear complete.

    Args:
        app: The application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:  # nobody is there
            pass
        except Exception as error:
            logger.exception("%s %r fails", scope["method"], scope["path"])
            if not begun:
                await _answer(Request(scope), error)(scope, receive, send)


def _answer(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request that failed."""
    failure = translate(error).show_to(getattr(request.state, "caller", OPEN))
    if failure.code == "not_found" and isinstance(error, FrameworkError):
        failure = replace(failure, message=_describe_missing_route(request))
    dialect: ApiDialect = getattr(request.state, "dialect", OURS)
    response = dialect.respond(failure, request.headers.get("x-request-id"))
    if failure.code == "method_not_allowed":
        response.headers["allow"] = _list_methods(request)
    return response


def answer_errors(app: FastAPI) -> None:
    """Answer the exceptions that routes raise with the envelope."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return _answer(request, error)

    for kind in (ApiError, *HANDLED):
        app.add_exception_handler(kind, answer)


def _describe_missing_route(request: Request) -> str:
    """Return that a path has no route, with the nearest one that has."""
    paths = [path for route in request.app.routes if (path := getattr(route, "path", ""))]
    path = request.url.path[:LONGEST_PATH]
    near = difflib.get_close_matches(path, paths, n=1)
    meant = f"; did you mean {near[0]}?" if near else ";"
    return f"there is no route {path}{meant} `GET /openapi.json` lists all routes"


def _list_methods(request: Request) -> str:
    """Return the methods of all routes of a path; the framework lists only those of the first."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))
