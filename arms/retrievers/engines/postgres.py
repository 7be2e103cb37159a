"""PostgreSQL: full text search, and vectors by the extension pgvector."""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from arms.filters import Scalar
from arms.retrievers.engines.collection import Collection, ServerParams, engine_kind
from arms.retrievers.engines.conditions import Order

Column = Annotated[str, StringConstraints(pattern=r'^[^"\x00]{1,63}$')]


class Columns(BaseModel):
    """Columns of a table; those of a table that `ingest` makes are the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Column = Field(default="id", description="The id, of any type.")
    title: Column | None = Field(default="title", description="The title; null without.")
    text: Column = Field(default="text", description="The text.")
    metadata: Column | None = Field(
        default="metadata",
        description="Metadata, of type jsonb; null without, and every passage is for everybody.",
    )
    search: Column = Field(default="search", description="The words, of type tsvector.")
    vector: Column = Field(default="embedding", description="The vector, of type vector.")


class PostgresParams(ServerParams):
    """Parameters of an arm over a table of PostgreSQL."""

    url: str = Field(description="Address of the database: postgresql://user@host/name, without a password.")
    collection: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,54}(\.[A-Za-z_][A-Za-z0-9_]{0,54})?$",
        description="Name of the table, with its schema or without.",
    )
    language: str = Field(
        "english", pattern=r"^[a-z_]{1,63}$", description="Text search configuration of PostgreSQL."
    )
    build_memory_mb: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Memory in MB in which `ingest` builds the index of vectors, faster where all of "
        "it fits; null for the server's own `maintenance_work_mem`.",
    )
    fields: Columns = Field(Columns(), description="Columns, for a table that something else fills.")

    @property
    def names_fields(self) -> bool:
        """Whether it names columns."""
        return self.fields != Columns()

    @model_validator(mode="after")
    def _is_postgres(self) -> Self:
        if urlsplit(self.url).scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
            raise ValueError(f"url {self.url!r} does not begin with postgresql://")
        return self


class Sql:
    """Conditions in SQL: a text with names of parameters, whose values are in `values`.

    Args:
        metadata: The column, quoted; None without metadata.
    """

    def __init__(self, metadata: str | None) -> None:
        self.values: dict[str, Any] = {}
        self._metadata = "'{}'::jsonb" if metadata is None else f"COALESCE({metadata}, '{{}}')"

    def parameter(self, value: Any) -> str:
        """Return the name of a new parameter with a value."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"

    def one_of(self, key: str, values: Sequence[Scalar]) -> str:
        """Return: the JSON value is, or as a list holds, one of these."""
        if "\0" in key:
            return "FALSE"
        found = f"({self._metadata} -> {self.parameter(key)}::text)"
        wanted = [json.dumps(one) for one in values if _can_be_stored(one)]
        return self.some([f"COALESCE({found} @> {self.parameter(one)}::jsonb, FALSE)" for one in wanted])

    def ordered(self, key: str, how: Order, number: float) -> str:
        """Return: the JSON value is a number, and so compared."""
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
        """Return: there is no such key, or it is null."""
        return f"COALESCE(jsonb_typeof({self._metadata} -> {self.parameter(key)}::text), 'null') = 'null'"

    def every(self, parts: Sequence[str]) -> str:
        """Return: all of these hold."""
        return f"({' AND '.join(parts)})"

    def some(self, parts: Sequence[str]) -> str:
        """Return: one of these holds."""
        return f"({' OR '.join(parts)})" if parts else "FALSE"

    def negated(self, part: str) -> str:
        """Return: this does not hold."""
        return f"(NOT {part})"


def _can_be_stored(value: Scalar) -> bool:
    """Return whether jsonb can hold a value: texts without NUL, numbers that are finite."""
    return "\0" not in value if isinstance(value, str) else math.isfinite(value)


def _open(params: PostgresParams) -> Collection:
    from arms.retrievers.engines.postgres_table import (
        PostgresTable,
    )  # here: loading takes a tenth of a second

    return PostgresTable(params)


KIND = engine_kind("postgres", PostgresParams, _open)
