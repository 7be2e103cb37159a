"""The vectors of a corpus, embedded once per model in resumable batches, and a FAISS index over them.

A model embeds a text once for all services of a user: the cache `armwise/vectors.sqlite` in the user's cache
folder has the vector of each text under a hash of the text and the model. So a second service over the same
documents embeds nothing, and a changed folder only what is new.

All dense indexes over the corpus share the vectors, so another kind of index needs no embedding.
Passages are compared by the inner product.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Passage, Progress
from armwise.arms.cache_file import FAULTS, CacheFile, is_passing, user_cache
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes.build_once import IndexMismatchError, build, check, folder
from armwise.arms.manifest import Identity
from armwise.arms.models import HASHING, Backbone, Embedder, build_embedder, digest_backbone

logger = logging.getLogger(__name__)

logging.getLogger("faiss").setLevel(logging.WARNING)  # else it lists the processors that it was not built for

CACHE = "vectors.sqlite"

CACHE_BYTES = 1 << 30
"""Size of the cache of vectors: about 500,000 passages of the default encoder."""

CACHE_WAIT_S = 1.0
"""Longest time to wait for another process that writes into the cache."""

STEP = 64
"""Passages between checkpoints, a second or two, within which texts are sorted by length."""

VECTORS = "vectors.npy"

CURSOR = "done.txt"


@dataclass(frozen=True, slots=True)
class Vectors:
    """Location and identity of the vectors of a corpus by a backbone.

    Attributes:
        target: Folder of the vectors.
        identity: Digests of corpus and model.
    """

    target: Path
    identity: Identity

    @classmethod
    def locate(cls, corpus: Corpus, indexes: Path, backbone: Backbone) -> "Vectors":
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
            embed(corpus, build_passage_embedder(backbone), unfinished, STEP, progress)

        build(self.target, self.identity, write)


class CachedEmbedder:
    """Embeds only passages that no service of this user has embedded before.

    A cache that cannot be used is left alone, and all passages are embedded.

    Args:
        embedder: The model.
        folder: Folder of the cache, made if it is missing.
        size_bytes: Largest size of the cache.
    """

    def __init__(self, embedder: Embedder, folder: Path, size_bytes: int = CACHE_BYTES) -> None:
        self.dim, self.digest = embedder.dim, embedder.digest
        self.encode_queries = embedder.encode_queries
        self._embedder = embedder
        self._file: CacheFile | None = None
        with self._use_or_leave():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = CacheFile(folder / CACHE, size_bytes, CACHE_WAIT_S)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per passage, shape (n_texts, dim)."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        keys = [hashlib.blake2b(f"{self.digest}\0{text}".encode(), digest_size=32).digest() for text in texts]
        new = [n for n, key in enumerate(keys) if not self._read(key, vectors[n])]
        if new:
            vectors[new] = self._embedder.encode_passages([texts[n] for n in new])
        for n in new:
            with self._use_or_leave():
                if self._file is not None:
                    self._file.write(keys[n], vectors[n].tobytes())
        return vectors

    def _read(self, key: bytes, row: NDArray[np.float32]) -> bool:
        """Fill a row with the vector of a text; return whether it is known."""
        known = None
        with self._use_or_leave():
            known = None if self._file is None else self._file.read(key)
        if known is None or len(known) != row.nbytes:
            return False
        row[:] = np.frombuffer(known, dtype=np.float32)
        return True

    @contextmanager
    def _use_or_leave(self) -> Iterator[None]:
        try:
            yield
        except FAULTS as error:
            if not is_passing(error):
                logger.warning("the cache of vectors is not used: %s", error)
                if self._file is not None:
                    self._file.close()
                self._file = None


def build_passage_embedder(backbone: Backbone) -> Embedder:
    """Load a model to embed many passages, of which a service of this user may have embedded some before.

    Raises:
        ModelNotFoundError: The model cannot be found.
    """
    embedder = build_embedder(backbone)
    if backbone.model.startswith(HASHING):  # as fast as a lookup
        return embedder
    return CachedEmbedder(embedder, user_cache())


def prepare_vectors(
    corpus: Corpus, indexes: Path, backbone: Backbone, progress: Progress | None = None
) -> None:
    """Embed the passages that are missing, of each of several corpora. Raises ModelNotFoundError."""
    for part in corpus.parts.values():
        Vectors.locate(part, indexes, backbone).prepare(part, backbone, progress)


class PassageVectors:
    """The vectors of a corpus, or of several, by the ids of their passages; thread-safe.

    Args:
        corpus: The passages.
        indexes: The folder of the indexes.
        backbone: The model.
        some: Whether corpora may lack vectors; their passages are then left out.

    Raises:
        ModelNotFoundError: The model cannot be found.
        IndexMismatchError: Vectors have to be prepared first.
    """

    def __init__(self, corpus: Corpus, indexes: Path, backbone: Backbone, *, some: bool = False) -> None:
        self._parts: list[tuple[Corpus, NDArray[np.float32]]] = []
        missing = None
        for part in corpus.parts.values():
            try:
                self._parts.append((part, Vectors.locate(part, indexes, backbone).read()))
            except IndexMismatchError as error:
                missing = error
        if missing is not None and not (some and self._parts):
            raise missing

    def look_up(self, ids: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors, shape (dim,), of the passages that are in the corpus."""
        requested_ids, unit_vectors = list(ids), dict[str, NDArray[np.float32]]()
        for part, vectors in self._parts:
            positions = part.find_positions(requested_ids)
            unit_vectors |= zip(positions, np.asarray(vectors[list(positions.values())]), strict=True)
        return unit_vectors


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
    done, vectors = _resume(path, cursor, shape)
    if vectors is None:
        done, vectors = 0, np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    while done < total:
        passages = corpus.passages(range(done, min(done + step, total)))
        vectors[done : done + len(passages)] = embedder.encode_passages([compose_text(p) for p in passages])
        vectors.flush()
        done += len(passages)
        cursor.with_suffix(".next").write_text(str(done))
        cursor.with_suffix(".next").replace(cursor)  # atomic
        if progress is not None:
            progress("embedding passages", done, total)


