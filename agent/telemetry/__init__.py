"""What a process reports of its work: traces by OpenTelemetry, and its log."""

from . import turns
from .logs import JsonLines, TelemetrySpec, log_turn
from .process import begin
from .requests import ServerSpans

__all__ = ["JsonLines", "ServerSpans", "TelemetrySpec", "begin", "log_turn", "turns"]
