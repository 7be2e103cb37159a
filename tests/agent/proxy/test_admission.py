"""Who gets a connection of the proxy while attackers hold others: by address, by key, behind a proxy."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from armwise.agent.api import KNOWN_CALLER
from armwise.agent.config import Http, parse
from armwise.agent.proxy import Listening, Proxy, haproxy_binary, write_configuration
from tests.agent.proxy.conftest import KEY, SETTINGS, Behind, command, decides, replica, statistics

pytestmark = pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform")

HTTP = {"request_s": 30.0, "idle_s": 30.0, "connections": 128, "connections_per_address": 100}
KEYED = f"authorization: {KEY['authorization']}\r\n"
HALF = b"POST /v1/retrieve HTTP/1.1\r\nhost: localhost\r\n"
PROXY, CLIENT, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
"""Addresses that requests come from: one may be a trusted proxy."""


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


@dataclass
class Answer:
    """What came back: status, header in lower case, body, and whether the connection is open afterwards."""

    status: int
    head: str
    body: bytes
    is_open: bool

    @property
    def document(self) -> dict[str, Any]:
        """What the replica says of the request."""
        document: dict[str, Any] = json.loads(self.body)
        return document


class Client:
    """A connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def ask(self, wire: bytes) -> Answer:
        """Send a request and return its answer. Raises IncompleteReadError or ConnectionError if closed."""
        self._writer.write(wire)
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await self._reader.readexactly(int(length[1]) if length else 0)
            says_close = "connection: close" in head
            if says_close:
                assert await self._reader.read() == b""
        return Answer(int(head[9:12]), head, body, not says_close)

    async def ended(self) -> bytes:
        """Wait until the proxy closes the connection; return what it sent."""
        try:
            async with asyncio.timeout(10):
                return await self._reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.transport.abort()


@dataclass
class Front:
    """A proxy with one replica behind it, and connections to it.

    Attributes:
        port: Port of the proxy.
        folder: Its folder.
        behind: The application.
        clients: Connections that were opened and stay.
    """

    port: int
    folder: Path
    behind: Behind
    clients: list[Client] = field(default_factory=list)

    async def open(self, source: str = "127.0.0.1", first: bytes = b"") -> Client:
        place = (source, 0)
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=place))
        client.send(first)
        self.clients.append(client)
        return client

    async def ask(self, wire: bytes, source: str = "127.0.0.1", first: bytes = b"") -> Answer | None:
        """Return the answer on a new connection; None where the proxy refuses the connection."""
        try:
            client = await self.open(source, first)
            answer = await client.ask(wire)
        except (ConnectionError, asyncio.IncompleteReadError):
            return None
        client.close()
        return answer

    async def answered(self, wire: bytes, source: str = "127.0.0.1", first: bytes = b"") -> Answer:
        """Return the answer on a new connection, which the proxy accepts."""
        answer = await self.ask(wire, source, first)
        assert answer is not None
        return answer

    async def count(self, table: str) -> dict[str, str]:
        """Return the keys of a table of the proxy, each with its fields."""
        return dict(re.findall(r"key=(\S+) (.*)", await command(self.folder, f"show table {table}")))

    async def connections(self) -> int:
        """Return how many connections are open, once the proxy has seen all that were opened."""
        async with asyncio.timeout(10):
            while (row := await self._frontend())["conn_tot"] < len(self.clients):
                await asyncio.sleep(0)
        return int(row["scur"])

    async def until_open(self, count: int) -> None:
        """Wait, for ten seconds, until so many connections are open."""
        async with asyncio.timeout(10):
            while await self.connections() != count:
                await asyncio.sleep(0)

    async def _frontend(self) -> dict[str, Any]:
        rows = await statistics(self.folder)
        return next(row for row in rows if (row["pxname"], row["svname"]) == ("clients", "FRONTEND"))

    async def attack(self, sources: list[str], each: int, first: bytes = HALF) -> int:
        """Hold connections; return how many are admitted."""
        for source in sources:
            for _ in range(each):
                try:
                    await self.open(source, first)
                except ConnectionError:
                    continue
        return await self.connections()


Started = Callable[..., Awaitable[Front]]


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Started]:
    """Start the proxy with settings of the section `http`."""
    async with AsyncExitStack() as stack:

        async def started(host: str = "127.0.0.1", **http: Any) -> Front:
            wide = host == "::"
            family = socket.AF_INET6 if wide else socket.AF_INET
            with socket.create_server((host, 0), family=family, dualstack_ipv6=wide) as probe:
                port = probe.getsockname()[1]
            listening = Listening(host, port, folder)
            front = await stack.enter_async_context(_front(listening, http))
            await decides(folder)
            return front

        yield started


