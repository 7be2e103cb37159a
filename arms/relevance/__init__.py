"""The relevance of passages: features that need no label, and a model fitted to gold passages."""

from .features import candidates
from .model import FILE, RelevanceError, RelevanceModel, read_model, write_model

__all__ = [
    "FILE",
    "RelevanceError",
    "RelevanceModel",
    "candidates",
    "read_model",
    "write_model",
]
