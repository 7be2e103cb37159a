"""Models of sentence-transformers as ONNX graphs, which run without torch.

open_graph  a model -> OnnxGraph; a separate process exports it, once per machine
OnnxGraph   texts, or pairs of texts -> a row of numbers each, by onnxruntime
"""

import hashlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from armwise.arms.extras import describe_missing, install_command, installed, is_installed
from armwise.arms.models.files import ModelNotFoundError, digest_file, digest_weights, hub_commit, locate
from armwise.arms.own_processes import importable, python

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

logger = logging.getLogger(__name__)

MODEL, TOKENIZER = "model.onnx", "tokenizer.json"

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs that a graph may have, in this order."""

REFUSED = 3
"""Exit status of the exporting process when the model itself cannot be exported."""

SOURCES = ("onnx_export.py", "onnx_bert.py", "onnx_torch.py")
"""Files of this package whose code shapes the exported graph."""

LIBRARIES = ("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime")
"""Distributions whose version may change the exported graph."""

GRAPH_LIBRARIES = ("onnx", "onnxruntime", "tokenizers")
"""Modules that export and run a graph."""

Text = str | tuple[str, str]


class NotExportableError(Exception):
    """A model cannot be exported to ONNX; the message says why."""


def fall_back_on_torch(model: str, precision: str, error: Exception) -> None:
    """Log why a model runs on torch. Raises ModelNotFoundError in int8, or if torch is missing."""
    if not is_installed("sentence_transformers"):
        raise ModelNotFoundError(
            f"model {model!r} cannot be read: {error}; {install_command(['torch'])} brings torch"
        ) from error
    if precision == "int8":
        raise ModelNotFoundError(
            f"model {model!r} cannot be read in int8: {error}; use precision: float32"
        ) from error
    logger.warning("model %r runs on torch: %s", model, error)


@dataclass(frozen=True, slots=True)
class OnnxExport:
    """A model, and how it is exported.

    Attributes:
        model: A folder, or a hub name.
        revision: The commit of a hub name; empty for a folder.
        digest: Hash of the weights.
        task: `sentences` gives a vector for a text, `pairs` a cross-encoder's logit for a pair of texts.
        precision: `int8` quantises weights by channel to seven bits, so that sums fit into 16 bits on
            processors without VNNI and all processors agree; activations are quantised when a text is read.
        max_length: Most tokens of a text; None: the model's limit.
    """

    model: str
    revision: str
    digest: str
    task: Literal["sentences", "pairs"]
    precision: Literal["float32", "int8"]
    max_length: int | None = None

    @classmethod
    def of(
        cls,
        model: str,
        task: Literal["sentences", "pairs"],
        precision: Literal["float32", "int8"],
        max_length: int | None = None,
    ) -> Self:
        """Return the export of a model by its name. Raises ModelNotFoundError."""
        place = locate(model)
        revision = "" if isinstance(place, Path) else hub_commit(place)
        return cls(str(place), revision, digest_weights(place), task, precision, max_length)

    @property
    def key(self) -> str:
        """Hash of everything that shapes the graph; the path of the model is left out."""
        by = [digest_file(Path(__file__).with_name(name)) for name in SOURCES]
        by += map(installed, LIBRARIES)
        shapes = {**asdict(self), "model": "", "by": by}
        return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()[:32]


def make_texts(task: Literal["sentences", "pairs"], samples: Sequence[str]) -> list[Text]:
    """Return the inputs of a model: the texts, or for `pairs` each text with the next.

    >>> make_texts("pairs", ["red", "blue"])
    [('red', 'blue'), ('blue', 'red')]
    """
    if task == "sentences":
        return list(samples)
    return list(zip(samples, [*samples[1:], samples[0]], strict=True))


def scorer_problem(model: "CrossEncoder") -> str:
    """Return why a cross-encoder cannot score pairs; empty: it can."""
    saved: list[str] | None = getattr(model.config, "architectures", None)
    loaded = type(model.transformers_model).__name__
    if saved and loaded not in saved:  # sentence-transformers gives it a head of random weights
        return f"is a {saved[0]}, without the head of a {loaded}"
    return f"has {model.num_labels} classes; a single score is needed" if model.num_labels != 1 else ""


def has_gpu() -> bool:
    """Return whether this process may use a GPU, without loading torch; Ray hides other processes' GPUs."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in {"", "-1", "NoDevFiles"}
    return not hidden and Path("/dev/nvidiactl").exists()


