"""The protocol of a database that can hold a log; `feedback.log.sqlite` and `feedback.log.postgres` have it.

Appending facts bypasses SQLAlchemy: their statements are compiled once, and sent to the driver in as few
round trips as possible. Everything else is SQLAlchemy Core.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from feedback.errors import LogUnavailableError, SchemaError, StoreError

ANSWER_S = 60.0
"""Longest that a statement may take on a server, in seconds, where no request waits for it."""

WAIT_S = 10.0
"""How long a writer waits for other writers before it fails."""

CONNECTIONS = 8
"""Connections of one process at most."""

RESERVED = 2
"""How many of these are reserved for appending facts and for probes."""

SUCH_AS = "sqlite:////var/lib/armwise/log.db or postgresql://armwise@localhost/armwise"

Statement = tuple[str, Any]
"""SQL for the driver, and its parameters: a mapping of names, or a list of mappings."""

Rows = Sequence[Mapping[str, Any]]
"""Values by column."""

Addition = Callable[[Mapping[sa.Table, Rows], Mapping[str, Any]], Sequence[Statement]]
"""Builds statements from the rows of some tables, and the parameters of the last statement."""

Found = Sequence[Sequence[Any]]
"""Rows of a query, with values in the order of its columns."""


class Database(Protocol):
    """One database, set up so that commits are durable and every wait is bounded.

    Attributes:
        engine: Connections to the database; their number is bounded.
        snapshot: Options of a connection that reads one snapshot of the log.
    """

    engine: sa.Engine
    snapshot: Mapping[str, Any]

    def take_control(self, connection: sa.Connection) -> None:
        """Take the lock of writers that do not append facts, until the transaction ends.

        It does not block appending, if the database supports concurrent writers.
        """
        ...

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return the condition that a column is in the parameter `ids`."""
        ...

    def ids(self, ids: Sequence[str]) -> object:
        """Return the value of the parameter `ids`."""
        ...

    def numbered(self) -> tuple[sa.FromClause, sa.ColumnElement[str], sa.ColumnElement[int]]:
        """Return the rows of the parameter `numbered`, and their columns.

        The parameter is a JSON array of pairs: an id and an integer.
        """
        ...

    def addition(self, tables: Sequence[sa.Table], end: str) -> Addition:
        """Return a builder of statements that insert rows, each with every column, and then execute `end`."""
        ...

    def exchange(self, driver: Any, statements: Sequence[Statement]) -> list[Found]:
        """Execute statements in order and return the rows of each; the first one begins a transaction.

        Args:
            driver: The driver's connection.
            statements: Executed in order; the last one may be `COMMIT`.
        """
        ...

    def is_away(self, error: Exception) -> bool:
        """Return whether a driver error means that the database is unreachable, locked or full."""
        ...

    def is_damaged(self, error: Exception) -> bool:
        """Return whether a driver error means that the tables are missing or changed."""
        ...

    def forget(self) -> None:
        """Remove what its files still hold of overwritten rows, if it is not the server that does."""
        ...

    def backup(self, to: Path) -> None:
        """Write a copy of the log. Raises StoreError."""
        ...

    def time(self) -> float | None:
        """Return the time of its clock, seconds since the epoch; None if it uses this machine's clock."""
        ...


_COMPILED: dict[tuple[object, str], dict[str, str]] = {}


def compiled(
    database: Database, statements: Callable[[Database], Mapping[str, sa.ClauseElement]]
) -> Mapping[str, str]:
    """Return statements as SQL for the driver, by name: built and compiled once for each dialect.

    Args:
        database: Any database of the dialect.
        statements: A function of a module, which returns the same statements for all databases of a dialect.
    """
    dialect = database.engine.dialect
    key = (statements, dialect.name)
    if key not in _COMPILED:
        built = statements(database)
        _COMPILED[key] = {name: str(one.compile(dialect=dialect)) for name, one in built.items()}
    return _COMPILED[key]


POINT = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""The name of a decision point: part of a file, of a schema and of ids, so nothing else may stand in it."""

_PARAMETER = "armwise_point"
"""Parameter in the URL of a point's log on a server; the driver does not get it."""


