"""Which tables a database has: made where there are none, refused where they are another Armwise's.

The number of the newest migration that a database has been through stands in its table `alembic_version`.
The migrations are in `feedback.log.migrations`; Alembic is loaded only by whoever migrates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from feedback.errors import SchemaError
from feedback.log import tables as t
from feedback.log.database import open_database, translated

_LOCK = 2
"""Of PostgreSQL's advisory locks, the one that is held while tables are made or changed."""

_version = sa.Table(  # as Alembic makes it
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def prepare(engine: sa.Engine) -> None:
    """Make the tables of an empty database, and refuse one with other tables.

    Any number of processes may do so at once: one of them makes the tables, in one transaction.

    Raises:
        SchemaError: The tables are those of an older or a newer Armwise.
    """
    try:
        with engine.connect().execution_options(reading=True) as connection:
            found = _stamped(connection)
    except DBAPIError:  # no such table, or worse: then it comes again below
        found = 0
    if not found:
        with _alone(engine) as connection:
            found = schema_of(connection)
            if not found:
                _create(connection)
                return
    if found != t.SCHEMA:
        raise _refused(found)


def migrate(url: str) -> tuple[int, int]:
    """Bring a database to the tables of this Armwise, keeping its facts, in one transaction.

    Returns:
        The schema that was found, 0 for none, and the one that is there now.

    Raises:
        StoreError: The URL is malformed, or the database cannot keep a log.
        SchemaError: The tables are those of a newer Armwise.
        LogUnavailableError: The database is away, locked or full; it is as it was.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(Path(__file__).parent / "migrations"))
    database = open_database(url)
    try:
        with translated(database), _alone(database.engine) as connection:
            found = schema_of(connection)
            if found > t.SCHEMA:
                raise _refused(found)
            context = MigrationContext.configure(connection)
            steps = list(script.iterate_revisions("head", str(found) if found else None))
            with Operations.context(context):
                for step in reversed(steps):
                    step.module.upgrade()
                    context.stamp(script, step.revision)
    finally:
        database.engine.dispose()
    return found, t.SCHEMA


def schema_of(connection: sa.Connection) -> int:
    """Return the number of the newest migration that a database has been through, 0 for an empty one.

    Raises:
        SchemaError: Another program keeps its tables there.
    """
    inspector = sa.inspect(connection)
    found = _stamped(connection) if inspector.has_table(_version.name) else 0
    # The first tables were made without a number.
    return found or int(inspector.has_table("decisions"))


def _stamped(connection: sa.Connection) -> int:
    stamp = connection.scalar(sa.select(_version.c.version_num))
    if stamp is not None and not stamp.isdecimal():
        raise SchemaError(
            f"the database has the schema {stamp!r} of another program: give the log one of its own"
        )
    return int(stamp or 0)


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction in which no other process makes or changes tables."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite lets only one write
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK}, hashtext(current_schema()))")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # many rows take their time
        yield connection


def _create(connection: sa.Connection) -> None:
    t.metadata.create_all(connection)
    connection.execute(sa.insert(t.log_head), {"id": 1, "seq": 0, "at": 0.0})
    _version.create(connection)
    connection.execute(sa.insert(_version), {"version_num": str(t.SCHEMA)})


def _refused(found: int) -> SchemaError:
    other = (
        "this log was written by a newer Armwise" if found > t.SCHEMA else "`armwise migrate` brings it there"
    )
    return SchemaError(f"the log has schema {found}, and schema {t.SCHEMA} is expected: {other}")
