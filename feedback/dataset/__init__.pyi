from . import features
from .filter import EmptyLogError
from .log import Log
from .selection import Selection
from .source import ExportSource, LogSource, Source

__all__ = ["EmptyLogError", "ExportSource", "Log", "LogSource", "Selection", "Source", "features"]
