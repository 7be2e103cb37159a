"""Work whose time grows with a document of a caller, beside the event loop."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SMALL, LARGE = 32 * 1024, 256 * 1024
"""Bytes of a document up to which work on it is done at once, and above which it is large."""

SWITCH_S = 0.0005
"""Seconds after which a busy thread lets another one run: with Python's 0.005 s, each step of a small request
beside a large one would take as long."""

_MEDIUM_ONES, _LARGE_ONES = (
    ThreadPoolExecutor(1, name, sys.setswitchinterval, (SWITCH_S,))
    for name in ("medium-document", "large-document")
)


async def call_beside(size: int, call: Callable[[], T]) -> T:
    """Call a function that reads or writes a document of so many bytes, in a thread unless it is small.

    Each thread does one thing at a time, so that many documents delay others no more than one does. A medium
    one never waits for a large one.
    """
    if size <= SMALL:
        return call()
    threads = _MEDIUM_ONES if size <= LARGE else _LARGE_ONES
    return await asyncio.get_running_loop().run_in_executor(threads, call)
