"""Reranking by a cross-encoder, which reads question and passage together."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from arms.base import ArmError, Passage, Query
from arms.indexes import vectors
from arms.models import ModelNotFoundError, compute_cores, locate
from arms.retrievers.kind import Kind, Members, Resources
from arms.retrievers.rerank import RerankedArm, RerankParams


class CrossEncoderParams(RerankParams):
    """Parameters of a cross-encoder arm."""

    model: str = Field(description="A hub name, a folder, or `package:NAME/PATH`.")
    batch_size: int = Field(32, ge=1, description="Pairs that the model reads at once.")
    max_length: int | None = Field(
        None, ge=8, description="Tokens of a pair that are read; null is the model's own limit."
    )


class PairScorer:
    """A cross-encoder of sentence-transformers; thread-safe.

    Args:
        model: A hub name, a folder, or `package:NAME/PATH`.
        max_length: Tokens of a pair that are read; None is the model's own limit.

    Raises:
        ModelNotFoundError: The model cannot be found, or does not score pairs.
    """

    def __init__(self, model: str, max_length: int | None = None) -> None:
        from sentence_transformers import CrossEncoder  # here: loading takes seconds
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place = locate(model)
        try:
            self._model = CrossEncoder(
                str(place), local_files_only=isinstance(place, Path), max_length=max_length
            )
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model {model!r} cannot be loaded: {error}") from error
        saved, loaded = self._model.config.architectures, type(self._model.transformers_model).__name__
        if saved and loaded not in saved:  # sentence-transformers gives it a head of random weights
            raise ModelNotFoundError(f"model {model!r} is a {saved[0]}, without the head of a {loaded}")
        if (labels := self._model.num_labels) != 1:
            raise ModelNotFoundError(f"model {model!r} has {labels} classes; a single score is needed")
        self._lock = threading.Lock()

    def scores(self, question: str, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Return one logit per text, shape (n_texts,)."""
        import torch

        with self._lock:  # fast tokenizers are not thread-safe
            torch.set_num_threads(len(compute_cores()))
            scores: NDArray[np.float32] = self._model.predict(
                [(question, text) for text in texts],
                batch_size=batch_size,
                show_progress_bar=False,
                activation_fn=torch.nn.Identity(),
            )
        return scores


def _build(name: str, params: CrossEncoderParams, have: Resources, member: Members) -> RerankedArm:
    scorer = have.shared(
        ("cross-encoder", params.model, params.max_length),
        lambda: PairScorer(params.model, params.max_length),
    )

    def read(query: Query, passages: Sequence[Passage]) -> NDArray[np.float32]:
        texts = [vectors.embedded_text(passage) for passage in passages]
        scores = scorer.scores(query.text, texts, params.batch_size)
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
    features=("depth",),
    filters=True,
    example={"arm": "rrf", "model": "cross-encoder/ms-marco-MiniLM-L6-v2"},
)
