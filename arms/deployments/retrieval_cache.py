"""An exact cache of searches, shared by the processes of a machine: one SQLite file of bounded size.

Passages are stored under a hash of all that a search depends on: the pipeline, the version of its index, the
text, the number of passages, the filter and the groups of the caller. A hit agrees in all of them. The file
may be lost at any time; while it is unusable, every search is made.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import orjson

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.cache_file import FAULTS, CacheFile, is_passing

FILE = "retrieval.sqlite"

LOOKUP_S = 0.1
"""Longest time of a lookup in seconds, after which the search is made."""

QUEUE = 64
"""Lookups and entries in work; beyond these, the cache is bypassed."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


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


def pack(retrieval: Retrieval) -> bytes | None:
    """Return the result of a search as bytes; None: JSON would change it."""
    if not all(math.isfinite(passage.score) for passage in retrieval.passages):
        return None
    passages = [
        (passage.id, passage.title, passage.text, float(passage.score), dict(passage.metadata))
        for passage in retrieval.passages
    ]
    try:
        return orjson.dumps([retrieval.index_version, passages])
    except TypeError:
        return None


def unpack(value: bytes) -> Retrieval:
    """Return the stored result of a search, with costs of 0."""
    version, passages = orjson.loads(value)
    kept = tuple(Passage(*fields) for fields in passages)
    return Retrieval(kept, steps=0, index_version=version, cached=True)


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
        self._file: CacheFile | None = None
        self._usable = True
        self._waiting = 0

    async def get(self, key: bytes) -> Retrieval | None:
        """Return the stored result, if it is there and can be read within `LOOKUP_S`."""
        looked_up = self._run(lambda file: self._look_up(file, key))
        if looked_up is None:
            return None
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await looked_up
        except TimeoutError:
            return None

    def put(self, key: bytes, retrieval: Retrieval) -> None:
        """Store a result, in the background."""
        value = pack(retrieval)
        if value is not None and len(value) < self._size_bytes:
            self._run(lambda file: file.write(key, value))

    async def flush(self) -> None:
        """Wait until all results that were put so far are stored."""
        if (nothing := self._run(lambda _: None)) is not None:
            await nothing

    def close(self) -> None:
        """Close the file."""
        self._usable = False
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _run(self, work: Callable[[CacheFile], T]) -> "asyncio.Future[T | None] | None":
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

    def _use_file(self, work: Callable[[CacheFile], T]) -> T | None:
        """Use the file; after it proved unusable, it is given up."""
        if not self._usable:
            return None
        try:
            if self._file is None:
                self._file = CacheFile(self._path, self._size_bytes, LOOKUP_S, self._clock)
            return work(self._file)
        except FAULTS as error:
            if is_passing(error):
                return None
            self._usable = False
            logger.warning("the retrieval cache %s is switched off: %s", self._path, error)
            self._close()
            return None

    def _look_up(self, file: CacheFile, key: bytes) -> Retrieval | None:
        value = file.read(key, self._ttl_s)
        return None if value is None else unpack(value)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
