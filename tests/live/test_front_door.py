"""What clients can do to the front door of a running service: nothing that another client notices."""

import os
import signal
import socket
from contextlib import ExitStack

import httpx
import pytest

from agent.proxy import haproxy_binary
from tests.live.conftest import Live, until

pytestmark = pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform")

HALF = b"POST /v1/retrieve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n"


def enveloped(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    return str(response.json()["error"]["code"])


def test_haproxy_is_all_that_listens_for_clients(live: Live) -> None:
    assert [one.title.split()[0].rpartition("/")[2] for one in live.proxies()] == ["haproxy"]


@pytest.mark.parametrize(
    "part",
    [HALF, HALF + b"\r\n{", HALF.replace(b"100", b"500000") + b"\r\n" + b" " * 40_000],
    ids=["half a header", "one byte of a body", "a body that stalls"],
)
def test_hundreds_of_requests_that_do_not_end_hold_nobody_up(live: Live, part: bytes) -> None:
    address = (httpx.URL(live.url).host, httpx.URL(live.url).port)
    with ExitStack() as stack:
        for _ in range(260):
            held = stack.enter_context(socket.create_connection(address, timeout=10))
            held.sendall(part)
        with httpx.Client(base_url=live.url, timeout=3) as client:
            for path in ("/health", "/ready", "/v1/arms"):
                assert client.get(path).status_code == 200
            assert client.post("/v1/retrieve", json={"query": "the sea"}).status_code == 200


def test_a_header_without_an_end_is_refused_at_once(live: Live) -> None:
    address = (httpx.URL(live.url).host, httpx.URL(live.url).port)
    with socket.create_connection(address, timeout=10) as endless:
        answer = b""
        try:
            for _ in range(1000):
                endless.sendall(b"x" * 100_000)
            answer = endless.recv(100)
        except ConnectionError:
            answer = b"HTTP/1.1 400 closed before it was read"
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert live.client.get("/health").status_code == 200
    assert enveloped(live.client.get("/health", headers={"x": "y" * 20_000})) == "header_too_large"


def test_a_deadline_is_refused_in_the_envelope(live: Live) -> None:
    response = live.client.post(
        "/v1/chat/completions",
        json={"model": "arm/bm25", "messages": [{"role": "user", "content": "Where is the sea?"}]},
        headers={"x-request-timeout-seconds": "0.000001"},
    )
    assert (response.status_code, enveloped(response)) == (408, "deadline_exceeded")


def test_a_killed_proxy_is_replaced_at_once(live: Live) -> None:
    (killed,) = live.proxies()
    os.kill(killed.pid, signal.SIGKILL)

    def back() -> bool:
        try:
            return httpx.get(f"{live.url}/ready", timeout=3).status_code == 200
        except httpx.TransportError:
            return False

    until(back, 10.0)
    (another,) = live.proxies()
    assert another != killed
