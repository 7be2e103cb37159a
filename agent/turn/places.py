"""A limit of concurrent work with a bounded queue, such as for the answers of a language model."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from armwise.agent.turn.eligibility import OverloadedError

SHARE_OF_A_KEY = 0.75
"""Largest share of what can be held or waited for that one key may take, so that others get answers."""


class Places:
    """A semaphore whose queue is bounded in length and in time, and in which no key takes all.

    Args:
        what: Plural noun for the places, for messages.
        size: Number of places, at least 1.
        queue: Requests that may wait for a place.
        wait_s: Seconds that a request may wait.
    """

    def __init__(self, what: str, size: int, queue: int, wait_s: float) -> None:
        self._what, self._queue, self._wait_s = what, queue, wait_s
        self._free = asyncio.Semaphore(size)
        self._size, self._held = size, 0
        self._waiting = 0
        self._by_key = Counter[str]()  # that hold a place or wait for one

    @property
    def spare(self) -> bool:
        """Whether a place can be held and another one is left, or the only place is free."""
        return self._held + min(2, self._size) <= self._size and not self._waiting

    @asynccontextmanager
    async def hold(self, key: str | None = None) -> AsyncIterator[None]:
        """Wait for a place, first come first served, and hold it.

        Args:
            key: Public id of the key of the request; None: there is none.

        Raises:
            OverloadedError: Too many wait already, in all or of this key, or none was free in time.
        """
        if key is not None:
            if self._by_key[key] >= math.ceil(SHARE_OF_A_KEY * (self._size + self._queue)):
                taken = self._by_key[key]
                raise OverloadedError(f"{taken} requests of this key use or await {self._what} already")
            self._by_key[key] += 1
        try:
            await self._enter()
            try:
                yield
            finally:
                self._held -= 1
                self._free.release()
        finally:
            if key is not None:
                self._by_key -= Counter((key,))  # leaves out keys with none

    async def _enter(self) -> None:
        if self._free.locked():
            if self._waiting >= self._queue:
                raise OverloadedError(f"all {self._what} are busy, and {self._waiting} requests are waiting")
            self._waiting += 1
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._free.acquire()
            except TimeoutError:
                raise OverloadedError(f"all {self._what} were busy for {self._wait_s:g} s") from None
            finally:
                self._waiting -= 1
        else:
            await self._free.acquire()
        self._held += 1
