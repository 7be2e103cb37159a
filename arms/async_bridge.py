"""Call asynchronous code from a worker thread."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Blocking:
    """An event loop in a thread of its own, which other threads hand their work to.

    Args:
        limit_s: Seconds that a piece of work may take; None for any time.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="blocking", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns; the calling thread waits for it. Raises TimeoutError."""

        async def limited() -> T:
            async with asyncio.timeout(self.limit_s):
                return await work

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()
