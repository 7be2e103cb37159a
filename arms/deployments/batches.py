"""Batches of concurrent calls, without a timer: what waits while a batch is worked on forms the next."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

In = TypeVar("In")

Out = TypeVar("Out")


class Batches(Generic[In, Out]):
    """Calls a function with the items of concurrent callers, in one thread of its own.

    Callers may be in several event loops. An item whose caller is cancelled before its batch begins
    is left out.

    Args:
        work: Returns one result per item, in order.
        at_most: Items in a batch.
        name: Name of the thread.
    """

    def __init__(self, work: Callable[[list[In]], Sequence[Out]], at_most: int, name: str) -> None:
        self._work = work
        self._at_most = at_most
        self._waiting: deque[tuple[In, Future[Out]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, item: In) -> Out:
        """Return the result of an item. Raises what the work of its batch raised."""
        result: Future[Out] = Future()
        self._waiting.append((item, result))
        self._thread.submit(self._next)  # one call an item: those of a batch find nothing left to do
        return await asyncio.wrap_future(result)

    def _next(self) -> None:
        batch: list[tuple[In, Future[Out]]] = []
        while self._waiting and len(batch) < self._at_most:
            item, result = self._waiting.popleft()
            if result.set_running_or_notify_cancel():
                batch.append((item, result))
        if not batch:
            return
        try:
            found = self._work([item for item, _ in batch])
            answered = list(zip(batch, found, strict=True))
        except Exception as error:  # noqa: BLE001  # it is the callers'
            for _, result in batch:
                result.set_exception(error)
        else:
            for (_, result), one in answered:
                result.set_result(one)
