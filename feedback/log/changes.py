"""Whether a log is worth reading again: who polls it would read the same rows several times a second."""

import time
from collections.abc import Callable
from typing import Protocol

EVERY_S = 1.0
"""Seconds after which a log is read in any case: what falls due by time alone is not written."""


class Versioned(Protocol):
    """A log, which counts its commits or does not."""

    def version(self) -> int | None:
        """Return a number that changes with every commit; None where it is unknown."""
        ...


class ChangeWatch:
    """Reports to one reader of a log whether something was committed since its last look.

    After a while it reports that in any case.

    Args:
        log: The log.
        every_s: Seconds after which it is worth a look in any case.
        clock: Monotonic seconds.
    """

    def __init__(
        self, log: Versioned, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._every_s, self._clock = log, every_s, clock
        self._version: int | None = None
        self._next = -float("inf")

    def is_due(self) -> bool:
        """Return whether to read the log now. Call it before reading: later commits make it due again."""
        now, version = self._clock(), self._log.version()
        if version is not None and version == self._version and now < self._next:
            return False
        self._version, self._next = version, now + self._every_s
        return True
