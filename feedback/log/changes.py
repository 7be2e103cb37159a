"""Whether a log is worth reading again: who polls it would read the same rows several times a second."""

import time
from collections.abc import Callable

from armwise.feedback.log.store import Store

EVERY_S, LONGEST_S = 1.0, 10.0
"""Seconds after which a log is read in any case, at first and at most: time alone makes things due."""

SHARE = 0.25
"""The pause until then as a share of the time since the last commit: so much later is seen what falls due."""


class ChangeWatch:
    """Reports to one reader of a log whether something was committed since its last look.

    After a while it reports that in any case, the more rarely the longer nothing was committed.

    Args:
        log: The log.
        every_s: Seconds after which it is worth a look in any case.
        longest_s: Seconds that this grows to.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        log: Store,
        every_s: float = EVERY_S,
        longest_s: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._clock = log, clock
        self._every_s, self._longest_s = every_s, longest_s
        self._version: int | None = None
        self._changed_at, self._next = clock(), -float("inf")

    def is_due(self) -> bool:
        """Return whether to read the log now. Call it before reading: later commits make it due again."""
        now, version = self._clock(), self._log.version()
        if version is None or version != self._version:
            self._version, self._changed_at = version, now
        elif now < self._next:
            return False
        self._next = now + min(max(self._every_s, SHARE * (now - self._changed_at)), self._longest_s)
        return True
