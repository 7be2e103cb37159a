"""Open the log of a service, after checks of its clock and its metrics."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import MetricRedefinedError
from armwise.feedback.events import FeedbackKind
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import ANSWER_S
from armwise.feedback.log.operations import Operation, find_newest_of_each, record
from armwise.feedback.log.store import Store
from armwise.feedback.reward import RewardRule

SERVING_S = 10.0
"""Longest time of a statement for which a request waits and holds a thread, in seconds."""


Definition = Mapping[str, Any]
"""Type and range of a metric, `low` to `high`, and the number of each of its `labels`, if it has any."""


def _describe(definition: Definition) -> str:
    """Return a definition as text.

    >>> _describe({"type": "float", "low": -1.0, "high": 1.0, "labels": {}})
    'float in [-1, 1]'
    >>> _describe({"type": "categorical", "low": 0.0, "high": 1.0, "labels": {"good": 1.0, "bad": 0.0}})
    'categorical {bad: 0, good: 1}'
    """
    kind, low, high, labels = (definition[name] for name in ("type", "low", "high", "labels"))
    if labels:
        return f"{kind} {{{', '.join(f'{label}: {number:g}' for label, number in sorted(labels.items()))}}}"
    return str(kind) if kind == "boolean" else f"{kind} in [{low:g}, {high:g}]"


def declare(store: Store, rule: RewardRule, now: float) -> None:
    """Record new and changed declarations of metrics.

    Raises:
        MetricRedefinedError: The log has values of another definition.
    """
    declared: dict[str, Definition] = {
        name: {"type": metric.type, "low": low, "high": high, "labels": metric.values or {}}
        for name, metric in rule.metrics.items()
        for low, high in [metric.range]
    }
    with store.reading() as connection:
        if _newest(connection).items() >= declared.items():
            return
    with store.writing() as connection:
        before = _newest(connection)
        for name, new in declared.items():
            if before.get(name) != new:
                _check(connection, name, before.get(name), new)
                record(connection, Operation.METRIC, now, new, subject=name)


def _newest(connection: sa.Connection) -> dict[str, Definition]:
    return {row.subject: row.document for row in find_newest_of_each(connection, Operation.METRIC)}


def _check(connection: sa.Connection, name: str, before: Definition | None, new: Definition) -> None:
    """Check that all values of a metric have the same definition, to which labels may be added.

    Values that lack a definition, such as imported ones, adopt the new one if they conform to it.
    """
    if before is not None and before["labels"] and new["labels"].items() >= before["labels"].items():
        return
    f = t.feedback.c
    query = sa.select(sa.func.count()).where(
        f.metric == name, f.kind == FeedbackKind.VALUE.value, f.value.is_not(None)
    )
    if before is None:
        outside = (f.value < new["low"]) | (f.value > new["high"])
        if new["type"] == "boolean":
            outside |= f.value.not_in((0.0, 1.0))
        if new["labels"]:
            outside |= f.value.not_in(sorted(new["labels"].values()))
        query = query.where(outside)
    if not (n := connection.scalar(query)):
        return
    if before is None:
        raise MetricRedefinedError(
            f"metric {name!r} is declared as {_describe(new)}, but {n:,} of its values in the log do not "
            "fit: declare a type and range that include them, or choose another name"
        )
    raise MetricRedefinedError(
        f"metric {name!r} is declared as {_describe(new)}, but was {_describe(before)} when its {n:,} values "
        f"in the log were received: choose another name, or declare {_describe(before)} again"
    )


def open_log(
    url: str,
    rule: RewardRule,
    clock: Callable[[], float] = time.time,
    most_feedback: int | None = None,
    redact: Callable[[str], str] | None = None,
    *,
    answer_s: float = ANSWER_S,
) -> Store:
    """Open the log of a service.

    Args:
        url: URL of the database.
        rule: Declares the metrics, and how a training log is joined.
        clock: Returns seconds since the epoch.
        most_feedback: Values and retractions that a decision or an episode may have; None: unlimited.
        redact: Applied to every text of a fact before it is written.
        answer_s: Longest time of a statement on a server, in seconds.

    Raises:
        SchemaError: The tables are those of another Armwise.
        ClockError: The clock is behind the log, or differs from that of the database.
        MetricRedefinedError: The log has values of a metric with another definition.
        LogUnavailableError: The database is unreachable, locked or full.
        StoreError: The URL is malformed, or the database is not supported.
    """
    store = Store(url, rule.join, clock, most_feedback, redact, answer_s=answer_s)
    try:
        store.check_clock()
        declare(store, rule, clock())
    except BaseException:
        store.close()
        raise
    return store
