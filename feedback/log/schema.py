"""Create and check the tables of a log; their number is in its table `log`."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from armwise.feedback.errors import LogGapError, NoLogError, SchemaError
from armwise.feedback.log import tables as t
from armwise.feedback.log.database import open_database, translate_errors

_LOCK = 2
"""PostgreSQL's advisory lock that is held while tables are created."""

_NUMBER = sa.select(t.log.c.schema)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """State of a database before a log is opened in it.

    Attributes:
        schema: Number of its tables; 0 for an empty database.
        may_create: Whether its user may create tables.
        lossy: Settings by which a crash may lose committed facts, such as `fsync=off`.
    """

    schema: int
    may_create: bool
    lossy: tuple[str, ...] = ()


_CREATE = "SELECT has_schema_privilege(current_schema(), 'CREATE')"

_LOSSY = (
    "SELECT name || '=off' FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"
)


def inspect_database(url: str) -> DatabaseState:
    """Read the state of a database; only reads.

    Raises:
        NoLogError: The file of the database is missing.
        StoreError: The URL is malformed, or the database cannot keep a log.
        SchemaError: The tables belong to another program.
        LogUnavailableError: The database is unreachable.
    """
    database = open_database(url, create=False)
    try:
        with (
            translate_errors(database),
            database.engine.connect().execution_options(reading=True) as connection,
        ):
            number = read_schema(connection)
            if connection.dialect.name == "postgresql":
                lossy = connection.exec_driver_sql(_LOSSY).scalars().all()
                return DatabaseState(number, bool(connection.exec_driver_sql(_CREATE).scalar()), tuple(lossy))
            return DatabaseState(number, True)
    finally:
        database.close()


def prepare(engine: sa.Engine, *, create: bool = True) -> None:
    """Create the tables of an empty database, and refuse a database with another schema.

    Safe to call from any number of processes at once: one of them creates the tables, in one transaction.

    Args:
        engine: Connections to the database.
        create: Whether to create the tables; else nothing is written.

    Raises:
        NoLogError: The database is empty, and no tables are to be created.
        SchemaError: The tables are those of another Armwise, or of another program.
    """
    try:
        with engine.connect().execution_options(reading=True) as connection:
            number = _read_number(connection)
    except DBAPIError:  # no such table; any other error is raised again below
        number = 0
    if not number:
        with _exclusive(engine) if create else engine.connect().execution_options(reading=True) as connection:
            number = read_schema(connection)
            if not number and create:
                _create(connection)
                return
    if not number:
        raise NoLogError(engine.url.render_as_string())
    if number != t.SCHEMA:
        raise _make_error(number)


def check(connection: sa.Connection) -> None:
    """Check that a database still has the tables that `prepare` found.

    Raises:
        SchemaError: The tables are those of another Armwise.
        LogGapError: The row of `log` is missing.
        DBAPIError: A table is missing.
    """
    if (number := _read_number(connection)) != t.SCHEMA:
        raise _make_error(number)
    connection.execute(_A_ROW_OF_EACH)


_A_ROW_OF_EACH = sa.select(
    *(
        sa.select(sa.literal(1)).select_from(table).limit(1).scalar_subquery()
        for table in t.metadata.tables.values()
    )
)


def require_row(rows: int) -> None:
    """Check that `log` has one row. Raises LogGapError."""
    if rows != 1:
        raise LogGapError(f"`log` has {rows} rows: it must have one")


def read_schema(connection: sa.Connection) -> int:
    """Return the number of the tables of a database; 0: it is empty.

    Raises:
        SchemaError: The tables belong to another program.
        LogGapError: The row of `log` is missing.
    """
    inspector = sa.inspect(connection)
    existing = set(inspector.get_table_names())
    ours = t.log.name in existing and [one["name"] for one in inspector.get_columns(t.log.name)]
    if ours and t.log.c.schema.name in ours:
        return _read_number(connection)
    if foreign := sorted(existing & t.metadata.tables.keys()):
        raise SchemaError(
            f"the database has a table {foreign[0]!r} but no schema number: give the log a database of its "
            "own"
        )
    return 0


def _read_number(connection: sa.Connection) -> int:
    numbers = connection.scalars(_NUMBER).all()
    require_row(len(numbers))
    return int(numbers[0])


@contextmanager
def _exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that is alone in creating tables."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite allows one writer only
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK}, hashtext(current_schema()))")
        yield connection


def _create(connection: sa.Connection) -> None:
    t.metadata.create_all(connection, checkfirst=False)
    first = {"schema": t.SCHEMA, "seq": 0, "at": 0.0, "secret": new_secret()}
    connection.execute(sa.insert(t.log), first)


def new_secret() -> str:
    """Return the secret of a new log: 256 random bits, in hexadecimal."""
    return secrets.token_hex(32)


def _make_error(number: int) -> SchemaError:
    return SchemaError(
        f"the log has schema {number}, and this Armwise reads schema {t.SCHEMA}: run the version that "
        "wrote it, or set `log_url` to a new log"
    )
