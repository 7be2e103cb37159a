"""What a database does to keep a log; `feedback.log.sqlite` and `feedback.log.postgres` are the two that can.

Facts take a short way past SQLAlchemy: their statements are compiled once, and go to the driver in as
few round trips as there can be. All else is SQLAlchemy Core.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from feedback.errors import LogUnavailableError, SchemaError, StoreError

WAIT_S = 10.0
"""How long whoever wants to write waits for others that do, before it gives up."""

CONNECTIONS = 8
"""How many one process opens at most."""

RESERVED = 2
"""How many of these are kept for facts, and for a look at whether they can be written, however many read."""

SUCH_AS = "sqlite:////var/lib/armwise/log.db or postgresql://armwise@localhost/armwise"

Statement = tuple[str, Any]
"""SQL in the driver's words, and its parameters: a mapping of names, or a list of these."""

Rows = Sequence[Mapping[str, Any]]
"""Values by column."""

Addition = Callable[[Mapping[sa.Table, Rows], Mapping[str, Any]], Sequence[Statement]]
"""Makes statements of the rows of some tables, and the parameters of the last statement."""

Found = Sequence[Sequence[Any]]
"""Values in the order of the columns that were asked for."""


class Database(Protocol):
    """One database, set up so that what it commits is durable and nothing waits for ever.

    Attributes:
        engine: Its connections; their number is bounded.
        snapshot: Options of a connection that reads: all its statements see one moment of the log.
    """

    engine: sa.Engine
    snapshot: Mapping[str, Any]

    def take_control(self, connection: sa.Connection) -> None:
        """Wait until no other transaction is in control, and be it until this one ends.

        Whoever appends facts is not held up, where the database can write two things at once.
        """
        ...

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return the condition that a column is one of the parameter `ids`."""
        ...

    def ids(self, ids: Sequence[str]) -> object:
        """Return the value of the parameter `ids`."""
        ...

    def addition(self, tables: Sequence[sa.Table], end: str) -> Addition:
        """Return what makes the statements that insert rows, each with every column, and then do `end`."""
        ...

    def exchange(self, driver: Any, statements: Sequence[Statement]) -> list[Found]:
        """Execute statements in order and return the rows of each; the first one begins a transaction.

        Args:
            driver: The driver's connection.
            statements: What is executed; a `COMMIT` may be the last.
        """
        ...

    def is_away(self, error: Exception) -> bool:
        """Whether an error of the driver is none of the statement's: the database is away, locked or full."""
        ...

    def is_damaged(self, error: Exception) -> bool:
        """Whether an error of the driver says that the tables are not there, or not as they were made."""
        ...

    def time(self) -> float | None:
        """Return what its clock says, seconds since the epoch; None where it has none of its own."""
        ...


def open_database(url: str) -> Database:
    """Return the database of a URL; it is not connected to yet.

    Raises:
        StoreError: The URL is malformed, or of a database that cannot keep a log.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the latter of a port
        raise StoreError(f"{shown(url)!r} is no database URL, such as {SUCH_AS}") from None
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            from feedback.log.sqlite import SQLite

            return SQLite(parsed)
        case "postgresql" | "postgresql+psycopg":
            from feedback.log.postgres import PostgreSQL

            return PostgreSQL(parsed)
    raise StoreError(f"a log cannot be kept in {parsed.drivername!r}; give a URL such as {SUCH_AS}")


def connect(url: str) -> sa.Engine:
    """Return an engine for a database URL, with durable settings. Raises StoreError."""
    return open_database(url).engine


@contextmanager
def borrowed(database: Database) -> Iterator[Any]:
    """Lend a connection of the driver; what is not committed at the end is rolled back."""
    with translated(database), closing(database.engine.raw_connection()) as connection:
        try:
            yield connection.driver_connection
        except _driver_error(database) as error:
            if database.is_away(error):
                connection.invalidate(error)  # closed, and never lent again
            raise


@contextmanager
def translated(database: Database) -> Iterator[None]:
    """Turn what a driver raises into errors of ours; a violated constraint in Core stays what it is."""
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
    said, _, _ = str(error).partition("\n")  # what follows are hints, and parts of what was to be written
    if database.is_away(error):
        return LogUnavailableError(f"the log cannot be used: {said}")
    if database.is_damaged(error):
        return SchemaError(f"the tables of the log are not as they were made: {said}")
    return StoreError(f"the log does not take it: {said}")


_PASSWORD = re.compile(r"(?<=://)([^:@/?]*):.*@|(?<=password=)[^&]*")


def shown(url: str) -> str:
    """Return a database URL, well-formed or not, as it may be shown: without its password.

    >>> shown("postgresql://ada:se/cr@t@db/log?sslpassword=hidden&connect_timeout=3")
    'postgresql://ada:***@db/log?sslpassword=***&connect_timeout=3'
    >>> shown("sqlite:////var/lib/armwise/log.db")
    'sqlite:////var/lib/armwise/log.db'
    """
    return _PASSWORD.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else "***", url)


def storable(text: str) -> str:
    r"""Return a text as every database can keep it: what is no character, and NUL, become U+FFFD.

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
    r"""Return a value as JSON; the character NUL, which PostgreSQL cannot keep, becomes U+FFFD.

    >>> dumps({"tag": "a\0b", "path": "C:\\u0000"})
    '{"tag":"a\ufffdb","path":"C:\\\\u0000"}'
    """
    text = orjson.dumps(value).decode()
    return _NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text
