"""Warm starts: labels enter the log, a candidate learns them, and the gate promotes or holds it."""

from .canary import AutomaticCanaries
from .job import WarmStarts
from .labels import (
    InsertSettings,
    OtherLabels,
    WarmStartError,
    insert_labels,
    label_decisions,
    make_contexts,
)
from .run import preview_lots, warm_start

__all__ = [
    "AutomaticCanaries",
    "InsertSettings",
    "OtherLabels",
    "WarmStartError",
    "WarmStarts",
    "insert_labels",
    "label_decisions",
    "make_contexts",
    "preview_lots",
    "warm_start",
]
