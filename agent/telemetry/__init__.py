"""Telemetry of a process: traces by OpenTelemetry, and log lines."""

from . import turns
from .logs import JsonFormatter, TelemetrySpec, log_turn
from .process import begin
from .requests import ServerSpans

__all__ = ["JsonFormatter", "ServerSpans", "TelemetrySpec", "begin", "log_turn", "turns"]
