"""Limits and budgets of keys in one replica, which leases parts of them from the log.

A request is admitted while the usage and the reservations of all replicas are below the limit, so that they
exceed it by at most one turn. The most that a turn may cost is reserved before it, and replaced by its cost
afterwards. Far from a limit a replica draws on its lease; near the limit it asks the log for each request,
and waits for what other replicas return before it refuses one.
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
"""Seconds that a request waits for reserved amounts, since replicas return unused ones at each poll."""

AGAIN_S = 0.05
"""Seconds between two attempts to reserve."""

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
    """One limit of a key, in the current period."""

    use: ledger.Use
    meter: Meter
    amount: float
    reset_s: float
    budget: bool

    def refused(self, again_s: float) -> Exception:
        """Return the error for a limit that is used up for some seconds."""
        unit = "USD" if self.meter == "usd" else self.meter
        if self.budget:
            return SpentError(f"the budget of this key is spent: {self.amount:g} {unit} in {self.use[1]}")
        return RateLimitedError(f"{self.amount:g} {unit} a minute are allowed", self.meter, again_s)

    def full(self) -> Exception:
        """Return the error for a limit whose rest is reserved by others."""
        meter = "tokens" if self.meter == "usd" else self.meter
        return RateLimitedError("what requests under way may cost takes up what is left", meter, 1.0)


@dataclass(slots=True)
class _Lease:
    """The part of one limit that a replica has leased.

    Attributes:
        free: Amount that may be booked without asking the log.
        left: Amount outside all leases at the last request to the log; None before the first.
        used_up_until: When the limit is replenished, seconds since the epoch.
        full_until: When to ask the log again, as others hold the rest, seconds since the epoch.
        lock: Held by the request that asks the log.
    """

    free: float = 0.0
    left: float | None = None
    used_up_until: float = 0.0
    full_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _no_amounts() -> defaultdict[ledger.Use, ledger.UsageAmount]:
    return defaultdict(ledger.UsageAmount)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The most that a turn under way may cost its key.

    Attributes:
        key: Public id of the key.
        at: When the turn was admitted, seconds since the epoch.
        booked: Amounts taken from the leases, by key and period.
        beyond: The rest, if less was left than the turn may cost. It is reserved as well, so that amounts
            returned meanwhile do not admit a second turn that may exceed the limit.
    """

    key: str
    at: float
    booked: defaultdict[ledger.Use, ledger.UsageAmount] = field(default_factory=_no_amounts)
    beyond: defaultdict[ledger.Use, ledger.UsageAmount] = field(default_factory=_no_amounts)

    def book(self, limit: _Limit, most: float, taken: float) -> None:
        """Record the amount taken from a limit for a cost of at most `most`."""
        for amounts, amount in ((self.booked, taken), (self.beyond, most - taken)):
            amounts[limit.use] += ledger.make_amount(limit.meter, amount)


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
        outage: Whether the log is away. Limits are then applied to what is left by its last answer, and what
            is used meanwhile is reported once it is back. None: a request fails if the log does.
    """

    def __init__(self, usage: ledger.UsageLedger, clock: Callable[[], float]) -> None:
        self._usage, self._clock = usage, clock
        self.outage: Outage | None = None
        self._leases: defaultdict[tuple[ledger.Use, Meter], _Lease] = defaultdict(_Lease)
        self._spent = _no_amounts()
        self._turns: dict[str, _Turn] = {}
        self._exchanging = asyncio.Lock()
        self._reported: tuple[float, dict[ledger.Use, ledger.UsageAmount]] = (0.0, {})

    async def admit(self, caller: Caller) -> None:
        """Count a request of a key.

        Raises:
            RateLimitedError: The key has sent too many requests this minute.
            LogUnavailableError: The limit cannot be read.
        """
        if caller.key is None:
            return
        now = self._clock()
        for limit in _limits(caller, now, "requests"):
            await self._take(limit, 1, partial(self._spend, limit.use))
        self._count(caller.key, now, ledger.UsageAmount(requests=1))

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
        amounts = {"tokens": tokens, "usd": usd}
        try:
            for meter in ("tokens", "usd"):
                for limit in _limits(caller, now, meter):
                    await self._take(limit, amounts[meter], partial(turn.book, limit, amounts[meter]))
        except BaseException:
            self.release(decision_id)
            raise

    def charge(self, decision_id: str, cost: Cost) -> None:
        """Replace the reservation of a turn by its cost."""
        if (turn := self._turns.pop(decision_id, None)) is None:
            return
        amount = ledger.UsageAmount(0, cost.prompt_tokens + cost.completion_tokens, cost.usd)
        for use, booked in turn.booked.items():
            self._settle(use, booked - amount)
            if len(use[1]) == ledger.MINUTE:
                self._spent[use] += amount
        self._count(turn.key, turn.at, amount)

    def release(self, decision_id: str) -> None:
        """Return the reservation of a turn that did not decide; does nothing after `charge`."""
        if (turn := self._turns.pop(decision_id, None)) is not None:
            for use, booked in turn.booked.items():
                self._settle(use, booked)

    async def report(self) -> None:
        """Report usage to the log, and return unused leases. Raises LogUnavailableError."""
        now, booked = self._clock(), self._booked()
        at, reported = self._reported
        idle = not any(self._spent.values()) and not any(lease.free for lease in self._leases.values())
        if idle and booked == reported and (not booked or now - at < 1.0):
            return
        await self._exchange()
        periods = {ledger.period(self._clock(), kind) for kind in (ledger.MINUTE, ledger.DAY, ledger.MONTH)}
        for use, meter in [key for key, lease in self._leases.items() if not lease.lock.locked()]:
            if use[1] not in periods:
                del self._leases[use, meter]

    async def settled(self) -> None:
        """Wait for an exchange with the log that is under way, whose caller may have left."""
        async with self._exchanging:
            pass

    def headers(self, caller: Caller) -> Iterator[tuple[bytes, bytes]]:
        """Yield response headers: the limits of a key per minute, what is left, and when they are reset."""
        now = self._clock()
        for meter in ("requests", "tokens"):
            for limit in _limits(caller, now, meter):
                if not limit.budget:
                    lease = self._leases[limit.use, meter]
                    left = limit.amount if lease.left is None else lease.left + lease.free
                    left = 0 if now < lease.used_up_until else max(0, int(left))
                    minutes, seconds = divmod(max(1, round(limit.reset_s)), 60)
                    reset = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
                    for name, value in (("limit", int(limit.amount)), ("remaining", left), ("reset", reset)):
                        yield f"x-ratelimit-{name}-{meter}".encode(), str(value).encode()

    def _spend(self, use: ledger.Use, requests: float) -> None:
        self._spent[use] += ledger.UsageAmount(int(requests))

    async def _take(self, limit: _Limit, amount: float, keep: Callable[[float], None]) -> None:
        """Take an amount from a lease, which is extended if it does not suffice.

        Args:
            limit: The limit.
            amount: The amount.
            keep: Called with the amount as soon as it is taken, before a report could return it to the log.
        """
        lease = self._leases[limit.use, limit.meter]
        if not _taken(lease, amount, keep):
            deadline = asyncio.get_running_loop().time() + WAIT_S
            async with lease.lock:
                while not _taken(lease, amount, keep):
                    if await self._extend(limit, lease, amount, keep, deadline):
                        return

    async def _extend(
        self, limit: _Limit, lease: _Lease, amount: float, keep: Callable[[float], None], deadline: float
    ) -> bool:
        """Lease more from the log, and take it; if others hold the rest, wait briefly and return False."""
        loop = asyncio.get_running_loop()

        def granted(grant: ledger.Grant) -> None:
            lease.left = grant.left
            lease.used_up_until = self._clock() + grant.again_s if grant.again_s else 0.0
            if grant.amount:  # possibly less than asked: the last turn may exceed the limit
                held = lease.free + grant.amount
                lease.free = max(0.0, held - amount)
                keep(min(amount, held))

        if (again_s := lease.used_up_until - self._clock()) > 0:
            raise limit.refused(again_s)
        if self._clock() < lease.full_until:
            raise limit.full()
        grant = await self._grant(limit, lease, amount, granted)
        if not grant.amount and not grant.again_s:
            if loop.time() >= deadline:
                lease.full_until = self._clock() + WAIT_S / 4
                raise limit.full()
            await asyncio.sleep(AGAIN_S)
        return grant.amount > 0

    async def _grant(
        self,
        limit: _Limit,
        lease: _Lease,
        amount: float,
        granted: Callable[[ledger.Grant], None],
    ) -> ledger.Grant:
        """Lease more from the log; while that is away, from what is left by its last answer."""
        outage, too_late = self.outage, False
        reserve = ledger.Reserve(limit.use, limit.meter, limit.amount, max(0, amount - lease.free))

        def granted_in_time(grant: ledger.Grant) -> None:
            if not too_late:
                granted(grant)

        if outage is None:
            return await self._exchange(reserve, granted)
        try:
            return await outage.ask(partial(self._exchange, reserve, granted_in_time))
        except LOG_UNUSABLE:
            if not outage.answers or (lease.left is None and not self._begins(limit, outage.since)):
                raise
            too_late = True
            left = self._unused(limit) if lease.left is None else lease.left
            lease.left, lease.free = left + lease.free, 0.0
            if lease.left <= ledger.ROUNDING:
                if getattr(self._booked().get(limit.use), limit.meter, 0):
                    return ledger.Grant()  # turns under way will return a part of it
                raise limit.refused(limit.reset_s) from None
            taken = min(lease.left, max(amount, ledger.ROUNDING if limit.meter == "usd" else 1))
            grant = ledger.Grant(taken, lease.left - taken)
            granted(grant)
            return grant

    def _begins(self, limit: _Limit, since: float | None) -> bool:
        """Return whether a limit counts from 0 although the log was not asked about its period.

        That is so for a minute, and for a day or a month that began while the log was away. What other
        replicas spent of an earlier one is not known.
        """
        at = self._clock() if since is None else since
        return not limit.budget or ledger.period(at, len(limit.use[1])) != limit.use[1]

    def _unused(self, limit: _Limit) -> float:
        """Return what is left of a limit whose period has just begun; the minute before counts in part."""
        if limit.budget:
            return limit.amount
        before = limit.use[0], ledger.period(self._clock() - ledger.MINUTE_S, ledger.MINUTE)
        earlier = self._leases.get((before, limit.meter))
        left = limit.amount if earlier is None or earlier.left is None else earlier.left + earlier.free
        return limit.amount - int((limit.amount - left) * limit.reset_s / ledger.MINUTE_S)

    async def _exchange(
        self,
        reserve: ledger.Reserve | None = None,
        granted: Callable[[ledger.Grant], None] = lambda _: None,
    ) -> ledger.Grant:
        """Report usage and reserve an amount; without `reserve`, return all that is free.

        Exchanges are serialized, and one that has begun is completed even if its caller leaves.
        """

        async def alone() -> ledger.Grant:
            async with self._exchanging:
                grant = await self._exchange_now(reserve)
                granted(grant)
                return grant

        return await asyncio.shield(asyncio.ensure_future(alone()))

    async def _exchange_now(self, reserve: ledger.Reserve | None) -> ledger.Grant:
        if reserve is None:
            for lease in self._leases.values():
                lease.left = None if lease.left is None else lease.left + lease.free
                lease.free = 0.0
        now, booked, spent = self._clock(), self._booked(), dict(self._spent)
        leases = defaultdict(ledger.UsageAmount, booked)
        for (use, meter), lease in self._leases.items():
            leases[use] += ledger.make_amount(meter, lease.free)
        grant = await asyncio.to_thread(self._usage.exchange, spent, leases, now, reserve)
        for use, amount in spent.items():
            self._spent[use] -= amount
            if not self._spent[use]:
                del self._spent[use]
        self._reported = now, booked
        return grant

    def _booked(self) -> dict[ledger.Use, ledger.UsageAmount]:
        booked = _no_amounts()
        for turn in self._turns.values():
            for use, amount in (*turn.booked.items(), *turn.beyond.items()):
                booked[use] += amount
        return dict(booked)

    def _count(self, key: str, at: float, amount: ledger.UsageAmount) -> None:
        for kind in (ledger.DAY, ledger.MONTH):
            self._spent[key, ledger.period(at, kind)] += amount

    def _settle(self, use: ledger.Use, returned: ledger.UsageAmount) -> None:
        """Return the unused part of a turn's booking to a lease; a negative amount is taken from it."""
        for meter in ("tokens", "usd"):
            if (use, meter) in self._leases:
                lease = self._leases[use, meter]
                free = lease.free + getattr(returned, meter)
                lease.free, lease.full_until = max(0.0, free), 0.0
                if lease.left is not None:
                    lease.left += min(0.0, free)


def _taken(lease: _Lease, amount: float, keep: Callable[[float], None]) -> bool:
    """Take an amount from the free part, if it suffices; even a zero amount needs a positive free part."""
    if lease.free <= 0 or lease.free < amount:
        return False
    lease.free -= amount
    keep(amount)
    return True


def _limits(caller: Caller, now: float, meter: Meter) -> Iterator[_Limit]:
    """Yield the limits of a caller on a meter."""
    limits = caller.limits
    if caller.key is None or not limits:
        return
    minute = {"requests": limits.rpm_limit, "tokens": limits.tpm_limit, "usd": None}[meter]
    if minute is not None:
        use = caller.key, ledger.period(now, ledger.MINUTE)
        yield _Limit(use, meter, minute, 60 - now % 60, budget=False)
    budget = {"requests": None, "tokens": limits.token_budget, "usd": limits.max_budget}[meter]
    if budget is not None:
        kind = ledger.DAY if limits.budget_duration == "1d" else ledger.MONTH
        yield _Limit((caller.key, ledger.period(now, kind)), meter, budget, 0.0, budget=True)
