"""Encoders, model files and threads."""

from . import bundled
from .embedding import Backbone, Embedder, build_embedder, compute_cores, digest_backbone
from .files import (
    AGAIN,
    LocalModel,
    ModelNotFoundError,
    digest_file,
    is_below,
    locate,
    locate_here,
    locate_in,
    model_problems,
    require_whole,
)
from .onnx_graph import (
    GRAPH_LIBRARIES,
    NotExportableError,
    OnnxExport,
    fall_back_on_torch,
    has_gpu,
    open_graph,
    scorer_problem,
)

__all__ = [
    "AGAIN",
    "GRAPH_LIBRARIES",
    "Backbone",
    "Embedder",
    "LocalModel",
    "ModelNotFoundError",
    "NotExportableError",
    "OnnxExport",
    "build_embedder",
    "bundled",
    "compute_cores",
    "digest_backbone",
    "digest_file",
    "fall_back_on_torch",
    "has_gpu",
    "is_below",
    "locate",
    "locate_here",
    "locate_in",
    "model_problems",
    "open_graph",
    "require_whole",
    "scorer_problem",
]
