"""What a database that can hold a log does: `sqlite` and `postgres`, which run the same statements."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

ANSWER_S = 60.0
"""Longest time of a statement on a server in the background, in seconds."""

WAIT_S = 10.0
"""Seconds that a writer waits for other writers before it fails."""

CONNECTIONS = 8
"""Largest number of connections of a process."""

RESERVED = 2
"""Connections among these that are reserved for appending facts and for probes."""


class Database(ABC):
    """One database, set up so that commits are durable and every wait is bounded.

    A connection with the execution option `reading` reads one snapshot of the log.

    Attributes:
        engine: Connections to the database; their number is bounded.
    """

    engine: sa.Engine

    def take_control(self, connection: sa.Connection) -> None:  # noqa: B027 - SQLite allows one writer
        """Take the lock of writers other than those that append facts, until the transaction ends.

        Where the database supports concurrent writers, appending goes on meanwhile.
        """

    def version(self) -> int | None:
        """Return a number that changes with every commit; None where asking costs as much as reading."""
        return None

    def time(self) -> float | None:
        """Return the time of its clock, seconds since the epoch; None: it uses this machine's clock."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def is_away(self, error: Exception) -> bool:
        """Return whether a driver error means that the database is unreachable, locked or full."""

    @abstractmethod
    def is_damaged(self, error: Exception) -> bool:
        """Return whether a driver error means that the tables, which our statements fit, have changed."""

    @abstractmethod
    def find_remedy(self, error: Exception) -> str:
        """Return what an operator corrects where the database is away; empty: the cause is unknown."""

    @abstractmethod
    def forget(self) -> None:
        """Remove the remains of overwritten rows from its files, as far as a client can."""

    @abstractmethod
    def backup(self, to: Path) -> None:
        """Write a copy of the log. Raises StoreError."""


class json_items(GenericFunction[Any]):  # noqa: N801 - SQLAlchemy names a function by its class
    """The texts in a list, as rows with a column `value`: for a search in an index for each of them."""

    inherit_cache = True

    def __init__(self, items: sa.BindParameter[Any]) -> None:
        super().__init__(sa.type_coerce(items, sa.JSON))


@compiles(json_items, "sqlite")
def _compile_json_each(function: json_items, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each{compiler.process(function.clause_expr, **options)}"


@compiles(json_items, "postgresql")
def _compile_json_array_elements(function: json_items, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_array_elements_text{compiler.process(function.clause_expr, **options)}"


def storable(text: str) -> str:
    r"""Return a text that every database can store: lone surrogates and NUL become U+FFFD.

    >>> storable("a\0b"), storable("\ud800!")
    ('a�b', '�!')
    """
    text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def avoid_index(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an expression with the value of a column of texts or numbers, which no index serves.

    Of several indexes that conditions offer, SQLite may take the one that selects nearly all rows: a
    condition that hardly selects must not offer one.
    """
    nothing: Any = "" if isinstance(column.type, sa.String) else 0
    expression: sa.ColumnElement[Any] = column + nothing
    return expression


def dumps(value: object) -> str:
    r"""Return a value as JSON that every database can store: with each text made `storable`.

    A part is written alike in whatever it is part of, since seals are of documents and rows are of many.

    >>> dumps({"tag": "a\0b", "path": "C:\\u0000"})
    '{"tag":"a\ufffdb","path":"C:\\\\u0000"}'
    >>> dumps([2e-5, "\udcff"])
    '[0.00002,"\ufffd"]'
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        value = _make_storable(value)
        try:
            text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except TypeError:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text


def _make_storable(value: Any) -> Any:
    """Return a document with each of its texts `storable`."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list | tuple):
        return [_make_storable(part) for part in value]
    if isinstance(value, Mapping):
        return {_make_storable(name): _make_storable(part) for name, part in value.items()}
    return value
