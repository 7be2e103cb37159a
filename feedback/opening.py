"""Open the log to write to it, or say what stands against that, before anything is written."""

import time
from collections.abc import Callable

from feedback.declared import declare
from feedback.reward import RewardRule
from feedback.store import Store


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
