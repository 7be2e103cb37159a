"""Time as the log needs it: it never falls, does not jump, and is the same for all that write.

The order of the log is that of its commits. Its time closes what waits for feedback, so a stamp of the
future would close all of it at once, and a clock that was set back would leave it open.
"""

import logging
import threading
import time
from collections.abc import Callable

from feedback.errors import BehindError, ClockError

logger = logging.getLogger(__name__)

JUMP_S = 1.0
"""How far the wall clock may be from where it should be before it is not followed any more."""

AHEAD_S = 60.0
"""How far two clocks may differ, and how far ahead of its own clock the log takes a stamp."""


def since_boot() -> float:
    """Return seconds that passed since some moment, a suspended machine's included; nobody can set them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """Seconds since the epoch, UTC, by the wall clock for as long as that runs as time passes.

    Once the wall clock jumps, this one goes on without it until both agree again, or the process ends.
    May be called from many threads.

    Args:
        wall: The wall clock.
        steady: Seconds that passed since some moment.

    Attributes:
        jump_s: How far the wall clock is ahead, or behind where negative; 0 while it is followed.
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
        """Return the time, which is never before one that was returned earlier."""
        with self._lock:
            wall, passed = self._read()
            due = self._now + passed - self._passed
            self._follow(wall - due)
            self._now, self._passed = due if self.jump_s else max(self._now, wall), passed
            return self._now

    def check(self) -> None:
        """See whether the process can go on; one that starts anew takes the wall clock's word.

        Raises:
            ClockError: The wall clock is so far off that other processes would not agree.
        """
        self()
        if abs(self.jump_s) > AHEAD_S:
            raise ClockError(
                f"the wall clock jumped by {self.jump_s:+.1f} s, and this process goes on without it: "
                "it is to be replaced by one that starts with the clock as it is"
            )

    def _read(self) -> tuple[float, float]:
        """Read both clocks as of one moment: who was put aside between the two would see a jump."""
        while True:
            before, wall, passed = self._steady(), self._wall(), self._steady()
            if passed - before < JUMP_S / 2:
                return wall, passed

    def _follow(self, off_s: float) -> None:
        """Decide whether the wall clock is followed, and say so where that changes."""
        jump_s = off_s if abs(off_s) > JUMP_S else 0.0
        if abs(jump_s - self.jump_s) > JUMP_S:
            if jump_s:
                logger.warning("the wall clock jumped: it is %+.1f s off, time goes on without it", jump_s)
            else:
                logger.warning("the wall clock is right again, and followed")
        self.jump_s = jump_s


def check_behind(now: float, log_at: float) -> None:
    """Refuse to go on with a log that is ahead of the clock. Raises BehindError."""
    if log_at > now + AHEAD_S:
        raise BehindError(
            f"the log has come to {utc(log_at)}, and the clock of this machine says {utc(now)}: "
            "it was set back, or another one was wrong; set it right, or wait until then"
        )


def check_clock(now: float, log_at: float, database_at: float | None) -> None:
    """See to it that a process can go on with a log.

    Args:
        now: By the clock of the process, seconds since the epoch.
        log_at: The log's time.
        database_at: By the clock of the database; None where that is on the same machine.

    Raises:
        ClockError: They differ too much.
    """
    check_behind(now, log_at)
    if database_at is not None and abs(database_at - now) > AHEAD_S:
        raise ClockError(
            f"the clock of the database says {utc(database_at)}, and that of this machine {utc(now)}: "
            "have both set by the same source, such as NTP"
        )


def check_stamp(at: float, now: float) -> None:
    """Refuse a stamp of the future. Raises ClockError."""
    if at > now + AHEAD_S:
        raise ClockError(
            f"a fact is stamped {utc(at)}, and it is {utc(now)}: nothing is kept that is more than "
            f"{AHEAD_S:g} s ahead, as its time would close what waits for feedback"
        )


def utc(at: float) -> str:
    """Return seconds since the epoch as they are read.

    >>> utc(86399.5)
    '1970-01-01 23:59:59 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
