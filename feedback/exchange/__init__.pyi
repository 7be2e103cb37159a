from . import imported, jsonl
from .dsjson import read_dsjson, write_dsjson
from .jsonl import ExchangeError, Header, export_lines, read_export, read_headers, write_export
from .obp_layout import read_obp, write_obp

__all__ = [
    "ExchangeError",
    "Header",
    "export_lines",
    "imported",
    "jsonl",
    "read_dsjson",
    "read_export",
    "read_headers",
    "read_obp",
    "write_dsjson",
    "write_export",
    "write_obp",
]
