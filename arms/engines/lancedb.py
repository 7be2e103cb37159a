"""LanceDB: vectors and full text search in files, in a folder or an object store."""

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.retrievers.collection import (
    FIELDS,
    VERSION_S,
    EngineParams,
    FillState,
    Row,
    client,
    engine_kind,
    read_passage,
)
from armwise.arms.retrievers.conditions import TextDialect, build_condition

STATE = "armwise"
"""Suffix of the table with the state of the collection."""

INDEXED = 10_000
"""Rows from which vectors are indexed; below, an exact search takes some ten milliseconds."""

REFINED = 2
"""Exact distances are computed for this times `k` rows: the index quantises numbers to one byte."""


class LanceParams(EngineParams):
    """Parameters of an arm over a table of LanceDB."""

    path: str = Field(
        description="Folder of the database, or the address of an object store that LanceDB can open."
    )
    probes: int = Field(
        default=20,
        ge=1,
        le=10_000,
        description="Partitions of the vector index that a search reads at first; a filtered search reads "
        "more until `k` passages are found.",
    )

    @property
    def place(self) -> str:
        """The folder."""
        return self.path


class Predicates(TextDialect):
    """Conditions as SQL predicates; facts are hexadecimal digits and need no quoting."""

    def match_any(self, facts: Sequence[str]) -> str:
        """Return the condition that a passage has one of these facts."""
        listed = ", ".join(f"'{fact}'" for fact in facts)
        return f"array_has_any(facts, [{listed}])" if facts else "FALSE"


class LanceTable:
    """A table of LanceDB."""

    batch = 10_000

    def __init__(self, params: LanceParams) -> None:
        self._module = client("lancedb", "lancedb")
        self._place, self._name, self._probes = params.path, params.collection, params.probes
        self._lock = threading.Lock()
        self._database: Any = None
        self._table: Any = None

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by BM25."""
        match_query = self._module.query.MatchQuery(query.text, "search")
        search = (
            self._open()
            .search(match_query, query_type="fts")
            .where(build_condition(query, Predicates()), prefilter=True)
        )
        return [
            read_passage(row, row["_score"]) for row in search.select([*FIELDS, "_score"]).limit(k).to_list()
        ]

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by cosine."""
        search = self._open().search(vector, vector_column_name="vector").distance_type("cosine")
        search = search.minimum_nprobes(self._probes).maximum_nprobes(0).refine_factor(REFINED)
        search = search.where(build_condition(query, Predicates()), prefilter=True)
        rows = search.select([*FIELDS, "_distance"]).limit(k).to_list()
        return [read_passage(row, 1.0 - row["_distance"]) for row in rows]

    def _connected(self) -> Any:
        with self._lock:
            if self._database is None:
                fresh = timedelta(seconds=VERSION_S)
                self._database = self._module.connect(self._place, read_consistency_interval=fresh)
            return self._database

    def _there(self, name: str) -> bool:
        database, token = self._connected(), None
        while True:
            page = database.list_tables(page_token=token)
            if name in page.tables or not (token := page.page_token):
                return name in page.tables

    def _open(self) -> Any:
        database = self._connected()
        with self._lock:
            if self._table is None:
                self._table = database.open_table(self._name)
            return self._table

    def create(self, dim: int | None) -> None:
        """Create the table with indexes of ids, facts and words."""
        if self._there(self._name):
            return
        pa: Any = client("pyarrow", "lancedb")
        texts = ("id", "title", "text", "search", "metadata", "digest")
        columns = [pa.field(name, pa.utf8()) for name in texts]
        columns.append(pa.field("facts", pa.list_(pa.utf8())))
        if dim is not None:
            columns.append(pa.field("vector", pa.list_(pa.float32(), dim)))
        table = self._connected().create_table(self._name, schema=pa.schema(columns))
        table.create_index("id", config=self._module.index.BTree())
        table.create_index("facts", config=self._module.index.LabelList())
        table.create_index("search", config=self._module.index.FTS(remove_stop_words=False))

    def state(self) -> FillState | None:
        """Return the state that was stored last."""
        name = f"{self._name}_{STATE}"
        if not self._there(name):
            return None
        (row,) = self._connected().open_table(name).to_arrow().to_pylist()
        return FillState.loaded(row["state"])

    def keep(self, state: FillState) -> None:
        """Store a state in a second table."""
        row = {"state": state.dumped()}
        self._connected().create_table(f"{self._name}_{STATE}", data=[row], mode="overwrite")

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._open().count_rows()) if self._there(self._name) else 0

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of rows."""
        listed = ", ".join(map(_literal, ids))
        rows = self._open().search().where(f"id IN ({listed})").select(["id", "digest"]).limit(len(ids))
        return {row["id"]: row["digest"] for row in rows.to_list()}

    def ids(self) -> Iterator[str]:
        """Yield every id."""
        for batch in self._open().search().select(["id"]).to_batches():
            yield from batch.column("id").to_pylist()

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows."""
        values = [
            {
                **row.document,
                "search": row.search,
                "facts": row.facts,
                **({} if row.vector is None else {"vector": np.asarray(row.vector, dtype=np.float32)}),
            }
            for row in rows
        ]
        change = self._open().merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        change.execute(values)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        self._open().delete(f"id IN ({', '.join(map(_literal, ids))})")

    def finish(self) -> None:
        """Compact and index the written rows; from `INDEXED` rows on, also the vectors."""
        table = self._open()
        table.optimize()
        indexed = {column for index in table.list_indices() for column in index.columns}
        if "vector" in set(table.schema.names) - indexed and table.count_rows() >= INDEXED:
            table.create_index("vector", config=self._module.index.IvfSq(distance_type="cosine"))


def _literal(text: str) -> str:
    """Return a text as a SQL literal, with quotes doubled. Raises ArmError for a NUL."""
    if "\0" in text:
        raise ArmError(f"id {text!r} has a NUL")
    return "'" + text.replace("'", "''") + "'"


KIND = engine_kind("lancedb", "LanceDB", LanceParams, LanceTable, {"path": "/path/of/lancedb"})
