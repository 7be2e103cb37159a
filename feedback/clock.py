"""The clock of the log: monotonic, free of jumps, and in agreement among all processes that write.

The log is ordered by commits. Its time closes the decisions that wait for feedback, so a timestamp in the
future would close all of them at once, and a clock that was set back would leave them open.
"""

import logging
import threading
import time
from collections.abc import Callable

from armwise.feedback.errors import BehindError, ClockError

logger = logging.getLogger(__name__)

JUMP_S = 1.0
"""Deviation of the wall clock from the elapsed time that counts as a jump."""

AHEAD_S = 60.0
"""Seconds that two clocks may differ, and that a timestamp may be in the future."""

GRACE_S = 2.0
"""Seconds in the log's time from the deadline of a decision to its closing, so that pending commits count."""


def since_boot() -> float:
    """Return seconds since some moment, including time suspended; this clock cannot be set."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """Seconds since the epoch, UTC, by the wall clock until it jumps, then by elapsed time.

    After a jump of the wall clock, this clock ignores it until both agree again, or the process ends.
    Thread-safe.

    Args:
        wall: The wall clock.
        steady: Seconds since a fixed moment.

    Attributes:
        jump_s: Seconds by which the wall clock is ahead, negative: behind; 0 while it is followed.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._lock = threading.Lock()
        self._now, self._passed = self._read()
        self.jump_s = 0.0

    def __call__(self) -> float:
        """Return the time, never earlier than a time returned before."""
        with self._lock:
            wall, passed = self._read()
            due = self._now + passed - self._passed
            self._follow(wall - due)
            self._now, self._passed = due if self.jump_s else max(self._now, wall), passed
            return self._now

    def check(self) -> None:
        """Check that the process can go on; a restarted one follows the wall clock again.

        Raises:
            ClockError: The wall clock differs so much that other processes would disagree.
        """
        self()
        if abs(self.jump_s) > AHEAD_S:
            raise ClockError(
                f"the wall clock jumped by {self.jump_s:+.1f} s, and this process ignores the jump: "
                "restart the process to follow the clock"
            )

    def _read(self) -> tuple[float, float]:
        """Read both clocks at one moment: a process suspended between the two would see a jump."""
        while True:
            before, wall, passed = self._steady(), self._wall(), self._steady()
            if passed - before < JUMP_S / 2:
                return wall, passed

    def _follow(self, off_s: float) -> None:
        """Decide whether to follow the wall clock, and log a change."""
        jump_s = off_s if abs(off_s) > JUMP_S else 0.0
        if abs(jump_s - self.jump_s) > JUMP_S:
            if jump_s:
                logger.warning("the wall clock jumped by %+.1f s; this process ignores the jump", jump_s)
            else:
                logger.warning("the wall clock is right again, and this process follows it")
        self.jump_s = jump_s


def check_behind(now: float, log_at: float) -> None:
    """Check that the log is not ahead of the clock. Raises BehindError."""
    if log_at > now + AHEAD_S:
        raise BehindError(
            f"the log's latest entry is from {utc(log_at)}, but this machine's clock says {utc(now)}: "
            "a clock is or was wrong; set it right, or wait until that time"
        )


def check_clock(now: float, log_at: float, database_at: float | None) -> None:
    """Check that the clocks of a process, a log and its database agree.

    Args:
        now: Time by the clock of the process, seconds since the epoch.
        log_at: The log's time.
        database_at: Time by the clock of the database; None: it is on the same machine.

    Raises:
        ClockError: They differ too much.
    """
    check_behind(now, log_at)
    if database_at is not None and abs(database_at - now) > AHEAD_S:
        raise ClockError(
            f"the database's clock says {utc(database_at)}, and this machine's clock {utc(now)}: "
            "synchronise them, for example by NTP"
        )


def check_stamp(at: float, now: float) -> None:
    """Check that a timestamp is not in the future. Raises ClockError."""
    if at > now + AHEAD_S:
        raise ClockError(
            f"a fact has the time {utc(at)}, but it is {utc(now)}; it may be at most {AHEAD_S:g} s ahead, "
            "because later times close decisions that wait for feedback"
        )


FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0
"""Beginning of the year 1 and end of the year 9999 in UTC, the range of a calendar."""


def require_date(at: float) -> float:
    """Return seconds since the epoch that a calendar has a date for.

    >>> require_date(0.0)
    0.0

    Raises:
        ValueError: They are before the year 1 or after the year 9999 in UTC, or NaN.
    """
    if not FIRST <= at <= LAST:
        raise ValueError("expected a time up to the year 9999 in UTC")
    return at


def utc(at: float) -> str:
    """Format seconds since the epoch.

    >>> utc(86399.5)
    '1970-01-01 23:59:59 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
