"""A FAISS index over the vectors of a corpus, by the inner product."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arms.base import Progress
from arms.corpus import Corpus, Permitted
from arms.indexes.build_once import Identity, check, folder, publish
from arms.indexes.vectors import Vectors
from arms.models import Backbone

INDEX = "index.faiss"

LEAST_COUNT, LEAST_SHARE = 10_000, 0.1
"""Permitted passages, and their share, from which a graph is walked; fewer are compared one by one."""

ADD_AT_ONCE = 65_536
"""Vectors that are added to an index at a time."""


class IndexParams(BaseModel):
    """Parameters of an index, and of every arm that uses one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(description="Name of the backbone that embeds passages and queries.")
    index: Literal["flat", "hnsw"] = Field(
        "flat", description="`flat` compares with every passage; `hnsw` walks a graph, faster and not exact."
    )
    neighbors: int = Field(32, ge=2, description="hnsw: links of a passage.")
    build_width: int = Field(200, ge=1, description="hnsw: candidates considered when a passage is linked.")
    search_width: int = Field(128, ge=1, description="hnsw: candidates considered in a search, at least k.")


class VectorIndex:
    """A FAISS index whose rows are the positions of the corpus.

    Attributes:
        dim: Length of the vectors.
        exact: Whether a deeper search has the same first results.
        ranks: Rank of each position in the order of ids, shape (n_passages,).

    Source: Johnson et al. 2017, Billion-scale similarity search with GPUs,
    arXiv:1702.08734; Malkov and Yashunin 2016, Efficient and robust approximate nearest
    neighbor search using Hierarchical Navigable Small World graphs, arXiv:1603.09320.
    """

    def __init__(self, index: Any, params: IndexParams, ranks: NDArray[np.intp] | None = None) -> None:
        """Wrap a FAISS index; without `ranks`, ids are in the order of positions."""
        self.dim = int(index.d)
        self.exact = params.index == "flat"
        self.ranks = np.arange(index.ntotal) if ranks is None else ranks
        self._index = index
        self._params = params

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
        vectors = Vectors.of(corpus, indexes, backbone)
        identity = _identity(vectors, params)

        def write(unfinished: Path) -> None:
            import faiss

            vectors.prepare(corpus, backbone, progress)
            faiss.write_index(_build(vectors.read(), params, progress), str(unfinished / INDEX))

        publish(folder(indexes, "dense", identity), identity, write)

    @classmethod
    def open(cls, corpus: Corpus, indexes: Path, params: IndexParams, backbone: Backbone) -> Self:
        """Map the index that `prepare` built into memory. Raises IndexMismatchError."""
        import faiss

        identity = _identity(Vectors.of(corpus, indexes, backbone), params)
        target = folder(indexes, "dense", identity)
        check(target, identity)
        ids = corpus.ids()
        ranks = np.empty(len(ids), dtype=np.intp)
        ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
        return cls(faiss.read_index(str(target / INDEX), faiss.IO_FLAG_MMAP_IFC), params, ranks)

    def nearest(
        self, vector: NDArray[np.float32], k: int, permitted: Permitted | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the scores and positions of the `k` nearest, and of all that tie with the last of them.

        Args:
            vector: Shape (dim,).
            k: At least 1.
            permitted: The passages that may be found; None for all.

        Returns:
            Two arrays of shape (m,), highest score first, ties by id; m < k if there are no more.
        """
        if permitted is not None:
            return self._nearest_permitted(vector, k, permitted)
        return self._ranked(self._index, vector, k, self._effort)

    def _nearest_permitted(
        self, vector: NDArray[np.float32], k: int, permitted: Permitted
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the nearest permitted passages, exact where they are few or the graph ends early."""
        import faiss

        bits = np.packbits(permitted.mask, bitorder="little")
        # its stubs have the arguments of C++
        selector = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg, arg-type]
        exact = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        if self._params.index == "flat":
            return self._ranked(self._index, vector, k, lambda _: exact)
        share = permitted.count / len(self.ranks)
        if permitted.count >= LEAST_COUNT and share >= LEAST_SHARE:
            found = self._ranked(self._index, vector, k, lambda width: self._effort(width, share, selector))
            if len(found[0]) >= min(k, permitted.count):
                return found
        return self._ranked(faiss.downcast_index(self._index.storage), vector, k, lambda _: exact)

    def _ranked(
        self, index: Any, vector: NDArray[np.float32], k: int, effort: Callable[[int], Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        width = k + 1
        while True:
            scores, positions = index.search(vector[np.newaxis], width, params=effort(width))
            reached = positions[0] >= 0  # -1: the corpus or the graph has no more
            # FAISS returns any of equal vectors; the lowest ids are sure to be there only if all are
            if not reached.all() or scores[0, -1] < scores[0, k - 1]:
                kept, where = scores[0, reached], positions[0, reached]
                order = np.lexsort((self.ranks[where], -kept))
                return kept[order], where[order]
            width *= 2

    def _effort(self, width: int, share: float = 1.0, selector: Any = None) -> Any:
        if self._params.index == "flat":
            return None
        import faiss

        # candidates that may not be found take room, too
        effort = max(self._params.search_width, width) / share
        return faiss.SearchParametersHNSW(  # type: ignore[attr-defined]  # not in its stubs
            efSearch=int(min(effort, len(self.ranks))), sel=selector
        )


def _build(vectors: NDArray[np.float32], params: IndexParams, progress: Progress | None) -> Any:
    """Return a FAISS index over the vectors; two graphs over the same vectors may differ in some links."""
    import faiss

    total, dim = vectors.shape
    index: Any = faiss.IndexFlatIP(dim)
    if params.index == "hnsw":
        index = faiss.IndexHNSWFlat(dim, params.neighbors, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = params.build_width
    for start in range(0, total, ADD_AT_ONCE):
        index.add(vectors[start : start + ADD_AT_ONCE])
        if progress is not None:
            progress("indexing vectors", index.ntotal, total)
    return index


def _identity(vectors: Vectors, params: IndexParams) -> Identity:
    """Return the identity: the vectors and the shape of the graph, not the search parameters."""
    shape = (
        {"neighbors": params.neighbors, "build_width": params.build_width} if params.index == "hnsw" else {}
    )
    return {**vectors.identity, "index": params.index, **shape}
