from . import turns
from .logs import JsonLines, log_turn
from .process import begin
from .requests import ServerSpans
from .spec import TelemetrySpec

__all__ = ["JsonLines", "ServerSpans", "TelemetrySpec", "begin", "log_turn", "turns"]
