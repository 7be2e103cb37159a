"""PostgreSQL: full text search, and vectors by the extension pgvector.

`ts_rank` counts a word within a passage and ignores its rarity, so that the commonest words of a question
would dominate, and every passage with one of them would be read. Therefore each word is weighted by its
inverse document frequency as in BM25, and passages with the rarer words are read first.

Source: Robertson & Zaragoza, The Probabilistic Relevance Framework, 2009 (the weight); the documentation of
PostgreSQL, `pg_stats`.
"""

import json
import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.engines.collection import EngineArm, FillState, Row, ServerParams
from armwise.arms.engines.conditions import Order, build_condition, load_metadata
from armwise.arms.filters import Scalar

if TYPE_CHECKING:  # loading takes a tenth of a second
    import sqlalchemy as sa

Column = Annotated[str, StringConstraints(pattern=r'^[^"\x00]{1,63}$')]

STATES = "armwise_ingests"
"""Table with the state of each collection."""

INDEXED_DIMS = 2000
"""Longest vectors that pgvector indexes; longer vectors are scanned."""

SEARCH_WIDTH, MAX_WIDTH = 128, 1000
"""Candidates of a vector search, as of the kind `dense` (a larger k replaces it), and pgvector's limit."""

CONNECTIONS = 8
"""Most connections of one process to the database."""

PAGE = 10_000

STATISTICS_S = 600.0
"""Seconds for which the statistics of words are cached."""

COUNTED_WORDS = 1_000
"""Statistics target for words in a table that `ingest` fills: PostgreSQL counts ten times as many words."""

LOOKED_AT = (1_000, 10_000)
"""Rows that a first search may be expected to read, and a second one if the first gave too few passages."""


class PostgresColumns(BaseModel):
    """Columns of a table. The defaults fit a table that `ingest` makes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Column = Field(default="id", description="Column of the id, of any type.")
    title: Column | None = Field(
        default="title", description=("Column of the title. If null, passages have no titles.")
    )
    text: Column = Field(default="text", description="Column of the text.")
    metadata: Column | None = Field(
        default="metadata",
        description=(
            "Column of the metadata, of type jsonb. If null, passages have no metadata, so every caller may "
            "read all of them."
        ),
    )
    search: Column = Field(default="search", description="Column of the indexed words, of type tsvector.")
    vector: Column = Field(default="embedding", description="Column of the vector, of type vector.")


class PostgresParams(ServerParams):
    """Parameters of an arm over a table of PostgreSQL."""

    url: str = Field(
        description="Address of the database, `postgresql://user@host/name`, without a password."
    )
    collection: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,54}(\.[A-Za-z_][A-Za-z0-9_]{0,54})?$",
        description="Name of the table, with or without its schema.",
    )
    language: str = Field(
        "english", pattern=r"^[a-z_]{1,63}$", description="PostgreSQL's text search configuration."
    )
    fields: PostgresColumns = Field(
        PostgresColumns(), description="Columns, for a table that another program fills."
    )

    @model_validator(mode="after")
    def _is_postgres(self) -> Self:
        if urlsplit(self.url).scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ValueError(f"url {self.url!r} must begin with postgresql://")
        return self


class Sql:
    """Conditions in SQL with named parameters, whose values are in `values`.

    Args:
        metadata: The quoted column; None: passages have no metadata.
    """

    def __init__(self, metadata: str | None) -> None:
        self.values: dict[str, Any] = {}
        self._metadata = "'{}'::jsonb" if metadata is None else f"COALESCE({metadata}, '{{}}')"

    def parameter(self, value: Any) -> str:
        """Add a parameter with a value, and return its placeholder."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def match_one(self, key: str, values: Sequence[Scalar]) -> str:
        """Return the condition that the JSON value equals, or as a list contains, one of these values."""
        if "\0" in key:
            return "FALSE"
        stored_value = f"({self._metadata} -> {self.parameter(key)}::text)"
        json_values = [json.dumps(scalar) for scalar in values if _can_be_stored(scalar)]
        return self.some(
            [
                f"COALESCE({stored_value} @> {self.parameter(json_value)}::jsonb, FALSE)"
                for json_value in json_values
            ]
        )

    def compare(self, key: str, how: Order, number: float) -> str:
        """Return the condition that the JSON value is a number in this order to `number`."""
        if "\0" in key or math.isnan(number):
            return "FALSE"
        sign = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}[how]
        name, value = self.parameter(key), self.parameter(repr(number))
        return (
            f"CASE jsonb_typeof({self._metadata} -> {name}::text) WHEN 'number' "
            f"THEN ({self._metadata} ->> {name}::text)::numeric {sign} {value}::text::numeric "
            "ELSE FALSE END"
        )

    def lacks(self, key: str) -> str:
        """Return the condition that the key is missing or null."""
        return f"COALESCE(jsonb_typeof({self._metadata} -> {self.parameter(key)}::text), 'null') = 'null'"

    def every(self, parts: Sequence[str]) -> str:
        """Return the conjunction of conditions."""
        return f"({' AND '.join(parts)})"

    def some(self, parts: Sequence[str]) -> str:
        """Return the disjunction of conditions."""
        return f"({' OR '.join(parts)})" if parts else "FALSE"

    def negate(self, part: str) -> str:
        """Return the negation of a condition."""
        return f"(NOT {part})"


