"""A log in PostgreSQL 15 or later, through psycopg 3: many processes on many machines may write at once.

Appending facts locks the row of `log`; other writes take an advisory lock, so neither blocks the other.
A commit returns once it is on disk, whatever the user's settings.

A pooler such as PgBouncer may give each transaction another session of the server. So nothing outlives a
transaction here: settings and locks are those of the transaction, and statements are not prepared.
"""

import logging
import re
import select
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen
from typing_extensions import override

from armwise.feedback.errors import StoreError
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import ANSWER_S, CONNECTIONS, WAIT_S, Database, dumps

logger = logging.getLogger(__name__)

T = TypeVar("T")

OLDEST = 15

GRACE_S = 5.0
"""Seconds beyond the longest statement within which the server must have cancelled it."""

_CONNECT = {
    "application_name": "armwise",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # A machine that disappears is noticed within about 20 s.
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "prepare_threshold": None,
}
"""Defaults that a URL may override."""

_LOSSY = (
    "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY 1"
)

_AWAY = ("08", "25006", "25P", "40", "53", "55", "57", "58")
"""Prefixes of SQLSTATE codes with a cause outside of the statement: connection, read-only server, aborted or
conflicting transactions, resources, locks, operator intervention, system."""

_DAMAGED = ("3F", "42", "XX")
"""Prefixes of SQLSTATE codes about schemas, tables, columns, privileges or files."""

_REMEDIES = {
    re.compile(r'FATAL:  database "[^"]*" does not exist'): (
        "create this database (`createdb`), or correct its name in log_url"
    ),
    re.compile(r'authentication failed|no password supplied|FATAL:  role "[^"]*" does not exist'): (
        "the server refuses this user or the password: correct the user in log_url, the password in "
        "PGPASSFILE or in the file of ARMWISE_LOG_URL_FILE"
    ),
    re.compile(r"no pg_hba\.conf entry"): (
        "let the server's pg_hba.conf admit this user from this machine, or use TLS if it asks for that"
    ),
    re.compile(r"statement pooling mode"): (
        "the log needs transactions: set `pool_mode = transaction` or `session` in the pooler"
    ),
    re.compile(r"failed to resolve host"): "no machine has this name: correct the host in log_url",
    re.compile(
        r"Connection refused|timeout expired|No route to host|is unreachable|No such file or directory"
    ): "no server answers there: start it, or correct host and port in log_url",
}
"""What an operator corrects, by the words of libpq and of the server that name the cause."""


