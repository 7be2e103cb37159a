"""The vectors of a corpus, embedded once per model in resumable batches.

All dense indexes over the corpus share them, so another kind of index needs no embedding.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arms.base import Passage, Progress
from arms.corpus import Corpus
from arms.indexes.build_once import build, check, folder
from arms.manifest import Identity
from arms.models import Backbone, Embedder, build_embedder, digest_backbone

BATCHES_PER_STEP = 16
"""Batches of the model between two checkpoints; texts are sorted by length within them."""

VECTORS = "vectors.npy"

CURSOR = "done.txt"


@dataclass(frozen=True, slots=True)
class Vectors:
    """Location and identity of the vectors of a corpus by a backbone.

    Attributes:
        target: Their folder.
        identity: Digests of corpus and model.
    """

    target: Path
    identity: Identity

    @classmethod
    def of(cls, corpus: Corpus, indexes: Path, backbone: Backbone) -> "Vectors":
        """Return the location of vectors, prepared or not. Raises ModelNotFoundError."""
        identity = {"corpus": corpus.digest, "model": digest_backbone(backbone)}
        return cls(folder(indexes, "vectors", identity), identity)

    def read(self) -> NDArray[np.float32]:
        """Map the vectors into memory, shape (n_passages, dim), in order of position.

        Raises:
            IndexMismatchError: They are missing, or of another corpus or model.
        """
        check(self.target, self.identity)
        vectors: NDArray[np.float32] = np.load(self.target / VECTORS, mmap_mode="r")
        return vectors

    def prepare(self, corpus: Corpus, backbone: Backbone, progress: Progress | None = None) -> None:
        """Embed the passages that are missing."""

        def write(unfinished: Path) -> None:
            embedder = build_embedder(backbone)
            embed(corpus, embedder, unfinished, BATCHES_PER_STEP * backbone.batch_size, progress)

        build(self.target, self.identity, write)


class PassageVectors:
    """The vectors of a corpus by the ids of its passages; thread-safe.

    Args:
        corpus: The passages.
        indexes: The folder of the indexes.
        backbone: The model.

    Raises:
        ModelNotFoundError: The model cannot be found.
        IndexMismatchError: The vectors are not prepared.
    """

    def __init__(self, corpus: Corpus, indexes: Path, backbone: Backbone) -> None:
        self._corpus = corpus
        self._vectors = Vectors.of(corpus, indexes, backbone).read()

    def of(self, ids: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors, shape (dim,), of the passages that are in the corpus."""
        known = self._corpus.known(ids)
        return dict(zip(known, np.asarray(self._vectors[list(known.values())]), strict=True))


def embed(
    corpus: Corpus, embedder: Embedder, unfinished: Path, step: int, progress: Progress | None = None
) -> None:
    """Fill a folder with the vectors of a corpus, resuming a killed run.

    Args:
        corpus: The passages.
        embedder: The model.
        unfinished: The folder, empty or of a killed run with the same corpus and model.
        step: Passages between two checkpoints.
        progress: Called after every checkpoint.
    """
    cursor, path, total = unfinished / CURSOR, unfinished / VECTORS, len(corpus)
    shape = total, embedder.dim
    done, vectors = _resumed(path, cursor, shape)
    if vectors is None:
        done, vectors = 0, np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    while done < total:
        passages = corpus.passages(range(done, min(done + step, total)))
        vectors[done : done + len(passages)] = embedder.encode_passages([embedded_text(p) for p in passages])
        vectors.flush()
        done += len(passages)
        cursor.with_suffix(".next").write_text(str(done))
        cursor.with_suffix(".next").replace(cursor)  # atomic
        if progress is not None:
            progress("embedding passages", done, total)


_File = np.memmap[Any, np.dtype[np.float32]]


def _resumed(
    path: Path, cursor: Path, shape: tuple[int, int]
) -> tuple[int, np.memmap[Any, np.dtype[np.float32]] | None]:
    """Return how many vectors a killed run has finished, and their file; 0 and None if it is damaged."""
    try:
        done = int(cursor.read_text())
        np.lib.format.open_memmap(path, mode="r")  # r+ fills a file that was cut off with zeros
        vectors = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError):  # missing, cut off, or no array
        return 0, None
    return (done, vectors) if 0 < done <= shape[0] and vectors.shape == shape else (0, None)


def embedded_text(passage: Passage) -> str:
    """Return the text of a passage to embed: the title as a sentence, then the text.

    >>> embedded_text(Passage("1", "Mont Blanc", "It is 4,806 m high."))
    'Mont Blanc. It is 4,806 m high.'
    """
    return f"{passage.title}. {passage.text}" if passage.title else passage.text