def _resume(
    path: Path, cursor: Path, shape: tuple[int, int]
) -> tuple[int, np.memmap[Any, np.dtype[np.float32]] | None]:
    """Return the number of vectors that a killed run has finished, and the file; 0, None: it is damaged."""
    try:
        done = int(cursor.read_text())
        np.lib.format.open_memmap(path, mode="r")  # r+ fills a file that was cut off with zeros
        vectors = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError):  # missing, cut off, or no array
        return 0, None
    return (done, vectors) if 0 < done <= shape[0] and vectors.shape == shape else (0, None)


def compose_text(passage: Passage) -> str:
    """Return the text of a passage to embed: the title as a sentence, then the text.

    >>> compose_text(Passage("1", "Mont Blanc", "It is 4,806 m high."))
    'Mont Blanc. It is 4,806 m high.'
    """
    return f"{passage.title}. {passage.text}" if passage.title else passage.text


INDEX = "index.faiss"

LEAST_COUNT, LEAST_SHARE = 10_000, 0.1
"""Fewest permitted passages, and their least share, for a search of cells; fewer are all compared."""

ADD_AT_ONCE = 65_536
"""Vectors that are added to an index, or compared, at a time."""

CODEWORDS, TRAINED_BY = 256, 39
"""Values of a byte of a compressed vector, and training vectors that each value, or cell, needs."""

LEAST_COMPRESSED = CODEWORDS * TRAINED_BY
"""Fewest passages whose vectors are compressed; fewer are all compared."""

PROBES = 64
"""Cells that a search reads, of those nearest to it."""

CODE_BYTES = 64
"""Bytes of a compressed vector, at most."""

RESCORED = 200
"""Passages whose vectors are then read and compared exactly, at least k."""


