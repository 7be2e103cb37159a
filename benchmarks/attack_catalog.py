"""The attacks of attack.py: what each does, what its connections got, what speaks against its criterion."""

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import psutil

from benchmarks.attack_report import OUTAGE, Honest, counted
from benchmarks.http_load import Answer, Load, ask_once, failure, load_from_processes, request
from benchmarks.http_target import family, title_of

SOCKETS = 260
HOLD_S = 12.0
BODY_S = 20.0
"""Within this time the service closes a connection whose body does not come."""

REFUSED_S = 2.0
"""Within this time it refuses a header that is too large."""

CLIENTS, CLIENT_PROCESSES, CROWD_S = 400, 2, 10.0
REFUSAL_S = 0.05
"""Within this time it refuses 95 % of the requests that it has no room for."""

CHATS, CHAT_PATIENCE_S = 200, 20.0
BACK_S, OUTAGE_S = 3.0, 40.0
"""Within the first the service answers again after a kill; the second is how long that is watched."""

STRANGERS = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
"""Addresses of this machine from which attackers connect; honest clients have others."""

CONNECTIONS = 1024
"""Connections from each of these addresses; together they are as many as the service has."""

AGAIN_S = 0.05
"""Pause of an attacker before a connection that was refused is opened again."""

TLS_PROXY = "127.0.0.9"
"""Address of a proxy that the service trusts, from which an attacker and honest clients connect."""

HONEST_S = 1.0
WRONG_KEY = "wrong-key"
ROUTES = ("health", "ready", "retrieve", "feedback")


class SkippedError(Exception):
    """The attack does not apply to this service; the message says why."""


@dataclass
class Target:
    """The service under attack.

    Attributes:
        address: Host and port.
        key: A valid key; None where the service is open.
        metric: A metric that feedback can name.
        slow_arm: An arm that takes half a second; None where there is none.
        pid: The process that was started; None where the service runs elsewhere.
        start: What was seen while it started.
        ready_s: Seconds from its start until every route was answered.
        reference: The crowd against a server that does nothing.
        honest: The honest clients of the attack under way.
    """

    address: tuple[str, int]
    key: str | None
    metric: str
    slow_arm: str | None = None
    pid: int | None = None
    start: Honest | None = None
    ready_s: float = field(default=float("nan"))
    reference: Load = field(default_factory=Load)
    honest: Honest = field(init=False)

    def question(self, **rest: Any) -> dict[str, Any]:
        """Return a body of /v1/retrieve that draws no slow arm."""
        excluded = [self.slow_arm] if self.slow_arm else []
        return {"query": "Which function merges sorted inputs?", "agent": {"excluded_arms": excluded}} | rest

    def wires(self) -> dict[str, bytes]:
        """Return an honest request of each route."""
        item = {"decision_id": "attack-honest", "metric_name": self.metric, "value": 1}
        return {
            "health": request("GET", "/health"),
            "ready": request("GET", "/ready"),
            "retrieve": request("POST", "/v1/retrieve", self.question(), self.key),
            "feedback": request("POST", "/v1/feedback", item, self.key),
        }

    def processes(self, matches: Callable[[str], bool] = bool) -> list[psutil.Process]:
        """Return its processes with such a title. Raises SkippedError."""
        if self.pid is None:
            raise SkippedError("only for a service that this script started")
        return [process for process in family(self.pid) if matches(title_of(process))]


Finding = tuple[str, list[str]]
"""What the attacker's connections got, and what speaks against the criterion."""


@dataclass(frozen=True)
class Attack:
    """An attack: what runs, what must hold, and the honest routes that must be answered within a second.

    Attributes:
        run: The attack.
        criterion: What must hold, in words.
        routes: Routes that must be answered.
        source: Address of this machine from which honest clients connect; None for any.
    """

    run: Callable[[Target], Awaitable[Finding]]
    criterion: str
    routes: tuple[str, ...]
    source: str | None = None

    @property
    def did(self) -> str:
        """What is done."""
        return (self.run.__doc__ or "").strip()


ATTACKS: dict[str, Attack] = {}


def attack(
    criterion: str, routes: tuple[str, ...] = ROUTES, source: str | None = None
) -> Callable[[Any], Any]:
    """Register an attack under the name of its function."""
    within = f"p99 of {'honest clients' if routes == ROUTES else ', '.join(routes)} within {HONEST_S:g} s"
    words = "; ".join(filter(None, [criterion, within if routes else ""]))

    def register(run: Callable[[Target], Awaitable[Finding]]) -> Any:
        ATTACKS[run.__name__] = Attack(run, words, routes, source)
        return run

    return register


# -- connections that hold -----------------------------------------------------------------------


