"""A limit of concurrent work with a bounded queue, such as for the answers of a language model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from armwise.agent.turn.eligibility import OverloadedError


class Places:
    """A semaphore whose queue is bounded in length and in time.

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

    @property
    def spare(self) -> bool:
        """Whether a place can be held and another one is left, or the only place is free."""
        return self._held + min(2, self._size) <= self._size and not self._waiting

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for a place, first come first served, and hold it.

        Raises:
            OverloadedError: Too many wait already, or none was free in time.
        """
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
        try:
            yield
        finally:
            self._held -= 1
            self._free.release()
