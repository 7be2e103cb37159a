"""Reranking by a cross-encoder, which reads question and passage together."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.indexes import vectors
from armwise.arms.models import (
    BATCH_SIZE,
    GRAPH_LIBRARIES,
    LocalModel,
    ModelNotFoundError,
    NoGraphError,
    compute_cores,
    locate,
    open_graph,
    require_torch,
)
from armwise.arms.retrievers.kind import Members, Resources
from armwise.arms.retrievers.rerank import RerankedArm, RerankParams


class CrossEncoderParams(RerankParams):
    """Parameters of a cross-encoder arm."""

    model: LocalModel = Field(description="Cross-encoder: a hub name, a folder, or `package:NAME/PATH`.")
    runtime: Literal["onnx", "torch"] = Field(
        "onnx",
        description=(
            "Library that runs the model. `onnx`: onnxruntime if the model's files include an ONNX graph, "
            "and torch if not. `torch`: always torch, on a GPU if there is one."
        ),
    )


ReadPairs = Callable[[list[tuple[str, str]]], NDArray[np.float32]]
"""Question and text of each pair -> logits, shape (n_pairs,)."""


def open_scorer(params: CrossEncoderParams) -> ReadPairs:
    """Return what scores pairs: the graph of a model, or else torch. Thread-safe.

    Raises:
        ModelNotFoundError: The model cannot be found, or does not score pairs.
    """
    if params.runtime == "torch":
        return _TorchScorer(params).read
    try:
        graph = open_graph(params.model)
    except NoGraphError as error:
        return _TorchScorer(params, error).read
    _require_score(params.model, graph.read([("?", "?")]).shape[1])
    threads = len(compute_cores())
    return lambda pairs: graph.read(pairs, threads)[:, 0]


def _require_score(model: str, n_classes: int) -> None:
    """Raise ModelNotFoundError if a model does not give a single score."""
    if n_classes != 1:
        raise ModelNotFoundError(f"model {model!r} has {n_classes} classes; a single score is needed")


class _TorchScorer:
    """A cross-encoder of sentence-transformers; thread-safe."""

    def __init__(self, params: CrossEncoderParams, why: object = "") -> None:
        require_torch(params.model, why)
        from sentence_transformers import CrossEncoder  # here: loading takes seconds
        from transformers.utils import logging as messages

        messages.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place, model = locate(params.model), params.model
        try:
            self._model = CrossEncoder(str(place), local_files_only=isinstance(place, Path))
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model {model!r} cannot be loaded: {error}") from error
        saved: list[str] | None = getattr(self._model.config, "architectures", None)
        loaded = type(self._model.transformers_model).__name__
        if saved and loaded not in saved:  # sentence-transformers gives it a head of random weights
            raise ModelNotFoundError(f"model {model!r} is a {saved[0]}, without the head of a {loaded}")
        _require_score(model, self._model.num_labels)
        self._lock = threading.Lock()

    def read(self, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one logit per pair, shape (n_pairs,)."""
        import torch

        with self._lock:  # fast tokenizers are not thread-safe
            torch.set_num_threads(len(compute_cores()))
            scores: NDArray[np.float32] = self._model.predict(
                pairs,
                batch_size=BATCH_SIZE,
                show_progress_bar=False,
                activation_fn=torch.nn.Identity(),
            )
        return scores


class CrossEncoderArm(RerankedArm[CrossEncoderParams]):
    """Reranks another arm's passages with a cross-encoder."""

    kind = "cross_encoder"
    params = CrossEncoderParams
    example: ClassVar = {"arm": "rrf", "model": "cross-encoder/ms-marco-MiniLM-L6-v2"}
    libraries = GRAPH_LIBRARIES

    @classmethod
    @override
    def build(cls, name: str, params: CrossEncoderParams, have: Resources, member: Members) -> Self:
        shapes = params.model, params.runtime
        score_pairs = have.share(("cross-encoder", *shapes), lambda: open_scorer(params))

        def read(query: Query, passages: Sequence[Passage]) -> NDArray[np.float32]:
            scores = score_pairs([(query.text, vectors.compose_text(passage)) for passage in passages])
            if not np.isfinite(scores).all():
                bad = int(np.flatnonzero(~np.isfinite(scores))[0])
                found = f"{params.model} gave {passages[bad].id!r} the score {scores[bad]}"
                raise ArmError(f"arm {name!r}: {found}")
            return scores

        return cls(name, member(params.arm), params.depth, read)
