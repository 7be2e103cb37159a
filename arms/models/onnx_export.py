"""The export of a model of sentence-transformers to ONNX: `python -m arms.models.onnx_export EXPORT FOLDER`.

A process of its own, as torch and transformers take seconds to load and hundreds of megabytes. Exit status:
0 where the graph in FOLDER gives what the model gives, 3 where it does not or cannot be made, with the
reason in the last line of stderr.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn

from arms.models.onnx_graph import (
    MODEL,
    REFUSED,
    TOKENIZER,
    Export,
    NotExportableError,
    OnnxGraph,
    scorer_problem,
)

SAMPLES = (
    "What is a red fox?",
    "  The Quick Brown Fox: straße, naïve, 東京, 🦊; x = f(y[0]) != None  ",
    "",
    "one word after another, " * 700,
    "The function returns a new list of its arguments, and raises ValueError where one is negative. " * 4,
)
"""Texts by which a graph is compared with its model: short, long, empty, beyond the limit, of any script."""

LEAST_COSINE = {"float32": 0.9999, "int8": 0.9}
"""What the rows of a graph have in common with those of the model, at least, by precision."""

OPSET = 17

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Traced(nn.Module):
    """A model as a function of tensors.

    Args:
        model: A sentence encoder or a cross-encoder.
        names: What its tokenizer calls the tensors.
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


def load(export: Export) -> SentenceTransformer | CrossEncoder:
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


def main(export: Export, folder: Path) -> None:
    """Write graph and tokenizer.

    Raises:
        NotExportableError: The model has no fast tokenizer or reads more than text, torch cannot trace it,
            a cross-encoder does not score pairs, or the graph gives something else than the model.
    """
    model = load(export).eval()
    if isinstance(model, CrossEncoder) and (problem := scorer_problem(model)):
        raise NotExportableError(problem)
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise NotExportableError(f"its {type(model.tokenizer).__name__} is no fast tokenizer of transformers")
    limit = export.max_length or model.max_seq_length or model.tokenizer.model_max_length
    if limit < 1 << 20:  # what transformers says where there is no limit is far above
        tokenizer.enable_truncation(limit)
    tokenizer.enable_padding(
        direction=model.tokenizer.padding_side,
        pad_id=model.tokenizer.pad_token_id,
        pad_type_id=model.tokenizer.pad_token_type_id,
        pad_token=model.tokenizer.pad_token,
    )
    tokenizer.save(str(folder / TOKENIZER))

    texts: list[Any] = list(
        SAMPLES if export.task == "sentences" else zip(SAMPLES, SAMPLES[1:] + SAMPLES[:1], strict=True)
    )
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
        except Exception as error:  # whatever an operator that ONNX does not have raises
            raise NotExportableError(f"torch cannot export it: {error}".splitlines()[0]) from error
        wanted = (
            model.encode(texts, prompt="", show_progress_bar=False)
            if isinstance(model, SentenceTransformer)
            else model.predict(texts, activation_fn=nn.Identity(), show_progress_bar=False)[:, None]
        )
    compare(OnnxGraph(folder, batch_size=2), texts, wanted, "float32")
    if export.precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(folder / MODEL, folder / MODEL, per_channel=True, reduce_range=True)
        compare(OnnxGraph(folder, batch_size=1), texts, wanted, "int8")


def compare(graph: OnnxGraph, texts: Sequence[Any], wanted: NDArray[np.float32], precision: str) -> None:
    """Raise NotExportableError unless a graph gives what its model gives, alone and in a batch.

    Logits, which are single numbers, are compared as one row.
    """
    rows = (lambda found: found.T) if wanted.shape[1] == 1 else np.asarray
    alone = np.concatenate([graph.read([text]) for text in texts])
    for found in (graph.read(texts), alone):
        cosines = _cosines(rows(found), rows(wanted))
        if not cosines.min() >= LEAST_COSINE[precision]:  # nan as well
            worst = texts[int(cosines.argmin())] if len(cosines) > 1 else texts
            raise NotExportableError(
                f"the graph in {precision} gives something else than the model: a cosine of "
                f"{cosines.min():.4f} for {str(worst)[:40]!r}"
            )


def _cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(axis=1) / norms, dtype=np.float32)


if __name__ == "__main__":
    try:
        main(Export(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    except NotExportableError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)
