"""Limits and budgets of keys in one replica, which knows what the others have used from the log.

A request is admitted while the usage in the log, what this replica has used since, and what its turns under
way may cost are below the limit. Twice a second a replica adds its usage to the log, and reads what all
replicas used. Alone, it exceeds a limit by at most one turn. Several replicas also exceed it by what the
others have used in the last second, and by their turns under way.

A limit per minute slides: usage in the previous minute of the clock counts in proportion to the part of that
minute that lies in the last 60 s, as if it had been spread evenly.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, TypeVar

from armwise.agent.access.keyring import Caller
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.events import Cost
from armwise.feedback.registry import usage as ledger

WAIT_S = 1.0
"""Seconds that a turn waits for what turns under way have reserved."""

AGAIN_S = 0.05
"""Seconds between two looks at what they have returned."""

LEAST_S = 0.05
"""Least seconds for which a limit that is used up is refused."""

Meter = Literal["requests", "tokens", "usd"]

T = TypeVar("T")


class RateLimitedError(Exception):
    """A key has reached its rate limit; nothing was decided.

    Attributes:
        meter: The limited quantity: requests or tokens.
        retry_after_s: Seconds after which a retry may succeed.
    """

    def __init__(self, message: str, meter: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.meter = meter
        self.retry_after_s = retry_after_s


class SpentError(Exception):
    """A key has spent its budget; nothing was decided."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit of a key, in the current period.

    Attributes:
        use: The key and the period.
        before: The key and the minute before, for a limit per minute.
        meter: The limited quantity.
        amount: The limit.
        reset_s: Seconds that are left of the minute; 0 for a budget.
        budget: Whether it is a budget.
    """

    use: ledger.Use
    before: ledger.Use | None
    meter: Meter
    amount: float
    reset_s: float
    budget: bool

    def make_spent_error(self, spent: float, earlier: float) -> Exception:
        """Return the error for a limit that is used up.

        Args:
            spent: What was used in the period.
            earlier: What was used in the minute before.
        """
        unit = "USD" if self.meter == "usd" else self.meter
        if self.budget:
            return SpentError(f"the budget of this key is spent: {self.amount:g} {unit} in {self.use[1]}")
        if spent < self.amount:
            again_s = max(LEAST_S, self.reset_s - ledger.MINUTE_S * (self.amount - spent) / earlier)
        else:
            again_s = self.reset_s + ledger.MINUTE_S * (1 - self.amount / spent)
        return RateLimitedError(f"this key may use {self.amount:g} {unit} per minute", self.meter, again_s)

    def make_reserved_error(self) -> Exception:
        """Return the error for a limit whose rest turns under way have reserved."""
        meter = "tokens" if self.meter == "usd" else self.meter
        return RateLimitedError("requests in progress have reserved the rest of this key's limit", meter, 1.0)


def _no_amounts() -> defaultdict[ledger.Use, ledger.UsageAmount]:
    return defaultdict(ledger.UsageAmount)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The most that a turn under way may cost its key.

    Attributes:
        key: Public id of the key.
        at: When the turn was admitted, seconds since the epoch.
        booked: That, by key and period.
    """

    key: str
    at: float
    booked: defaultdict[ledger.Use, ledger.UsageAmount] = field(default_factory=_no_amounts)


