"""A log in a file, written by one process at a time.

SQLite runs in WAL mode with full synchronisation, so a committed row survives a crash of the process and
of the machine. A writing transaction begins with BEGIN IMMEDIATE, so that writers of several processes queue
instead of failing half-way.

The last process to close the file takes it out of WAL mode, which SQLite records in the header of the file.
So a file in WAL mode without its `-wal` was copied while it was in use, and may lack its newest rows.
"""

import os
import sqlite3
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from typing_extensions import override

from armwise.feedback.errors import LogUnavailableError, NoLogError, StoreError
from armwise.feedback.log.backend import CONNECTIONS, WAIT_S, Database, dumps

_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}

_READ_VERSION, _WAL = 19, b"\x02"
"""Position of the read version in the header of a file, and its value in WAL mode.

Source: https://www.sqlite.org/fileformat2.html#file_format_version_numbers
"""

COPIED_IN_USE = (
    "copied while it was in use, without its -wal file: the newest rows may be missing",
    "copy a log with `armwise log backup`, or together with its -wal file",
)
"""What is wrong with a log if `lacks_wal` returns true, and the remedy."""

_DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT}


class SQLite(Database):
    """A database in a file.

    Args:
        url: URL of the database.
        create: Whether to create the file and its folder if they are missing.

    Raises:
        NoLogError: The file is missing, and is not to be created.
    """

    def __init__(self, url: sa.URL, *, create: bool = True) -> None:
        pool: dict[str, Any] = {}
        self._path: Path | None = None
        self._creates, self._mode = create, "rwc" if create else "rw"
        self._opened: tuple[int, int] | None = None  # device and inode of the file that is open
        if url.database and url.database != ":memory:":
            self._path = Path(url.database).absolute()
            if create:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            elif not os.path.lexists(self._path):
                raise NoLogError(self._path)
            pool = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_timeout": WAIT_S}
        self.engine = sa.create_engine(
            url,
            connect_args={"timeout": WAIT_S},
            **pool,
            json_serializer=dumps,
            json_deserializer=orjson.loads,
        )
        self._watch: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        sa.event.listen(self.engine, "do_connect", self._locate)
        sa.event.listen(self.engine, "connect", self._set_up)
        sa.event.listen(self.engine, "begin", self._begin)

    def _locate(self, _dialect: object, _record: object, arguments: list[Any], named: dict[str, Any]) -> None:
        if self._path is not None:
            arguments[0], named["uri"] = f"{self._path.as_uri()}?mode={self._mode}", True

    def _set_up(self, driver: sqlite3.Connection, _record: object) -> None:
        driver.isolation_level = None  # `_begin` begins transactions
        driver.text_factory = partial(str, encoding="utf-8", errors="replace")  # SQLite stores any bytes
        # a verb that only uses a log leaves the mode of the file as it is
        wal = ("journal_mode=WAL",) if self._creates else ()
        for pragma in (*wal, "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            driver.execute(f"PRAGMA {pragma}")
        if self._opened is None and self._path is not None:
            self._opened = _identify(self._path)
            self._mode = "rw"  # from now on a missing file is an outage, and not a new log

    def _begin(self, connection: sa.Connection) -> None:
        if connection.get_execution_options().get("reading", False):
            connection.exec_driver_sql("BEGIN")
            return
        self._require_in_place()
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _require_in_place(self) -> None:
        """Check that the path still leads to the file that is open: rows elsewhere would never be found.

        Raises:
            LogUnavailableError: It does not.
        """
        if self._path is None or self._opened is None or (now := _identify(self._path)) == self._opened:
            return
        what = "another file has replaced it" if now else "it was moved or deleted while in use"
        raise LogUnavailableError(
            f"the log cannot be used: {self._path}: {what}",
            "put the file back, or restart the service to use the file that is there now",
        )

    @override
    def version(self) -> int | None:
        # of a connection that writes nothing: the commits of others move it
        try:
            with self._watching:
                if self._watch is None:
                    place = f"{Path(str(self.engine.url.database)).absolute().as_uri()}?mode=ro"
                    self._watch = sqlite3.connect(place, uri=True, check_same_thread=False)
                (counted,) = self._watch.execute("PRAGMA data_version").fetchone()
                return int(counted)
        except sqlite3.Error:  # the next reading reports what is wrong with it
            return None

    @override
    def close(self) -> None:
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        self.engine.dispose()
        if self._path is not None and self._opened is not None and self._opened == _identify(self._path):
            # fails at once while others use the file: the last one to close it leaves the mark
            with suppress(sqlite3.Error), closing(sqlite3.connect(self._path, timeout=0)) as last:
                last.execute("PRAGMA journal_mode=DELETE")

    @override
    def is_away(self, error: Exception) -> bool:
        return _primary_code(error) in _AWAY

    @override
    def is_damaged(self, error: Exception) -> bool:
        return hasattr(error, "sqlite_errorcode") and _primary_code(error) in _DAMAGED

    @override
    def find_remedy(self, error: Exception) -> str:
        file = Path(self.engine.url.database or "")
        match _primary_code(error):
            case sqlite3.SQLITE_CANTOPEN if self._opened is not None and not file.exists():
                return f"{file} was moved or deleted while in use: put it back"
            case sqlite3.SQLITE_CANTOPEN if file.is_dir():
                return f"{file} is a folder: name a file in log_url, or move the folder away"
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY:
                return f"let this user write {file} and its folder, or name another file in log_url"
            case sqlite3.SQLITE_FULL:
                return f"free space on the disk of {file}"
        return ""

    @override
    def forget(self) -> None:
        # empties the write-ahead log, unless a reader is at work; other bytes are overwritten at once
        with closing(self.engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @override
    def backup(self, to: Path) -> None:
        unfinished = to.with_name(to.name + ".unfinished")
        unfinished.unlink(missing_ok=True)  # of a run that was killed
        try:
            unfinished.touch(0o600, exist_ok=False)
            with (
                closing(self.engine.raw_connection()) as source,
                closing(sqlite3.connect(unfinished)) as target,
            ):
                source.driver_connection.backup(target)  # type: ignore[union-attr]
                target.execute("PRAGMA journal_mode=DELETE")
                (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreError(f"the copy is damaged, and the log may be damaged too: {verdict}")
            for path in (unfinished, to.parent):
                file = os.open(path, os.O_RDONLY)
                os.fsync(file)
                os.close(file)
            unfinished.rename(to)
        finally:
            unfinished.unlink(missing_ok=True)


def _primary_code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def lacks_wal(path: Path) -> bool:
    """Return whether a log was copied while it was in use, without the `-wal` that has its newest rows.

    A log that another SQLite program was the last to close looks the same. Meaningful only before this
    process has opened the log.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_READ_VERSION + 1)
    except OSError:
        return False
    return header[_READ_VERSION:] == _WAL and not path.with_name(f"{path.name}-wal").exists()


def _identify(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino
