"""Open the log of a service, after checks of its clock and its metrics."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from feedback.errors import MetricRedefinedError
from feedback.events import Kind
from feedback.log import tables as t
from feedback.log.store import Store
from feedback.reward import RewardRule


@dataclass(frozen=True, slots=True)
class Definition:
    """Type and range of a metric.

    Attributes:
        type: `boolean` or `float`.
        low: Smallest value.
        high: Largest value.
    """

    type: str
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as text.

        >>> str(Definition("boolean", 0.0, 1.0)), str(Definition("float", -1.0, 1.0))
        ('boolean', 'float in [-1, 1]')
        """
        return self.type if self.type == "boolean" else f"{self.type} in [{self.low:g}, {self.high:g}]"


def declare(store: Store, rule: RewardRule, now: float) -> None:
    """Record new and changed declarations of metrics.

    Args:
        store: The log.
        rule: Declares the metrics.
        now: Seconds since the epoch.

    Raises:
        MetricRedefinedError: The log has values of another definition; nothing was written.
        LogUnavailableError: Nothing was written.
    """
    declared = {name: Definition(metric.type, *metric.range) for name, metric in rule.metrics.items()}
    with store.reading() as connection:
        if _newest(connection).items() >= declared.items():
            return
    with store.writing() as connection:
        before = _newest(connection)
        changed = {name: new for name, new in declared.items() if before.get(name) != new}
        for name, new in changed.items():
            _check(connection, name, before.get(name), new)
        rows = [
            {"name": name, "type": one.type, "low": one.low, "high": one.high, "at": now}
            for name, one in changed.items()
        ]
        if rows:
            connection.execute(sa.insert(t.metrics), rows)


def _newest(connection: sa.Connection) -> Mapping[str, Definition]:
    """Return the newest definition of each metric."""
    m = t.metrics.c
    newest = sa.select(sa.func.max(m.seq)).group_by(m.name)
    rows = connection.execute(sa.select(m.name, m.type, m.low, m.high).where(m.seq.in_(newest)))
    return {name: Definition(*row) for name, *row in rows}


def _check(connection: sa.Connection, name: str, before: Definition | None, new: Definition) -> None:
    """Check that all values of a metric have one definition.

    Values without a definition, such as imported ones, get the new one if they conform to it.
    """
    f = t.feedback.c
    query = sa.select(sa.func.count()).where(f.metric == name, f.kind == Kind.VALUE.value)
    if before is None:
        outside = (f.value < new.low) | (f.value > new.high)
        if new.type == "boolean":
            outside |= f.value.not_in((0.0, 1.0))
        query = query.where(outside)
    if not (n := connection.scalar(query)):
        return
    if before is None:
        raise MetricRedefinedError(
            f"metric {name!r} is declared as {new}, and the log has {n:,} values of it that are not: "
            "declare a type and range that include them, or another name"
        )
    raise MetricRedefinedError(
        f"metric {name!r} is declared as {new}, and was {before} when the {n:,} values of it in the log "
        f"were received: declare another name, or {before} again"
    )


def open_log(
    url: str,
    rule: RewardRule,
    clock: Callable[[], float] = time.time,
    most_feedback: int | None = None,
) -> Store:
    """Open the log of a service.

    Args:
        url: Of the database.
        rule: Declares the metrics, and how a training log is joined.
        clock: Seconds since the epoch.
        most_feedback: Values of feedback that a decision or an episode may have, and retractions.

    Raises:
        SchemaError: The tables are those of an older or a newer Armwise.
        ClockError: The clock is behind the log, or differs from that of the database.
        MetricRedefinedError: The log has values of a metric with another definition.
        LogUnavailableError: The database is unreachable, locked or full.
        StoreError: The URL is malformed, or the database is not supported.
    """
    store = Store(url, rule.join, clock, most_feedback)
    try:
        store.check_clock()
        declare(store, rule, clock())
    except BaseException:
        store.close()
        raise
    return store
