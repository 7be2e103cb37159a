"""Open the log of a service, after checks of its clock and its metrics."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

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


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Type and range of a metric.

    Attributes:
        type: `boolean` or `float`.
        low: Smallest value.
        high: Largest value.
        labels: The number of each label of a categorical metric; empty for others.
    """

    type: str
    low: float
    high: float
    labels: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as text.

        >>> str(MetricDefinition("boolean", 0.0, 1.0)), str(MetricDefinition("float", -1.0, 1.0))
        ('boolean', 'float in [-1, 1]')
        >>> str(MetricDefinition("categorical", 0.0, 1.0, {"good": 1.0, "bad": 0.0}))
        'categorical {bad: 0, good: 1}'
        """
        if self.labels:
            labels = (f"{label}: {number:g}" for label, number in sorted(self.labels.items()))
            return f"{self.type} {{{', '.join(labels)}}}"
        return self.type if self.type == "boolean" else f"{self.type} in [{self.low:g}, {self.high:g}]"

    def extends(self, before: "MetricDefinition") -> bool:
        """Return whether this adds labels to an earlier definition, so that its values still conform."""
        return bool(before.labels) and self.labels.items() >= before.labels.items()


def declare(store: Store, rule: RewardRule, now: float) -> None:
    """Record new and changed declarations of metrics.

    Raises:
        MetricRedefinedError: The log has values of another definition.
    """
    declared = {
        name: MetricDefinition(metric.type, *metric.range, metric.values or {})
        for name, metric in rule.metrics.items()
    }
    with store.reading() as connection:
        if _newest(connection).items() >= declared.items():
            return
    with store.writing() as connection:
        before = _newest(connection)
        changed = {name: new for name, new in declared.items() if before.get(name) != new}
        for name, new in changed.items():
            _check(connection, name, before.get(name), new)
            record(connection, Operation.METRIC, now, asdict(new), subject=name)


def _newest(connection: sa.Connection) -> Mapping[str, MetricDefinition]:
    """Return the newest definition of each metric."""
    rows = find_newest_of_each(connection, Operation.METRIC)
    return {row.subject: MetricDefinition(**row.document) for row in rows}


def _check(
    connection: sa.Connection, name: str, before: MetricDefinition | None, new: MetricDefinition
) -> None:
    """Check that all values of a metric have the same definition.

    Values that lack a definition, such as imported ones, adopt the new one if they conform to it.
    """
    if before is not None and new.extends(before):
        return
    f = t.feedback.c
    query = sa.select(sa.func.count()).where(
        f.metric == name, f.kind == FeedbackKind.VALUE.value, f.value.is_not(None)
    )
    if before is None:
        outside = (f.value < new.low) | (f.value > new.high)
        if new.type == "boolean":
            outside |= f.value.not_in((0.0, 1.0))
        if new.labels:
            outside |= f.value.not_in(sorted(new.labels.values()))
        query = query.where(outside)
    if not (n := connection.scalar(query)):
        return
    if before is None:
        raise MetricRedefinedError(
            f"metric {name!r} is declared as {new}, but {n:,} of its values in the log do not fit: "
            "declare a type and range that include them, or choose another name"
        )
    raise MetricRedefinedError(
        f"metric {name!r} is declared as {new}, but was {before} when its {n:,} values in the log "
        f"were received: choose another name, or declare {before} again"
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
