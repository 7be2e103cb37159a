"""Limits and budgets of keys in one replica, which reserves its part of them in the log.

A request is admitted while what is used and what others have reserved is below the limit, so that all
replicas together exceed a limit by no more than one turn. What a turn costs is known after it: what it may
cost at most is reserved before. Far from a limit a replica holds a lease, and asks nobody; near the limit it
asks the log for each request, and waits for what other replicas return before it refuses one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from armwise.agent.access.keyring import Caller
from armwise.feedback.events import Cost
from armwise.feedback.registry import usage as ledger

WAIT_S = 1.0
"""Seconds for which a request waits for what is reserved: replicas return what they do not need each poll."""

AGAIN_S = 0.05
"""Seconds between two attempts to reserve."""

Meter = Literal["requests", "tokens", "usd"]


class RateLimitedError(Exception):
    """A key has used its limit; nothing was decided.

    Attributes:
        meter: What is limited: requests or tokens.
        retry_after_s: Seconds after which it may be admitted.
    """

    def __init__(self, message: str, meter: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.meter = meter
        self.retry_after_s = retry_after_s


class SpentError(Exception):
    """A key has spent its budget; nothing was decided."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit of a key, in the period of now."""

    use: ledger.Use
    meter: Meter
    amount: float
    reset_s: float
    budget: bool

    def refused(self, again_s: float) -> Exception:
        """Return the error where it is used up for some seconds."""
        unit = "USD" if self.meter == "usd" else self.meter
        if self.budget:
            return SpentError(f"the budget of this key is spent: {self.amount:g} {unit} in {self.use[1]}")
        return RateLimitedError(f"{self.amount:g} {unit} a minute are allowed", self.meter, again_s)

    def full(self) -> Exception:
        """Return the error where what others have reserved takes up all that is left."""
        meter = "tokens" if self.meter == "usd" else self.meter
        return RateLimitedError("what requests under way may cost takes up what is left", meter, 1.0)


