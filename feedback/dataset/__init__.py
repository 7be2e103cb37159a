"""A training log as arrays."""

from .features import described
from .log import UNSETTLED, Describe, EmptyLogError, Log, ProgressCallback

__all__ = [
    "UNSETTLED",
    "Describe",
    "EmptyLogError",
    "Log",
    "ProgressCallback",
    "described",
]
