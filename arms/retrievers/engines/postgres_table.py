"""A table of PostgreSQL with words and vectors: searched, and filled."""

import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import exc

from arms.base import ArmError, Passage, Query
from arms.retrievers.engines.collection import Row, State
from arms.retrievers.engines.conditions import condition_of, loaded_metadata, stored
from arms.retrievers.engines.postgres import PostgresParams, Sql
from arms.retrievers.engines.postgres_words import WordStatistics, literal

STATES = "armwise_ingests"
"""Table of what was put into which table."""

INDEXED_DIMS = 2000
"""Longest vectors that pgvector indexes; longer ones are compared one by one."""

SEARCH_WIDTH, MAX_WIDTH = 128, 1000
"""Candidates of a search by vectors, at least k, as of the kind `dense`; and the most that pgvector takes."""

PAGE = 10_000

STATISTICS_S = 600.0
"""Seconds for which the statistics of words are taken for the present ones."""

COUNTED_WORDS = 1_000
"""A tenth of the most common words that PostgreSQL counts in a table that `ingest` fills."""


class PostgresTable:
    """A table of PostgreSQL."""

    def __init__(self, params: PostgresParams) -> None:
        self._params = params
        url = sa.make_url(params.url).set(drivername="postgresql+psycopg")
        if (password := params.key) is not None:
            url = url.set(password=password)
        milliseconds = int(params.timeout_s * 1000)
        self._engine = sa.create_engine(
            url,
            pool_size=params.connections,
            max_overflow=0,
            pool_timeout=params.timeout_s,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "connect_timeout": max(2, int(params.timeout_s)),
                "options": f"-c statement_timeout={milliseconds}",
            },
        )
        weakref.finalize(self, self._engine.dispose)
        self._known_words = -math.inf, WordStatistics()
        names = params.fields
        self._table = ".".join(_quoted(part) for part in params.collection.split("."))
        self._id, self._text = _column(names.id), _column(names.text)
        self._search, self._vector = _column(names.search), _column(names.vector)
        self._title = "''" if names.title is None else _column(names.title)
        self._metadata = None if names.metadata is None else _column(names.metadata)

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word, by `ts_rank` and how rare each word is.

        Shorter ones come first among equals. A word that many passages have is asked for only where the rarer
        ones find fewer than `k`.
        """
        words = self._words(query.text)
        if not words:
            return []
        known, found = self._word_statistics(), list[Passage]()
        weights = dict(zip(words, known.weights(words), strict=True))
        for asked in known.steps(words):
            found = self._with_words(query, k, weights, asked)
            if len(found) >= k:
                break
        return found

    def _words(self, text: str) -> list[str]:
        """Return the words of a text, as the language reduces them."""
        with self._connected() as connection:
            return list(
                connection.exec_driver_sql(
                    f"SELECT lexeme FROM unnest(to_tsvector('{self._params.language}', %(text)s))",
                    {"text": text.replace("\0", " ")},
                ).scalars()
            )

    def _word_statistics(self) -> WordStatistics:
        """Return what is known of the words, at most `STATISTICS_S` seconds old."""
        now = time.monotonic()
        asked_at, known = self._known_words
        if now - asked_at < STATISTICS_S:
            return known
        with self._connected() as connection:
            found = connection.exec_driver_sql(
                "SELECT reltuples, most_common_elems::text::text[], most_common_elem_freqs FROM pg_class "
                "JOIN pg_namespace ON pg_namespace.oid = relnamespace LEFT JOIN pg_stats ON "
                "schemaname = nspname AND tablename = relname AND attname = %(column)s "
                "WHERE pg_class.oid = to_regclass(%(table)s) ORDER BY inherited DESC NULLS LAST LIMIT 1",
                {"column": self._params.fields.search, "table": self._table},
            ).one_or_none()
        known = WordStatistics()
        if (
            found is not None and found[1]
        ):  # after the shares of the words come the least, the most and that of null
            known = WordStatistics(float(found[0]), dict(zip(found[1], found[2], strict=False)))
        self._known_words = now, known
        return known

    def _with_words(
        self, query: Query, k: int, weights: Mapping[str, float], asked: Sequence[str]
    ) -> list[Passage]:
        sql = Sql(self._metadata)
        names, values = sql.parameter([*map(literal, weights)]), sql.parameter([*weights.values()])
        score = (
            f"(SELECT sum(weight * ts_rank({self._search}, word, 1)) "
            f"FROM unnest({names}::tsquery[], {values}::float8[]) AS asked (word, weight))"
        )
        some = sql.parameter(" | ".join(map(literal, asked)))
        return self._found(sql, query, score, f"{self._search} @@ {some}::tsquery", k)

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by the cosine."""
        sql = Sql(self._metadata)
        near = sql.parameter(_vector_text(vector))
        distance = f"{self._vector} <=> {near}::vector"
        return self._found(sql, query, f"1 - ({distance})", f"{self._vector} IS NOT NULL", k, distance)

    def _found(
        self, sql: Sql, query: Query, score: str, where: str, k: int, order: str | None = None
    ) -> list[Passage]:
        condition = condition_of(query, sql)
        limit = sql.parameter(k)
        metadata = "NULL" if self._metadata is None else self._metadata
        # by distance alone, as the index of vectors can; by score and id where all are looked at anyway
        by = f"{score} DESC, {self._id}" if order is None else order
        statement = (
            f"SELECT {self._id}::text, {self._title}, {self._text}, {metadata}, {score} "
            f"FROM {self._table} AS found WHERE {where} AND {condition} ORDER BY {by} LIMIT {limit}"
        )
        with self._connected() as connection:
            if order is not None:
                width = min(max(k, SEARCH_WIDTH), MAX_WIDTH)
                connection.exec_driver_sql(f"SET LOCAL hnsw.ef_search = {width}")
                # so that a filter does not leave fewer than k of what the index found
                connection.exec_driver_sql("SET LOCAL hnsw.iterative_scan = strict_order")
            rows = connection.exec_driver_sql(statement, sql.values).all()
        return [
            Passage(name, title or "", text, score, loaded_metadata(metadata))
            for name, title, text, metadata, score in rows
        ]

    def _connected(self) -> "_Connected":
        return _Connected(self._engine)

    def create(self, dim: int | None) -> None:
        """Make the table with its index of words, and the table of states."""
        words = f"to_tsvector('{self._params.language}', title || ' ' || text)"
        vector = "" if dim is None else f", embedding vector({dim})"
        with self._connected() as connection:
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
        return _quoted(f"{self._params.collection.rpartition('.')[2]}_{what}")

    def state(self) -> State | None:
        """Return what was put there."""
        if not self._there(STATES):
            return None
        with self._connected() as connection:
            found = connection.exec_driver_sql(
                f"SELECT state FROM {STATES} WHERE collection = %(name)s", {"name": self._params.collection}
            ).scalar()
        return None if found is None else State(**found)

    def keep(self, state: State) -> None:
        """Store a state."""
        with self._connected() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {STATES} VALUES (%(name)s, %(state)s::jsonb) "
                "ON CONFLICT (collection) DO UPDATE SET state = EXCLUDED.state",
                {"name": self._params.collection, "state": orjson.dumps(state).decode()},
            )

    def _there(self, table: str) -> bool:
        with self._connected() as connection:
            return bool(
                connection.exec_driver_sql("SELECT to_regclass(%(t)s) IS NOT NULL", {"t": table}).scalar()
            )

    def count(self) -> int:
        """Return the number of rows."""
        if not self._there(self._table):
            return 0
        with self._connected() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {self._table}").scalar_one())

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of rows."""
        with self._connected() as connection:
            rows = connection.exec_driver_sql(
                f"SELECT id, digest FROM {self._table} WHERE id = ANY(%(ids)s)", {"ids": list(ids)}
            )
            return {row.id: row.digest for row in rows}

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        last: str | None = None
        while True:
            with self._connected() as connection:
                page = connection.exec_driver_sql(
                    f"SELECT id FROM {self._table} WHERE %(last)s::text IS NULL OR id > %(last)s::text "
                    f"ORDER BY id LIMIT {PAGE}",
                    {"last": last},
                ).scalars()
                found: list[str] = list(page)
            yield from found
            if len(found) < PAGE:
                return
            last = found[-1]

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace rows, in one transaction."""
        columns = ["id", "title", "text", "metadata", "digest"]
        columns += ["embedding"] if rows[0].vector is not None else []
        values: list[Mapping[str, Any]] = [
            {
                "id": row.passage.id,
                "title": row.passage.title,
                "text": row.passage.text,
                "metadata": stored(row.passage.metadata),
                "digest": row.digest,
                "embedding": None if row.vector is None else _vector_text(row.vector),
            }
            for row in rows
        ]
        casts = {"metadata": "::jsonb", "embedding": "::vector"}
        placed = ", ".join(f"%({column})s{casts.get(column, '')}" for column in columns)
        replaced = ", ".join(f"{column} = EXCLUDED.{column}" for column in columns[1:])
        with self._connected() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {self._table} ({', '.join(columns)}) VALUES ({placed}) "
                f"ON CONFLICT (id) DO UPDATE SET {replaced}",
                values,
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows."""
        with self._connected() as connection:
            connection.exec_driver_sql(
                f"DELETE FROM {self._table} WHERE id = ANY(%(ids)s)", {"ids": list(ids)}
            )

    def finish(self) -> None:
        """Index the vectors, and let the planner count the rows and their words."""
        with self._connected() as connection:
            run = connection.exec_driver_sql
            run("SET LOCAL statement_timeout = 0")  # an index of millions takes minutes
            if self._params.build_memory_mb is not None:
                run(f"SET LOCAL maintenance_work_mem = '{self._params.build_memory_mb}MB'")
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


class _Connected:
    """A transaction; what the driver raises says what is wrong without the statement."""

    def __init__(self, engine: sa.Engine) -> None:
        self._begun = engine.begin()

    def __enter__(self) -> sa.Connection:
        try:
            return self._begun.__enter__()
        except exc.DBAPIError as error:
            raise ArmError(str(error.orig).strip().partition("\n")[0]) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._begun.__exit__(kind, error, trace)
        if isinstance(error, exc.DBAPIError):
            raise ArmError(str(error.orig).strip().partition("\n")[0]) from error


def _column(name: str) -> str:
    """Return a column of the table that is searched."""
    return f"found.{_quoted(name)}"


def _quoted(name: str) -> str:
    """Return an identifier of SQL; the driver takes % for a parameter."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _vector_text(vector: NDArray[np.float32]) -> str:
    return orjson.dumps(vector.astype(float).tolist()).decode()
