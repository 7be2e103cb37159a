"""How each arm of this replica is doing: what keeps it from being drawn for now.

    down    it failed several times in a row, and rests; then it may be drawn again. If it fails
            again it rests for twice as long; a success clears it
    full    it has as many searches under way as its cap allows

Both are known before an arm is drawn, and mask it there. So the distribution that is logged is
the one that was drawn from, and an arm that has no room is never drawn and then left out.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

DOUBLINGS = 6
"""How often a rest is doubled at most: 5 seconds grow to about as many minutes."""


class Report(Protocol):
    """Takes in how searches ended; one that was cancelled says nothing of its arm."""

    def __call__(self, *, worked: Collection[str] = (), failed: Collection[str] = ()) -> None:
        """Note the arms that answered, and those that did not."""
        ...


class ArmHealth:
    """What is known of the arms before one is drawn.

    Args:
        failures: Failures in a row that put an arm down, at least 1.
        rest_s: Seconds that it is down at first.
        caps: Most searches of an arm at once, at least 1; an arm that is not named has no cap.
        clock: Seconds, never going back.
    """

    def __init__(
        self,
        failures: int = 3,
        rest_s: float = 5.0,
        caps: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._rest_s = failures, rest_s
        self._caps = dict(caps or {})
        self._clock = clock
        self._busy: dict[str, int] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._until: dict[str, float] = {}  # end of the last rest

    def able(self, arms: Sequence[str], asked: Collection[str] = ()) -> list[str]:
        """Return the arms that may be drawn now, in their order.

        Where all of them are down, none counts as down: something must be tried. Where those
        that are up are full, there is none: a question is not sent to an arm that is down
        because another has no room.

        Args:
            arms: To choose among.
            asked: Those that have searched already, and need no room.
        """
        up = ([arm for arm in arms if not self.down(arm)] or arms) if self._until else arms
        return [arm for arm in up if arm in asked or not self._full(arm)]

    def down(self, arm: str) -> bool:
        """Return whether an arm rests."""
        return arm in self._until and self._clock() < self._until[arm]

    def _full(self, arm: str) -> bool:
        return arm in self._caps and self._busy.get(arm, 0) >= self._caps[arm]

    @contextmanager
    def searching(self, *arms: str) -> Iterator[Report]:
        """Take a place of each arm while they search; yield what is told how it ended."""
        begun = self._clock()
        for arm in arms:
            self._busy[arm] = self._busy.get(arm, 0) + 1
        try:
            yield partial(self._tell, begun)
        finally:
            for arm in arms:
                self._busy[arm] -= 1

    def _tell(self, begun: float, *, worked: Collection[str] = (), failed: Collection[str] = ()) -> None:
        for arm in worked:
            self._failures.pop(arm, None)
            self._until.pop(arm, None)
        for arm in failed:
            if begun < self._until.get(arm, begun):
                continue  # asked before its rest was over: no news
            failures = self._failures[arm] = self._failures.get(arm, 0) + 1
            if (again := failures - self._limit) >= 0:
                self._until[arm] = self._clock() + self._rest_s * 2 ** min(again, DOUBLINGS)
