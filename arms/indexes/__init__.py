"""What is built once over a corpus: vectors, FAISS indexes, entity graphs."""

from . import build_once, vectors
from .build_once import IndexMismatchError
from .vectors import (
    IndexParams,
    PassageVectors,
    VectorIndex,
    Vectors,
    build_passage_embedder,
    compose_text,
    prepare_vectors,
)

__all__ = [
    "IndexMismatchError",
    "IndexParams",
    "PassageVectors",
    "VectorIndex",
    "Vectors",
    "build_once",
    "build_passage_embedder",
    "compose_text",
    "prepare_vectors",
    "vectors",
]
