"""Carry a log to and from JSON lines, VW dsjson and OBP's layout, and from the logs of production."""

from .dsjson import read_dsjson, write_dsjson
from .imported import REWARD, Faults, rule_of
from .jsonl import (
    ExchangeError,
    Header,
    appearing,
    appearing_folder,
    export_lines,
    read_export,
    read_headers,
    write_export,
)
from .obp import read_obp, write_obp
from .production import FORMATS, FULL, ProductionLog, Request, Summary
from .propensities import LEAST_DRAWS, LEAST_ROWS
from .table import COSTS, Columns

__all__ = [
    "COSTS",
    "FORMATS",
    "FULL",
    "LEAST_DRAWS",
    "LEAST_ROWS",
    "REWARD",
    "Columns",
    "ExchangeError",
    "Faults",
    "Header",
    "ProductionLog",
    "Request",
    "Summary",
    "appearing",
    "appearing_folder",
    "export_lines",
    "read_dsjson",
    "read_export",
    "read_headers",
    "read_obp",
    "rule_of",
    "write_dsjson",
    "write_export",
    "write_obp",
]
