"""A training log as arrays."""

from .features import arm_categories, described
from .log import UNSETTLED, Describe, EmptyLogError, Log, ProgressCallback

__all__ = [
    "UNSETTLED",
    "Describe",
    "EmptyLogError",
    "Log",
    "ProgressCallback",
    "arm_categories",
    "described",
]
