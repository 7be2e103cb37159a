"""A training log as arrays."""

from .features import featurize, stack
from .log import UNSETTLED, EmptyLogError, Log, LogFilter, ProgressCallback

__all__ = [
    "UNSETTLED",
    "EmptyLogError",
    "Log",
    "LogFilter",
    "ProgressCallback",
    "featurize",
    "stack",
]