def point_url(url: str, point: str) -> str:
    """Return the URL of the log of a decision point, which has tables of its own beside those of `url`.

    They are in another file, or in another schema of the same database.

    Args:
        url: URL of the log of the service.
        point: Name of the point.

    Raises:
        StoreError: The URL is malformed, of a database in memory, or the name is not one.

    >>> point_url("sqlite:////var/lib/armwise/log.db", "news")
    'sqlite:////var/lib/armwise/log.news.db'
    >>> point_url("postgresql://ada@db/log", "news")
    'postgresql://ada@db/log?armwise_point=news'
    """
    if not POINT.fullmatch(point):
        raise StoreError(f"{point!r} cannot name a decision point: use 1 to 32 of a-z 0-9 -, a letter first")
    parsed = _parsed(url)
    if parsed.get_backend_name() != "sqlite":
        return parsed.update_query_dict({_PARAMETER: point}).render_as_string(hide_password=False)
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError("decision points need a log in a file: a database in memory has no place for theirs")
    file = Path(parsed.database)
    beside = file.with_name(f"{file.stem}.{point}{file.suffix}")
    return parsed.set(database=str(beside)).render_as_string(hide_password=False)


def _parsed(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the latter of a port
        raise StoreError(f"{shown(url)!r} is not a database URL such as {SUCH_AS}") from None


def open_database(url: str, answer_s: float = ANSWER_S) -> Database:
    """Return the database of a URL, without connecting to it.

    Args:
        url: URL of SQLite or PostgreSQL.
        answer_s: Longest that a statement may take on a server, in seconds.

    Raises:
        StoreError: The URL is malformed, or of an unsupported database.
    """
    parsed = _parsed(url)
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            from feedback.log.sqlite import SQLite

            return SQLite(parsed)
        case "postgresql" | "postgresql+psycopg":
            from feedback.log.postgres import PostgreSQL

            point = parsed.query.get(_PARAMETER, "")
            if point and (not isinstance(point, str) or not POINT.fullmatch(point)):
                raise StoreError(f"{_PARAMETER} {point!r} cannot name a decision point")
            return PostgreSQL(parsed.difference_update_query([_PARAMETER]), str(point), answer_s)
    raise StoreError(f"database {parsed.drivername!r} is not supported; give a URL such as {SUCH_AS}")


def connect(url: str) -> sa.Engine:
    """Return an engine for a database URL, with durable settings. Raises StoreError."""
    return open_database(url).engine


@contextmanager
def borrowed(database: Database) -> Iterator[Any]:
    """Borrow a driver connection; changes that are not committed at the end are rolled back."""
    with translated(database), closing(database.engine.raw_connection()) as connection:
        try:
            yield connection.driver_connection
        except _driver_error(database) as error:
            if database.is_away(error):
                connection.invalidate(error)  # closed, and removed from the pool
            raise


@contextmanager
def translated(database: Database) -> Iterator[None]:
    """Translate driver errors into ours; an integrity error of SQLAlchemy Core is raised unchanged."""
    try:
        yield
    except sa.exc.IntegrityError:
        raise
    except sa.exc.TimeoutError as error:
        raise LogUnavailableError("the log cannot be used: all connections to it are busy") from error
    except sa.exc.DBAPIError as error:
        raise _meaning(database, error.orig if isinstance(error.orig, Exception) else error) from error
    except _driver_error(database) as error:
        raise _meaning(database, error) from error


def _driver_error(database: Database) -> type[Exception]:
    found: type[Exception] = database.engine.dialect.loaded_dbapi.Error
    return found


def _meaning(database: Database, error: Exception) -> StoreError:
    message, _, _ = str(error).partition("\n")  # further lines are hints, and parts of the rows
    if database.is_away(error):
        return LogUnavailableError(f"the log cannot be used: {message}")
    if database.is_damaged(error):
        return SchemaError(f"the tables of the log are missing or changed: {message}")
    return StoreError(f"the database refused a value: {message}")


_PASSWORD = re.compile(r"^([^:]*://[^:@/?]*):.*@|(?<=password=)[^&]*")


def shown(url: str) -> str:
    """Return a database URL, well-formed or not, without its password.

    >>> shown("postgresql://ada:se/cr@t@db/log?sslpassword=hidden&connect_timeout=3")
    'postgresql://ada:***@db/log?sslpassword=***&connect_timeout=3'
    >>> shown("sqlite:////var/lib/armwise/log.db")
    'sqlite:////var/lib/armwise/log.db'
    """
    return _PASSWORD.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else "***", url)


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


def dumps(value: object) -> str:
    r"""Return a value as JSON; the character NUL, which PostgreSQL cannot store, becomes U+FFFD.

    >>> dumps({"tag": "a\0b", "path": "C:\\u0000"})
    '{"tag":"a\ufffdb","path":"C:\\\\u0000"}'
    """
    text = orjson.dumps(value).decode()
    return _NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text