class Outage(Protocol):
    """Whether the log is away, and requests are answered without it."""

    @property
    def answers(self) -> bool:
        """Whether requests are answered while the log is away."""
        ...

    @property
    def since(self) -> float | None:
        """When the log was found to be away, seconds since the epoch; None: it is not."""
        ...

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what the log answers. Raises LogUnavailableError soon if it is away."""
        ...


class Quota:
    """Counts the usage of keys, and refuses requests above their limits.

    Args:
        usage: The usage in the log.
        clock: Seconds since the epoch.

    Attributes:
        outage: Whether the log is away. Limits are then applied to what it said last, and what is used
            meanwhile is reported once it is back. None: a request fails if the log does.
    """

    def __init__(self, usage: ledger.UsageLedger, clock: Callable[[], float]) -> None:
        self._usage, self._clock = usage, clock
        self.outage: Outage | None = None
        self._asked: dict[str, float] = {}  # the keys whose usage is read, and when each asked last
        self._logged: dict[ledger.Use, ledger.UsageAmount] = {}
        self._spent, self._reserved = _no_amounts(), _no_amounts()
        self._turns: dict[str, _Turn] = {}
        self._exchanging = asyncio.Lock()

    async def admit(self, caller: Caller) -> None:
        """Count a request of a key.

        Raises:
            RateLimitedError: The key has sent too many requests this minute.
            LogUnavailableError: The limit cannot be read.
        """
        if caller.key is None:
            return
        now, amount = self._clock(), ledger.UsageAmount(requests=1)
        for limit in _limits(caller, now, "requests"):
            await self._know(limit)
            self._is_free(limit)
            self._spent[limit.use] += amount
        self._count(caller.key, now, amount)

    async def book(self, caller: Caller, decision_id: str, tokens: int, usd: float) -> None:
        """Reserve the most that a turn may cost, before its arm is drawn.

        Args:
            caller: Caller of the request.
            decision_id: Name of the booking for `charge` and `release`.
            tokens: Most tokens that the turn reads and writes.
            usd: Most USD that it costs.

        Raises:
            RateLimitedError: The key has used too many tokens this minute.
            SpentError: The key has spent its budget.
            LogUnavailableError: The limits cannot be read.
        """
        if caller.key is None:
            return
        now = self._clock()
        turn = self._turns[decision_id] = _Turn(caller.key, now)
        amounts: dict[Meter, float] = {"tokens": tokens, "usd": usd}
        try:
            for meter, most in amounts.items():
                for limit in _limits(caller, now, meter):
                    await self._wait(limit)
                    amount = ledger.make_amount(meter, most)
                    turn.booked[limit.use] += amount
                    self._reserved[limit.use] += amount
        except BaseException:
            self.release(decision_id)
            raise

    def charge(self, decision_id: str, cost: Cost) -> None:
        """Replace the reservation of a turn by its cost."""
        turn = self.release(decision_id)
        amount = ledger.UsageAmount(0, cost.prompt_tokens + cost.completion_tokens, cost.usd)
        if turn is None or not amount:
            return
        for use in turn.booked:
            if len(use[1]) == ledger.MINUTE:
                self._spent[use] += amount
        self._count(turn.key, turn.at, amount)

    def release(self, decision_id: str) -> _Turn | None:
        """Return the reservation of a turn that did not decide; does nothing after `charge`."""
        if (turn := self._turns.pop(decision_id, None)) is not None:
            for use, booked in turn.booked.items():
                left = self._reserved.pop(use, ledger.UsageAmount()) - booked
                if left.tokens or left.usd > ledger.ROUNDING:
                    self._reserved[use] = left
        return turn

    async def report(self) -> None:
        """Add the usage to the log, and read what all replicas used. Raises LogUnavailableError."""
        if self._spent or self._asked:
            await self._alone(self._exchange)

    async def finish_exchange(self) -> None:
        """Wait for an exchange with the log that is under way, whose caller may have left."""
        async with self._exchanging:
            pass

    def headers(self, caller: Caller) -> Iterator[tuple[bytes, bytes]]:
        """Yield response headers: the limits of a key per minute, what is left, and when they are reset."""
        now = self._clock()
        for meter in ("requests", "tokens"):
            for limit in _limits(caller, now, meter):
                if not limit.budget:
                    left = max(0, int(limit.amount - self._sum_counted(limit) - self._find_booked(limit)))
                    minutes, seconds = divmod(max(1, round(limit.reset_s)), 60)
                    reset = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
                    for name, value in (("limit", int(limit.amount)), ("remaining", left), ("reset", reset)):
                        yield f"x-ratelimit-{name}-{meter}".encode(), str(value).encode()

    async def _wait(self, limit: _Limit) -> None:
        """Wait until turns under way have left something of a limit.

        Raises:
            RateLimitedError, SpentError: It is used up, or all of it stays reserved.
            LogUnavailableError: The usage cannot be read.
        """
        await self._know(limit)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while not self._is_free(limit):
            if loop.time() >= deadline:
                raise limit.make_reserved_error()
            await asyncio.sleep(AGAIN_S)

    async def _know(self, limit: _Limit) -> None:
        """Read the usage of a key that has not asked for a while. Raises LogUnavailableError."""
        key, outage = limit.use[0], self.outage
        if key not in self._asked:
            read = partial(self._alone, partial(self._read, key))
            try:
                await (read() if outage is None else outage.ask(read))
            except LOG_UNUSABLE:
                if outage is None or not outage.answers:
                    raise
                if limit.use not in self._logged and not self._begins(limit, outage.since):
                    raise
                return
        self._asked[key] = self._clock()

    def _begins(self, limit: _Limit, since: float | None) -> bool:
        """Return whether a limit counts from 0 although the log was not asked about its key.

        That is so for a minute, and for a day or a month that began while the log was away. What other
        replicas spent of an earlier one is not known.
        """
        at = self._clock() if since is None else since
        return not limit.budget or ledger.period(at, len(limit.use[1])) != limit.use[1]

    def _is_free(self, limit: _Limit) -> bool:
        """Return whether a part of a limit is left; False: turns under way have reserved all of it.

        Raises:
            RateLimitedError, SpentError: It is used up.
        """
        counted = self._sum_counted(limit)
        if counted + ledger.ROUNDING >= limit.amount:
            raise limit.make_spent_error(self._sum_used(limit.use, limit.meter), self._sum_earlier(limit))
        return limit.amount - counted - self._find_booked(limit) > ledger.ROUNDING

    def _sum_counted(self, limit: _Limit) -> float:
        """Return what counts for a limit, without what turns under way have reserved of its period."""
        spent = self._sum_used(limit.use, limit.meter)
        return spent + int(self._sum_earlier(limit) * limit.reset_s / ledger.MINUTE_S)

    def _sum_earlier(self, limit: _Limit) -> float:
        """Return what was used, and is reserved, of the minute before."""
        if limit.before is None:
            return 0.0
        reserved = self._reserved.get(limit.before, ledger.UsageAmount())
        return self._sum_used(limit.before, limit.meter) + float(getattr(reserved, limit.meter))

    def _sum_used(self, use: ledger.Use, meter: Meter) -> float:
        """Return what all replicas have used, as far as it is known here."""
        nothing = ledger.UsageAmount()
        logged, spent = self._logged.get(use, nothing), self._spent.get(use, nothing)
        return float(getattr(logged, meter) + getattr(spent, meter))

    def _find_booked(self, limit: _Limit) -> float:
        return float(getattr(self._reserved.get(limit.use, ledger.UsageAmount()), limit.meter))

    async def _alone(self, call: Callable[[], Awaitable[None]]) -> None:
        """Exchange usage with the log: one exchange at a time, each completed even if its caller leaves."""

        async def alone() -> None:
            async with self._exchanging:
                await call()

        await asyncio.shield(asyncio.ensure_future(alone()))

    async def _read(self, key: str) -> None:
        if key not in self._asked:  # another request may have read it meanwhile
            self._logged = self._logged | await asyncio.to_thread(self._usage.read, [key], self._clock())
            self._asked[key] = self._clock()

    async def _exchange(self) -> None:
        now, spent = self._clock(), dict(self._spent)
        keys = [key for key, at in self._asked.items() if now - at < ledger.MINUTE_S]
        if spent:
            logged = await asyncio.to_thread(self._usage.report, spent, keys, now)
        else:
            logged = await asyncio.to_thread(self._usage.read, keys, now)
        self._asked = {key: self._asked[key] for key in keys}
        periods = {ledger.period(now, kind) for kind in (ledger.DAY, ledger.MONTH)}
        self._logged = {use: amount for use, amount in self._logged.items() if use[1] in periods} | logged
        for use, amount in spent.items():
            self._spent[use] -= amount
            if not self._spent[use]:
                del self._spent[use]

    def _count(self, key: str, at: float, amount: ledger.UsageAmount) -> None:
        for kind in (ledger.DAY, ledger.MONTH):
            self._spent[key, ledger.period(at, kind)] += amount


def _limits(caller: Caller, now: float, meter: Meter) -> Iterator[_Limit]:
    """Yield the limits of a caller on a meter."""
    limits = caller.limits
    if caller.key is None or not limits:
        return
    minute = {"requests": limits.rpm_limit, "tokens": limits.tpm_limit, "usd": None}[meter]
    if minute is not None:
        use, before = ((caller.key, ledger.period(at, ledger.MINUTE)) for at in (now, now - ledger.MINUTE_S))
        yield _Limit(use, before, meter, minute, 60 - now % 60, budget=False)
    budget = {"requests": None, "tokens": limits.token_budget, "usd": limits.max_budget}[meter]
    if budget is not None:
        kind = ledger.DAY if limits.budget_duration == "1d" else ledger.MONTH
        yield _Limit((caller.key, ledger.period(now, kind)), None, meter, budget, 0.0, budget=True)
