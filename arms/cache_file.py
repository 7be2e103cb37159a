"""A cache in one SQLite file of bounded size, which several processes of one user share.

It may be lost at any time. A value comes after its hash, which also finds a damaged page: SQLite has no
checksums. The usual library, diskcache, unpickles the files on the disk (CVE-2025-69872, not fixed; last
release in 2023).
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = 4096

WAL_BYTES = 4 << 20
"""Size to which the write-ahead log is cut, in addition to the file."""

TOUCH_S = 60.0
"""Seconds between two records of the use of an entry, so that most hits only read."""

EVICTED = 10
"""When the file is full, one in so many entries is removed: those least recently used."""

CHECKSUM_BYTES = 16

_TABLE = """
    CREATE TABLE IF NOT EXISTS found (
        key BLOB PRIMARY KEY, made REAL NOT NULL, used REAL NOT NULL, value BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS found_by_use ON found (used);
"""

_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)


class UnusableError(Exception):
    """The file is damaged or of another kind, or other users may write to its folder."""


FAULTS = (sqlite3.Error, OSError, UnusableError)
"""What any use of the file may raise."""


def user_cache() -> Path:
    """Return the folder of what this user's services share and may lose; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "armwise"


def is_passing(error: BaseException) -> bool:
    """Return whether a fault is over soon: another process writes, or the file is full of what is new."""
    return isinstance(error, sqlite3.Error) and _code(error) in _PASSING


class CacheFile:
    """Values by keys. Not thread-safe, but for `close`; its methods raise `FAULTS`.

    Args:
        path: The file; its folder must be there, closed to other users.
        size_bytes: Largest size of the file.
        wait_s: Longest time to wait for another process, in seconds.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self, path: Path, size_bytes: int, wait_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        folder = path.parent.stat()
        if folder.st_uid != os.getuid() or folder.st_mode & 0o022:
            raise UnusableError("other users can write to its folder")
        path.touch(mode=0o600)
        self._clock = clock
        self._database = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(
                "PRAGMA synchronous = OFF"
            )  # what a crash of the machine loses is made again
            self._database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            self._database.execute(f"PRAGMA max_page_count = {size_bytes // PAGE_BYTES}")
            self._database.executescript(_TABLE)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def read(self, key: bytes, ttl_s: float | None = None) -> bytes | None:
        """Return the value of a key, unless it is older than a time."""
        query = "SELECT made, used, value FROM found WHERE key = ?"
        row = self._database.execute(query, (key,)).fetchone()
        if row is None:
            return None
        (made, used, stored), now = row, self._clock()
        if ttl_s is not None and not 0.0 <= now - made < ttl_s:
            return None
        value = bytes(stored[CHECKSUM_BYTES:])
        if stored[:CHECKSUM_BYTES] != _checksum(key, value):
            raise UnusableError("an entry is damaged")
        if abs(now - used) >= TOUCH_S:
            with suppress(sqlite3.OperationalError):  # another process writes
                self._database.execute("UPDATE found SET used = ? WHERE key = ?", (now, key))
        return value

    def write(self, key: bytes, value: bytes) -> None:
        """Store a value, in place of those least recently used where the file is full."""
        now = self._clock()
        row = key, now, now, _checksum(key, value) + value
        while True:
            try:
                self._database.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)", row)
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_FULL or not self._evict():
                    raise
            else:
                return

    def _evict(self) -> bool:
        """Remove the least recently used entries; return whether there were any."""
        oldest = "SELECT rowid FROM found ORDER BY used LIMIT 1 + (SELECT count(*) FROM found) / ?"
        removed = self._database.execute(f"DELETE FROM found WHERE rowid IN ({oldest})", (EVICTED,))
        return removed.rowcount > 0


def _checksum(key: bytes, value: bytes) -> bytes:
    return hashlib.blake2b(value, key=key, digest_size=CHECKSUM_BYTES).digest()


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
