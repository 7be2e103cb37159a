"""What pages keep for a while, or compute in the background, so that watching them costs little."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from armwise.agent.access import Caller
from armwise.agent.console.page import HEADERS

KEPT_S = 4.0
"""Seconds for which a live part is cached, for viewers with the same permissions."""

KEPT_TIMES = 1000
"""Cache duration as a multiple of the time to make it, if that is longer: at most 1/1000 of a replica."""

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


async def cache_part(
    request: Request, key: Hashable, make: Callable[[], Awaitable[tuple[Response, bool]]]
) -> Response:
    """Return a page; its live part, which is asked for every few seconds, from the cache.

    Args:
        request: The request.
        key: What the part depends on, besides the address.
        make: Makes the page, and says whether it may be kept.
    """
    kept: dict[Hashable, tuple[float, bytes]] = _state(request, "kept_parts", dict)
    key, polled = (key, request.scope.get("root_path", "")), "hx-request" in request.headers
    if polled and key in kept and kept[key][0] > time.monotonic():
        return HTMLResponse(kept[key][1], headers=HEADERS)
    began = time.monotonic()
    response, may_keep = await make()
    if polled and may_keep:
        ended = time.monotonic()
        kept[key] = ended + max(KEPT_S, KEPT_TIMES * (ended - began)), bytes(response.body)
    return response


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
    found: Background = _state(request, "background", Background)
    return found


def _state(request: Request, name: str, make: Callable[[], Any]) -> Any:
    state = request.app.state
    if not hasattr(state, name):
        setattr(state, name, make())
    return getattr(state, name)
