from . import saved
from .features import stage_features
from .fitted import Cascade, CascadeDataset, CascadeSpec, fit_cascade, part_of
from .observed import Observed
from .saved import TrainedCascade, read_cascade, write_cascade
from .validation import CascadeValidation, validate_cascade

__all__ = [
    "Cascade",
    "CascadeDataset",
    "CascadeSpec",
    "CascadeValidation",
    "Observed",
    "TrainedCascade",
    "fit_cascade",
    "part_of",
    "read_cascade",
    "saved",
    "stage_features",
    "validate_cascade",
    "write_cascade",
]
