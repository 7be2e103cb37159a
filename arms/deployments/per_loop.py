"""An object for each event loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerLoop(Generic[T]):
    """An object for each event loop that uses it, such as connections, which belong to one loop.

    Arms that prompt or embed run in another loop than requests. If the router of a handle shares its event
    loop (RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP=0), the handle belongs to the loop that used it first.

    Args:
        make: Returns a new object.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def here(self) -> T:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
        return self._made[loop]

    def pop_here(self) -> T | None:
        """Return the object of the running loop, and forget it; None: there is none."""
        return self._made.pop(asyncio.get_running_loop(), None)
