"""Usage of keys by period, and the leases of replicas on their limits.

A replica leases a part of the amount that is left of a limit and spends it locally. It reports the usage, and
returns what it does not need. All this happens in transactions that run one at a time, so that the leases of
all replicas together stay within the limit.

A limit per minute slides: usage in the previous minute of the clock counts in proportion to the part of that
minute that lies in the last 60 s, as if it had been spread evenly.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import inf

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t

ALIVE_S = 5.0
"""Seconds after its last report for which the leases of a replica count."""

MINUTE, DAY, MONTH = 16, 10, 7
"""Kinds of periods, as the length of their prefix of a time in ISO 8601."""

SHARE = 1 / 8
"""Part of the amount left that a replica leases at once; near the limit, that is a request at a time."""

ROUNDING = 1e-9
"""Rounding error of sums of prices, USD."""

KEPT_S = 600
"""Seconds for which the usage in a minute is kept."""

MINUTE_S = 60.0

LEAST_S = 0.05
"""Least seconds for which a limit that is used up is refused."""


@dataclass(frozen=True, slots=True)
class UsageAmount:
    """An amount of the quantities that can be limited."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: "UsageAmount") -> "UsageAmount":
        """Return the sum."""
        return UsageAmount(self.requests + other.requests, self.tokens + other.tokens, self.usd + other.usd)

    def __sub__(self, other: "UsageAmount") -> "UsageAmount":
        """Return the difference."""
        return UsageAmount(self.requests - other.requests, self.tokens - other.tokens, self.usd - other.usd)

    def __bool__(self) -> bool:
        """Return whether any quantity differs from 0."""
        return any(astuple(self))