async def socket_held(target: Target, payload: bytes, source: str | None, statuses: list[str]) -> None:
    """Open a socket, send, and wait until it is closed; append the status, or how the connection ended."""
    statuses.append("no response")
    try:
        local = None if source is None else (source, 0)
        reader, writer = await asyncio.open_connection(*target.address, local_addr=local)
        try:
            writer.write(payload)
            while data := await reader.read(65536):
                if data.startswith(b"HTTP/1."):
                    statuses[-1] = data[9:12].decode("latin-1")
        finally:
            writer.transport.abort()
    except OSError as error:
        if statuses[-1] == "no response":
            statuses[-1] = failure(error)


async def hold(
    target: Target,
    payload: bytes,
    seconds: float,
    sockets: int = SOCKETS,
    sources: tuple[str | None, ...] = (None,),
    *,
    again: bool = False,
) -> tuple[str, int]:
    """Open sockets, send the same over each and wait; return what they got, and how many stay open.

    Args:
        target: The service.
        payload: What each socket sends.
        seconds: How long they wait.
        sockets: Sockets of each source.
        sources: Addresses of this machine that they connect from; None for any.
        again: Whether a socket that is closed without an answer is opened again.
    """

    async def hold_socket(source: str | None) -> tuple[str, float | None]:
        began, statuses = time.perf_counter(), ["no response"]
        try:
            async with asyncio.timeout(seconds):
                await socket_held(target, payload, source, statuses)
                while again and not statuses[-1].isdigit():
                    await asyncio.sleep(AGAIN_S)
                    await socket_held(target, payload, source, statuses)
        except TimeoutError:
            return statuses[-1], None
        return statuses[-1], time.perf_counter() - began

    ends = await asyncio.gather(*(hold_socket(source) for source in sources for _ in range(sockets)))
    closed = [after for _, after in ends if after is not None]
    statuses, still = Counter(status for status, _ in ends), len(ends) - len(closed)
    words = [counted(statuses)]
    if closed:
        words.append(f"{len(closed)} closed after {np.median(closed):.1f} s (at most {max(closed):.1f} s)")
    if still:
        words.append(f"{still} still open after {seconds:g} s")
    return "; ".join(words), still


HALF_HEADER = b"POST /v1/retrieve HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-ty"


def post(length: int, sent: int, key: str | None = None) -> bytes:
    """Return the beginning of a POST that declares a longer body than it sends."""
    whole = request(
        "POST", "/v1/retrieve", None, key, content_type="application/json", content_length=str(length)
    )
    return whole + b'{"query": "'.ljust(sent, b"a")[:sent]


@attack("")
async def calm(_target: Target) -> Finding:
    """Nothing."""
    return "", []


async def _half_sent(target: Target, key: str | None) -> Finding:
    got, still = await hold(target, post(100, 1, key), BODY_S + 1)
    return got, [f"{still} of {SOCKETS} sockets open after {BODY_S:g} s"] if still else []


@attack(f"closed within {BODY_S:g} s")
async def half_sent(target: Target) -> Finding:
    """260 sockets send a header with content-length and one byte of the body, no key, and hold."""
    return await _half_sent(target, None)


@attack(f"closed within {BODY_S:g} s")
async def half_sent_wrong_key(target: Target) -> Finding:
    """The same with a wrong key."""
    if target.key is None:
        raise SkippedError("the service has no keys")
    return await _half_sent(target, WRONG_KEY)


@attack("")
async def half_header(target: Target) -> Finding:
    """260 sockets send half a header and hold."""
    got, _ = await hold(target, HALF_HEADER, HOLD_S)
    return got, []


@attack("")
async def idle_probes(target: Target) -> Finding:
    """4,096 connections from four addresses send a complete GET /health, and then nothing."""
    got, _ = await hold(target, target.wires()["health"], HOLD_S, CONNECTIONS, STRANGERS)
    return got, []


@attack("")
async def half_headers(target: Target) -> Finding:
    """4,096 connections from four addresses send half a header and hold."""
    got, _ = await hold(target, HALF_HEADER, HOLD_S, CONNECTIONS, STRANGERS)
    return got, []


@attack("", source=TLS_PROXY)
async def half_headers_behind_proxy(target: Target) -> Finding:
    """1,100 connections through the proxy of the honest clients send half a header, also again."""
    got, _ = await hold(target, HALF_HEADER, HOLD_S, 1100, (TLS_PROXY,), again=True)
    return got, []


@attack("")
async def big_stall(target: Target) -> Finding:
    """260 sockets declare a body of 500 KB, send 40 KB and stall."""
    got, _ = await hold(target, post(500_000, 40_000, target.key), HOLD_S)
    return got, []


# -- headers -------------------------------------------------------------------------------------


