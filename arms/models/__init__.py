"""Encoders, model files and threads."""

from .embedding import Backbone, Embedder, build_embedder, compute_cores, digest_backbone
from .files import ModelNotFoundError, digest_of, is_below, locate, model_problems, require_whole

__all__ = [
    "Backbone",
    "Embedder",
    "ModelNotFoundError",
    "build_embedder",
    "compute_cores",
    "digest_backbone",
    "digest_of",
    "is_below",
    "locate",
    "model_problems",
    "require_whole",
]
