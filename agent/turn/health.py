"""The health of arms and language models: circuit breakers, and caps of concurrent searches.

An arm is available unless its circuit breaker is open, its concurrency cap is reached, its encoder is being
loaded, or its source is out of reach:

    open    the arm failed several times in a row and is masked for a pause. If the next search fails as
            well, the pause doubles; a success closes the breaker
    full    the arm has as many searches under way as its cap allows
    loading the encoder of its questions is still being loaded
    away    its source could not be read at the start, and nothing of it was read before, or it needs a
            proxy that cannot be used

Callers choose what is asked, so one of them could have an arm fail for everybody. Failures of one caller open
the breaker for this caller; it takes failures of two to open it for all.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from armwise.feedback.events import Mask

NO_MODELS: Mapping[str, str] = MappingProxyType({})

DOUBLINGS = 6
"""Most doublings of a pause: 5 seconds become 5 minutes."""


LONGEST_REST_S = 300.0
"""Longest rest that a provider of a language model can ask for with a retry-after."""


def llm_key(model: str) -> str:
    """Return the key of a language model in `ArmHealth`, which differs from the name of any arm."""
    return f"llm/{model}"


ReportOutcome = Callable[..., None]
"""Reports how searches ended, with the arguments of `ArmHealth._report`; cancelled ones are left out."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """The health of one arm.

    Attributes:
        is_open: Whether its breaker is open.
        loading: Whether its encoder is still being loaded.
        away: Why its source is out of reach; empty: it is not.
        failures: Failures in a row.
        under_way: Searches under way.
        cap: Most concurrent searches; None: no limit.
    """

    is_open: bool
    loading: bool
    away: str
    failures: int
    under_way: int
    cap: int | None


MOST_BREAKERS = 10_000
"""Most breakers of single callers that are kept; the oldest leave first."""


@dataclass(slots=True)
class _Breaker:
    """Failures in a row of an arm: of one caller, or of all.

    Attributes:
        failures: Their number.
        openings: How often it has opened since the last success.
        open_until: When it closes.
        callers: Whose failures they are since it last opened, two of them at most.
    """

    failures: int = 0
    openings: int = 0
    open_until: float = -math.inf
    callers: set[str] = field(default_factory=set)

    def fail(self, caller: str, started: float, now: float, limit: int, rest_s: float, least: int) -> None:
        """Count a failure of a search, and open after `limit` by at least so many callers."""
        if started < self.open_until:
            return  # started before the breaker half-opened: no new evidence
        self.failures += 1
        if len(self.callers) < least:
            self.callers.add(caller)
        if self.failures >= limit and len(self.callers) >= least:
            self.open_until = now + rest_s * 2 ** min(self.openings, DOUBLINGS)
            self.openings += 1
            self.callers.clear()


class ArmHealth:
    """Failures and searches under way of each arm.

    Args:
        failures: Failures in a row that open the breaker of an arm, at least 1.
        rest_s: Seconds that it stays open at first.
        caps: Most concurrent searches by arm, at least 1; other arms are unlimited.
        clock: Monotonic seconds.

    Attributes:
        loading: Arms whose encoder is still being loaded.
        away: Why the sources of arms are out of reach, by arm.
    """

    def __init__(
        self,
        failures: int = 3,
        rest_s: float = 5.0,
        caps: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loading: frozenset[str] = frozenset()
        self.away: Mapping[str, str] = {}
        self._limit, self._rest_s = failures, rest_s
        self._caps = dict(caps or {})
        self._clock = clock
        self._under_way: dict[str, int] = {}
        self._for_all: dict[str, _Breaker] = {}
        self._for_one: dict[tuple[str, str], _Breaker] = {}  # by arm and caller
        self._worked: set[str] = set()

    def available(
        self, arms: Sequence[str], searched: Collection[str] = (), caller: str | None = None
    ) -> list[str]:
        """Return the arms that may be drawn now, in order: those that `mask_arms` leaves."""
        masked = self.mask_arms(arms, searched, caller=caller)
        return [arm for arm in arms if arm not in masked]

    def mask_arms(
        self,
        arms: Sequence[str],
        searched: Collection[str] = (),
        models: Mapping[str, str] = NO_MODELS,
        caller: str | None = None,
    ) -> dict[str, Mask]:
        """Return the arms that may not be drawn now, each with the reason.

        If every breaker is open, all count as closed, so that one arm is tried. If every arm with a closed
        breaker is full, all arms are masked, so that load does not move to arms that fail.

        Args:
            arms: Arms to choose among.
            searched: Arms that have searched already and need no room.
            models: Language model of each arm that is to answer; the same rules apply to the models.
            caller: Who asks; None: unknown.
        """
        masked = {arm: Mask.LOADING for arm in arms if arm in self.loading}
        masked |= {arm: Mask.SOURCE_AWAY for arm in arms if arm in self.away}
        loaded = [arm for arm in arms if arm not in masked]
        opened = [arm for arm in loaded if self.is_open(arm, caller)]
        if len(opened) < len(loaded):
            masked |= dict.fromkeys(opened, Mask.BREAKER_OPEN)
        for arm in loaded:
            if arm not in masked and arm not in searched and self._full(arm):
                masked[arm] = Mask.AT_CAP
        if models and (self._for_all or self._for_one or self._caps):
            left = [arm for arm in loaded if arm not in masked]
            keys = {arm: llm_key(models[arm]) for arm in left if arm in models}
            unavailable = {arm for arm, key in keys.items() if self.is_open(key, caller)}
            if len(unavailable) == len(left):
                unavailable = set()
            unavailable |= {arm for arm, key in keys.items() if self._full(key)}
            masked |= dict.fromkeys(sorted(unavailable), Mask.LLM_UNAVAILABLE)
        return masked

    def is_open(self, arm: str, caller: str | None = None) -> bool:
        """Return whether the breaker of an arm is open, for all or for a caller."""
        breakers = self._for_all.get(arm), self._for_one.get((arm, caller or ""))
        return any(breaker is not None and self._clock() < breaker.open_until for breaker in breakers)

    def state(self, arm: str) -> ArmState:
        """Return the health of an arm now; its breaker is open if it is for any caller."""
        every, now = self._for_all.get(arm) or _Breaker(), self._clock()
        several = (every, *(one for (name, _), one in self._for_one.items() if name == arm))
        is_open, under_way = any(now < one.open_until for one in several), self._under_way.get(arm, 0)
        states = is_open, arm in self.loading, self.away.get(arm, "")
        return ArmState(*states, every.failures, under_way, self._caps.get(arm))

    def _full(self, arm: str) -> bool:
        return arm in self._caps and self._under_way.get(arm, 0) >= self._caps[arm]

    @contextmanager
    def track(self, *arms: str, caller: str | None = None) -> Iterator[ReportOutcome]:
        """Count one search of each arm as under way; yield the function that reports how they ended."""
        started = self._clock()
        for arm in arms:
            self._under_way[arm] = self._under_way.get(arm, 0) + 1
        try:
            yield partial(self._report, started, caller or "")
        finally:
            for arm in arms:
                self._under_way[arm] -= 1

    def _report(
        self,
        started: float,
        caller: str,
        *,
        worked: Collection[str] = (),
        failed: Collection[str] = (),
        refused: Collection[str] = (),
        resting: Collection[str] = (),
        rest_s: float = 0.0,
    ) -> None:
        """Record the arms that answered, those that failed, and those that refused the question.

        A refusal counts as a failure only until the arm has answered once: callers choose the questions. Of
        `resting`, whose rate is used up, the breaker is open for `rest_s`, which is what their provider has
        said; 0 where it said nothing, and nothing changes.
        """
        self._worked.update(worked)
        failed = [*failed, *(arm for arm in refused if arm not in self._worked)]
        for arm in worked:
            self._for_all.pop(arm, None)
            self._for_one.pop((arm, caller), None)
        now = self._clock()
        for arm in failed:
            every = self._for_all.setdefault(arm, _Breaker())
            every.fail(caller, started, now, self._limit, self._rest_s, least=2)
            own = self._for_one.pop((arm, caller), None) or _Breaker()
            own.fail(caller, started, now, self._limit, self._rest_s, least=1)
            self._for_one[arm, caller] = own
            if len(self._for_one) > MOST_BREAKERS:
                del self._for_one[next(iter(self._for_one))]
        for arm in resting if rest_s else ():
            every = self._for_all.setdefault(arm, _Breaker())
            every.open_until = max(every.open_until, now + min(rest_s, LONGEST_REST_S))
