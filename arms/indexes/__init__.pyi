from . import build_once, entities, entity_graph, entity_names, vectors
from .build_once import IndexMismatchError
from .entity_graph import Graph
from .vector_search import IndexParams, VectorIndex
from .vectors import PassageVectors, Vectors

__all__ = [
    "Graph",
    "IndexMismatchError",
    "IndexParams",
    "PassageVectors",
    "VectorIndex",
    "Vectors",
    "build_once",
    "entities",
    "entity_graph",
    "entity_names",
    "vectors",
]