def period(at: float, kind: int) -> str:
    """Return the minute, the day or the month of a time in seconds since the epoch, in UTC.

    >>> period(1767225600.0, MINUTE), period(1767225600.0, DAY), period(1767225600.0, MONTH)
    ('2026-01-01T00:00', '2026-01-01', '2026-01')
    """
    return _minute(int(at // 60))[:kind]


@lru_cache(16)
def _minute(number: int) -> str:
    return datetime.fromtimestamp(60 * number, UTC).isoformat()


Use = tuple[str, str]
"""A key and a period."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """A request to lease a part of a limit.

    Attributes:
        use: The key and the period.
        meter: Limited quantity: a field of `UsageAmount`.
        limit: The limit, above 0.
        least: Smallest useful amount; if less is left, that is granted.
    """

    use: Use
    meter: str
    limit: float
    least: float

    def grant(
        self,
        used: UsageAmount,
        reserved: UsageAmount,
        before: UsageAmount = UsageAmount(),
        left_s: float = MINUTE_S,
    ) -> "Grant":
        """Return what is granted.

        Args:
            used: Reported usage in the period.
            reserved: Leases of all replicas, including this one.
            before: Usage and leases in the minute before.
            left_s: Seconds that are left of this minute.
        """
        spent, earlier = getattr(used, self.meter), getattr(before, self.meter)
        counted = spent + int(earlier * left_s / MINUTE_S)
        left = self.limit - counted - getattr(reserved, self.meter)
        if left <= ROUNDING:
            if counted + ROUNDING < self.limit:
                return Grant()
            return Grant(again_s=self._again_s(spent, earlier, left_s))
        share = left * SHARE if self.meter == "usd" else max(1, int(left * SHARE))
        granted = min(left, max(self.least, share))
        return Grant(granted, left - granted)

    def _again_s(self, spent: float, earlier: float, left_s: float) -> float:
        """Return the seconds until some of the limit is available; infinite for a day or a month."""
        if len(self.use[1]) != MINUTE:
            return inf
        if spent < self.limit:
            return max(LEAST_S, left_s - MINUTE_S * (self.limit - spent) / earlier)
        return left_s + MINUTE_S * (1 - self.limit / spent)


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a reservation.

    Attributes:
        amount: Amount added to the lease; 0 if nothing is left.
        left: Amount that is left after it.
        again_s: Seconds for which the limit is used up; 0: some is left, or leased by replicas.
    """

    amount: float = 0.0
    left: float = 0.0
    again_s: float = 0.0


class UsageLedger:
    """A replica's access to the usage and the leases in a log.

    Args:
        store: The log.
        holder: Name of the replica.
    """

    def __init__(self, store: Store, holder: str) -> None:
        self._store, self._holder = store, holder
        self._pruned = ""

    def exchange(
        self,
        spent: Mapping[Use, UsageAmount],
        leases: Mapping[Use, UsageAmount],
        now: float,
        reserve: Reserve | None = None,
    ) -> Grant:
        """Report the usage since the last call, and replace this replica's leases by these.

        Args:
            spent: Usage since the last call.
            leases: The leases of this replica from now on.
            now: Seconds since the epoch.
            reserve: Addition to a lease, if any.

        Raises:
            LogUnavailableError: The exchange failed; if the response to the commit was lost, it may have been
                written.
        """
        held_by_replica, grant = dict(leases), Grant()
        with self._store.writing() as connection:
            self._add(connection, spent, now)
            self._end(connection, now)
            if reserve is not None:
                held = held_by_replica.get(reserve.use, UsageAmount())
                used, reserved = _used(connection, reserve.use), _leased(connection, reserve.use) + held
                earlier, before = _minute_before(reserve.use), UsageAmount()
                if earlier is not None:
                    before = _used(connection, earlier) + _leased(connection, earlier)
                    before += held_by_replica.get(earlier, UsageAmount())
                grant = reserve.grant(used, reserved, before, MINUTE_S - now % MINUTE_S)
                held_by_replica[reserve.use] = held + make_amount(reserve.meter, grant.amount)
            self._hold(connection, held_by_replica, now)
        return grant

    def _add(self, connection: sa.Connection, spent: Mapping[Use, UsageAmount], now: float) -> None:
        u = t.usage.c
        for (key, at), amount in spent.items():
            values = asdict(amount)
            added = {name: u[name] + value for name, value in values.items()}
            update = sa.update(t.usage).where(u.key == key, u.period == at).values(added)
            if not connection.execute(update).rowcount:
                connection.execute(sa.insert(t.usage), {"key": key, "period": at, **values})
        minute = period(now - KEPT_S, MINUTE)
        if minute != self._pruned:
            self._pruned = minute
            old = (sa.func.length(u.period) == MINUTE) & (u.period < minute)
            connection.execute(sa.delete(t.usage).where(old))

    def _end(self, connection: sa.Connection, now: float) -> None:
        """End the leases of this replica and expired ones.

        An expired one counts as used in its minute: a replica that was killed or stopped may have spent it.
        """
        c = t.leases.c
        mine, expired = c.holder == self._holder, c.until < now
        lost = sa.select(c.key, c.period, c.requests, c.tokens, c.usd)
        of_minutes = lost.where(~mine, expired, sa.func.length(c.period) == MINUTE)
        spent: defaultdict[Use, UsageAmount] = defaultdict(UsageAmount)
        for key, at, *amounts in connection.execute(of_minutes):
            spent[key, at] += UsageAmount(*amounts)
        self._add(connection, spent, now)
        connection.execute(sa.delete(t.leases).where(mine | expired))

    def _hold(self, connection: sa.Connection, leases: Mapping[Use, UsageAmount], now: float) -> None:
        rows = [
            {"key": key, "period": at, "holder": self._holder, "until": now + ALIVE_S, **asdict(amount)}
            for (key, at), amount in leases.items()
            if amount
        ]
        if rows:
            connection.execute(sa.insert(t.leases), rows)


def _minute_before(use: Use) -> Use | None:
    """Return the same key in the minute before; None: the period is a day or a month.

    >>> _minute_before(("k", "2026-01-01T00:00")), _minute_before(("k", "2026-01"))
    (('k', '2025-12-31T23:59'), None)
    """
    key, at = use
    if len(at) != MINUTE:
        return None
    return key, period(datetime.fromisoformat(f"{at}Z").timestamp() - MINUTE_S, MINUTE)


def make_amount(meter: str, value: float) -> UsageAmount:
    """Return an amount of a single quantity.

    >>> make_amount("tokens", 3)
    UsageAmount(requests=0, tokens=3, usd=0.0)
    """
    return UsageAmount(**{meter: value if meter == "usd" else int(value)})  # type: ignore[arg-type]


def _used(connection: sa.Connection, use: Use) -> UsageAmount:
    u = t.usage.c
    return _sum(connection, t.usage, (u.key == use[0]) & (u.period == use[1]))


def _leased(connection: sa.Connection, use: Use) -> UsageAmount:
    c = t.leases.c
    return _sum(connection, t.leases, (c.key == use[0]) & (c.period == use[1]))


def _sum(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> UsageAmount:
    rows = connection.execute(sa.select(table.c.requests, table.c.tokens, table.c.usd).where(where))
    return sum((UsageAmount(requests, tokens, usd) for requests, tokens, usd in rows), UsageAmount())


def spend(store: Store, now: float) -> dict[str, dict[str, UsageAmount]]:
    """Return the usage of each key: in the `day`, the `month` and in `total`. Raises LogUnavailableError."""
    today, month = period(now, DAY), period(now, MONTH)
    u = t.usage.c
    query = sa.select(u.key, u.period, u.requests, u.tokens, u.usd)
    used: dict[str, dict[str, UsageAmount]] = {}
    with store.reading() as connection:
        rows = connection.execute(query.where((sa.func.length(u.period) == MONTH) | (u.period == today)))
        for key, at, *amounts in rows:
            amount = UsageAmount(*amounts)
            of_key = used.setdefault(
                key, {"day": UsageAmount(), "month": UsageAmount(), "total": UsageAmount()}
            )
            if at == today:
                of_key["day"] = amount
                continue
            of_key["total"] += amount
            if at == month:
                of_key["month"] = amount
    return used
