"""What clients can do to the front door of a running service: nothing that another client notices."""

import os
import pickle
import re
import socket
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from backports import zstd
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.generated.serve_pb2_grpc import ASGIServiceStub

from armwise.agent.cli.start_ray import haproxy_binary
from tests.live.conftest import ROOT, Live
from tests.other_users import IS_ROOT, refused

AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="root alone can become another user")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(haproxy_binary() is None, reason="there is no HAProxy for this platform"),
]

HEADERS = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n"
HALF = b"POST /v1/retrieve HTTP/1.1\r\n" + HEADERS


def enveloped(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    return str(response.json()["error"]["code"])


def test_haproxy_is_all_that_listens_for_clients(live: Live) -> None:
    assert [psutil.Process(one.pid).name() for one in live.proxies()] == ["haproxy"]


def test_a_websocket_is_refused_and_a_packed_body_is_read_behind_haproxy(live: Live) -> None:
    address = httpx.URL(live.url)
    websocket = (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        raw.sendall(b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n" + websocket + b"\r\n")
        answer = raw.recv(4096).lower()
    assert answer.startswith(b"http/1.1 426 ")
    assert b"\r\nupgrade: http/1.1\r\n" in answer
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    for body, status in ((b'{"query": "Which bridge stands?"}', 200), (bytes(100_000_000), 413)):
        packed = zstd.compress(body)
        assert live.client.post("/v1/retrieve", content=packed, headers=headers).status_code == status


def listening(live: Live) -> set[tuple[str, str, int]]:
    """Return the name of each process of the service with host and port of a socket that it listens on."""
    return {
        (process.name(), place.laddr.ip, place.laddr.port)
        for process in (psutil.Process(live.pid), *psutil.Process(live.pid).children(recursive=True))
        for place in process.net_connections(kind="tcp")
        if place.status == psutil.CONN_LISTEN
    }


def test_what_listens_on_more_than_the_loopback_address_are_replicas_alone(live: Live) -> None:
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    wide = {title for title, host, _ in listening(live) if host not in loopback}
    assert [title for title in wide if not title.startswith("ray::ServeReplica")] == []


def test_the_page_for_a_platform_team_lists_every_socket(live: Live) -> None:
    """Each kind of process that listens has a row with its address, and each row of the page is there."""
    page = (ROOT / "docs/reference/platform.md").read_text(encoding="utf-8")
    section = page.partition("\n## Ports\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (127\.0\.0\.1|all addresses) \|", section, re.MULTILINE)
    found = {
        (
            # Ray adds the method that runs at the moment
            re.sub(r"^(ray::\w+)\..*", r"\1", title.split()[0].partition(":armwise")[0]),
            "127.0.0.1" if host in {"127.0.0.1", "::1", "::ffff:127.0.0.1"} else "all addresses",
        )
        for title, host, _ in listening(live)
    }
    spare = {("ray::IDLE", "127.0.0.1")}  # a worker that Ray has started in reserve
    assert found - spare == set(rows)
    assert len(rows) == len(set(rows))


def test_every_process_of_the_service_writes_for_its_user_alone(live: Live) -> None:
    """Also those that Ray starts: without that, what a replica writes would have the usual permissions."""
    masks = {}
    for process in (psutil.Process(live.pid), *psutil.Process(live.pid).children(recursive=True)):
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        masks[" ".join(process.cmdline())[:60]] = status.partition("Umask:")[2].split()[0]
    assert len(masks) > 8
    assert {title: mask for title, mask in masks.items() if mask != "0077"} == {}


@AS_ROOT
def test_another_user_can_open_no_file_and_no_socket_of_the_service(live: Live) -> None:
    sockets, files = set[Path](), set[Path]()
    for process in (psutil.Process(live.pid), *psutil.Process(live.pid).children(recursive=True)):
        sockets |= {Path(place.laddr) for place in process.net_connections(kind="unix") if place.laddr}
        files |= {Path(file.path) for file in process.open_files() if file.mode != "r" or ".db" in file.path}
    # HAProxy renames those that it has bound, so their folder is looked into
    sockets = {beside for place in sockets for beside in place.parent.glob("*") if beside.is_socket()}
    assert {"raylet", "plasma_store", "ingress-0.sock"} <= {place.name for place in sockets}
    assert [place for place in sockets if not refused("connect", place)] == []
    assert "log.db" in {place.name for place in files}
    assert [place for place in files if place.exists() and not refused("read", place)] == []


def test_no_log_of_ray_has_what_a_request_said(live: Live) -> None:
    """An erasure does not reach these files, which go with the run: so no text of a caller gets there."""
    mark = "zyzzogeton"
    body = {"query": f"who has seen a {mark}?", "agent": {"context": {mark: mark}}}
    asked = live.client.post("/v1/retrieve", json=body)
    assert asked.status_code == 200, asked.text
    item = {"decision_id": asked.json()["agent"]["decision_id"], "metric_name": "thumb", "value": 1.0}
    assert live.client.post("/v1/feedback", json=item | {"comment": mark}).status_code == 202
    failed = live.client.post("/v1/retrieve", json=body | {"agent": {"allowed_arms": [mark]}})
    assert failed.status_code == 400
    sockets = {
        Path(place.laddr)
        for process in psutil.Process(live.pid).children(recursive=True)
        for place in process.net_connections(kind="unix")
        if str(place.laddr).endswith("/ingress-0.sock")
    }
    (run,) = {place.parent for place in sockets}
    files = [place for place in run.rglob("*") if place.is_file()]
    assert len(files) > 20
    assert [place for place in files if mark.encode() in place.read_bytes()] == []


def test_a_replica_unpickles_nothing_of_a_stranger_without_the_token(live: Live, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    ports = [port for title, _, port in listening(live) if title.startswith("ray::ServeReplica")]
    assert ports
    answers = []
    for port in ports:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = ASGIServiceStub(channel)
            request = ASGIRequest(pickled_request_metadata=pickle.dumps(Planted(str(planted))))
            with pytest.raises(grpc.RpcError) as refused:
                stub.HandleRequest(request, timeout=5)
            answers.append(refused.value.code())
    assert grpc.StatusCode.UNAUTHENTICATED in answers
    assert not planted.exists()


class Planted:
    """What makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self._path,)


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
