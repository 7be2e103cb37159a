from .features import Candidates, candidates
from .model import Case, Fitting, RelevanceError, RelevanceModel, read_model, write_model

__all__ = [
    "Candidates",
    "Case",
    "Fitting",
    "RelevanceError",
    "RelevanceModel",
    "candidates",
    "read_model",
    "write_model",
]