class OnnxGraph:
    """A graph and its tokenizer; thread-safe.

    Args:
        folder: Folder with both files.
        batch_size: Texts per batch; a batch is padded to its longest text.
    """

    def __init__(self, folder: Path, batch_size: int) -> None:
        # set before the import: onnxruntime would send telemetry, and store an id of this machine for it
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # batches are what runs side by side
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(folder / MODEL), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [model_input.name for model_input in self._session.get_inputs()]
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._batch_size = batch_size

    def read(self, texts: Sequence[Text], threads: int = 1) -> NDArray[np.float32]:
        """Return one row per text, shape (n_texts, size); texts of like length share a batch."""
        if len(texts) == 1:
            return self._run(texts)
        order = np.argsort([_length(text) for text in texts], kind="stable")
        batches = [order[at : at + self._batch_size] for at in range(0, len(order), self._batch_size)]
        with ThreadPoolExecutor(max(1, min(threads, len(batches)))) as pool:
            read = list(pool.map(lambda batch: self._run([texts[at] for at in batch]), batches))
        rows = np.empty((len(texts), read[0].shape[1]), dtype=np.float32)
        for batch, batch_rows in zip(batches, read, strict=True):
            rows[batch] = batch_rows
        return rows

    def _run(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        encoded = self._tokenizer.encode_batch(list(texts))
        columns = {
            "input_ids": [encoding.ids for encoding in encoded],
            "attention_mask": [encoding.attention_mask for encoding in encoded],
            "token_type_ids": [encoding.type_ids for encoding in encoded],
        }
        feed = {name: np.asarray(columns[name], dtype=np.int64) for name in self._inputs}
        (rows,) = self._session.run(None, feed)
        return np.asarray(rows, dtype=np.float32)


def graph_folder(export: OnnxExport) -> Path:
    """Return the path in the user's cache for an exported model; it may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "armwise" / "onnx" / export.key


def open_graph(export: OnnxExport, batch_size: int) -> OnnxGraph:
    """Return the graph of a model, exported on first use.

    Graphs are in the folder `armwise/onnx` of the user's cache, `$XDG_CACHE_HOME` or `~/.cache`. An export
    takes some ten seconds under a lock. A refused export is remembered for these versions of the libraries.

    A quantised graph reads one text at a time, whatever `batch_size` says: the activations of a batch are
    quantised together, so its rows would depend on each other.

    Raises:
        NotExportableError: The model cannot be exported, or the cache cannot be written.
        ModelNotFoundError: A library that exports or runs graphs is not installed.
    """
    if missing := describe_missing(GRAPH_LIBRARIES):
        raise ModelNotFoundError(f"model {export.model!r} cannot be read: {missing}")
    from filelock import FileLock  # here: what only evaluates has no need of it

    # batches run side by side, so a thread pool in each tokenizer would only be in their way
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = graph_folder(export)
    cache, refusal = folder.parent, folder.with_name(f"{export.key}.txt")
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(cache / f"{export.key}.lock"):
            if not folder.exists() and not refusal.exists():
                _export(export, cache, folder, refusal)
        if refusal.exists():
            raise NotExportableError(refusal.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotExportableError(f"{cache} cannot be written: {error}") from error
    return OnnxGraph(folder, 1 if export.precision == "int8" else batch_size)


def _export(export: OnnxExport, cache: Path, folder: Path, refusal: Path) -> None:
    """Export in a separate process, so that torch is never loaded into this one."""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        unfinished = Path(scratch) / "graph"
        unfinished.mkdir()
        process = subprocess.run(
            python("-m", "armwise.arms.models.onnx_export", json.dumps(asdict(export)), str(unfinished)),
            env={**os.environ, "PYTHONPATH": importable()},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode == 0:
            unfinished.rename(folder)
            return
        reason = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        if process.returncode != REFUSED:  # killed, no memory, no disk: another time it may succeed
            raise NotExportableError(f"the export failed: {reason}")
        refusal.write_text(reason, encoding="utf-8")


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
