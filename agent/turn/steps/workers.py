"""Work of steps in the background, which ends with the service."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Workers:
    """Tasks of steps, each under a name, of which one at a time is under way.

    Attributes:
        stopped: Whether the service stops, so that nothing begins any more.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin work, unless work of that name is under way; returns at once."""
        if not self.stopped and (name not in self._tasks or self._tasks[name].done()):
            self._tasks[name] = asyncio.get_running_loop().create_task(work(), name=name)

    async def join(self, *names: str) -> None:
        """Wait until work of these names has ended. Raises what it ended with."""
        for name in names:
            if name in self._tasks:
                await self._tasks[name]

    async def stop(self) -> None:
        """Cancel all work; what was queued is lost."""
        self.stopped = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