async def stream(target: Target, pieces: Iterable[bytes]) -> tuple[str, int, float]:
    """Send until there is a response or the end of the connection.

    Returns:
        The status, or how the connection ended; the bytes sent; seconds.
    """
    began, sent, status = time.perf_counter(), 0, "no response"
    try:
        async with asyncio.timeout(2 * REFUSED_S):
            reader, writer = await asyncio.open_connection(*target.address)
            answered = asyncio.create_task(reader.read(65536))
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
                    if answered.done():
                        break
                data = await answered
                status = data[9:12].decode("latin-1") if data else "closed"
            except OSError as error:
                status = failure(error)
                with suppress(OSError):
                    status = (await answered)[9:12].decode("latin-1") or status
            finally:
                answered.cancel()
                writer.transport.abort()
    except TimeoutError:
        status = "still open"
    return status, sent, time.perf_counter() - began


def long_header(size: int) -> Iterator[bytes]:
    """Yield a request with one header of this many bytes."""
    yield b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: "
    for start in range(0, size, 65536):
        yield b"a" * min(65536, size - start)
    yield b"\r\n\r\n"


@attack(f"each is refused with 4xx, or closed, within {REFUSED_S:g} s")
async def huge_header(target: Target) -> Finding:
    """One header of 100 MB; 20 of 1 MB at once; 20 requests of 5,000 headers at once."""
    many = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(5000))
    kinds: dict[str, list[Callable[[], Iterable[bytes]]]] = {
        "100 MB": [partial(long_header, 100_000_000)],
        "1 MB": [partial(long_header, 1_000_000) for _ in range(20)],
        "5,000 headers": [lambda: [many + b"\r\n"] for _ in range(20)],
    }
    got, faults = [], []
    for kind, streams in kinds.items():
        ends = await asyncio.gather(*(stream(target, pieces()) for pieces in streams))
        statuses = counted(Counter(status for status, _, _ in ends))
        slowest, most = max(seconds for _, _, seconds in ends), max(sent for _, sent, _ in ends)
        got.append(f"{kind}: {statuses} within {slowest:.1f} s, {most / 1e6:.1f} MB sent")
        bad = Counter(end for end, _, _ in ends if end[0] != "4" and end not in OUTAGE[1:])
        faults += [f"{kind}: {counted(bad)}"] if bad else []
        faults += [f"{kind}: {slowest:.1f} s"] if slowest > REFUSED_S else []
    return "\n".join(got), faults


# -- many requests -------------------------------------------------------------------------------


def quantiles(latencies_s: list[float]) -> str:
    """Return p50 and p95 in ms."""
    return "p50 {:.0f} p95 {:.0f} ms".format(*(1e3 * np.quantile(latencies_s, [0.5, 0.95])))


def rate(load: Load) -> str:
    """Return how many requests a second there were, and the CPU of the clients."""
    return f"{load.count / load.seconds:,.0f}/s, clients used {load.client_cpu_s / load.seconds:.2f} cores"


async def crowd_on(address: tuple[str, int], wire: bytes, seconds: float) -> Load:
    """Return what the crowd gets."""
    return await load_from_processes(address, wire, CLIENTS, seconds, CLIENT_PROCESSES)


@attack(f"refusals p95 within {1e3 * REFUSAL_S:g} ms; only 200 and 503", ("health",))
async def crowd(target: Target) -> Finding:
    """400 keep-alive clients at once on /v1/retrieve for 10 s, none with a pause."""
    load = await crowd_on(target.address, target.wires()["retrieve"], CROWD_S)
    got = [rate(load)]
    got += [f"{len(some)} x {label}: {quantiles(some)}" for label, some in load.latencies_s.items()]
    if bare := target.reference.latencies_s.get("200"):
        got.append(f"(a server that does nothing: {rate(target.reference)}, {quantiles(bare)})")
    bad = {label: len(some) for label, some in load.latencies_s.items() if label not in ("200", "503")}
    faults = [counted(bad)] if bad else []
    refused = load.latencies_s.get("503")
    if refused and np.quantile(refused, 0.95) > REFUSAL_S:
        faults.append(f"refusals p95 {1e3 * np.quantile(refused, 0.95):.0f} ms")
    return "\n".join(got), faults


