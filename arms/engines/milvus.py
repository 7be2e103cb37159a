"""Milvus: vectors, and words by BM25, which the engine computes; a server, or Milvus Lite in a file."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.arms.base import Passage, Query
from armwise.arms.retrievers.collection import (
    FillState,
    NetworkParams,
    Row,
    client,
    engine_kind,
    read_passage,
)
from armwise.arms.retrievers.conditions import TextDialect, build_condition

SHOWN = ["name", "title", "text", "metadata"]

STATE = "_armwise"
"""Suffix of the collection with the state."""

PAGE = 1000

KEY_BYTES = 16

LONGEST_TEXT, MOST_FACTS = 65_535, 4_096
"""Milvus's limits: bytes of a text, and values of an array."""


class MilvusParams(NetworkParams):
    """Parameters of an arm over a collection of Milvus."""

    url: str = Field(
        pattern=r"^(https?://[^@]+|[^:@]+\.db)$",
        description="Address of the server, such as http://localhost:19530, or a file that ends with .db.",
    )

    @property
    def place(self) -> str:
        """The address, or the file."""
        return self.url


class Expressions(TextDialect):
    """Conditions as filter expressions; facts are hexadecimal digits and need no quoting."""

    def match_any(self, facts: Sequence[str]) -> str:
        """Return the condition that a passage has one of these facts."""
        listed = ", ".join(f'"{fact}"' for fact in facts or ["none"])  # an empty list is refused
        return f"array_contains_any(facts, [{listed}])"


class MilvusCollection:
    """A collection of Milvus."""

    def __init__(self, params: MilvusParams) -> None:
        self._module: Any = client("pymilvus", "milvus")
        self._params, self._name, self._token = params, params.collection, params.key
        self._lock = threading.Lock()
        self._opened: Any = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._opened is None:
                limits = {"timeout": self._params.timeout_s}
                api = self._module.MilvusClient(self._params.url, token=self._token or "", **limits)
                for name in (self._name, f"{self._name}{STATE}"):
                    if api.has_collection(name):
                        api.load_collection(name)  # of a file that another process made
                self._opened = api
            return self._opened

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by BM25."""
        return self._found(query.text, "words", query, k)

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by cosine."""
        return self._found(vector.astype(float).tolist(), "vector", query, k)

    def _found(self, query_value: Any, field: str, query: Query, k: int) -> list[Passage]:
        (hits,) = self._client.search(
            self._name,
            data=[query_value],
            anns_field=field,
            limit=k,
            filter=build_condition(query, Expressions()),
            output_fields=SHOWN,
            timeout=self._params.timeout_s,
        )
        # Milvus Lite returns BM25 negated, unlike a server; the scores themselves are at least 0
        sign = abs if field == "words" else float
        return [read_passage(hit["entity"], sign(hit["distance"]), name="name") for hit in hits]

    def create(self, dim: int | None) -> None:
        """Create the collection with its indexes."""
        milvus, api = self._module, self._client
        if api.has_collection(self._name):
            return
        kinds, indexes = milvus.DataType, api.prepare_index_params()
        schema = api.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=2 * KEY_BYTES)
        for name in ("name", "title", "text", "metadata", "digest"):
            schema.add_field(name, kinds.VARCHAR, max_length=LONGEST_TEXT)
        schema.add_field("search", kinds.VARCHAR, max_length=LONGEST_TEXT, enable_analyzer=True)
        schema.add_field(
            "facts", kinds.ARRAY, element_type=kinds.VARCHAR, max_capacity=MOST_FACTS, max_length=32
        )
        schema.add_field("words", kinds.SPARSE_FLOAT_VECTOR)
        bm25 = milvus.FunctionType.BM25
        schema.add_function(
            milvus.Function("bm25", bm25, input_field_names=["search"], output_field_names=["words"])
        )
        indexes.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        if dim is not None:
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
            indexes.add_index("vector", index_type="AUTOINDEX", metric_type="COSINE")
        api.create_collection(self._name, schema=schema, index_params=indexes, consistency_level="Strong")

    def state(self) -> FillState | None:
        """Return the state that was stored last."""
        name = f"{self._name}{STATE}"
        if not self._client.has_collection(name):
            return None
        rows = self._client.get(name, ids=["state"], output_fields=["state"])
        return FillState.loaded(rows[0]["state"]) if rows else None

    def keep(self, state: FillState) -> None:
        """Store a state in a second collection, whose vector, which Milvus requires, is a dummy."""
        name, api, kinds = f"{self._name}{STATE}", self._client, self._module.DataType
        if not api.has_collection(name):
            schema, indexes = api.create_schema(auto_id=False), api.prepare_index_params()
            schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=16)
            schema.add_field("state", kinds.VARCHAR, max_length=LONGEST_TEXT)
            schema.add_field("unused", kinds.FLOAT_VECTOR, dim=2)
            indexes.add_index("unused", index_type="FLAT", metric_type="L2")
            api.create_collection(name, schema=schema, index_params=indexes, consistency_level="Strong")
        api.upsert(name, [{"id": "state", "state": state.dumped(), "unused": [0.0, 0.0]}])

    def count(self) -> int:
        """Return the number of entities."""
        if not self._client.has_collection(self._name):
            return 0
        return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of entities."""
        rows = self._client.get(self._name, ids=_keys(ids), output_fields=["name", "digest"])
        return {row["name"]: row["digest"] for row in rows}

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        pages = self._client.query_iterator(self._name, batch_size=PAGE, output_fields=["name"])
        try:
            while page := pages.next():
                yield from (row["name"] for row in page)
        finally:
            pages.close()

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace entities."""
        entities = [
            {
                **row.document,
                "id": key,
                "name": row.passage.id,
                "search": row.search,
                "facts": row.facts,
                **({} if row.vector is None else {"vector": row.numbers}),
            }
            for key, row in zip(_keys([row.passage.id for row in rows]), rows, strict=True)
        ]
        self._client.upsert(self._name, entities)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete entities."""
        self._client.delete(self._name, ids=_keys(ids))

    def finish(self) -> None:
        """Do nothing: Milvus indexes automatically."""


def _keys(names: Sequence[str]) -> list[str]:
    """Return keys for ids of passages: hashes, since the client puts keys into expressions unquoted."""
    return [hashlib.blake2b(name.encode(), digest_size=KEY_BYTES).hexdigest() for name in names]


KIND = engine_kind("milvus", "Milvus", MilvusParams, MilvusCollection, {"url": "http://localhost:19530"})