@asynccontextmanager
async def _front(listening: Listening, http: dict[str, Any]) -> AsyncIterator[Front]:
    config = parse({**SETTINGS, "http": HTTP | http})
    proxy, behind = Proxy(write_configuration(config, listening)), Behind()
    front = Front(listening.port, listening.folder, behind)
    try:
        async with replica(front.folder, behind):
            yield front
            behind.gate.set()
            for client in front.clients:
                client.close()
    finally:
        proxy.stop()


def addresses(count: int) -> list[str]:
    return [f"127.0.1.{number}" for number in range(1, count + 1)]


# -- idle connections ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_probes_leave_no_idle_connection_and_a_keyed_request_is_answered(start: Started) -> None:
    front = await start()
    for source in addresses(4):
        for _ in range(40):  # 160 connections, more than there are
            answer = await (await front.open(source)).ask(get("/health"))
            assert (answer.status, answer.is_open) == (200, False)
    assert await front.connections() == 0
    keyed = await front.answered(get("/v1/arms", KEYED))
    assert keyed.status == 200


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (get("/v1/arms", "authorization: Bearer wrong\r\n"), 401),
        (get("/v1/arms", "x: " + "y" * 20_000 + "\r\n"), 431),
        (get("/health", KEYED), 200),
    ],
    ids=["a wrong key", "a header too large", "a key that no replica looked at"],
)
async def test_without_an_accepted_key_a_connection_ends_at_once(
    start: Started, wire: bytes, status: int
) -> None:
    front = await start()
    answer = await front.answered(wire)
    assert (answer.status, answer.is_open) == (status, False)
    assert await front.count("known") == {}


@pytest.mark.slow
async def test_a_connection_with_an_accepted_key_stays_open(start: Started) -> None:
    front = await start()
    client = await front.open()
    for wire in (get("/v1/arms", KEYED), get("/health"), get("/v1/arms", KEYED)):
        answer = await client.ask(wire)
        assert (answer.status, answer.is_open) == (200, True)
        assert KNOWN_CALLER not in answer.head, "it is between replica and proxy"
    assert list(await front.count("known")) == ["::ffff:127.0.0.1"]


@pytest.mark.slow
async def test_a_client_cannot_send_the_mark_of_a_replica(start: Started) -> None:
    front = await start()
    answer = await front.answered(get("/health", f"{KNOWN_CALLER}: 1\r\n"))
    assert not answer.is_open
    assert await front.count("known") == {}


@pytest.mark.slow
async def test_a_client_that_finds_no_room_keeps_its_connection(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.proxy.configuration.QUEUE_S", 0.2)
    front = await start()
    front.behind.gate.clear()
    for _ in range(2):
        await front.open(first=get("/v1/arms", KEYED))
    async with asyncio.timeout(10):
        while front.behind.seen.count("v1/arms") < 2:
            await asyncio.sleep(0)
    answer = await (await front.open()).ask(get("/v1/arms", KEYED))
    assert (answer.status, answer.is_open) == (503, True)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"connections": 64}, 48), ({"connections_per_address": 8}, 6)],
    ids=["of all", "of an address"],
)
@pytest.mark.slow
async def test_above_three_quarters_of_the_connections_known_callers_do_not_idle(
    start: Started, limits: dict[str, int], kept: int
) -> None:
    front = await start(**limits)
    sources = [CLIENT] * 8 if "connections_per_address" in limits else addresses(8) * 8
    for source in set(sources):
        await front.ask(get("/v1/arms", KEYED), source)
    opened = []
    for source in sources:
        answer = await (await front.open(source)).ask(get("/v1/arms", KEYED))
        assert answer.status == 200
        opened.append(answer.is_open)
    assert opened == [True] * kept + [False] * (len(sources) - kept)
    assert await front.connections() == kept


# -- connections that are held -------------------------------------------------------------------


@pytest.mark.slow
async def test_half_headers_leave_room_for_others(start: Started) -> None:
    front = await start()
    await front.ask(get("/v1/arms", KEYED), CLIENT)
    # of 64 that are not reserved, each holds a quarter of what it leaves free
    assert await front.attack(addresses(4), 64) == 12 + 10 + 8 + 6
    for source in (CLIENT, OTHER):
        answer = await front.answered(get("/v1/arms", KEYED), source)
        assert answer.status == 200


@pytest.mark.slow
async def test_however_many_addresses_attack_the_reserve_is_for_known_ones(start: Started) -> None:
    front = await start()
    await front.ask(get("/v1/arms", KEYED), CLIENT)
    held = await front.attack(addresses(100), 8)
    assert 56 <= held < 64
    assert await front.ask(get("/health"), OTHER) is None
    opened = [await front.open(CLIENT) for _ in range(20)]
    answers = [await client.ask(get("/v1/arms", KEYED)) for client in opened]
    assert [(answer.status, answer.is_open) for answer in answers] == [(200, True)] * 20


