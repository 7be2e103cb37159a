"""Reranking by a cross-encoder, which reads question and passage together."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.indexes import vectors
from armwise.arms.models import (
    GRAPH_LIBRARIES,
    LocalModel,
    ModelNotFoundError,
    NotExportableError,
    OnnxExport,
    compute_cores,
    fall_back_on_torch,
    has_gpu,
    locate,
    open_graph,
    scorer_problem,
)
from armwise.arms.retrievers.kind import Kind, Members, Resources
from armwise.arms.retrievers.rerank import RerankedArm, RerankParams


class CrossEncoderParams(RerankParams):
    """Parameters of a cross-encoder arm."""

    model: LocalModel = Field(description="A hub name, a folder, or `package:NAME/PATH`.")
    batch_size: int = Field(32, ge=1, description="Pairs that the model reads at once.")
    max_length: int | None = Field(
        None, ge=8, description="Tokens of a pair that are read; null is the model's own limit."
    )
    precision: Literal["float32", "int8"] = Field(
        "float32",
        description="Precision of the weights. int8 is faster and a quarter as large, changes scores a "
        "little, and needs onnxruntime.",
    )


ReadPairs = Callable[[list[tuple[str, str]]], NDArray[np.float32]]
"""Question and text of each pair -> logits, shape (n_pairs,)."""


def open_scorer(params: CrossEncoderParams) -> ReadPairs:
    """Return what scores pairs: a graph of onnxruntime, or torch where the model cannot be one. Thread-safe.

    Raises:
        ModelNotFoundError: The model cannot be found, does not score pairs, or cannot be quantised.
    """
    threads = len(compute_cores())
    if params.precision == "float32" and has_gpu():
        return _TorchScorer(params).read
    try:
        export = OnnxExport.of(params.model, "pairs", params.precision, params.max_length)
        graph = open_graph(export, params.batch_size)
    except (NotExportableError, OSError) as error:
        on_torch = _TorchScorer(params)  # says what is wrong where it cannot be loaded either
        fall_back_on_torch(params.model, params.precision, error)
        return on_torch.read
    return lambda pairs: graph.read(pairs, threads)[:, 0]


class _TorchScorer:
    """A cross-encoder of sentence-transformers; thread-safe."""

    def __init__(self, params: CrossEncoderParams) -> None:
        from sentence_transformers import CrossEncoder  # here: loading takes seconds
        from transformers.utils import logging as messages

        messages.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place, model = locate(params.model), params.model
        try:
            self._model = CrossEncoder(
                str(place), local_files_only=isinstance(place, Path), max_length=params.max_length
            )
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model {model!r} cannot be loaded: {error}") from error
        if problem := scorer_problem(self._model):
            raise ModelNotFoundError(f"model {model!r} {problem}")
        self._batch_size, self._lock = params.batch_size, threading.Lock()

    def read(self, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one logit per pair, shape (n_pairs,)."""
        import torch

        with self._lock:  # fast tokenizers are not thread-safe
            torch.set_num_threads(len(compute_cores()))
            scores: NDArray[np.float32] = self._model.predict(
                pairs,
                batch_size=self._batch_size,
                show_progress_bar=False,
                activation_fn=torch.nn.Identity(),
            )
        return scores


def _build(name: str, params: CrossEncoderParams, have: Resources, member: Members) -> RerankedArm:
    shapes = params.model, params.precision, params.max_length, params.batch_size
    score_pairs = have.shared(("cross-encoder", *shapes), lambda: open_scorer(params))

    def read(query: Query, passages: Sequence[Passage]) -> NDArray[np.float32]:
        scores = score_pairs([(query.text, vectors.embedded_text(passage)) for passage in passages])
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise ArmError(f"arm {name!r}: {params.model} scores {passages[bad].id!r} as {scores[bad]}")
        return scores

    return RerankedArm(name, member(params.arm), params.depth, read)


KIND = Kind(
    "cross_encoder",
    "reranks another arm's passages with a cross-encoder",
    CrossEncoderParams,
    _build,
    members=lambda params: (params.arm,),
    models=lambda params: (params.model,),
    libraries=GRAPH_LIBRARIES,
    features=("depth",),
    filters=True,
    example={"arm": "rrf", "model": "cross-encoder/ms-marco-MiniLM-L6-v2"},
)
