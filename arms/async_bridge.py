"""Call asynchronous code from a worker thread."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Blocking:
    """An event loop in a thread of its own, for coroutines of other threads.

    Args:
        limit_s: Seconds that a coroutine may take; None for no limit.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="blocking", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, and return its result. Raises TimeoutError."""

        async def wait_limited() -> T:
            async with asyncio.timeout(self.limit_s):
                return await coroutine

        future = asyncio.run_coroutine_threadsafe(wait_limited(), self._loop)
        try:
            return future.result()
        except BaseException:  # also an interrupt of the thread that waits
            future.cancel()
            raise
