"""The vectors of a corpus: made once for each model, in batches, going on after a kill.

Every dense index over the corpus is built from them, so that trying another kind of
index does not embed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arms.base import Passage, Progress
from arms.corpus import Corpus
from arms.indexes.build_once import Identity, check, folder, publish
from arms.models import Backbone, Embedder, build_embedder, digest_backbone

BATCHES_PER_STEP = 16
"""Batches of the model between two steps that a killed run keeps; texts are sorted by length within one."""

VECTORS = "vectors.npy"

CURSOR = "done.txt"


@dataclass(frozen=True, slots=True)
class Vectors:
    """Where the vectors of a corpus by a backbone are, and what they are.

    Attributes:
        target: The folder that holds them.
        identity: The corpus and the model that they follow from.
    """

    target: Path
    identity: Identity

    @classmethod
    def of(cls, corpus: Corpus, indexes: Path, backbone: Backbone) -> "Vectors":
        """Name the vectors of a corpus, made or not. Raises ModelNotFoundError."""
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
        """Embed what is not embedded yet."""

        def write(unfinished: Path) -> None:
            embedder = build_embedder(backbone)
            embed(corpus, embedder, unfinished, BATCHES_PER_STEP * backbone.batch_size, progress)

        publish(self.target, self.identity, write)


class PassageVectors:
    """The vectors of a corpus by the ids of its passages; safe to use from many threads.

    Args:
        corpus: The passages.
        indexes: The folder in which their vectors are kept.
        backbone: Whose vectors these are.

    Raises:
        ModelNotFoundError: The model is not where its name says.
        IndexMismatchError: They were not prepared.
    """

    def __init__(self, corpus: Corpus, indexes: Path, backbone: Backbone) -> None:
        self._corpus = corpus
        self._vectors = Vectors.of(corpus, indexes, backbone).read()

    def of(self, ids: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vector of each of these passages that is of the corpus, of shape (dim,)."""
        known = self._corpus.known(ids)
        return dict(zip(known, np.asarray(self._vectors[list(known.values())]), strict=True))


def embed(
    corpus: Corpus, embedder: Embedder, unfinished: Path, step: int, progress: Progress | None = None
) -> None:
    """Fill a folder with the vectors of a corpus, from where a killed run left off.

    Args:
        corpus: The passages.
        embedder: Makes the vectors.
        unfinished: Holds what a former run with the same corpus and model has done.
        step: Passages between two steps that a killed run keeps.
        progress: Called after every step.
    """
    cursor, path, total = unfinished / CURSOR, unfinished / VECTORS, len(corpus)
    done = int(cursor.read_text()) if cursor.exists() else 0
    vectors = np.lib.format.open_memmap(
        path, mode="r+" if done else "w+", dtype=np.float32, shape=(total, embedder.dim)
    )
    while done < total:
        passages = corpus.passages(range(done, min(done + step, total)))
        vectors[done : done + len(passages)] = embedder.encode_passages([embedded_text(p) for p in passages])
        vectors.flush()
        done += len(passages)
        cursor.with_suffix(".next").write_text(str(done))
        cursor.with_suffix(".next").replace(cursor)  # never half a number
        if progress is not None:
            progress("embedding passages", done, total)


def embedded_text(passage: Passage) -> str:
    """Return what of a passage is embedded: the title as a sentence of its own, then the text.

    >>> embedded_text(Passage("1", "Mont Blanc", "It is 4,806 m high."))
    'Mont Blanc. It is 4,806 m high.'
    """
    return f"{passage.title}. {passage.text}" if passage.title else passage.text
