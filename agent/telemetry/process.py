"""Telemetry at the start of a process: its log, and the export of traces that the environment asks for."""

import logging
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from armwise.agent.reporting import log_plainly
from armwise.agent.telemetry import logs
from armwise.agent.telemetry.logs import TelemetrySpec
from armwise.arms import proxies, tracing
from armwise.arms.local_ray import UMASK

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CAPTURES = {
    "NO_CONTENT": (),
    "SPAN_ONLY": ("span",),
    "EVENT_ONLY": ("event",),
    "SPAN_AND_EVENT": ("span", "event"),
}


def begin(spec: TelemetrySpec) -> None:
    """Set up the log of this process, traces if the environment names an exporter, and a private umask."""
    os.umask(UMASK)
    log_plainly()
    if spec.logs == "json":
        logs.log_json(content=spec.log_content)
    tracing.switch(build_tracing(spec, os.environ))


def build_tracing(spec: TelemetrySpec, environment: Mapping[str, str]) -> tracing.Tracing | None:
    """Return tracing as OpenTelemetry's variables ask for; None: no exporter is named, or none works."""
    made = list(_make_exporters(exporters(environment)))
    if not made:
        return None
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    version = metadata.version("armwise")
    attributes: dict[str, str | int] = {
        "service.name": "armwise",
        "service.version": version,
        "process.pid": os.getpid(),
    }
    # the variables take precedence over these attributes
    resource = Resource.create({**attributes}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)  # it reads the variables of the sampler
    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    captured = environment.get(CAPTURE, "NO_CONTENT").upper()
    if captured not in CAPTURES:
        logger.warning(
            "%s is %r: one of %s was expected; no texts are recorded", CAPTURE, captured, ", ".join(CAPTURES)
        )
    places = CAPTURES.get(captured, ())
    tracer = provider.get_tracer("armwise", version)
    return tracing.Tracing(tracer, "span" in places, "event" in places, spec.openinference)


def exporters(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the exporters that OpenTelemetry's variables ask for.

    >>> exporters({}), exporters({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    ([], ['otlp_proto_http'])
    """
    if environment.get(DISABLED, "").lower() == "true":
        return []
    default = "otlp" if any(map(environment.get, ENDPOINTS)) else "none"
    protocol = next(filter(None, map(environment.get, PROTOCOLS)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = (name.strip() for name in (environment.get(EXPORTER) or default).split(","))
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def _make_exporters(names: list[str]) -> Iterator["SpanExporter"]:
    """Yield an exporter of each name, or log a warning if it is missing or fails."""
    for name in names:
        try:
            for address in filter(None, map(os.environ.get, ENDPOINTS)):
                proxies.find_proxy(address, ("socks",))  # said now: the exporter finds out when it sends
            (entry_point,) = metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
            yield entry_point.load()()
        except ValueError:
            logger.warning("no traces go to %r: this exporter of OpenTelemetry is not installed", name)
        except Exception as error:  # noqa: BLE001 - the service is worth more than its traces
            logger.warning("no traces go to %r: %s", name, error)
