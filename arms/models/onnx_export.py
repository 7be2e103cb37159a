"""Export a model to ONNX: `python -m armwise.arms.models.onnx_export EXPORT FOLDER`.

It runs as a separate process, since torch and transformers take seconds and hundreds of megabytes to load.
Exit status: 0 if the graph in FOLDER agrees with the model; 3 if it differs or cannot be made, with the
reason in the last line of stderr.
"""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.arms.models import onnx_bert
from armwise.arms.models.onnx_graph import (
    MODEL,
    REFUSED,
    TOKENIZER,
    NotExportableError,
    OnnxExport,
    OnnxGraph,
    make_texts,
)

SAMPLES = (
    "What is a red fox?",
    "  The Quick Brown Fox: straße, naïve, 東京, 🦊; x = f(y[0]) != None  ",
    "",
    "one word after another, " * 700,
    "The function returns a new list of its arguments, and raises ValueError where one is negative. " * 4,
)
"""Texts on which a graph is compared with its model: short, long, empty, too long, in several scripts."""

LEAST_COSINE = {"float32": 0.9999, "int8": 0.9}
"""Least cosine between the rows of a graph and those of its model, by precision."""

FILES = ("*.json", "*/config.json", "model.safetensors")
"""Files that are fetched from a hub."""


def main(export: OnnxExport, folder: Path) -> None:
    """Write graph and tokenizer: a BERT from its weights, any other model by torch.

    Raises:
        NotExportableError: Neither works, or the rows of the graph differ from those of the model.
    """
    texts = make_texts(export.task, SAMPLES)
    try:
        place = Path(export.model) if not export.revision else fetched(export.model, export.revision)
        onnx_bert.write(place, export.task, export.max_length, folder / MODEL, folder / TOKENIZER)
        reference = OnnxGraph(folder, batch_size=1).read(texts)
    except onnx_bert.NoBertError as error:
        if find_spec("sentence_transformers") is None:
            raise NotExportableError(f"{error}, and torch, which reads others, is not installed") from None
        from armwise.arms.models.onnx_torch import trace  # here: a BERT is written without torch

        reference = trace(export, folder, SAMPLES)
    compare(OnnxGraph(folder, batch_size=2), texts, reference, "float32")
    if export.precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(folder / MODEL, folder / MODEL, per_channel=True, reduce_range=True)
        compare(OnnxGraph(folder, batch_size=1), texts, reference, "int8")


def fetched(model: str, revision: str) -> Path:
    """Fetch the files of a commit of a hub name, and return their folder."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, allow_patterns=list(FILES)))


def compare(graph: OnnxGraph, texts: Sequence[Any], wanted: NDArray[np.float32], precision: str) -> None:
    """Raise NotExportableError if the rows of a graph, alone or in a batch, differ from those of its model.

    Logits, which are single numbers, are compared as one row.
    """
    rows = (lambda matrix: matrix.T) if wanted.shape[1] == 1 else np.asarray
    alone = np.concatenate([graph.read([text]) for text in texts])
    for output in (graph.read(texts), alone):
        cosines = _cosines(rows(output), rows(wanted))
        if not cosines.min() >= LEAST_COSINE[precision]:  # nan as well
            worst = texts[int(cosines.argmin())] if len(cosines) > 1 else texts
            raise NotExportableError(
                f"the graph in {precision} gives something else than the model: a cosine of "
                f"{cosines.min():.4f} for {str(worst)[:40]!r}"
            )


def _cosines(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray((actual * expected).sum(axis=1) / norms, dtype=np.float32)


if __name__ == "__main__":
    try:
        main(OnnxExport(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    except NotExportableError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)
