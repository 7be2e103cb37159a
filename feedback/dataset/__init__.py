"""A training log as arrays."""

from .features import make_describer
from .log import UNSETTLED, Describe, EmptyLogError, Log, ProgressCallback

__all__ = [
    "UNSETTLED",
    "Describe",
    "EmptyLogError",
    "Log",
    "ProgressCallback",
    "make_describer",
]
