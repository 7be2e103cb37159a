"""An exact cache of searches, shared by the processes of a machine: one SQLite file of bounded size.

Passages are stored under a hash of all that a search depends on: the pipeline, the version of its index, the
text, the number of passages, the filter and the groups of the caller. A hit agrees in all of them. The file
may be lost at any time; while it is unusable, every search is made.

A value is JSON after its hash, which also detects a damaged page: SQLite has no checksums. The usual library,
diskcache, unpickles the files on the disk (CVE-2025-69872, not fixed; last release in 2023).
"""

import asyncio
import hashlib
import logging
import math
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson

from armwise.arms.base import Passage, Query, Retrieval

FILE = "retrieval.sqlite"

PAGE_BYTES = 4096

WAL_BYTES = 4 << 20
"""Size to which the write-ahead log is cut, in addition to the file."""

LOOKUP_S = 0.1
"""Longest time of a lookup in seconds, after which the search is made."""

QUEUE = 64
"""Lookups and entries in work; beyond these, the cache is bypassed."""

TOUCH_S = 60.0
"""Seconds between two records of the use of an entry, so that most hits only read."""

EVICTED = 10
"""When the file is full, one in so many entries is removed: those least recently used."""

_TABLE = """
    CREATE TABLE IF NOT EXISTS found (
        key BLOB PRIMARY KEY, made REAL NOT NULL, used REAL NOT NULL, value BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS found_by_use ON found (used);
"""

_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class UnusableError(Exception):
    """The file is damaged or of another kind, or other users may write to its folder."""


def make_key(searched: str, version: str, query: Query, k: int) -> bytes | None:
    """Return the key of a search; None: the text cannot be encoded.

    Args:
        searched: Hash of the pipeline, `ArmGraph.search_digest`.
        version: Version of its index.
        query: The query; its embeddings are a function of the text.
        k: Number of passages to find.
    """
    where = None if query.where is None else query.where.model_dump(mode="json")
    try:
        document = orjson.dumps([searched, version, query.text, k, where, sorted(query.groups)])
    except TypeError:
        return None
    return hashlib.blake2b(document, digest_size=32).digest()


def pack(key: bytes, retrieval: Retrieval) -> bytes | None:
    """Return the result of a search as bytes; None: JSON would change it."""
    if not all(math.isfinite(passage.score) for passage in retrieval.passages):
        return None
    passages = [
        (passage.id, passage.title, passage.text, float(passage.score), dict(passage.metadata))
        for passage in retrieval.passages
    ]
    try:
        document = orjson.dumps([retrieval.index_version, passages])
    except TypeError:
        return None
    return _checksum(key, document) + document


def unpack(key: bytes, value: bytes) -> Retrieval:
    """Return the stored result of a search, with costs of 0. Raises UnusableError."""
    checksum, document = value[:16], value[16:]
    if checksum != _checksum(key, document):
        raise UnusableError("an entry is damaged")
    version, passages = orjson.loads(document)
    kept = tuple(Passage(*fields) for fields in passages)
    return Retrieval(kept, steps=0, index_version=version, cached=True)


def _checksum(key: bytes, document: bytes) -> bytes:
    return hashlib.blake2b(document, key=key, digest_size=16).digest()


class RetrievalCache:
    """A cache for a single event loop; a separate thread reads and writes the file.

    Args:
        folder: Folder of the file, closed to other users; it may be absent until the first search.
        size_bytes: Largest size of the file.
        ttl_s: Seconds for which an entry counts; None: as long as the version of its index.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        size_bytes: int,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = folder / FILE
        self._size_bytes, self._ttl_s, self._clock = size_bytes, ttl_s, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="retrieval-cache")
        self._database: sqlite3.Connection | None = None
        self._usable = True
        self._waiting = 0

    async def get(self, key: bytes) -> Retrieval | None:
        """Return the stored result, if it is there and can be read within `LOOKUP_S`."""
        looked_up = self._run(lambda database: self._read(database, key))
        if looked_up is None:
            return None
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await looked_up
        except TimeoutError:
            return None

    def put(self, key: bytes, retrieval: Retrieval) -> None:
        """Store a result, in the background."""
        value = pack(key, retrieval)
        if value is not None and len(value) < self._size_bytes:
            self._run(lambda database: self._write(database, key, value))

    async def flush(self) -> None:
        """Wait until all results that were put so far are stored."""
        if (nothing := self._run(lambda _: None)) is not None:
            await nothing

    def close(self) -> None:
        """Close the file."""
        self._usable = False
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T | None] | None":
        """Use the file in its thread; None: the queue is full, or the file is unusable."""
        if not self._usable or self._waiting >= QUEUE:
            return None
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._use_file, work)
        future.add_done_callback(self._finish)
        return future

    def _finish(self, future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()

    def _use_file(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Use the file; after it proved unusable, it is given up."""
        if not self._usable:
            return None
        try:
            if self._database is None:
                self._database = self._open()
            return work(self._database)
        except (sqlite3.Error, OSError, UnusableError) as error:
            if isinstance(error, sqlite3.Error) and _code(error) in _PASSING:
                return None
            self._usable = False
            logger.warning("the retrieval cache %s is switched off: %s", self._path, error)
            self._close()
            return None

    def _open(self) -> sqlite3.Connection:
        folder = self._path.parent.stat()
        if folder.st_uid != os.getuid() or folder.st_mode & 0o022:
            raise UnusableError("other users can write to its folder")
        database = sqlite3.connect(self._path, timeout=LOOKUP_S, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")  # what a crash of the machine loses is found again
            database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            database.execute(f"PRAGMA max_page_count = {self._size_bytes // PAGE_BYTES}")
            database.executescript(_TABLE)
        except BaseException:
            database.close()
            raise
        return database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _read(self, database: sqlite3.Connection, key: bytes) -> Retrieval | None:
        row = database.execute("SELECT made, used, value FROM found WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        (made, used, value), now = row, self._clock()
        if self._ttl_s is not None and not 0.0 <= now - made < self._ttl_s:
            return None
        retrieval = unpack(key, value)
        if abs(now - used) >= TOUCH_S:
            with suppress(sqlite3.OperationalError):  # another process writes
                database.execute("UPDATE found SET used = ? WHERE key = ?", (now, key))
        return retrieval

    def _write(self, database: sqlite3.Connection, key: bytes, value: bytes) -> None:
        now = self._clock()
        while True:
            try:
                database.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)", (key, now, now, value))
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_FULL or not _evict(database):
                    raise
            else:
                return


def _evict(database: sqlite3.Connection) -> bool:
    """Remove the least recently used entries; return whether there were any."""
    oldest = "SELECT rowid FROM found ORDER BY used LIMIT 1 + (SELECT count(*) FROM found) / ?"
    return database.execute(f"DELETE FROM found WHERE rowid IN ({oldest})", (EVICTED,)).rowcount > 0


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
