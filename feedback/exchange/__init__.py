"""Carry a log to and from VW dsjson, and read OBP's layout and the logs of production."""

from .dsjson import read_dsjson, write_dsjson
from .identity import DUPLICATE
from .imported import IMPOSSIBLE, REWARD, Faults, make_rule
from .obp import read_obp
from .production import FORMATS, FULL, ImportRequest, LogSummary, ProductionLog
from .propensities import LEAST_DRAWS, LEAST_ROWS
from .records import read_records, value_at
from .table import COSTS, Columns

__all__ = [
    "COSTS",
    "DUPLICATE",
    "FORMATS",
    "FULL",
    "IMPOSSIBLE",
    "LEAST_DRAWS",
    "LEAST_ROWS",
    "REWARD",
    "Columns",
    "Faults",
    "ImportRequest",
    "LogSummary",
    "ProductionLog",
    "make_rule",
    "read_dsjson",
    "read_obp",
    "read_records",
    "value_at",
    "write_dsjson",
]