class IndexParams(BaseModel):
    """Parameters of an index, and of every arm that uses one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(description="Backbone that embeds passages and questions.")
    index: Literal["flat", "ivf_pq"] = Field(
        "flat",
        description="`flat` compares the question with every passage. `ivf_pq` compresses the vectors, so "
        "that they need much less memory, and reads only those in the nearest cells. With fewer than "
        f"{LEAST_COMPRESSED:,} passages, `ivf_pq` works as `flat` does.",
    )


class VectorIndex:
    """A FAISS index whose rows are the positions of the corpus.

    Attributes:
        dim: Length of the vectors.
        exact: Whether a deeper search has the same first results.
        ranks: Rank of each position in the order of ids, shape (n_passages,).

    Source: Johnson et al. 2017, Billion-scale similarity search with GPUs,
    arXiv:1702.08734; Jegou et al. 2011, Product Quantization for Nearest Neighbor Search,
    IEEE TPAMI 33(1).
    """

    def __init__(
        self,
        index: Any,
        ranks: NDArray[np.intp] | None = None,
        vectors: NDArray[np.float32] | None = None,
    ) -> None:
        """Wrap a FAISS index.

        Args:
            index: The index.
            ranks: Ranks of the positions; None: ids are in the order of positions.
            vectors: Vectors of the passages, shape (n_passages, dim), for `ivf_pq`; may be memory-mapped.
        """
        self.dim = int(index.d)
        self.ranks = np.arange(index.ntotal) if ranks is None else ranks
        self._index = index
        # a corpus that is too small to be compressed has a flat index
        self._compressed = vectors if hasattr(index, "nprobe") else None
        self.exact = self._compressed is None

    @classmethod
    def prepare(
        cls,
        corpus: Corpus,
        indexes: Path,
        params: IndexParams,
        backbone: Backbone,
        progress: Progress | None = None,
    ) -> None:
        """Embed the corpus and build the index, if they are missing. Raises ModelNotFoundError."""
        vectors = Vectors.locate(corpus, indexes, backbone)
        vectors.prepare(corpus, backbone, progress)  # also for an index that is there: searches read both
        identity = _identity(vectors, params)

        def write(unfinished: Path) -> None:
            import faiss

            faiss.write_index(_build(vectors.read(), params, progress), str(unfinished / INDEX))

        build(folder(indexes, "dense", identity), identity, write)

    @classmethod
    def open(cls, corpus: Corpus, indexes: Path, params: IndexParams, backbone: Backbone) -> Self:
        """Map the index that `prepare` built into memory. Raises IndexMismatchError."""
        import faiss

        vectors = Vectors.locate(corpus, indexes, backbone)
        identity = _identity(vectors, params)
        target = folder(indexes, "dense", identity)
        check(target, identity)
        ranks = np.empty(len(corpus), dtype=np.intp)
        ranks[corpus.order()] = np.arange(len(ranks))
        index = faiss.read_index(str(target / INDEX), faiss.IO_FLAG_MMAP_IFC)
        return cls(index, ranks, vectors.read() if params.index == "ivf_pq" else None)

    def nearest(
        self, vector: NDArray[np.float32], k: int, permitted: Permitted | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the scores and positions of the `k` nearest, and of all that tie with the last of them.

        Args:
            vector: The query, shape (dim,).
            k: Number of passages, at least 1.
            permitted: The passages that may be found; None: all.

        Returns:
            Two arrays of shape (m,), highest score first, ties by id; m < k if there are no more.
        """
        selector = None
        if permitted is not None:
            import faiss

            # its stubs have the arguments of C++
            selector = faiss.IDSelectorBitmap(  # type: ignore[call-arg]
                np.packbits(permitted.mask, bitorder="little")  # type: ignore[arg-type]
            )
        if self._compressed is None:
            return self._all(vector, k, selector)
        near = np.empty(0, dtype=np.intp)
        if permitted is None:
            near = self._candidates(vector, k)
        else:
            if permitted.count >= max(LEAST_COUNT, LEAST_SHARE * len(self.ranks)):
                near = self._candidates(vector, k, selector)
            if len(near) < min(k, permitted.count):
                near = np.flatnonzero(permitted.mask)
        return self._exactly(vector, k, self._compressed, near)

    def _all(
        self, vector: NDArray[np.float32], k: int, selector: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Compare with every passage that may be found."""
        import faiss

        effort = faiss.SearchParameters(sel=selector) if selector is not None else None  # type: ignore[call-arg]
        width = k + 1
        while True:
            scores, positions = self._index.search(vector[np.newaxis], width, params=effort)
            reached = positions[0] >= 0  # -1: there are no more
            # FAISS returns any of equal vectors; the lowest ids are sure to be there only if all are
            if not reached.all() or scores[0, -1] < scores[0, k - 1]:
                kept, where = scores[0, reached], positions[0, reached]
                order = np.lexsort((self.ranks[where], -kept))
                return kept[order], where[order]
            width *= 2

    def _candidates(self, vector: NDArray[np.float32], k: int, selector: Any = None) -> NDArray[np.intp]:
        """Return the positions of the nearest by their compressed vectors, in order of position."""
        import faiss

        effort = faiss.SearchParametersIVF(  # type: ignore[call-arg]  # its stubs have the arguments of C++
            nprobe=min(PROBES, self._index.nlist), sel=selector
        )
        width = max(k, RESCORED)
        positions = self._index.search(vector[np.newaxis], width, params=effort)[1][0]
        if selector is None and np.count_nonzero(positions >= 0) < min(k, len(self.ranks)):
            effort.nprobe = self._index.nlist  # the cells that were read have fewer than k
            positions = self._index.search(vector[np.newaxis], width, params=effort)[1][0]
        return np.sort(positions[positions >= 0])

    def _exactly(
        self, vector: NDArray[np.float32], k: int, vectors: NDArray[np.float32], near: NDArray[np.intp]
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the nearest of some positions, and all that tie with the last of them."""
        parts = [vectors[near[n : n + ADD_AT_ONCE]] @ vector for n in range(0, len(near), ADD_AT_ONCE)]
        scores = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
        if k < len(scores):
            kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            scores, near = scores[kept], near[kept]
        order = np.lexsort((self.ranks[near], -scores))
        return scores[order], near[order]


def _build(vectors: NDArray[np.float32], params: IndexParams, progress: Progress | None) -> Any:
    """Return a FAISS index over the vectors."""
    import faiss

    total, dim = vectors.shape
    is_compressed = params.index == "ivf_pq" and total >= LEAST_COMPRESSED
    index: Any = _train(vectors) if is_compressed else faiss.IndexFlatIP(dim)
    for start in range(0, total, ADD_AT_ONCE):
        index.add(vectors[start : start + ADD_AT_ONCE])
        if progress is not None:
            progress("indexing vectors", index.ntotal, total)
    return index


def _train(vectors: NDArray[np.float32]) -> Any:
    """Return an empty index of compressed vectors, its cells and its code learned from a sample."""
    import faiss

    total, dim = vectors.shape
    cells = min(round(4 * total**0.5), total // TRAINED_BY)
    length = code_length(dim)
    coarse = faiss.IndexFlatIP(dim)
    index: Any = faiss.IndexIVFPQ(coarse, dim, cells, length, 8, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 10
    n = min(total, TRAINED_BY * max(cells, CODEWORDS))
    sample = np.sort(np.random.default_rng(0).choice(total, n, replace=False))
    index.train(vectors[sample])
    return index


def code_length(dim: int) -> int:
    """Return the bytes of a compressed vector: the largest divisor of its length that is short enough.

    >>> code_length(384), code_length(300)
    (64, 60)
    """
    return max(n for n in range(1, min(CODE_BYTES, dim) + 1) if dim % n == 0)


def _identity(vectors: Vectors, params: IndexParams) -> Identity:
    """Return the identity: the vectors and the kind of the index."""
    return {**vectors.identity, "index": params.index}