class _Connection(psycopg.Connection):
    """A connection with a limit on the wait for an answer, since a hanging server causes no network timeout.

    Attributes:
        answer_s: Longest wait for the next part of an answer, in seconds; None: unlimited.
    """

    answer_s: float | None = ANSWER_S + GRACE_S

    @override
    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for the server. Raises OperationalError."""
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout:  # noqa: SLF001 - what the method above documents
            self.pgconn.finish()  # its answer would be taken for that of the next statement
            raise psycopg.OperationalError(f"the server has not answered for {self.answer_s:g} s") from None


class PostgreSQL(Database):
    """A database on a server.

    Args:
        url: URL of the database; options in it override our defaults.
        answer_s: Longest time of a statement, in seconds. The server cancels a slower one; if it fails to,
            because it hangs, the connection is closed `GRACE_S` later.
    """

    def __init__(self, url: sa.URL, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self.engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={name: value for name, value in _CONNECT.items() if name not in url.query},
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=WAIT_S,
            json_serializer=dumps,
            json_deserializer=orjson.loads,
        )
        sa.event.listen(self.engine, "do_connect", self._connect)
        sa.event.listen(self.engine, "connect", self._set_up)
        sa.event.listen(self.engine, "begin", self._begin)
        sa.event.listen(self.engine, "checkout", _lend)
        sa.event.listen(self.engine, "checkin", self._take_back)
        self._warned, self._closed = False, 0
        settings = (
            f"SET LOCAL lock_timeout = '{WAIT_S:g}s'; SET LOCAL statement_timeout = '{answer_s:g}s'; "
            "SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL synchronous_commit = on"
        )
        self._begins = {
            is_reading: f"BEGIN ISOLATION LEVEL {mode}; {settings}".encode()
            for is_reading, mode in ((True, "REPEATABLE READ, READ ONLY"), (False, "READ COMMITTED"))
        }

    @override
    def take_control(self, connection: sa.Connection) -> None:
        # named by the current schema, which holds one log
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(1, hashtext(current_schema()))")

    @override
    def close(self) -> None:
        self._closed += 1  # one in use is closed when it comes back
        self.engine.dispose()

    def _take_back(self, _driver: object, record: sa.pool.ConnectionPoolEntry) -> None:
        if record.info.get("closed", self._closed) != self._closed:  # its pool is gone
            record.invalidate()

    @override
    def is_away(self, error: Exception) -> bool:
        # an operational error without SQLSTATE means that there is no connection
        code = getattr(error, "sqlstate", None)
        return code.startswith(_AWAY) if code else isinstance(error, self._driver.OperationalError)

    @override
    def find_remedy(self, error: Exception) -> str:
        text = str(error)  # without a connection there is no SQLSTATE
        return next((remedy for cause, remedy in _REMEDIES.items() if cause.search(text)), "")

    @override
    def is_damaged(self, error: Exception) -> bool:
        return (getattr(error, "sqlstate", None) or "").startswith(_DAMAGED)

    @override
    def forget(self) -> None:
        """Vacuum what an erasure writes, so that removed rows disappear from queries and dumps.

        Their bytes stay in free space of pages until it is reused, and in the write-ahead log.
        """
        tables = ", ".join(table.name for table in (t.texts, t.decisions, t.feedback, t.answer_marks))
        lent = self.engine.raw_connection()
        driver: _Connection = lent.driver_connection  # type: ignore[assignment]  # by _connect
        try:
            driver.answer_s = None  # a large table takes minutes
            driver.execute(f"VACUUM {tables}".encode())
        finally:
            driver.answer_s = self._answer_s + GRACE_S
            lent.close()

    @override
    def backup(self, to: Path) -> None:
        raise StoreError(f"cannot back up to {to}: back up PostgreSQL with `pg_dump` or `pg_basebackup`")

    @override
    def time(self) -> float | None:
        with self.engine.connect() as connection:
            seconds = connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one()
        return float(seconds)

    @property
    def _driver(self) -> Any:
        return self.engine.dialect.loaded_dbapi

    def _connect(self, _dialect: object, _record: object, arguments: Any, named: Any) -> "_Connection":
        connection = _Connection.connect(*arguments, autocommit=True, **named)  # transactions: `_begin`
        connection.answer_s = self._answer_s + GRACE_S
        return connection

    def _set_up(self, driver: Any, record: sa.pool.ConnectionPoolEntry) -> None:
        """Check version, encoding and durability of the server. Raises StoreError."""
        record.info["closed"] = self._closed
        try:
            _check_server(driver)
            lossy = [name for (name,) in driver.execute(_LOSSY)]
        except BaseException:
            driver.close()  # the pool does not have it yet
            raise
        if lossy and not self._warned:
            self._warned = True
            settings = " and ".join(lossy)
            logger.warning("PostgreSQL may lose committed transactions in a crash: %s is off", settings)

    def _begin(self, connection: sa.Connection) -> None:
        """Begin a transaction with its settings, in one message."""
        is_reading = connection.get_execution_options().get("reading", False)
        driver: _Connection = connection.connection.driver_connection  # type: ignore[assignment]  # by _connect
        driver.execute(self._begins[is_reading])


def _check_server(driver: Any) -> None:
    version = driver.info.server_version // 10_000
    encoding = driver.info.parameter_status("server_encoding")
    if version < OLDEST or encoding != "UTF8":
        raise StoreError(
            f"the log needs PostgreSQL {OLDEST} or later, and a database with the encoding UTF8; "
            f"this is version {version}, with {encoding}"
        )


def _lend(driver: Any, _record: object, _proxy: object) -> None:
    """Detect a server restart before a statement is sent. Raises DisconnectionError."""
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    if poll.poll(0):  # no statement is pending: input can only be the end of the connection
        raise sa.exc.DisconnectionError("the server has ended the connection")
