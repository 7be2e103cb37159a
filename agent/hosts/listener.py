"""The HTTP server of this process: uvicorn, with limits on what clients may hold.

uvicorn alone waits for ever for a header, reads headers of any length, and accepts any number of connections.
Here, a connection that holds no request makes room for a new one, and a client that is slow or silent is
closed. `RequestGuard` limits bodies, once it knows who sends them.
"""

import asyncio
import json
import logging
import math
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import uvicorn
from httptools import HttpParserUpgrade, HttpRequestParser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from armwise.agent.access import count_as
from armwise.agent.api.errors import ApiError
from armwise.agent.config import Http
from armwise.agent.process_limits import most_connections

HEADER_BYTES, HEADER_LINES = 16 * 1024, 100
"""The largest header of a request; larger ones get 431."""

FRAMING = (b"content-length", b"transfer-encoding")
"""Headers that say how long a body is."""

PIPELINED = 8
"""Most requests that a client may send before the first one is answered."""

LINGER_S = 2.0
"""Seconds in which a client that was refused may finish sending, so that it reads why."""

READ_S = 60.0
"""Seconds in which a client must take what is buffered for it."""

logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # else each wrong request of a stranger is a line


class Room:
    """The open connections of a server, bounded in total and by address.

    Args:
        http: The limits.
    """

    def __init__(self, http: Http) -> None:
        self.http, self._most = http, min(http.connections, most_connections())
        self._addresses: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}  # without a request, the longest wait first
        self._total = 0

    def enter(self, connection: "Connection") -> bool:
        """Count a new connection, and close one that waits where there is no room; return whether there is.

        A trusted proxy may hold all of them, for its clients.
        """
        self._total += 1
        if (address := connection.address) is not None:
            self._addresses[address] += 1
            if self._addresses[address] > self.http.connections_per_address and not self._close(address):
                return False
        if self._total > self._most and not self._close(None):
            return False
        self._waiting[connection] = None
        return True

    def _close(self, address: str | None) -> bool:
        """Close the connection that has waited longest, of an address or of all; return whether one did."""
        for each in self._waiting:
            if address in (None, each.address):
                each.leave()
                return True
        return False

    def waits(self, connection: "Connection", *, waiting: bool) -> None:
        """Note whether a connection waits for a request, or has one."""
        self._waiting.pop(connection, None)
        if waiting:
            self._waiting[connection] = None

    def forget(self, connection: "Connection") -> None:
        """Count a connection no longer."""
        self._total -= 1
        self._waiting.pop(connection, None)
        if (address := connection.address) is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]


