from . import insert_labels
from .job import WarmStarts
from .run import RunFailedError, preview_lots, warm_start, warm_start_before_traffic
from .schedule import Planned, next_run

__all__ = [
    "Planned",
    "RunFailedError",
    "WarmStarts",
    "insert_labels",
    "next_run",
    "preview_lots",
    "warm_start",
    "warm_start_before_traffic",
]
