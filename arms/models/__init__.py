"""Encoders, model files and threads."""

from . import bundled
from .embedding import HASHING, Backbone, Embedder, build_embedder, compute_cores, digest_backbone
from .files import (
    AGAIN,
    LocalModel,
    ModelNotFoundError,
    digest_file,
    locate,
    locate_here,
    locate_in,
    model_problems,
    require_whole,
)
from .onnx_graph import BATCH_SIZE, GRAPH_LIBRARIES, NoGraphError, open_graph, require_torch

__all__ = [
    "AGAIN",
    "BATCH_SIZE",
    "GRAPH_LIBRARIES",
    "HASHING",
    "Backbone",
    "Embedder",
    "LocalModel",
    "ModelNotFoundError",
    "NoGraphError",
    "build_embedder",
    "bundled",
    "compute_cores",
    "digest_backbone",
    "digest_file",
    "locate",
    "locate_here",
    "locate_in",
    "model_problems",
    "open_graph",
    "require_torch",
    "require_whole",
]
