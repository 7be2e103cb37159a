"""Which proxy a request goes through: one rule, for every client, in every environment of proxies."""

import asyncio
import contextlib
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator

import httpcore  # noqa: F401 - it looks for socksio when it is imported, which tests hide from it
import httpx
import psutil
import pytest

from armwise.arms import proxies
from armwise.arms.llm.endpoint import EndpointGenerator
from armwise.arms.models import ModelNotFoundError, locate
from tests.agent.canned_service import ANY, Canned
from tests.arms.llm.test_endpoint import ask as ask_model
from tests.arms.proxy_variables import ALL_NAMES, forget_proxies

PROXY, OTHER = "http://proxy.example:3128", "http://other.example:8080"
ELSEWHERE = "https://api.example/v1"

FOUND = [
    ({}, ELSEWHERE, None),
    ({"HTTPS_PROXY": PROXY}, ELSEWHERE, f"HTTPS_PROXY={PROXY}"),
    ({"https_proxy": PROXY, "HTTPS_PROXY": OTHER}, ELSEWHERE, f"https_proxy={PROXY}"),
    ({"https_proxy": "", "HTTPS_PROXY": OTHER}, ELSEWHERE, None),
    ({"HTTP_PROXY": PROXY}, ELSEWHERE, None),
    ({"HTTP_PROXY": PROXY}, "http://api.example", f"HTTP_PROXY={PROXY}"),
    ({"ALL_PROXY": PROXY, "HTTPS_PROXY": OTHER}, ELSEWHERE, f"HTTPS_PROXY={OTHER}"),
    ({"ALL_PROXY": PROXY}, ELSEWHERE, f"ALL_PROXY={PROXY}"),
    ({"ALL_PROXY": "proxy.example:3128 "}, ELSEWHERE, f"ALL_PROXY={PROXY}"),
    ({"ALL_PROXY": "http://me:secret@proxy.example:3128"}, ELSEWHERE, f"ALL_PROXY={PROXY}"),
    ({"ALL_PROXY": "SOCKS://proxy.example:1080/"}, ELSEWHERE, "ALL_PROXY=socks5://proxy.example:1080/"),
    ({"ALL_PROXY": "socks5h://proxy.example:1080"}, ELSEWHERE, "ALL_PROXY=socks5://proxy.example:1080"),
    *(
        ({"ALL_PROXY": PROXY}, f"http://{host}:8000/v1", None)
        for host in ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.1.2.3", "[::1]", "0.0.0.0")
    ),
    *(
        ({"ALL_PROXY": PROXY, name: excepted}, ELSEWHERE, None)
        for name in ("NO_PROXY", "no_proxy")
        for excepted in ("*", "a, *", "api.example", ".example", "*.example", "EXAMPLE", "a b,example:443")
    ),
    *(
        ({"ALL_PROXY": PROXY, "NO_PROXY": excepted}, ELSEWHERE, f"ALL_PROXY={PROXY}")
        for excepted in ("", " ", ",", "pi.example", "xample", "api.example:80", "[::1", "10.0.0.0/99", "*x")
    ),
    ({"ALL_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "http://10.9.8.7", None),
    ({"ALL_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "http://11.9.8.7", f"ALL_PROXY={PROXY}"),
    ({"ALL_PROXY": PROXY, "NO_PROXY": "fd00::/8"}, "http://[fd00::1]:80", None),
    ({"ALL_PROXY": PROXY, "NO_PROXY": "[fd00::1]"}, "http://[fd00::1]", None),
]
"""Variables, an address, and the proxy for it as it is shown."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_proxies(monkeypatch)


@pytest.mark.parametrize(("variables", "url", "expected"), FOUND)
def test_the_proxy_for_an_address(
    variables: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = proxies.find_proxy(url)
    assert (None if found is None else str(found)) == expected


def test_an_address_of_this_machine_is_this_machine() -> None:
    own = [
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family == socket.AF_INET
    ]
    assert own
    assert all(map(proxies.is_this_machine, own))
    assert not proxies.is_this_machine("203.0.113.9")


@pytest.mark.parametrize(
    "value",
    [
        *(
            "ftp://proxy.example",
            "socks4://proxy.example",
            "http://",
            "http://[",
            "http://proxy.example:port",
        ),
        *("http://proxy.example:99999", "//", "http://me:sec/ret@[", "socks5://"),
    ],
)
def test_what_is_no_proxy_is_named_without_its_password(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(
        proxies.ProxySettingError, match=r"ALL_PROXY=.* is not the address of a proxy"
    ) as raised:
        proxies.find_proxy(ELSEWHERE)
    assert "ret" not in str(raised.value)


@pytest.mark.parametrize("module", ["socksio", "aiohttp_socks"])
def test_a_socks_proxy_without_its_package_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("all_proxy", "socks5://me:secret@proxy.example:1080")
    with pytest.raises(proxies.ProxySettingError) as raised:
        proxies.find_proxy(ELSEWHERE, ("socksio", "aiohttp_socks"))
    assert "all_proxy=socks5://proxy.example:1080" in str(raised.value)
    assert f"pip install {proxies.PACKAGES[module]}".replace("httpx[socks]", "'httpx[socks]'") in str(
        raised.value
    )
    assert "secret" not in str(raised.value)


def test_a_hub_is_not_asked_where_a_library_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    for variables in (
        {"HTTP_PROXY": "socks5://proxy.example"},
        {"NO_PROXY": "fd00::/8", "HTTP_PROXY": PROXY},
    ):
        forget_proxies(monkeypatch)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ModelNotFoundError, match=f"{next(iter(variables))}="):
            locate("owner/model")


class Socks(socketserver.ThreadingTCPServer):
    """A SOCKS proxy that sends every connection to one server.

    Attributes:
        asked: The hosts that it was asked for.
    """

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        self.asked: list[str] = []
        self.target = target
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(socketserver.BaseRequestHandler):
    server: Socks

    def handle(self) -> None:
        own: socket.socket = self.request
        own.recv(2 + own.recv(2, socket.MSG_PEEK)[1])
        own.sendall(b"\x05\x00")
        host = own.recv(own.recv(5)[4])
        own.recv(2)
        self.server.asked.append(host.decode())
        own.sendall(b"\x05\x00\x00\x01" + bytes(6))
        with socket.create_connection(self.server.target) as there:
            threading.Thread(target=_pump, args=(there, own), daemon=True).start()
            _pump(own, there)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one of the two has ended
        while data := source.recv(65536):
            target.sendall(data)


@pytest.fixture
def canned() -> Iterator[Canned]:
    server = Canned()
    yield server
    server.close()


def test_requests_go_through_a_socks_proxy(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a model; the proxy looks the name up, which this machine may not know."""
    canned.reply(ANY, {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})
    with Socks(("127.0.0.1", canned.port)) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.server_address[1]}")

        async def ask() -> None:
            async with proxies.async_client() as client:
                assert (await client.get("http://two.example/ready")).is_success
            generator = EndpointGenerator("chat", "http://three.example/v1", "m", max_retries=0)
            assert (await ask_model(generator))[0] == "yes"

        with proxies.client() as client:
            assert client.get("http://one.example/ready").is_success
            assert client.get(f"{canned.url}/ready").is_success
        asyncio.run(ask())
        proxy.shutdown()
    assert proxy.asked == ["one.example", "two.example", "three.example"]


@pytest.mark.parametrize("make", [proxies.client, proxies.async_client])
def test_a_client_is_made_in_each_environment(
    make: Callable[[], httpx.Client | httpx.AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    for name in ALL_NAMES:
        monkeypatch.setenv(name, "socks5://[")
    make()


def test_a_request_that_no_proxy_gets_is_no_request_without_one(
    canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with proxies.client() as client:
        assert client.get(f"{canned.url}/ready").is_success
        with pytest.raises(httpx.ConnectError):
            client.get(f"http://api.example:{canned.port}/ready")
    assert canned.paths == ["/ready"]
    assert proxies.describe_way("http://api.example") == " through HTTP_PROXY=http://127.0.0.1:9"
