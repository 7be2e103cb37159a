"""A training log as arrays."""

from .features import featurize, stack
from .log import UNSETTLED, Describe, EmptyLogError, Log, LogFilter, ProgressCallback

__all__ = [
    "UNSETTLED",
    "Describe",
    "EmptyLogError",
    "Log",
    "LogFilter",
    "ProgressCallback",
    "featurize",
    "stack",
]
