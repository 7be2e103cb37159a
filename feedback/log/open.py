"""Open the log to write to it, or say what stands against that, before anything is written."""

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
    """What the values of a metric are.

    Attributes:
        type: `boolean` or `float`.
        low: Smallest value.
        high: Largest value.
    """

    type: str
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as it is told.

        >>> str(Definition("boolean", 0.0, 1.0)), str(Definition("float", -1.0, 1.0))
        ('boolean', 'float in [-1, 1]')
        """
        return self.type if self.type == "boolean" else f"{self.type} in [{self.low:g}, {self.high:g}]"


def declare(store: Store, rule: RewardRule, now: float) -> None:
    """Write down what is declared for the first time, or anew; write nothing where nothing changed.

    Args:
        store: The log.
        rule: Declares the metrics.
        now: Seconds since the epoch.

    Raises:
        MetricRedefinedError: There are values of another kind in the log; nothing was written.
        LogUnavailableError: Nothing was written.
    """
    declared = {name: Definition(metric.type, *metric.range) for name, metric in rule.metrics.items()}
    with store.reading() as connection:
        if _newest(connection).items() >= declared.items():
            return
    with store.writing() as connection:
        before = _newest(connection)
        changed = {name: now_is for name, now_is in declared.items() if before.get(name) != now_is}
        for name, now_is in changed.items():
            _check(connection, name, before.get(name), now_is)
        rows = [
            {"name": name, "type": one.type, "low": one.low, "high": one.high, "at": now}
            for name, one in changed.items()
        ]
        if rows:
            connection.execute(sa.insert(t.metrics), rows)


def _newest(connection: sa.Connection) -> Mapping[str, Definition]:
    """Return what each metric is, by what was written last."""
    m = t.metrics.c
    newest = sa.select(sa.func.max(m.seq)).group_by(m.name)
    rows = connection.execute(sa.select(m.name, m.type, m.low, m.high).where(m.seq.in_(newest)))
    return {name: Definition(*row) for name, *row in rows}


def _check(connection: sa.Connection, name: str, before: Definition | None, now_is: Definition) -> None:
    """See to it that all values of a metric are of one kind.

    Values that are older than any definition are taken for what they are declared to be now, where
    they can be.
    """
    f = t.feedback.c
    query = sa.select(sa.func.count()).where(f.metric == name, f.kind == Kind.VALUE.value)
    if before is None:
        outside = (f.value < now_is.low) | (f.value > now_is.high)
        if now_is.type == "boolean":
            outside |= f.value.not_in((0.0, 1.0))
        query = query.where(outside)
    if not (n := connection.scalar(query)):
        return
    if before is None:
        raise MetricRedefinedError(
            f"metric {name!r} is declared as {now_is}, and the log has {n:,} values of it that are not: "
            "declare it as what holds them, or give it another name"
        )
    raise MetricRedefinedError(
        f"metric {name!r} is declared as {now_is}, and was {before} when the {n:,} values of it in the log "
        f"came in: give it another name, or declare it as {before} again"
    )


def open_log(url: str, rule: RewardRule, clock: Callable[[], float] = time.time) -> Store:
    """Return the log of a service whose feedback is declared by a rule.

    Args:
        url: Of the database.
        rule: Declares the metrics, and how a training log is joined.
        clock: Seconds since the epoch.

    Raises:
        SchemaError: The tables are those of an older or a newer Armwise.
        ClockError: The clock is behind the log, or not that of the database's machine.
        MetricRedefinedError: The log holds values of a metric that was declared otherwise.
        LogUnavailableError: The database is away, locked or full.
        StoreError: The URL is malformed, or the database cannot keep a log.
    """
    store = Store(url, rule.join, clock)
    try:
        store.check_clock()
        declare(store, rule, clock())
    except BaseException:
        store.close()
        raise
    return store
