"""What a process does at its start: it traces where OpenTelemetry's variables say so."""

import os
import subprocess
import sys
from importlib import metadata

import pytest
from opentelemetry.sdk.trace import Tracer

from armwise.agent.telemetry import TelemetrySpec, begin
from armwise.agent.telemetry.process import build_tracing, exporters
from armwise.arms import tracing
from tests.agent.telemetry.conftest import beginning
from tests.arms.proxy_variables import forget_proxies

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "armwise"}, []),
        (COLLECTOR, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, ["otlp_proto_http"]),
        (COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            COLLECTOR
            | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ["otlp_proto_grpc"],
        ),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, []),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "true"}, []),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "True"}, []),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
    ],
)
def test_traces_go_where_the_standard_variables_say(environment: dict[str, str], names: list[str]) -> None:
    assert exporters(environment) == names


def test_a_collector_whose_proxy_cannot_be_used_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_proxies(monkeypatch)
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.example:1080")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
    assert build_tracing(TelemetrySpec(), os.environ) is None
    assert "ALL_PROXY=socks5://proxy.example:1080" in caplog.text
    assert "pip install 'requests[socks]'" in caplog.text


def test_an_exporter_that_is_not_installed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert build_tracing(TelemetrySpec(), {"OTEL_TRACES_EXPORTER": "zipkin"}) is None
    assert "no traces go to 'zipkin': this exporter of OpenTelemetry is not installed" in caplog.text


def test_a_wrong_demand_for_texts_records_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    environment = {
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "everything",
    }
    found = build_tracing(TelemetrySpec(openinference=True), environment)
    assert found is not None
    assert (found.on_spans, found.on_events, found.openinference) == (False, False, True)
    assert "is 'EVERYTHING': one of NO_CONTENT, SPAN_ONLY" in caplog.text


@pytest.mark.parametrize(
    ("capture", "on_spans", "on_events"),
    [
        *((None, False, False), ("no_content", False, False), ("span_only", True, False)),
        *(("EVENT_ONLY", False, True), ("SPAN_AND_EVENT", True, True)),
    ],
)
def test_texts_are_recorded_where_the_variable_of_the_conventions_says(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    capture: str | None,
    on_spans: bool,
    on_events: bool,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    environment = {"OTEL_TRACES_EXPORTER": "console"}
    if capture is not None:
        environment["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = capture
    found = build_tracing(TelemetrySpec(), environment)
    assert found is not None
    assert (found.on_spans, found.on_events) == (on_spans, on_events)
    assert caplog.text == ""


SCRIPT = """
import sys
from armwise.agent.telemetry import TelemetrySpec, begin
from armwise.arms import tracing
begin(TelemetrySpec())
with tracing.span("work", {}):
    pass
print(sorted(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"))
"""


def run(**environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(
        command,
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize(("exporter", "on"), [("none", False), ("console", True)])
def test_a_process_traces_from_its_start_where_an_exporter_is_named(
    monkeypatch: pytest.MonkeyPatch, exporter: str, on: bool
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with beginning(monkeypatch):
        begin(TelemetrySpec())
        assert tracing.is_on() is on


@pytest.mark.slow
def test_a_process_that_traces_nothing_imports_nothing_of_opentelemetry() -> None:
    assert run() == "[]\n"


@pytest.mark.slow
def test_a_process_exports_what_it_has_traced_unless_the_sampler_leaves_it_out() -> None:
    printed = run(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="armwise-test")
    assert '"name": "work"' in printed
    assert '"service.name": "armwise-test"' in printed
    assert '"name": "work"' not in run(OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="always_off")


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "armwise"),
        ({"OTEL_SERVICE_NAME": ""}, "armwise"),
        ({"OTEL_SERVICE_NAME": "ours"}, "ours"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.name=ours"}, "ours"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "peer.service.name=theirs"}, "armwise"),
    ],
)
def test_spans_are_of_the_service_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], name: str
) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"OTEL_TRACES_SAMPLER": "always_off", **environment}.items():
        monkeypatch.setenv(variable, value)
    found = build_tracing(TelemetrySpec(), {"OTEL_TRACES_EXPORTER": "console", **environment})
    assert found is not None
    assert isinstance(found.tracer, Tracer)
    attributes = found.tracer.resource.attributes
    assert attributes["service.name"] == name
    assert attributes["service.version"] == metadata.version("armwise")
    assert attributes["process.pid"] == os.getpid()
