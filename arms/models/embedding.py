"""Sentence encoders: text to unit vectors.

Backbone          the model and its prefixes, from the configuration
build_embedder    Backbone -> Embedder
SentenceEmbedder  a sentence-transformers model, on onnxruntime or torch
HashingEmbedder   hashed words without a model, for tests and dry runs
"""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.models.files import (
    LocalModel,
    ModelNotFoundError,
    digest_weights,
    hub_commit,
    locate,
)
from armwise.arms.models.onnx_graph import (
    BATCH_SIZE,
    GRAPH_LIBRARIES,
    GRAPHS,
    TORCH_LIBRARIES,
    NoGraphError,
    may_have_graph,
    open_graph,
    require_torch,
)
from armwise.arms.tokenizer import VERSION, words


def compute_cores() -> list[int]:
    """Return the cores of this process without the first one; at least one core."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:  # not Linux
        cores = list(range(os.cpu_count() or 1))
    return cores[1:] or cores


HASHING = "hashing:"

logger = logging.getLogger(__name__)


class Backbone(BaseModel):
    """A sentence encoder and its settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: LocalModel = Field(
        description=(
            "Model to use: a hub name, a folder, or `package:NAME/PATH`. `hashing:DIM` needs no model: it "
            "hashes words into DIM dimensions."
        )
    )
    query_prefix: str = Field(
        "",
        description=(
            "Text put before each question, such as `query: `. Armwise does not use the prompts in the "
            "model's own files."
        ),
    )
    passage_prefix: str = Field("", description="Text put before each passage, such as `passage: `.")
    runtime: Literal["onnx", "torch"] = Field(
        "onnx",
        description=(
            "Library that runs the model. `onnx`: onnxruntime if the model's files include an ONNX graph, "
            "and torch if not. `torch`: always torch, on a GPU if there is one."
        ),
    )
    host: Literal["ingress", "own"] = Field(
        "ingress",
        description=(
            "Where questions are embedded. `ingress`: in every replica of the service. `own`: in a "
            "deployment called `Embedder-<name>`, which all replicas share and which may have a GPU."
        ),
    )

    @property
    def models(self) -> tuple[str, ...]:
        """The model, and the graph of it that is in another package."""
        has_graph = self.runtime == "onnx" and self.model in GRAPHS
        return (self.model, GRAPHS[self.model]) if has_graph else (self.model,)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The modules beyond `armwise[serve]` that the model needs."""
        if self.model.startswith(HASHING):
            return ()
        try:
            on_torch = self.runtime == "torch" or not may_have_graph(self.model)
        except ModelNotFoundError:  # reported where the model is looked for
            on_torch = False
        return TORCH_LIBRARIES if on_torch else GRAPH_LIBRARIES

    def vectors_as(self, other: "Backbone") -> bool:
        """Return whether both give the same vectors: they are equal but for `host`."""
        return self.model_copy(update={"host": other.host}) == other


class Embedder(Protocol):
    """Embeds texts. Deterministic and thread-safe.

    Attributes:
        dim: Length of the vectors.
        digest: Hash of the model and of all settings that change a passage's vector.
    """

    dim: int
    digest: str

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per query, shape (n_texts, dim)."""
        ...

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per passage, shape (n_texts, dim)."""
        ...


def build_embedder(backbone: Backbone) -> Embedder:
    """Load the model of a backbone. Raises ModelNotFoundError or ValueError."""
    if backbone.model.startswith(HASHING):
        return HashingEmbedder(_hashing_dim(backbone.model))
    return SentenceEmbedder(backbone)


def digest_backbone(backbone: Backbone) -> str:
    """Return the `digest` of an embedder without loading its model.

    A model on disk is identified by the contents of its files, a hub model by its commit.

    Raises:
        ModelNotFoundError: The model cannot be found.
    """
    if backbone.model.startswith(HASHING):
        return _hashing_digest(_hashing_dim(backbone.model))
    weights = [digest_weights(locate(model)) for model in backbone.models]
    shapes = "\0".join([*weights, backbone.passage_prefix, backbone.runtime])
    return hashlib.sha256(shapes.encode()).hexdigest()


class HashingEmbedder:
    """Feature hashing: each word adds or subtracts 1 in one dimension.

    >>> HashingEmbedder(8).encode_queries(["red fox", "Red Fox!"]).shape
    (2, 8)

    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning,
    arXiv:0902.2206.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.digest = _hashing_digest(dim)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit rows, as for passages."""
        return self.encode_passages(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit rows; a text that is empty of words, or whose words cancel out, is hashed as a word."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in words(text):
                self._add(row, word)
            if not row.any():
                self._add(row, text)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)

    def _add(self, row: NDArray[np.float32], word: str) -> None:
        number = _hash(word)
        row[(number >> 1) % self.dim] += 1.0 if number & 1 else -1.0


class SentenceEmbedder:
    """A sentence-transformers model from a folder or a hub: on onnxruntime, or on torch.

    Raises:
        ModelNotFoundError: The model cannot be found or loaded, or a library is missing.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.digest = digest_backbone(backbone)
        self._backbone = backbone
        self._read = _read_with(backbone)
        self.dim = self.encode_queries(["?"]).shape[1]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed with the prefix of queries, on one thread: the service needs the other cores."""
        return self._encode([self._backbone.query_prefix + text for text in texts], threads=1)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed with the prefix of passages, on `OMP_NUM_THREADS` threads or all cores, at most 8."""
        return self._encode([self._backbone.passage_prefix + text for text in texts], _threads())

    def _encode(self, texts: list[str], threads: int) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        vectors = self._read(texts, threads)
        # Normalised here: in bfloat16 the model's own vectors are off by some thousandths.
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def _read_with(backbone: Backbone) -> Callable[[list[str], int], NDArray[np.float32]]:
    """Return the function that encodes texts on a number of threads: an ONNX graph, or else torch."""
    if backbone.runtime == "torch":
        return _TorchModel(backbone).read
    try:
        return open_graph(backbone.model).read
    except NoGraphError as error:
        return _TorchModel(backbone, error).read


