"""A training log as arrays."""

from .features import arm_categories, described
from .log import (
    CLUSTERS,
    EVERYTHING,
    UNSETTLED,
    Categorical,
    Describe,
    DrawKey,
    EmptyLogError,
    ExampleBatch,
    Log,
    ProgressCallback,
    Selection,
    priced,
    rewards,
    shown,
)

__all__ = [
    "CLUSTERS",
    "EVERYTHING",
    "UNSETTLED",
    "Categorical",
    "Describe",
    "DrawKey",
    "EmptyLogError",
    "ExampleBatch",
    "Log",
    "ProgressCallback",
    "Selection",
    "arm_categories",
    "described",
    "priced",
    "rewards",
    "shown",
]