@pytest.mark.slow
async def test_a_known_address_holds_at_most_as_many_as_are_free(start: Started) -> None:
    front = await start()
    for source in (CLIENT, OTHER):
        await front.ask(get("/v1/arms", KEYED), source)
    assert await front.attack([CLIENT], 100) == 64
    assert await front.attack([OTHER], 100) == 64 + 32


@pytest.mark.slow
async def test_an_address_whose_connections_end_may_open_others(start: Started) -> None:
    front = await start()
    assert await front.attack(addresses(1), 20) == 12
    for client in front.clients:
        client.close()
    await front.until_open(0)
    assert await front.attack(addresses(1), 20) == 12


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"", HALF], ids=["nothing", "half a header"])
@pytest.mark.slow
async def test_a_connection_without_a_complete_header_is_closed(start: Started, first: bytes) -> None:
    front = await start(request_s=0.2)
    answer = await (await front.open(first=first)).ended()
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("keyed", [False, True], ids=["the first", "a later one"])
@pytest.mark.slow
async def test_the_time_of_a_request_is_counted_from_its_first_byte(start: Started, keyed: bool) -> None:
    front = await start(request_s=0.3)
    client = await front.open()
    if keyed:
        assert (await client.ask(get("/v1/arms", KEYED))).is_open
    client.send(HALF + b"x: ")
    ended = asyncio.create_task(client.ended())
    async with asyncio.timeout(10):
        while not ended.done():  # another byte every 50 ms
            client.send(b"y")
            await asyncio.wait([ended], timeout=0.05)


@pytest.mark.slow
async def test_an_idle_connection_is_closed_without_a_word(start: Started) -> None:
    front = await start(idle_s=0.2)
    client = await front.open()
    assert (await client.ask(get("/v1/arms", KEYED))).is_open
    assert await client.ended() == b""


# -- behind a proxy ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_half_headers_through_a_trusted_proxy_do_not_lock_its_other_clients_out(start: Started) -> None:
    front = await start(connections=256, trusted_proxies=[PROXY])
    assert await front.attack([PROXY], 160) == 160
    answer = await front.answered(get("/v1/arms", KEYED + "x-forwarded-for: 192.0.2.1\r\n"), PROXY)
    assert answer.status == 200
    other = await front.answered(get("/health"), OTHER)
    assert other.status == 200


@pytest.mark.parametrize(
    ("sent", "client"),
    [
        ("", PROXY),
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, 192.0.2.2", "192.0.2.2"),
        ("192.0.2.1, 10.1.2.3", "192.0.2.1"),
        ("192.0.2.9\r\nx-forwarded-for: 192.0.2.1, 10.1.2.3, 10.1.2.4", "192.0.2.1"),
        ("192.0.2.1, 10.0.0.1, 10.0.0.2, 10.0.0.3", "192.0.2.1"),
        ("192.0.2.1, 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4", "10.0.0.1"),
        ("192.0.2.1, 10.0.0.1, unknown", PROXY),
        ("192.0.2.1, unknown, 10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("192.0.2.1, 2001:db8::1", "2001:db8::1"),
    ],
)
@pytest.mark.slow
async def test_the_client_is_the_last_address_that_is_not_trusted(
    start: Started, sent: str, client: str
) -> None:
    front = await start(trusted_proxies=["10.0.0.0/8", f"{PROXY}/32"])
    headers = f"x-forwarded-for: {sent}\r\nx-forwarded-proto: https\r\n"
    answer = await front.answered(get("/v1/arms", KEYED + headers), PROXY)
    assert list(await front.count("known")) == ["2001:db8::" if ":" in client else f"::ffff:{client}"]
    assert answer.document["forwarded"] == {"x-forwarded-for": client, "x-forwarded-proto": "https"}
    assert answer.document["from"] == f"https://{client}"


@pytest.mark.slow
async def test_what_others_say_of_their_address_is_not_believed(start: Started) -> None:
    front = await start(trusted_proxies=[PROXY])
    headers = f"x-forwarded-for: 192.0.2.1, {PROXY}\r\nx-forwarded-proto: https\r\n"
    answer = await front.answered(get("/v1/arms", KEYED + headers), CLIENT)
    assert answer.document["forwarded"] == {"x-forwarded-for": CLIENT}
    assert answer.document["from"] == f"http://{CLIENT}"
    assert list(await front.count("known")) == [f"::ffff:{CLIENT}"]


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"connections_per_address": 3}, 3), ({"connections": 64, "connections_per_address": 60}, 12)],
    ids=["as an address", "a quarter of what is free"],
)
@pytest.mark.slow
async def test_one_client_of_a_trusted_proxy_has_so_many_requests_under_way(
    start: Started, limits: dict[str, int], most: int
) -> None:
    front = await start(trusted_proxies=[PROXY], **limits)
    front.behind.gate.clear()
    same_subscriber = (f"x-forwarded-for: 2001:db8::{number:x}\r\n" for number in range(1, 99))
    part = f"POST /v1/retrieve HTTP/1.1\r\nhost: localhost\r\n{KEYED}content-length: 9\r\n"
    for _ in range(most):
        await front.open(PROXY, f"{part}{next(same_subscriber)}\r\n".encode())  # waits for its body
    async with asyncio.timeout(10):
        while f"conn_cur={most}" not in " ".join((await front.count("forwarded")).values()):
            await asyncio.sleep(0)
    refused = await front.answered(get("/health", next(same_subscriber)), PROXY)
    assert (refused.status, b'"overloaded"' in refused.body) == (503, True)
    assert b"this address has too many requests in progress" in refused.body
    other = await front.answered(get("/health", "x-forwarded-for: 2001:db8:0:1::1\r\n"), PROXY)
    assert other.status == 200


