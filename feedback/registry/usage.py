"""Usage of keys by period, and the leases of replicas on their limits.

A replica leases a part of the amount that is left of a limit and spends it locally. It reports the usage, and
returns what it does not need. All this happens in transactions that run one at a time, so that the leases of
all replicas together stay within the limit.

A limit per minute slides: usage in the previous minute of the clock counts in proportion to the part of that
minute that lies in the last 60 s, as if it had been spread evenly.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

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
            self._add(connection, [*spent.items(), *self._end(connection, now)], now)
            if reserve is not None:
                use, before = reserve.use, _minute_before(reserve.use)
                held, held_before = (held_by_replica.get(each, UsageAmount()) for each in (use, before))
                used, leased = (_sum(connection, query, use, before) for query in (_USED, _LEASED))
                grant = reserve.grant(
                    used[use],
                    leased[use] + held,
                    used[before] + leased[before] + held_before,
                    MINUTE_S - now % MINUTE_S,
                )
                held_by_replica[use] = held + make_amount(reserve.meter, grant.amount)
            self._hold(connection, held_by_replica, now)
        return grant

    def _add(self, connection: sa.Connection, spent: Iterable[tuple[Use, UsageAmount]], now: float) -> None:
        added: defaultdict[Use, UsageAmount] = defaultdict(UsageAmount)
        for use, amount in spent:
            added[use] += amount
        if added:
            rows = [{"key": key, "period": at, **asdict(amount)} for (key, at), amount in added.items()]
            connection.execute(_ADD, rows)
        minute = period(now - KEPT_S, MINUTE)
        if minute != self._pruned:
            self._pruned = minute
            connection.execute(_PRUNE, {"minute": minute})

    def _end(self, connection: sa.Connection, now: float) -> list[tuple[Use, UsageAmount]]:
        """End the leases of this replica and expired ones; return what others held of minutes.

        That counts as used: a replica that was killed or stopped may have spent it.
        """
        ended = {"replica": self._holder, "now": now}
        rows = connection.execute(_LOST, ended)
        lost = [((key, at), UsageAmount(*amounts)) for key, at, *amounts in rows]
        connection.execute(_END, ended)
        return lost

    def _hold(self, connection: sa.Connection, leases: Mapping[Use, UsageAmount], now: float) -> None:
        rows = [
            {"key": key, "period": at, "holder": self._holder, "until": now + ALIVE_S, **asdict(amount)}
            for (key, at), amount in leases.items()
            if amount
        ]
        if rows:
            connection.execute(_HOLD, rows)


def _minute_before(use: Use) -> Use:
    """Return the same key in the minute before; in no period, if the period is a day or a month.

    >>> _minute_before(("k", "2026-01-01T00:00")), _minute_before(("k", "2026-01"))
    (('k', '2025-12-31T23:59'), ('k', ''))
    """
    key, at = use
    if len(at) != MINUTE:
        return key, ""
    return key, period(datetime.fromisoformat(f"{at}Z").timestamp() - MINUTE_S, MINUTE)


def make_amount(meter: str, value: float) -> UsageAmount:
    """Return an amount of a single quantity.

    >>> make_amount("tokens", 3)
    UsageAmount(requests=0, tokens=3, usd=0.0)
    """
    return UsageAmount(**{meter: value if meter == "usd" else int(value)})  # type: ignore[arg-type]


def _sum(
    connection: sa.Connection, query: sa.Select[Any], use: Use, before: Use
) -> defaultdict[Use, UsageAmount]:
    sums: defaultdict[Use, UsageAmount] = defaultdict(UsageAmount)
    for key, at, *amounts in connection.execute(query, {"of_key": use[0], "at": use[1], "before": before[1]}):
        sums[key, at] += UsageAmount(*amounts)
    return sums


_u, _l = t.usage.c, t.leases.c

_new = insert(t.usage)  # of PostgreSQL, which SQLAlchemy compiles for SQLite as well

_ADD = _new.on_conflict_do_update(
    index_elements=[_u.key, _u.period],
    set_={name: _u[name] + _new.excluded[name] for name in UsageAmount.__slots__},
)

_PRUNE = sa.delete(t.usage).where(sa.func.length(_u.period) == MINUTE, _u.period < sa.bindparam("minute"))

_HOLD = sa.insert(t.leases)

_MINE, _EXPIRED = _l.holder == sa.bindparam("replica"), _l.until < sa.bindparam("now")

_END = sa.delete(t.leases).where(_MINE | _EXPIRED)

_LOST = sa.select(_l.key, _l.period, _l.requests, _l.tokens, _l.usd).where(
    ~_MINE, _EXPIRED, sa.func.length(_l.period) == MINUTE
)

_AT, _BEFORE = (sa.bindparam(name, type_=sa.String) for name in ("at", "before"))

_USED, _LEASED = (
    sa.select(c.key, c.period, c.requests, c.tokens, c.usd).where(
        c.key == sa.bindparam("of_key"), c.period.in_([_AT, _BEFORE])
    )
    for c in (_u, _l)
)


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
