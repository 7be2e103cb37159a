"""Cascades: arms in stages, and a router that decides after each stage whether to go on."""

from . import saved
from .fitted import (
    Cascade,
    CascadeDataset,
    CascadeSpec,
    StageObservations,
    fit_cascade,
    stage_features,
    with_relevance,
)
from .saved import TrainedCascade, read_cascade, write_cascade
from .validation import CascadeValidation, validate_cascade

__all__ = [
    "Cascade",
    "CascadeDataset",
    "CascadeSpec",
    "CascadeValidation",
    "StageObservations",
    "TrainedCascade",
    "fit_cascade",
    "read_cascade",
    "saved",
    "stage_features",
    "validate_cascade",
    "with_relevance",
    "write_cascade",
]