@attack("each is answered, or refused with 503 in the JSON envelope; none gives up", ("health",))
async def streams(target: Target) -> Finding:
    """200 streaming chats at once over a model of 4 slots; clients give up after 20 s."""
    body = target.question(model="auto", stream=True, messages=[{"role": "user", "content": "Merge?"}])
    del body["query"]
    wire = request("POST", "/v1/chat/completions", body, target.key)
    ends = await asyncio.gather(*(ask_once(target.address, wire, CHAT_PATIENCE_S) for _ in range(CHATS)))
    answers = [end for end in ends if isinstance(end, Answer)]
    complete = [answer for answer in answers if answer.status == 200 and b"data: [DONE]" in answer.body]
    labels = Counter("gave up" if end == "timeout" else end for end in ends if isinstance(end, str))
    labels.update(
        "broken off" if answer.status == 200 else answer.label for answer in answers if answer not in complete
    )
    got = [counted(labels | Counter({"answered": len(complete)}))]
    if complete:
        first, whole = (
            np.median([getattr(answer, what) for answer in complete]) for what in ("first_s", "seconds")
        )
        got.append(f"first byte p50 {1e3 * first:.0f} ms, whole answer p50 {1e3 * whole:.0f} ms")
    bad = {label: count for label, count in labels.items() if label != "503"}
    return "\n".join(got), [counted(bad)] if bad else []


@attack("408 in the JSON envelope with a decision id")
async def timeout_header(target: Target) -> Finding:
    """10 requests with X-Request-Timeout-Seconds: 0.01 on an arm of 0.5 s."""
    if target.slow_arm is None:
        raise SkippedError("the service has no slow arm")
    body = {"query": "Which?", "model": f"arm/{target.slow_arm}"}
    wire = request("POST", "/v1/retrieve", body, target.key, x_request_timeout_seconds="0.01")
    ends: Counter[str] = Counter()
    for _ in range(10):
        end = await ask_once(target.address, wire, 5)
        if isinstance(end, str):
            ends[end] += 1
        else:
            named = (end.error or {}).get("decision_id")
            ends[f"{end.label} {'with' if named else 'without'} a decision id"] += 1
    bad = {label: count for label, count in ends.items() if label != "408 with a decision id"}
    return counted(ends), [counted(bad)] if bad else []


# -- the service itself --------------------------------------------------------------------------


@attack("only refused connections, 503 in the JSON envelope with Retry-After, then 2xx", ())
async def start(target: Target) -> Finding:
    """From the start of the service until it is ready, every route is polled each 50 ms."""
    if target.start is None:
        raise SkippedError("only for a service that this script started")
    faults: Counter[str] = Counter()
    for probes in target.start.probes.values():
        answered = False
        for probe in probes:
            answered |= probe.good
            if not probe.good and answered:
                faults[f"{probe.label} after a success"] += 1
            elif probe.label == "503" and not probe.retry_after:
                faults["503 without Retry-After"] += 1
            elif not probe.good and probe.label not in ("503", "refused"):
                faults[probe.label] += 1
    labels = counted(Counter(probe.label for probes in target.start.probes.values() for probe in probes))
    return f"{labels}; ready after {target.ready_s:.1f} s", [counted(faults)] if faults else []


async def _kill(target: Target, matches: Callable[[str], bool]) -> Finding:
    victims = target.processes(matches)
    if not victims:
        raise SkippedError("there is no such process")
    await asyncio.sleep(2)
    began = time.perf_counter()
    victims[0].kill()
    while not target.honest.back(began) and time.perf_counter() < began + OUTAGE_S:
        await asyncio.sleep(0.1)
    return target.honest.outage(began, BACK_S)


@attack(f"only 503 in the envelope and refused or reset connections; back within {BACK_S:g} s", ())
async def kill_ingress(target: Target) -> Finding:
    """SIGKILL to one ingress replica."""
    return await _kill(target, lambda title: "ray::ServeReplica" in title and ":Ingress" in title)


@attack(f"only 503 in the envelope and refused or reset connections; back within {BACK_S:g} s", ())
async def kill_proxy(target: Target) -> Finding:
    """SIGKILL to the proxy."""
    return await _kill(
        target, lambda title: "ray::ProxyActor" in title or title.split()[0].endswith("haproxy")
    )


@attack("none", ())
async def listening(target: Target) -> Finding:
    """TCP sockets of the service that listen on other addresses than loopback."""
    listeners: dict[str, set[str]] = {}
    for process in target.processes():
        with suppress(psutil.Error):
            name = title_of(process).split()[0].rpartition("/")[2]
            for socket in process.net_connections("tcp"):
                if socket.status == psutil.CONN_LISTEN and not loopback(socket.laddr[0]):
                    listeners.setdefault(name, set()).add(f"{socket.laddr[0]}:{socket.laddr[1]}")
    count = sum(map(len, listeners.values()))
    got = "\n".join(f"{name} {' '.join(sorted(addresses))}" for name, addresses in sorted(listeners.items()))
    return got, [f"{count} sockets of {len(listeners)} kinds of processes"] if listeners else []


def loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine alone.

    >>> loopback("::ffff:127.0.0.1"), loopback("::")
    (True, False)
    """
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
