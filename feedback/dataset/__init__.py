"""A training log as arrays."""

from .features import arm_categories, described
from .log import (
    CLUSTERS,
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
    "CLUSTERS",
    "EVERYTHING",
    "Batch",
    "Categorical",
    "Describe",
    "DrawKey",
    "EmptyLogError",
    "Log",
    "ProgressCallback",
    "Selection",
    "arm_categories",
    "described",
    "priced",
    "rewards",
]
