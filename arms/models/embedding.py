"""Turn text into unit vectors; a query is embedded once for each backbone.

Backbone          which model, and what it wants before a text: data from the configuration
build_embedder    Backbone -> Embedder
SentenceEmbedder  a sentence-transformers model
HashingEmbedder   no model at all: words hashed to signs, for tests and dry runs
"""

import hashlib
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arms.models.files import digest_of, locate
from arms.tokenizer import words

HASHING = "hashing:"


class Backbone(BaseModel):
    """An embedding model and how it wants to be asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        description="A hub name, a folder, `package:NAME/PATH`, or `hashing:DIM` for no model at all."
    )
    query_prefix: str = Field("", description="Put before each query, such as `query: `.")
    passage_prefix: str = Field("", description="Put before each passage, such as `passage: `.")
    batch_size: int = Field(32, ge=1, description="Texts that the model reads at once.")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Of the weights. bfloat16 is about three times as fast where the processor has "
        "it, and turns vectors by a cosine of about .001.",
    )


class Embedder(Protocol):
    """Embed texts. Deterministic, and safe to call from many threads.

    Attributes:
        dim: Length of the vectors.
        digest: Hash of all that shapes a passage's vector; an index is valid for one digest.
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
    """Return the `digest` that the embedder will have, without loading its model.

    A model on disk is known by the contents of its files, a hub model by its commit.
    The query's prefix is left out: it shapes no passage.

    Raises:
        ModelNotFoundError: The model is not where its name says.
    """
    if backbone.model.startswith(HASHING):
        return f"hashing-{_hashing_dim(backbone.model)}"
    place = locate(backbone.model)
    weights = digest_of(place) if isinstance(place, Path) else _hub_commit(place)
    precision = "" if backbone.precision == "float32" else f"\0{backbone.precision}"
    return hashlib.sha256(f"{weights}\0{backbone.passage_prefix}{precision}".encode()).hexdigest()


class HashingEmbedder:
    """Texts with common words point the same way: each word adds or takes 1 in one dimension.

    >>> HashingEmbedder(8).encode_queries(["red fox", "Red Fox!"]).shape
    (2, 8)

    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning,
    arXiv:0902.2206.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.digest = f"hashing-{dim}"

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Queries and passages are hashed alike."""
        return self.encode_passages(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit rows; a text whose words are none, or cancel out, is hashed whole."""
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
    """A sentence-transformers model, from a folder or a hub, on the processor or a GPU."""

    def __init__(self, backbone: Backbone) -> None:
        import torch  # here: both take seconds to load
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place = locate(backbone.model)
        self.digest = digest_backbone(backbone)
        weights = {"dtype": getattr(torch, backbone.precision)}
        if isinstance(place, Path):
            self._model = SentenceTransformer(str(place), local_files_only=True, model_kwargs=weights)
        else:
            self._model = SentenceTransformer(place, revision=_hub_commit(place), model_kwargs=weights)
        self._backbone = backbone
        self._lock = threading.Lock()
        self.dim = self.encode_queries(["?"]).shape[1]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Put the query's prefix before each text, and embed on one thread: a service has other work."""
        return self._encode([self._backbone.query_prefix + text for text in texts], threads=1)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Put the passage's prefix before each text, and embed on all threads that are allowed."""
        return self._encode([self._backbone.passage_prefix + text for text in texts], _threads())

    def _encode(self, texts: list[str], threads: int) -> NDArray[np.float32]:
        import torch

        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        with self._lock:  # a fast tokenizer refuses to be used by two threads at once
            torch.set_num_threads(threads)
            vectors = self._model.encode(
                texts,
                batch_size=self._backbone.batch_size,
                show_progress_bar=False,
                prompt="",  # the prefix is the configuration's, not the model card's
            )
        # Made units here: in bfloat16 a model's own would be off by some thousandths.
        wide = np.asarray(vectors, dtype=np.float32)
        return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True), dtype=np.float32)


def _threads() -> int:
    """Threads for many texts: what Ray or the user allows, at most 8, where small models stop gaining."""
    return min(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1), 8)


@lru_cache(maxsize=100_000)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def _hashing_dim(model: str) -> int:
    """Return the DIM of `hashing:DIM`.

    >>> _hashing_dim("hashing:64")
    64
    """
    dim = model.removeprefix(HASHING)
    if not dim.isdecimal() or int(dim) < 1:
        raise ValueError(f"model {model!r}: a positive number of dimensions is needed, such as hashing:64")
    return int(dim)


@lru_cache(maxsize=64)  # hundreds of arms may stand on one model, and all of them on one commit of it
def _hub_commit(name: str) -> str:
    """Return the commit that a hub name stands for now; without a network, the one in the cache."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name, "config.json")).parent.name