class Connection(HttpToolsProtocol):
    """A connection with a client, which is closed where the client is slow, silent or sends too much.

    Attributes:
        address: What its client counts as; None for a trusted proxy.
    """

    address: str | None = None
    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _in_header, _counted, _leaves, _closes = True, False, False, False
    _size = _lines = _unread = _requests = 0
    _problem: ApiError | None = None
    _data, _repeats = b"", False

    def __init__(self, room: Room, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._room = room
        self._serve, self.app = self.app, self._answer

    # -- the connection ---------------------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = count_as(self.client[0] if self.client else None, self._room.http.trusted_proxies)
        self._counted = True
        if self._room.enter(self):
            self._wait(self._room.http.request_s, self.leave)
        else:
            self.leave()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)
        self.app = self._serve  # else memory is held until a garbage collection

    def leave(self) -> None:
        """Close the connection at once."""
        self._leaves = True
        self._forget()  # now: what is closed may take a moment to be gone
        self.transport.abort()

    def _forget(self) -> None:
        self._wait(None)
        if self._stall is not None:
            self._stall.cancel()
        if self._counted:
            self._counted = False
            self._room.forget(self)

    def _wait(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or then is None else self.loop.call_later(seconds, then)

    # -- a request --------------------------------------------------------------------------------------

    @override
    def data_received(self, data: bytes) -> None:
        if self._leaves:  # what a client that was refused goes on sending
            return
        if self._in_header and not self._unread and not self._is_answering():
            self._wait(self._room.http.request_s, self._refuse_slow)
        before, waited = self._requests, self._in_header
        self._data = data
        super().data_received(data)
        if waited and self._in_header and self._requests == before and not self._leaves:
            self._unread += len(data)
            if self._unread > HEADER_BYTES:
                self._refuse(_too_large())

    @override
    def _unsupported_upgrade_warning(self) -> None:
        """Read on after a header that offers another protocol, as clients in Java do with each request.

        The parser takes what follows for that protocol, and would read a body as the next request. So another
        one reads the body, after a header that says how long it is.
        """
        upgrade = sys.exception()
        assert isinstance(upgrade, HttpParserUpgrade)
        rest = self._data[upgrade.args[0] :]
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        framing = (b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)
        self._repeats = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))
        self._repeats = False
        if rest:
            self._data = rest
            super().data_received(rest)

    @override
    def on_message_begin(self) -> None:
        if self._repeats:
            return
        self._size = self._lines = 0
        super().on_message_begin()

    @override
    def on_url(self, url: bytes) -> None:
        if self._repeats:
            return
        self._count(url)
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header and not self._repeats:  # else a trailer, which nobody has checked
            self._lines += 1
            self._count(name + value)
            super().on_header(name, value)

    def _count(self, read: bytes) -> None:
        self._size += len(read)
        if self._size > HEADER_BYTES or self._lines > HEADER_LINES:
            self._fail(_too_large())

    def _fail(self, problem: ApiError) -> NoReturn:
        self._problem = problem
        raise problem  # the parser stops here

    @override
    def on_headers_complete(self) -> None:
        if self._repeats:
            return
        if len(self.pipeline) >= PIPELINED:
            self._fail(ApiError("invalid_request", f"more than {PIPELINED} requests wait on this connection"))
        self._in_header, self._unread = False, 0
        self._requests += 1
        self._wait(None)
        self._room.waits(self, waiting=False)
        super().on_headers_complete()
        self._closes = self._closes or not self.cycle.keep_alive
        self.cycle.keep_alive = True  # uvicorn would close it before the client has had the time to read

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and say so in the answer where the connection is closed after it."""

        async def sending(message: Message) -> None:
            if message["type"] != "http.response.start" or self.cycle.scope is not scope:  # another one waits
                await send(message)
                return
            cycle = self.cycle
            self._closes = self._closes or cycle.more_body or not cycle.keep_alive
            cycle.keep_alive = not self._closes
            await send(message)
            cycle.keep_alive = cycle.keep_alive or self._closes

        await self._serve(scope, receive, sending)

    @override
    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # only its header: see `_unsupported_upgrade_warning`
            return
        self._in_header = True
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._is_answering():
            return
        self._room.waits(self, waiting=True)
        if self._closes:
            self._linger()
        elif self._unread:  # a part of the next header
            self._wait(self._room.http.request_s, self._refuse_slow)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- refusals ---------------------------------------------------------------------------------------

    def _refuse_slow(self) -> None:
        limit_s = self._room.http.request_s
        self._refuse(ApiError("request_timeout", f"the header was not complete within {limit_s:g} s"))

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(self._problem or ApiError("invalid_request", "this is not HTTP/1.1"))

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, and close the connection."""
        if self._is_answering():  # an answer between two parts of another one would look like a part of it
            self.leave()
            return
        body = json.dumps(error.envelope(None).model_dump()).encode()
        self.transport.write(
            STATUS_LINE[error.status]
            + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            + body
        )
        self._linger()

    def _linger(self) -> None:
        """Send no more, and drop what arrives: closed with unread bytes, a client may not read the answer."""
        self._leaves = True
        self._unset_keepalive_if_required()
        if self._closes and not self.cycle.more_body:  # all was read
            self.transport.close()
            return
        with suppress(OSError, RuntimeError):  # the client has gone
            self.transport.write_eof()
        self._wait(LINGER_S, self.leave)

    # -- a client that does not read --------------------------------------------------------------------

    @override
    def pause_writing(self) -> None:
        self._stall = self.loop.call_later(READ_S, self.leave)
        super().pause_writing()

    @override
    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        super().resume_writing()


def _too_large() -> ApiError:
    limits = f"{HEADER_BYTES} bytes, or {HEADER_LINES} lines"
    return ApiError("header_too_large", f"the header has more than {limits}")


class HttpServer(uvicorn.Server):
    """A server in the event loop of this process, which leaves signals to others."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(
    app: ASGIApp, sockets: list[socket.socket], http: Http, drain_s: int
) -> AsyncIterator[HttpServer]:
    """Serve an application on sockets; at the end, close them and finish the requests.

    Args:
        app: The application.
        sockets: Bound sockets, which are closed.
        http: The limits.
        drain_s: Most seconds to wait for requests in progress.
    """
    proxies = ["*"] if sockets[0].family == socket.AF_UNIX else [str(one) for one in http.trusted_proxies]
    server = HttpServer(
        uvicorn.Config(
            app,
            http=partial(Connection, Room(http)),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",  # it is started already
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=proxies,
            timeout_keep_alive=math.ceil(http.idle_s),
            timeout_graceful_shutdown=drain_s,
        )
    )
    serving = asyncio.create_task(server.serve(sockets), name="listener")
    try:
        yield server
    finally:
        server.should_exit = True
        await serving
