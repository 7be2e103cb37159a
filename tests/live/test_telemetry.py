"""Traces, metrics and logs of a service that runs, and every query of the board."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.live.conftest import ROOT, Live, free_port, started, until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

KEY = "a-key-of-an-operator-that-is-long-enough"
QUESTION = "Which city stands beside the bridge of sighs?"
TRACE = "0af7651916cd43dd8448eb211c80319c"
BOARD = json.loads((ROOT / "deploy/grafana/armwise.json").read_text())


@dataclass(frozen=True)
class Received:
    """A span as it was exported.

    Attributes:
        name: Its name.
        trace: Its trace, in hexadecimal digits.
        service: The name of the service.
        pid: The process that made it.
        links: The traces that it is linked to.
    """

    name: str
    trace: str
    service: str
    pid: int
    links: tuple[str, ...]


@dataclass
class Receiver:
    """Receives spans over OTLP."""

    spans: list[Received] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        """Read an export."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {one.key: one.value for one in group.resource.attributes}
            self.spans += [
                Received(
                    span.name,
                    span.trace_id.hex(),
                    about["service.name"].string_value,
                    about["process.pid"].int_value,
                    tuple(link.trace_id.hex() for link in span.links),
                )
                for scope in group.scope_spans
                for span in scope.spans
            ]

    def of(self, trace: str) -> list[Received]:
        """Return the spans of a trace."""
        return [span for span in self.spans if span.trace == trace]


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[Receiver, int]]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.add(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found, server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, receiver: tuple[Receiver, int]) -> Iterator[Live]:
    """A service that exports its traces, logs in JSON and has a key."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver[1]}",
        "OTEL_SERVICE_NAME": "armwise-live",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OPERATOR": KEY,
    }
    settings = {
        "keys": [{"env": "OPERATOR", "scopes": ["admin"]}],
        "telemetry": {"logs": "json"},
        "llm": {"engine": "scripted", "default": "Venice does."},
    }
    with started(tmp_path_factory.mktemp("watched"), variables, **settings) as live:
        live.client.headers["authorization"] = f"Bearer {KEY}"
        yield live


def ask(live: Live, model: str = "auto", **headers: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
    response = live.client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["agent"]
    return found


def test_a_turn_is_one_trace_over_all_processes_and_its_feedback_is_linked_to_it(
    watched: Live, receiver: tuple[Receiver, int]
) -> None:
    spans = receiver[0]
    found = ask(watched, "arm/dense", traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    watched.tell((found["decision_id"], 1.0))
    until(lambda: len(spans.of(TRACE)) >= 7)
    assert sorted(span.name for span in spans.of(TRACE)) == [
        "INSERT decisions",
        "INSERT executions",
        "POST /v1/chat/completions",
        "armwise.decide",
        "chat scripted",
        "embeddings hashing:64",
        "retrieval small",
    ]
    by_name = {span.name: span for span in spans.of(TRACE)}
    pids = {by_name[name].pid for name in ("armwise.decide", "chat scripted", "embeddings hashing:64")}
    assert len(pids) == 3, "the ingress, the host of the model, and that of the encoder"
    assert {span.service for span in spans.of(TRACE)} == {"armwise-live"}
    linked = until(lambda: [span for span in spans.spans if TRACE in span.links])
    assert [span.name for span in linked] == ["armwise.feedback"]


def test_the_log_has_a_line_of_json_for_each_turn_with_its_ids_and_no_text(watched: Live) -> None:
    trace = TRACE[::-1]
    found = ask(watched, "arm/oracle", traceparent=f"00-{trace}-b7ad6b7169203331-01")
    log = watched.config.parent / "output.txt"

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        own = [line for line in lines if line.get("decision_id") == found["decision_id"]]
        return [line for line in own if line["logger"] == "agent.turns"]

    (line,) = until(logged)
    assert (line["message"], line["arm"], line["status"]) == ("turn", "oracle", "ok")
    assert line["trace_id"] == trace
    assert line["seconds"] > 0
    assert QUESTION not in log.read_text()
    assert KEY not in log.read_text()


def queries() -> list[str]:
    """Return every query of the board, as Grafana would send it."""
    found = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    return [one.replace("$__rate_interval", "1m").replace("$job", ".*") for one in found]


def test_every_query_of_the_board_finds_something_in_a_prometheus_that_scrapes_the_service(
    watched: Live, tmp_path: Path
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("there is no Prometheus: make prometheus")
    shutil.copytree(ROOT / "deploy/prometheus", tmp_path / "etc")
    path, port = tmp_path / "etc/prometheus.yml", free_port()
    config = yaml.safe_load(path.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [watched.url.removeprefix("http://")]}]
    config["scrape_configs"][0]["authorization"] = {"credentials": KEY}  # else what keys cost is not shown
    path.write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    left = queries()
    assert len(left) > 25

    def traffic() -> None:
        watched.tell((ask(watched)["decision_id"], 1.0))
        assert watched.client.post(
            "/v1/retrieve", json={"query": "x"}, headers={"authorization": "Bearer no"}
        ).is_error
        late = {"x-request-timeout-seconds": "0.000001"}
        assert watched.client.post("/v1/retrieve", json={"query": QUESTION}, headers=late).is_error

    def answered() -> bool:
        nonlocal left
        traffic()
        left = [query for query in left if not results(port, query)]
        return not left

    try:
        until(lambda: _answers(port))
        try:
            until(answered, 180.0)
        except AssertionError:
            pytest.fail("nothing was found by:\n" + "\n".join(left))
        rules = httpx.get(f"http://127.0.0.1:{port}/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready").is_success
    except httpx.HTTPError:
        return False


def results(port: int, query: str) -> list[str]:
    """Return the values that a query finds, without those that are not a number."""
    response = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
    assert response.status_code == 200, f"{query}: {response.text}"
    values = [one["value"][1] for one in response.json()["data"]["result"]]
    return [value for value in values if not re.fullmatch("NaN", value)]
