"""Carry a log to and from JSON lines, VW dsjson and OBP's layout."""

from .dsjson import read_dsjson, write_dsjson
from .imported import REWARD, rule_of
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

__all__ = [
    "REWARD",
    "ExchangeError",
    "Header",
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
