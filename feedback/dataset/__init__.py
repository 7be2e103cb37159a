"""A training log as arrays."""

from .features import described
from .log import (
    EVERYTHING,
    Batch,
    Categorical,
    Describe,
    DrawKey,
    EmptyLogError,
    Log,
    ProgressCallback,
    Selection,
    priced,
    rewards,
)

__all__ = [
    "EVERYTHING",
    "Batch",
    "Categorical",
    "Describe",
    "DrawKey",
    "EmptyLogError",
    "Log",
    "ProgressCallback",
    "Selection",
    "described",
    "priced",
    "rewards",
]