class _TorchModel:
    """A model that sentence-transformers runs, on a CPU or a GPU; thread-safe.

    Args:
        backbone: The model and its settings.
        why: Why it does not run on onnxruntime.

    Raises:
        ModelNotFoundError: A library is missing, or the files are no model.
    """

    def __init__(self, backbone: Backbone, why: object = "") -> None:
        require_torch(backbone.model, why)
        from sentence_transformers import SentenceTransformer  # here: loading takes seconds
        from transformers.utils import logging as messages

        messages.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place = locate(backbone.model)
        source = {"revision": hub_commit(place)} if isinstance(place, str) else {"local_files_only": True}
        try:
            self._model = SentenceTransformer(str(place), **source)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ModelNotFoundError(f"model {backbone.model!r} cannot be loaded: {reason}") from error
        own = {name: text for name, text in self._model.prompts.items() if text}
        if own and not backbone.query_prefix + backbone.passage_prefix:
            logger.warning(
                "model %r was trained with prompts, %s: set them as query_prefix and passage_prefix",
                backbone.model,
                own,
            )
        self._lock = threading.Lock()

    def read(self, texts: list[str], threads: int) -> NDArray[np.float32]:
        """Return one row per text, shape (n_texts, dim)."""
        import torch

        with self._lock:  # fast tokenizers are not thread-safe
            torch.set_num_threads(threads)
            rows = self._model.encode(
                texts,
                batch_size=BATCH_SIZE,
                show_progress_bar=False,
                prompt="",  # the prefix is the configuration's, not the model card's
            )
        return np.asarray(rows, dtype=np.float32)


def _threads() -> int:
    """Return the threads for many texts: at most 8, beyond which small models gain nothing."""
    return min(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1), 8)


@lru_cache(maxsize=100_000)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def _hashing_digest(dim: int) -> str:
    return f"{HASHING.rstrip(':')}-{dim}-{VERSION}"


def _hashing_dim(model: str) -> int:
    """Return the DIM of `hashing:DIM`.

    >>> _hashing_dim("hashing:64")
    64
    """
    dim = model.removeprefix(HASHING)
    if not dim.isdecimal() or int(dim) < 1:
        raise ValueError(f"model {model!r}: a positive number of dimensions is needed, such as hashing:64")
    return int(dim)
