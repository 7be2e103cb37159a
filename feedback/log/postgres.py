"""A log in PostgreSQL 15 or later, through psycopg 3: many may write at once, from many machines.

Facts are ordered by the lock on the row of `log_head`, and what else is written by a lock of its own, so
that neither holds up the other. A commit returns once it is on the disk, whatever the user's settings.
"""

import logging
import select
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from feedback.errors import StoreError
from feedback.log.database import CONNECTIONS, WAIT_S, Addition, Found, Rows, Statement, dumps

logger = logging.getLogger(__name__)

OLDEST = 15

_CONNECT = {
    "application_name": "armwise",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # A machine that is gone without a word is noticed within some 20 s.
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""What a URL may say otherwise."""

# Statements are prepared, but planned each time: a log begins empty, and a plan for an empty table reads all
# of it, which is kept for a minute or more after the table is not empty any longer.
_SESSION = """
SET plan_cache_mode = 'force_custom_plan';
SET statement_timeout = '60s';
SET idle_in_transaction_session_timeout = '60s';
SET default_transaction_isolation = 'read committed';
"""

_DURABLE = ["fsync", "full_page_writes", "synchronous_commit"]

_AWAY = ("08", "25006", "25P", "40", "53", "55", "57", "58")
"""How codes of errors begin of which no statement is guilty: of the connection, of a server that only reads,
of transactions that were given up or met, of resources, of locks, of an operator, of the system."""

_DAMAGED = ("3F", "42", "XX")
"""How codes of errors begin that speak of a schema, of tables, columns and rights, or of files."""


class PostgreSQL:
    """A database of a server. Implements `feedback.log.database.Database`.

    Args:
        url: Its URL; what it says of the connection wins.
    """

    snapshot: Mapping[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    def __init__(self, url: sa.URL) -> None:
        self.engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={name: value for name, value in _CONNECT.items() if name not in url.query},
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            json_serializer=dumps,
            json_deserializer=orjson.loads,
        )
        sa.event.listen(self.engine, "connect", self._set_up)
        sa.event.listen(self.engine, "checkout", _lend)
        self._warned = False

    def take_control(self, connection: sa.Connection) -> None:
        """Take an advisory lock; a log is a schema."""
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(1, hashtext(current_schema()))")

    def among(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Compare with the items of an array."""
        return column == sa.any_(sa.bindparam("ids", type_=ARRAY(sa.String)))

    def ids(self, ids: Sequence[str]) -> object:
        """Return a list."""
        return list(ids)

    def addition(self, tables: Sequence[sa.Table], end: str) -> Addition:
        """Do it all by one statement, which gets the rows as JSON: that is the least work for both sides."""
        parts = {table: _insertion(table) for table in tables}

        def add(rows: Mapping[sa.Table, Rows], values: Mapping[str, Any]) -> Sequence[Statement]:
            sql = f"WITH {', '.join(parts[table] for table in rows)} {end}"
            return [(sql, {**{table.name: dumps(some) for table, some in rows.items()}, **values})]

        return add

    def exchange(self, driver: Any, statements: Sequence[Statement]) -> list[Found]:
        """Send all statements before the answer to the first is awaited; one that fails ends them all."""
        with driver.pipeline():
            cursors = [driver.execute(sql, values) for sql, values in statements]
        return [[] if cursor.rownumber is None else cursor.fetchall() for cursor in cursors]

    def is_away(self, error: Exception) -> bool:
        """Read it from the code of the server; without one, the connection is lost, or never came about."""
        code = getattr(error, "sqlstate", None)
        return code.startswith(_AWAY) if code else isinstance(error, self._driver.OperationalError)

    def is_damaged(self, error: Exception) -> bool:
        """Read it from the code of the server: our statements are right, as long as the tables are."""
        return (getattr(error, "sqlstate", None) or "").startswith(_DAMAGED)

    def time(self) -> float | None:
        """Ask the server."""
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one()
        return float(found)

    @property
    def _driver(self) -> Any:
        return self.engine.dialect.loaded_dbapi

    def _set_up(self, driver: Any, _record: object) -> None:
        """Look at what a server promises, and bound what a session may wait for. Raises StoreError."""
        try:
            _check_server(driver)
            driver.autocommit = True
            driver.execute(f"SET lock_timeout = '{WAIT_S:g}s'; {_SESSION}")
            found = driver.execute(
                "SELECT name FROM pg_settings WHERE name = ANY(%s) AND setting = 'off'", [_DURABLE]
            )
            off = {name for (name,) in found}
            if "synchronous_commit" in off:  # the only one that a session can put right
                off.remove("synchronous_commit")
                driver.execute("SET synchronous_commit = on")
            driver.autocommit = False
        except BaseException:
            driver.close()  # nobody else knows of it yet
            raise
        if off and not self._warned:
            self._warned = True
            said = " and ".join(sorted(off))
            logger.warning("PostgreSQL may lose in a crash what it committed: %s is off", said)


def _insertion(table: sa.Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.c)
    given = f"json_populate_recordset(NULL::{table.name}, %({table.name})s::json)"
    return f"_{table.name} AS (INSERT INTO {table.name} ({names}) SELECT {names} FROM {given})"


def _check_server(driver: Any) -> None:
    version = driver.info.server_version // 10_000
    encoding = driver.info.parameter_status("server_encoding")
    if version < OLDEST or encoding != "UTF8":
        raise StoreError(
            f"the log needs PostgreSQL {OLDEST} or later, and a database in UTF8; "
            f"this is version {version}, in {encoding}"
        )


def _lend(driver: Any, _record: object, _proxy: object) -> None:
    """Notice a server that was restarted before anything is sent. Raises DisconnectionError."""
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):  # nothing was asked: what it says can only be that it ended
        raise sa.exc.DisconnectionError("the server has ended the connection")
    # A reader leaves READ WRITE behind, for which a server that only reads has another error.
    driver.read_only = None
