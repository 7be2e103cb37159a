"""What a page computes in the background, so that watching it costs little."""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from armwise.agent.access import Caller

RESTED = 100
"""Pause between two computations in the background, as a multiple of the time of the first."""

PATIENCE_S = 0.05
"""Seconds that a page waits for a computation in the background."""

MOST = 64
"""Most results that are kept."""

Sight = tuple[str, bool, bool]
"""Permissions of a viewer: the prefix of visible ids, whether all are visible, and whether it may read."""


def sight(caller: Caller) -> Sight:
    """Return what a viewer may see."""
    return caller.prefix, caller.sees_all, "read" in caller.scopes


@dataclass
class _Made:
    """A result: the position of the log that it is of, when it was made, and how long that took."""

    position: Hashable
    value: Any
    at: float
    took_s: float


@dataclass
class Background:
    """The newest results of computations over the log, each made again once the log has grown."""

    made: dict[Hashable, _Made] = field(default_factory=dict)
    under_way: dict[Hashable, asyncio.Task[None]] = field(default_factory=dict)

    async def value(
        self, key: Hashable, position: Hashable, make: Callable[[], Any], *, wait: bool
    ) -> Any | None:
        """Return the newest result; None: the first is still being made.

        Args:
            key: What is computed.
            position: Position of the log; a result of another one is old.
            make: Computes it, in a thread.
            wait: Whether to wait for a new result, as on a short log; else an old one is returned meanwhile.
        """
        made = self.made.get(key)
        if made is not None and made.position == position:
            return made.value
        rested = made is None or wait or time.monotonic() > made.at + RESTED * made.took_s
        task = self.under_way.get(key)
        if task is None and rested:
            task = self.under_way[key] = asyncio.create_task(self._make(key, position, make))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # raised if waited for
        if task is not None and (wait or made is None):
            await asyncio.wait([task], timeout=None if wait else PATIENCE_S)
        if task is not None and task.done():
            task.result()
        made = self.made.get(key)
        return None if made is None else made.value

    async def _make(self, key: Hashable, position: Hashable, make: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            value = await asyncio.to_thread(make)
            ended = time.monotonic()
            self.made.pop(key, None)
            self.made[key] = _Made(position, value, ended, ended - began)
            while len(self.made) > MOST:
                del self.made[next(iter(self.made))]
        finally:
            del self.under_way[key]


def background(request: Request) -> Background:
    """Return the computations of this replica."""
    state = request.app.state
    if not hasattr(state, "background"):
        state.background = Background()
    found: Background = state.background
    return found