def _can_be_stored(value: Scalar) -> bool:
    """Return whether jsonb can hold a value: texts without NUL, numbers that are finite."""
    return "\0" not in value if isinstance(value, str) else math.isfinite(value)


@dataclass(frozen=True)
class WordStatistics:
    """Document frequencies of the most common words of a table, as PostgreSQL estimates them.

    Attributes:
        rows: Rows of the table.
        shares: Share of the rows with a word, in (0, 1], by word; empty: there are no statistics.
    """

    rows: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def _unknown(self) -> float:
        """Share assumed for any other word: half of the smallest in `shares`."""
        return min(self.shares.values()) / 2.0

    def estimate_rows(self, word: str) -> float:
        """Return the expected number of rows with a word."""
        share = self.shares.get(word)
        return self.rows * (self._unknown if share is None else share)

    def weights(self, words: Sequence[str]) -> list[float]:
        """Return the inverse document frequency of each word; 1 without statistics.

        >>> known = WordStatistics(100, {"the": 1.0, "bridge": 0.1})
        >>> [round(weight, 1) for weight in known.weights(["the", "bridge", "unknown"])]
        [0.0, 2.3, 2.9]
        """
        if not self.shares:
            return [1.0] * len(words)
        counts = map(self.estimate_rows, words)
        return [math.log(1.0 + max(0.0, self.rows - n + 0.5) / (n + 0.5)) for n in counts]

    def steps(self, words: Sequence[str]) -> Iterator[list[str]]:
        """Yield growing sets of words, the rarest first, at last all: a row must have a word of the set.

        >>> known = WordStatistics(1e6, {"the": 1.0, "river": 0.005, "bridge": 0.0005})
        >>> list(known.steps(["the", "river", "bridge"]))
        [['bridge'], ['bridge', 'river'], ['bridge', 'river', 'the']]
        """
        if self.shares:
            words = sorted(words, key=self.estimate_rows)
            counts = [self.estimate_rows(word) for word in words]
            before = 0
            for most in LOOKED_AT:
                n = max(1, sum(math.fsum(counts[: at + 1]) <= most for at in range(len(counts))))
                if before < n < len(words):
                    yield list(words[:n])
                    before = n
        yield list(words)


def literal(word: str) -> str:
    r"""Return a word as a quoted tsquery of PostgreSQL.

    >>> print(literal("o'neil\\"))
    'o''neil\\'
    """
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


