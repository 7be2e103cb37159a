from . import turns
from .logs import JsonLines
from .process import begin
from .requests import ServerSpans
from .spec import TelemetrySpec

__all__ = ["JsonLines", "ServerSpans", "TelemetrySpec", "begin", "turns"]