@dataclass(slots=True)
class _Lease:
    """What a replica holds of one limit.

    Attributes:
        free: What may be booked without asking.
        left: What the log had left beside all leases, when it was last asked; None before that.
        used_up_until: Until when the limit is used up: seconds since the epoch.
        full_until: Until when it is not asked again, since others hold all of it: seconds since the epoch.
        lock: Held by the request that asks the log.
    """

    free: float = 0.0
    left: float | None = None
    used_up_until: float = 0.0
    full_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a turn may cost at most, and whom.

    Attributes:
        key: Public id of the key.
        at: When it was admitted, seconds since the epoch.
        booked: What is taken of the limits, by key and period.
        beyond: What it may cost beyond that, since less was left. While it is under way this is reserved
            too: what a replica returns meanwhile must not admit a second turn that may exceed the limit.
    """

    key: str
    at: float
    booked: dict[ledger.Use, ledger.UsageAmount] = field(default_factory=dict)
    beyond: dict[ledger.Use, ledger.UsageAmount] = field(default_factory=dict)

    def book(self, limit: _Limit, most: float, taken: float) -> None:
        """Keep what was taken of a limit for what costs at most so much."""
        for amounts, amount in ((self.booked, taken), (self.beyond, most - taken)):
            added = ledger.make_amount(limit.meter, amount)
            amounts[limit.use] = amounts.get(limit.use, ledger.UsageAmount()) + added


class Quota:
    """Counts what keys use, and refuses what is above their limits.

    Args:
        usage: The usage in the log.
        clock: Seconds since the epoch.
    """

    def __init__(self, usage: ledger.UsageLedger, clock: Callable[[], float]) -> None:
        self._usage, self._clock = usage, clock
        self._leases: defaultdict[tuple[ledger.Use, Meter], _Lease] = defaultdict(_Lease)
        self._spent: defaultdict[ledger.Use, ledger.UsageAmount] = defaultdict(ledger.UsageAmount)
        self._turns: dict[str, _Turn] = {}
        self._exchanging = asyncio.Lock()
        self._reported: tuple[float, dict[ledger.Use, ledger.UsageAmount]] = (0.0, {})

    async def admit(self, caller: Caller) -> None:
        """Count a request of a key.

        Raises:
            RateLimitedError: It has sent too many this minute.
            LogUnavailableError: What is left cannot be read.
        """
        if caller.key is None:
            return
        now = self._clock()
        for limit in _limits(caller, now, "requests"):
            await self._take(limit, 1, partial(self._spend, limit.use))
        self._count(caller.key, now, ledger.UsageAmount(requests=1))

    async def book(self, caller: Caller, decision_id: str, tokens: int, usd: float) -> None:
        """Reserve what a turn may cost at most, before its arm is drawn.

        Args:
            caller: Caller of the request.
            decision_id: Id of the decision, which `charge` or `release` names later.
            tokens: Most tokens that it reads and writes.
            usd: Most USD that it costs.

        Raises:
            RateLimitedError: The key has used too many tokens this minute.
            SpentError: It has spent its budget.
            LogUnavailableError: What is left cannot be read.
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
        """Count what a turn has cost, in place of what was reserved for it."""
        if (turn := self._turns.pop(decision_id, None)) is None:
            return
        amount = ledger.UsageAmount(0, cost.prompt_tokens + cost.completion_tokens, cost.usd)
        for use, booked in turn.booked.items():
            self._settle(use, booked - amount)
            if len(use[1]) == ledger.MINUTE:
                self._spent[use] += amount
        self._count(turn.key, turn.at, amount)

    def release(self, decision_id: str) -> None:
        """Return what was reserved for a turn that decided nothing."""
        if (turn := self._turns.pop(decision_id, None)) is not None:
            for use, booked in turn.booked.items():
                self._settle(use, booked)

    async def report(self) -> None:
        """Report what was used to the log, and return what is not needed. Raises LogUnavailableError."""
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
        """Yield response headers: what a key may use in a minute, what is left, when the next one begins."""
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
        """Take a part of a lease, which is extended where it does not suffice.

        Args:
            limit: What is limited.
            amount: How much of it.
            keep: Called with what is taken of the limit, as soon as it is: reporting earlier would release
                usage that was never counted.
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
        """Ask the log for more, and take it; wait a moment, and return False, where others hold all of it."""
        loop = asyncio.get_running_loop()

        def granted(grant: ledger.Grant) -> None:
            lease.left = grant.left
            lease.used_up_until = self._clock() + grant.again_s if grant.again_s else 0.0
            if grant.amount:  # which may be less: the last turn may exceed the limit
                held = lease.free + grant.amount
                lease.free = max(0.0, held - amount)
                keep(min(amount, held))

        if (again_s := lease.used_up_until - self._clock()) > 0:
            raise limit.refused(again_s)
        if self._clock() < lease.full_until:
            raise limit.full()
        reserve = ledger.Reserve(limit.use, limit.meter, limit.amount, max(0, amount - lease.free))
        grant = await self._exchange(reserve, granted)
        if not grant.amount and not grant.again_s:
            if loop.time() >= deadline:
                lease.full_until = self._clock() + WAIT_S / 4
                raise limit.full()
            await asyncio.sleep(AGAIN_S)
        return grant.amount > 0

    async def _exchange(
        self,
        reserve: ledger.Reserve | None = None,
        granted: Callable[[ledger.Grant], None] = lambda _: None,
    ) -> ledger.Grant:
        """Report and reserve; where nothing is to be reserved, return all that is free.

        What is written is counted as written, and what is granted is taken, before another exchange begins,
        whether or not the caller stays.
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
        booked = defaultdict[ledger.Use, ledger.UsageAmount](ledger.UsageAmount)
        for turn in self._turns.values():
            for use, amount in (*turn.booked.items(), *turn.beyond.items()):
                booked[use] += amount
        return dict(booked)

    def _count(self, key: str, at: float, amount: ledger.UsageAmount) -> None:
        for kind in (ledger.DAY, ledger.MONTH):
            self._spent[key, ledger.period(at, kind)] += amount

    def _settle(self, use: ledger.Use, returned: ledger.UsageAmount) -> None:
        """Return to a lease what a turn did not need; a turn that needed more takes it from there."""
        for meter in ("tokens", "usd"):
            if (use, meter) in self._leases:
                lease = self._leases[use, meter]
                free = lease.free + getattr(returned, meter)
                lease.free, lease.full_until = max(0.0, free), 0.0
                if lease.left is not None:
                    lease.left += min(0.0, free)


def _taken(lease: _Lease, amount: float, keep: Callable[[float], None]) -> bool:
    """Take from what is free, if it suffices; something must be, also where nothing is wanted."""
    if lease.free <= 0 or lease.free < amount:
        return False
    lease.free -= amount
    keep(amount)
    return True


def _limits(caller: Caller, now: float, meter: Meter) -> Iterator[_Limit]:
    """Yield the limits of a caller on something."""
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
