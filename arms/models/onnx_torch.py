"""Models of sentence-transformers as ONNX graphs, traced by torch: those that `onnx_bert` cannot write."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn

from armwise.arms.models.onnx_graph import (
    INPUTS,
    MODEL,
    TOKENIZER,
    NotExportableError,
    OnnxExport,
    make_texts,
    scorer_problem,
)

OPSET = 17


class Traced(nn.Module):
    """A model as a function of tensors.

    Args:
        model: A sentence encoder or a cross-encoder.
        names: Names of the input tensors, in order.
    """

    def __init__(self, model: SentenceTransformer | CrossEncoder, names: Sequence[str]) -> None:
        super().__init__()
        self._model, self._names = model, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the rows, shape (n_texts, size)."""
        features = dict(zip(self._names, tensors, strict=True))
        if isinstance(self._model, SentenceTransformer):
            return self._model.forward(features)["sentence_embedding"]
        reader: Any = self._model.transformers_model
        scores: Tensor = reader(**features).logits
        return scores


def load(export: OnnxExport) -> SentenceTransformer | CrossEncoder:
    """Return the model on torch."""
    kind: Any = SentenceTransformer if export.task == "sentences" else CrossEncoder
    model: SentenceTransformer | CrossEncoder = kind(
        export.model,
        revision=export.revision or None,
        local_files_only=not export.revision,
        device="cpu",
        model_kwargs={"attn_implementation": "eager"},
    )
    return model


def trace(export: OnnxExport, folder: Path, samples: Sequence[str]) -> NDArray[np.float32]:
    """Write graph and tokenizer, and return the model's rows for the samples, shape (n_samples, size).

    Args:
        export: The model and its settings.
        folder: Output folder of both.
        samples: Texts; a cross-encoder reads each with the next one.

    Raises:
        NotExportableError: The model has no fast tokenizer or reads more than text, torch cannot trace it,
            or a cross-encoder does not score pairs.
    """
    model = load(export).eval()
    if isinstance(model, CrossEncoder) and (problem := scorer_problem(model)):
        raise NotExportableError(problem)
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise NotExportableError(f"its {type(model.tokenizer).__name__} is no fast tokenizer of transformers")
    limit = export.max_length or model.max_seq_length or model.tokenizer.model_max_length
    if limit < 1 << 20:  # transformers writes a far larger number for "no limit"
        tokenizer.enable_truncation(limit)
    tokenizer.enable_padding(
        direction=model.tokenizer.padding_side,
        pad_id=model.tokenizer.pad_token_id,
        pad_type_id=model.tokenizer.pad_token_type_id,
        pad_token=model.tokenizer.pad_token,
    )
    tokenizer.save(str(folder / TOKENIZER))

    texts: list[Any] = make_texts(export.task, samples)
    read = model.preprocess(texts[:2])
    names = [name for name in read if isinstance(read[name], Tensor)]
    if unknown := set(names) - set(INPUTS):
        raise NotExportableError(f"it reads {', '.join(sorted(unknown))}, and not tokens alone")
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # of tracing: the graph is compared with the model below
        try:
            torch.onnx.export(
                Traced(model, names),
                tuple(read[name] for name in names),
                str(folder / MODEL),
                input_names=names,
                output_names=["rows"],
                dynamic_axes={**{name: {0: "texts", 1: "tokens"} for name in names}, "rows": {0: "texts"}},
                opset_version=OPSET,
                dynamo=False,
            )
        except Exception as error:  # an operator that ONNX lacks may raise anything
            raise NotExportableError(f"torch cannot export it: {error}".splitlines()[0]) from error
        if isinstance(model, SentenceTransformer):
            return np.asarray(model.encode(texts, prompt="", show_progress_bar=False))
        scores = model.predict(texts, activation_fn=nn.Identity(), show_progress_bar=False)
        return np.asarray(scores)[:, None]
