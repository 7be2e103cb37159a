"""A light HTTP client for benchmarks, and loads of it.

The client is httptools on a protocol of asyncio, under uvloop: some tens of microseconds of CPU a
request, so that a load measures the server. `answer_constantly` of http_target.py is a server that costs
as little, and shows what the client reaches.
"""

import asyncio
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httptools
import orjson
import uvloop

# -- the client ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        status: The HTTP status.
        headers: By name, in lower case.
        body: The whole body.
        seconds: From the request to the end of the response.
        first_s: From the request to the first byte of the body; NaN where it is empty.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    first_s: float

    @property
    def error(self) -> dict[str, Any] | None:
        """The error in the JSON envelope of the service; None where there is none."""
        try:
            error = orjson.loads(self.body)["error"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return None
        return error if isinstance(error, dict) and "code" in error else None

    @property
    def label(self) -> str:
        """The status, and what an error lacks: the envelope, or the time after which to ask again."""
        if self.status == 503 and "retry-after" not in self.headers:
            return "503 without Retry-After"
        if self.status < 400 or self.error is not None:
            return str(self.status)
        return f"{self.status} {self.headers.get('content-type', 'no type').partition(';')[0]}"


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time; made by `connect`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._began = 0.0
        self._first_s = float("nan")
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._transport: asyncio.Transport
        self.closed = False

    async def send(self, request: bytes) -> Answer:
        """Send a request and return its response. Raises ConnectionError."""
        if self.closed:
            raise ConnectionAbortedError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request under way."""
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionAbortedError("closed without a response"))

    def data_received(self, data: bytes) -> None:
        """Parse a piece of a response."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_begin(self) -> None:
        """Begin a response."""
        self._headers, self._body, self._first_s = {}, [], float("nan")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if not self._body:
            self._first_s = time.perf_counter() - self._began
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the response over."""
        seconds, body = time.perf_counter() - self._began, b"".join(self._body)
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(status, self._headers, body, seconds, self._first_s))


async def connect(address: tuple[str, int], source: str | None = None) -> Connection:
    """Open a connection, from a given address of this machine. Raises OSError."""
    local = None if source is None else (source, 0)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, *address, local_addr=local)
    return connection


def request(
    method: Literal["GET", "POST"], path: str, body: Any = None, key: str | None = None, **headers: str
) -> bytes:
    """Return a request as it is sent.

    Args:
        method: The method.
        path: The path.
        body: Sent as JSON; None for none.
        key: The bearer token; None for none.
        headers: More of them; an underscore stands for a hyphen.
    """
    content = b"" if body is None else orjson.dumps(body)
    lines = {"host": "127.0.0.1", **({} if key is None else {"authorization": f"Bearer {key}"})}
    if body is not None:
        lines |= {"content-type": "application/json", "content-length": str(len(content))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content


def failure(error: OSError) -> str:
    """Return what a client says of a request without a response."""
    kinds = {TimeoutError: "timeout", ConnectionRefusedError: "refused", ConnectionResetError: "reset"}
    return next((label for kind, label in kinds.items() if isinstance(error, kind)), "closed")


async def ask_once(
    address: tuple[str, int], wire: bytes, patience_s: float, source: str | None = None
) -> Answer | str:
    """Send a request over a connection of its own; return the response, or why there is none."""
    connection = None
    try:
        async with asyncio.timeout(patience_s):
            connection = await connect(address, source)
            return await connection.send(wire)
    except OSError as error:  # a TimeoutError is one
        return failure(error)
    finally:
        if connection is not None:
            connection.close()


# -- loads ---------------------------------------------------------------------------------------


@dataclass
class Load:
    """What clients got that each asked again as soon as they were answered.

    Attributes:
        latencies_s: By status, or by why there was no response.
        first_s: Until the first byte of the body, of the responses 200.
        seconds: How long it took.
        client_cpu_s: CPU that the clients took.
    """

    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    first_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    client_cpu_s: float = 0.0

    @property
    def count(self) -> int:
        """The number of requests."""
        return sum(map(len, self.latencies_s.values()))

    def add(self, other: "Load") -> None:
        """Add a load that ran at the same time."""
        for label, latencies in other.latencies_s.items():
            self.latencies_s[label] += latencies
        self.first_s += other.first_s
        self.seconds = max(self.seconds, other.seconds)
        self.client_cpu_s += other.client_cpu_s


async def load(
    address: tuple[str, int], wire: bytes, clients: int, seconds: float, patience_s: float = 5.0
) -> Load:
    """Ask from several keep-alive clients for some seconds, each without a pause."""
    observed = Load()
    began, computed = time.perf_counter(), time.process_time()
    end = began + seconds

    async def client() -> None:
        connection: Connection | None = None
        while (start := time.perf_counter()) < end:
            try:
                async with asyncio.timeout(patience_s):
                    if connection is None or connection.closed:
                        connection = await connect(address)
                    answer = await connection.send(wire)
                observed.latencies_s[answer.label].append(answer.seconds)
                if answer.status == 200:
                    observed.first_s.append(answer.first_s)
            except OSError as error:
                observed.latencies_s[failure(error)].append(time.perf_counter() - start)
                if connection is not None:
                    connection.close()
                await asyncio.sleep(0.01)
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    observed.seconds, observed.client_cpu_s = time.perf_counter() - began, time.process_time() - computed
    return observed


def _load(*args: Any) -> Load:
    return uvloop.run(load(*args))


async def load_from_processes(
    address: tuple[str, int], wire: bytes, clients: int, seconds: float, processes: int
) -> Load:
    """The same, with the clients spread over processes of their own."""
    total, loop = Load(), asyncio.get_running_loop()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [
            loop.run_in_executor(pool, _load, address, wire, clients // processes, seconds)
            for _ in range(processes)
        ]
        for job in jobs:
            total.add(await job)
    return total