class PostgresTable:
    """A table of PostgreSQL."""

    def __init__(self, params: PostgresParams, wait_s: float) -> None:
        import sqlalchemy as sa

        self._params, self._wait_s = params, wait_s
        url = sa.make_url(params.url).set(drivername="postgresql+psycopg")
        if (password := params.key) is not None:
            url = url.set(password=password)
        self._engine = sa.create_engine(
            url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=wait_s,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"connect_timeout": max(2, int(wait_s)), "prepare_threshold": None},
        )
        weakref.finalize(self, self._engine.dispose)
        self._known_words = -math.inf, WordStatistics()
        names = params.fields
        self._table = ".".join(_quote(part) for part in params.collection.split("."))
        self._id, self._text = _column(names.id), _column(names.text)
        self._search, self._vector = _column(names.search), _column(names.vector)
        self._title = "''" if names.title is None else _column(names.title)
        self._metadata = None if names.metadata is None else _column(names.metadata)

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by `ts_rank` weighted by each word's rarity.

        Shorter passages score higher. Common words are searched only if the rarer ones find fewer than `k`.
        """
        words = self._words(query.text)
        if not words:
            return []
        statistics, passages = self._word_statistics(), list[Passage]()
        weights = dict(zip(words, statistics.weights(words), strict=True))
        for step in statistics.steps(words):
            passages = self._with_words(query, k, weights, step)
            if len(passages) >= k:
                break
        return passages

    def _words(self, text: str) -> list[str]:
        """Return the lexemes of a text in the configured language."""
        with self._connect() as connection:
            return list(
                connection.exec_driver_sql(
                    f"SELECT lexeme FROM unnest(to_tsvector('{self._params.language}', %(text)s))",
                    {"text": text.replace("\0", " ")},
                ).scalars()
            )

    def _word_statistics(self) -> WordStatistics:
        """Return the statistics of words, at most `STATISTICS_S` seconds old."""
        now = time.monotonic()
        asked_at, statistics = self._known_words
        if now - asked_at < STATISTICS_S:
            return statistics
        with self._connect() as connection:
            row = connection.exec_driver_sql(
                "SELECT reltuples, most_common_elems::text::text[], most_common_elem_freqs FROM pg_class "
                "JOIN pg_namespace ON pg_namespace.oid = relnamespace LEFT JOIN pg_stats ON "
                "schemaname = nspname AND tablename = relname AND attname = %(column)s "
                "WHERE pg_class.oid = to_regclass(%(table)s) ORDER BY inherited DESC NULLS LAST LIMIT 1",
                {"column": self._params.fields.search, "table": self._table},
            ).one_or_none()
        statistics = WordStatistics()
        if (
            row is not None and row[1]
        ):  # after the shares of the words come their minimum and maximum, and the share of null
            statistics = WordStatistics(float(row[0]), dict(zip(row[1], row[2], strict=False)))
        self._known_words = now, statistics
        return statistics

    def _with_words(
        self, query: Query, k: int, weights: Mapping[str, float], words: Sequence[str]
    ) -> list[Passage]:
        sql = Sql(self._metadata)
        names, values = sql.parameter([*map(literal, weights)]), sql.parameter([*weights.values()])
        score = (
            f"(SELECT sum(weight * ts_rank({self._search}, word, 1)) "
            f"FROM unnest({names}::tsquery[], {values}::float8[]) AS asked (word, weight))"
        )
        some = sql.parameter(" | ".join(map(literal, words)))
        return self._find_passages(sql, query, score, f"{self._search} @@ {some}::tsquery", k)

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by cosine."""
        sql = Sql(self._metadata)
        near = sql.parameter(_vector_text(vector))
        distance = f"{self._vector} <=> {near}::vector"
        return self._find_passages(
            sql, query, f"1 - ({distance})", f"{self._vector} IS NOT NULL", k, distance
        )

    def _find_passages(
        self, sql: Sql, query: Query, score: str, where: str, k: int, order: str | None = None
    ) -> list[Passage]:
        condition = build_condition(query, sql)
        limit = sql.parameter(k)
        metadata = "NULL" if self._metadata is None else self._metadata
        # by distance alone, as the index of vectors can; by score and id where all are looked at anyway
        by = f"{score} DESC, {self._id}" if order is None else order
        statement = (
            f"SELECT {self._id}::text, {self._title}, {self._text}, {metadata}, {score} "
            f"FROM {self._table} AS found WHERE {where} AND {condition} ORDER BY {by} LIMIT {limit}"
        )
        with self._connect() as connection:
            if order is not None:
                width = min(max(k, SEARCH_WIDTH), MAX_WIDTH)
                connection.exec_driver_sql(f"SET LOCAL hnsw.ef_search = {width}")
                # the index continues its scan until k rows pass the filter
                connection.exec_driver_sql("SET LOCAL hnsw.iterative_scan = strict_order")
            rows = connection.exec_driver_sql(statement, sql.values).all()
        return [
            Passage(name, title or "", text, score, load_metadata(metadata))
            for name, title, text, metadata, score in rows
        ]

    @contextmanager
    def _connect(self) -> "Iterator[sa.Connection]":
        """Begin a transaction; errors of the driver are raised as ArmError, without the SQL statement."""
        from sqlalchemy import exc

        try:
            with self._engine.begin() as connection:
                # for this transaction, since a pooler gives the session to others after it
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {self._wait_s * 1000:.0f}")
                yield connection
        except exc.DBAPIError as error:
            raise ArmError(str(error.orig).strip().partition("\n")[0]) from error

    def create(self, dim: int | None) -> None:
        """Create the table with its index of words, and the table of states."""
        words = f"to_tsvector('{self._params.language}', title || ' ' || text)"
        vector = "" if dim is None else f", embedding vector({dim})"
        with self._connect() as connection:
            run = connection.exec_driver_sql
            if dim is not None:
                run("CREATE EXTENSION IF NOT EXISTS vector")
            run(
                f"CREATE TABLE IF NOT EXISTS {self._table} (id text PRIMARY KEY, title text NOT NULL, "
                "text text NOT NULL, metadata jsonb NOT NULL, digest text NOT NULL, "
                f"search tsvector GENERATED ALWAYS AS ({words}) STORED{vector})"
            )
            run(f"CREATE INDEX IF NOT EXISTS {self._index('words')} ON {self._table} USING gin (search)")
            run(f"CREATE TABLE IF NOT EXISTS {STATES} (collection text PRIMARY KEY, state jsonb NOT NULL)")

    def _index(self, what: str) -> str:
        return _quote(f"{self._params.collection.rpartition('.')[2]}_{what}")

    def state(self) -> FillState | None:
        """Return the state that was stored last."""
        if not self._there(STATES):
            return None
        with self._connect() as connection:
            stored_state = connection.exec_driver_sql(
                f"SELECT state FROM {STATES} WHERE collection = %(name)s", {"name": self._params.collection}
            ).scalar()
        return None if stored_state is None else FillState(**stored_state)

    def keep(self, state: FillState) -> None:
        """Store a state."""
        with self._connect() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {STATES} VALUES (%(name)s, %(state)s::jsonb) "
                "ON CONFLICT (collection) DO UPDATE SET state = EXCLUDED.state",
                {"name": self._params.collection, "state": state.to_json()},
            )

    def _there(self, table: str) -> bool:
        with self._connect() as connection:
            return bool(
                connection.exec_driver_sql("SELECT to_regclass(%(t)s) IS NOT NULL", {"t": table}).scalar()
            )

    def count(self) -> int:
        """Return the number of rows."""
        if not self._there(self._table):
            return 0
        with self._connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {self._table}").scalar_one())

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of rows."""
        with self._connect() as connection:
            rows = connection.exec_driver_sql(
                f"SELECT id, digest FROM {self._table} WHERE id = ANY(%(ids)s)", {"ids": list(ids)}
            )
            return {row.id: row.digest for row in rows}

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        last: str | None = None
        while True:
            with self._connect() as connection:
                page = connection.exec_driver_sql(
                    f"SELECT id FROM {self._table} WHERE %(last)s::text IS NULL OR id > %(last)s::text "
                    f"ORDER BY id LIMIT {PAGE}",
                    {"last": last},
                ).scalars()
                names: list[str] = list(page)
            yield from names
            if len(names) < PAGE:
                return
            last = names[-1]

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows, in one transaction."""
        columns = ["id", "title", "text", "metadata", "digest"]
        columns += ["embedding"] if rows[0].vector is not None else []
        values: list[Mapping[str, Any]] = [
            {**row.document, "embedding": None if row.vector is None else _vector_text(row.vector)}
            for row in rows
        ]
        casts = {"metadata": "::jsonb", "embedding": "::vector"}
        placed = ", ".join(f"%({column})s{casts.get(column, '')}" for column in columns)
        replaced = ", ".join(f"{column} = EXCLUDED.{column}" for column in columns[1:])
        with self._connect() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {self._table} ({', '.join(columns)}) VALUES ({placed}) "
                f"ON CONFLICT (id) DO UPDATE SET {replaced}",
                values,
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        with self._connect() as connection:
            connection.exec_driver_sql(
                f"DELETE FROM {self._table} WHERE id = ANY(%(ids)s)", {"ids": list(ids)}
            )

    def finish(self) -> None:
        """Index the vectors, and have PostgreSQL update its statistics of rows and words."""
        with self._connect() as connection:
            run = connection.exec_driver_sql
            run("SET LOCAL statement_timeout = 0")  # an index of millions takes minutes
            dims = run(
                "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%(t)s) "
                "AND attname = 'embedding' AND NOT attisdropped",
                {"t": self._table},
            ).scalar()
            if dims is not None and dims <= INDEXED_DIMS:
                run(
                    f"CREATE INDEX IF NOT EXISTS {self._index('near')} ON {self._table} "
                    "USING hnsw (embedding vector_cosine_ops)"
                )
            run(f"ALTER TABLE {self._table} ALTER COLUMN search SET STATISTICS {COUNTED_WORDS}")
            run(f"ANALYZE {self._table}")
        self._known_words = -math.inf, WordStatistics()


def _column(name: str) -> str:
    """Return a quoted column of the searched table."""
    return f"found.{_quote(name)}"


def _quote(name: str) -> str:
    """Return a quoted identifier of SQL, with % doubled for the driver."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _vector_text(vector: NDArray[np.float32]) -> str:
    return orjson.dumps(vector.astype(float).tolist()).decode()


class PostgresArm(EngineArm[PostgresParams]):
    """Searches a collection of [PostgreSQL](engines.md)."""

    kind = "postgres"
    params = PostgresParams
    example: ClassVar = {"collection": "passages", "url": "postgresql://armwise@localhost/search"}
    open = PostgresTable
