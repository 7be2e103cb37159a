"""What is built once over a corpus: vectors, FAISS indexes, entity graphs."""

from . import build_once, entities, entity_graph, vectors
from .build_once import IndexMismatchError
from .entity_graph import Graph
from .vectors import IndexParams, PassageVectors, VectorIndex, Vectors, embedded_text, prepare_vectors

__all__ = [
    "Graph",
    "IndexMismatchError",
    "IndexParams",
    "PassageVectors",
    "VectorIndex",
    "Vectors",
    "build_once",
    "embedded_text",
    "entities",
    "entity_graph",
    "prepare_vectors",
    "vectors",
]
