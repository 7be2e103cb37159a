"""A FAISS index over the vectors of a corpus, by the inner product."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arms.base import Progress
from arms.corpus import Corpus
from arms.indexes.build_once import Identity, check, folder, publish
from arms.indexes.vectors import Vectors
from arms.models import Backbone

INDEX = "index.faiss"

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

    def nearest(self, vector: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        """Return the scores and positions of the `k` nearest, and of all that tie with the last of them.

        Args:
            vector: Shape (dim,).
            k: At least 1.

        Returns:
            Two arrays of shape (m,), highest score first, ties by id; m < k if there are no more.
        """
        width = k + 1
        while True:
            scores, positions = self._index.search(vector[np.newaxis], width, params=self._effort(width))
            reached = positions[0] >= 0  # -1: the corpus or the graph has no more
            # FAISS returns any of equal vectors; the lowest ids are sure to be there only if all are
            if not reached.all() or scores[0, -1] < scores[0, k - 1]:
                kept, where = scores[0, reached], positions[0, reached]
                order = np.lexsort((self.ranks[where], -kept))
                return kept[order], where[order]
            width *= 2

    def _effort(self, width: int) -> Any:
        if self._params.index == "flat":
            return None
        import faiss

        return faiss.SearchParametersHNSW(  # type: ignore[attr-defined]  # not in its stubs
            efSearch=max(self._params.search_width, width)
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
