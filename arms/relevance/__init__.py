"""The relevance of passages: features that need no label, and a model fitted to gold passages."""

from .features import candidates
from .model import FILE, RelevanceError, RelevanceModel, read_model, write_model
from .training import Case, Examples, Fitting, fit

__all__ = [
    "FILE",
    "Case",
    "Examples",
    "Fitting",
    "RelevanceError",
    "RelevanceModel",
    "candidates",
    "fit",
    "read_model",
    "write_model",
]
