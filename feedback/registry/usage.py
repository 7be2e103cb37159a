"""Usage of keys by period, which replicas add to, and read to apply the limits of keys."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t

MINUTE, DAY, MONTH = 16, 10, 7
"""Kinds of periods, as the length of their prefix of a time in ISO 8601."""

ROUNDING = 1e-9
"""Rounding error of sums of prices, USD."""

KEPT_S = 600
"""Seconds for which the usage in a minute is kept."""

MINUTE_S = 60.0


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


class UsageLedger:
    """The usage of keys in a log, as one replica reads it and adds to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pruned = ""

    def read(self, keys: Collection[str], now: float) -> dict[Use, UsageAmount]:
        """Return what keys have used in this minute, the one before, this day and this month."""
        with self._store.reading() as connection:
            return _read(connection, keys, now)

    def report(
        self, spent: Mapping[Use, UsageAmount], keys: Collection[str], now: float
    ) -> dict[Use, UsageAmount]:
        """Add what was used since the last report, and return what `read` does.

        Raises:
            LogUnavailableError: It failed; if the response to the commit was lost, it may have been written.
        """
        with self._store.writing() as connection:
            rows = [{"key": key, "period": at, **asdict(amount)} for (key, at), amount in spent.items()]
            connection.execute(_ADD, rows)
            minute = period(now - KEPT_S, MINUTE)
            if minute != self._pruned:
                self._pruned = minute
                connection.execute(_PRUNE, {"minute": minute})
            return _read(connection, keys, now)


def _read(connection: sa.Connection, keys: Collection[str], now: float) -> dict[Use, UsageAmount]:
    if not keys:
        return {}
    periods = [period(now - MINUTE_S, MINUTE), *(period(now, kind) for kind in (MINUTE, DAY, MONTH))]
    rows = connection.execute(_READ, {"keys": list(keys), "periods": periods})
    return {(key, at): UsageAmount(*amounts) for key, at, *amounts in rows}


def make_amount(meter: str, value: float) -> UsageAmount:
    """Return an amount of a single quantity.

    >>> make_amount("tokens", 3)
    UsageAmount(requests=0, tokens=3, usd=0.0)
    """
    return UsageAmount(**{meter: value if meter == "usd" else int(value)})  # type: ignore[arg-type]


_u = t.usage.c

_new = insert(t.usage)  # of PostgreSQL, which SQLAlchemy compiles for SQLite as well

_ADD = _new.on_conflict_do_update(
    index_elements=[_u.key, _u.period],
    set_={name: _u[name] + _new.excluded[name] for name in UsageAmount.__slots__},
)

_PRUNE = sa.delete(t.usage).where(sa.func.length(_u.period) == MINUTE, _u.period < sa.bindparam("minute"))

_READ = sa.select(_u.key, _u.period, _u.requests, _u.tokens, _u.usd).where(
    _u.key.in_(sa.bindparam("keys", expanding=True)), _u.period.in_(sa.bindparam("periods", expanding=True))
)


def spend(store: Store, now: float) -> dict[str, dict[str, UsageAmount]]:
    """Return the usage of each key: in the `day`, the `month` and in `total`."""
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