def header(client: str, *, version: int = 4) -> bytes:
    """Return the header of the PROXY protocol that names a client."""
    here = "::1" if version == 6 else "127.0.0.1"
    return f"PROXY TCP{version} {client} {here} 1000 8000\r\n".encode()


@pytest.mark.slow
async def test_with_the_proxy_protocol_connections_are_those_of_the_client(start: Started) -> None:
    front = await start(trusted_proxies=[PROXY], proxy_protocol=True, connections_per_address=5)
    attacker, honest = header("192.0.2.1"), header("192.0.2.2")
    await front.attack([PROXY], 20, attacker + HALF)
    await front.until_open(5)
    assert await front.ask(get("/health"), PROXY, attacker) is None
    answer = await front.answered(get("/v1/arms", KEYED), PROXY, honest)
    assert answer.document["forwarded"] == {"x-forwarded-for": "192.0.2.2"}
    assert list(await front.count("known")) == ["::ffff:192.0.2.2"]


@pytest.mark.slow
async def test_addresses_of_ipv6_count_by_their_first_64_bits(start: Started) -> None:
    front = await start(trusted_proxies=[PROXY], proxy_protocol=True, connections_per_address=5)
    for number in range(20):
        await front.open(PROXY, header(f"2001:db8:0:1::{number:x}", version=6) + HALF)
    await front.until_open(5)
    assert await front.ask(get("/health"), PROXY, header("2001:db8:0:1:ffff::1", version=6)) is None
    assert await front.ask(get("/health"), PROXY, header("2001:db8:0:2::1", version=6)) is not None
    assert await front.ask(get("/health"), PROXY, header("192.0.2.1")) is not None


@pytest.mark.slow
async def test_only_a_trusted_proxy_may_speak_the_proxy_protocol_and_it_must(start: Started) -> None:
    front = await start(trusted_proxies=[PROXY], proxy_protocol=True)
    refused = await front.answered(get("/health"), CLIENT, header("192.0.2.1"))
    assert refused.status == 400
    assert await front.ask(get("/health"), PROXY) is None


# -- settings ------------------------------------------------------------------------------------


FAULTY = [
    ({"trusted_proxies": ["proxy.example.com"]}, "not a valid IPv4 network"),
    ({"trusted_proxies": ["10.0.0.7/8"]}, "not a valid IPv4 network"),
    ({"trusted_proxies": ["10.0.0.0/8", "::/0"]}, "::/0 holds every client"),
    ({"proxy_protocol": True}, "proxy_protocol needs trusted_proxies"),
    ({"connections": 63}, "greater than or equal to 64"),
]


@pytest.mark.parametrize(("http", "message"), FAULTY, ids=str)
def test_a_setting_that_would_open_or_shut_the_door_is_refused(http: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Http.model_validate(http)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.slow
async def test_a_service_on_ipv6_tells_clients_of_ipv4_apart(start: Started) -> None:
    front = await start("::", connections_per_address=5, trusted_proxies=[PROXY])
    assert await front.attack([CLIENT], 20) == 5
    assert await front.ask(get("/health"), CLIENT) is None
    assert await front.ask(get("/health"), OTHER) is not None
    assert await front.attack([PROXY], 20) == 5 + 20
    answer = await front.answered(get("/v1/arms", "x-forwarded-for: 192.0.2.1\r\n"), PROXY)
    assert answer.document["forwarded"] == {"x-forwarded-for": "192.0.2.1"}
