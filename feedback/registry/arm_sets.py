"""Arm sets: rows of the log that say which arms are live. Every replica reads them; the newest set counts.

A set is written when the service starts and the arms in its configuration have changed, when the arms are
replaced at run time, and when a version that brings arms is promoted or rolled back to. So the latest change
wins, and a replica that restarts serves the same arms as the others. A promotion of, or a rollback to, a
version that brings none makes the newest set live again that an operator or the configuration wrote.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import Operation, Store, operations, row_time
from armwise.feedback.log import tables as t

Declared = Mapping[str, Mapping[str, Any]]
"""The arms of the configuration file: name -> description as JSON, without defaults."""


@dataclass(frozen=True, slots=True)
class ArmSet:
    """The arms that are live since a point in the log.

    Attributes:
        seq: Position of the set, increasing.
        arms: Names of the arms that a policy chooses among.
        version: The version that brought them; None: an operator or the configuration did.
    """

    seq: int
    arms: tuple[str, ...]
    version: int | None = None


def start(store: Store, configured: Declared) -> ArmSet:
    """Return the live arms after a start: the configured ones if these changed since the last start."""
    with store.writing() as connection:
        if (row := _find_started(connection, configured)) is None:
            return _insert(connection, actions(configured), _digest(configured))
        return _read_set(row)


def describe_change(before: ArmSet | None, now: ArmSet) -> str:
    """Return which arms a start has added and removed, as sentences; empty if no arm is gone.

    >>> describe_change(ArmSet(1, ("cheap", "dear")), ArmSet(2, ("dear", "economy")))[:33]
    'new arms: economy; gone: cheap. W'
    >>> describe_change(ArmSet(1, ("dear",)), ArmSet(2, ("dear", "economy")))
    ''
    """
    if before is None:
        return ""
    new, gone = (", ".join(sorted({*a.arms} - {*b.arms})) for a, b in ((now, before), (before, now)))
    if not gone:
        return ""
    return (
        f"new arms: {new or 'none'}; gone: {gone}. What was learned about {gone} is not used. If an arm was "
        "only renamed, give it its old name again"
    )


def live(store: Store, after: int = 0) -> ArmSet | None:
    """Return the newest set of arms, if its position is above `after`."""
    with store.reading() as connection:
        row = operations.find_newest(connection, Operation.ARM_SET)
        return None if row is None or row.seq <= after else _read_set(row)


def every(store: Store) -> list[ArmSet]:
    """Return all sets that were ever live, the oldest first."""
    with store.reading() as connection:
        return [_read_set(row) for row in operations.read_all(connection, Operation.ARM_SET)]


@dataclass(frozen=True, slots=True)
class LiveArms:
    """The arms that were live and switched on since a time.

    Attributes:
        at: Start of the period, seconds since the epoch.
        arms: Names of the arms.
        added: Arms that became live or were switched on at this time.
        removed: Arms that ceased to be live or were switched off at this time.
        switched: Whether an arm was switched on or off; otherwise a new set became live.
        version: The version that brought the set; None: an operator or the configuration did.
    """

    at: float
    arms: frozenset[str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    switched: bool
    version: int | None


def actions(arms: Declared) -> list[str]:
    """Return the names of the arms that a policy chooses among; the others are members of these.

    >>> actions({"bm25": {"kind": "bm25", "action": False}, "fused": {"kind": "rrf"}})
    ['fused']
    """
    return [name for name, arm in arms.items() if arm.get("action", True)]


def history(store: Store) -> list[LiveArms]:
    """Return the periods in which the same arms were live and switched on, the oldest first."""
    with store.reading() as connection:
        sets = operations.read_all(connection, Operation.ARM_SET)
        switches = operations.read_all(connection, Operation.SWITCH)
    periods: list[LiveArms] = []
    live: frozenset[str] = frozenset()
    off: set[str] = set()
    # sorted by time alone: a set comes before a switch of the same time
    for row in sorted([*sets, *switches], key=lambda row: row.at):
        switched = row.kind == Operation.SWITCH
        if switched:
            (off.discard if row.document["enabled"] else off.add)(row.subject)
        else:
            live = frozenset(row.document["arms"])
        before, after = periods[-1].arms if periods else frozenset[str](), live - off
        if after != before:
            moved = tuple(sorted(after - before)), tuple(sorted(before - after))
            periods.append(LiveArms(row.at, after, *moved, switched, row.version))
    return periods


def at_start(store: Store, configured: Declared) -> tuple[str, ...]:
    """Return the arms that `start` would return; only reads."""
    with store.reading() as connection:
        row = _find_started(connection, configured)
        return tuple(actions(configured)) if row is None else _read_set(row).arms


def without_versions(store: Store, configured: Declared) -> ArmSet:
    """Return the live arms for a version that brings none, after a start with `configured` arms."""
    with store.reading() as connection:
        if (newest := _find_started(connection, configured)) is None:
            return ArmSet(0, tuple(actions(configured)))
        return _read_set(_find_base(connection) or newest)


def list_defined(store: Store) -> list[str]:
    """Return the names of all arms that were ever live, in the order in which they entered."""
    return list(dict.fromkeys(chain.from_iterable(made.arms for made in every(store))))


def replace(store: Store, names: Sequence[str], configured: Declared) -> ArmSet:
    """Make these the live arms.

    Args:
        store: The log.
        names: Every arm that is live from now on.
        configured: The arms in the configuration file; a start after these changed replaces this set.
    """
    with store.writing() as connection:
        return _insert(connection, names, _digest(configured))


def bring(connection: sa.Connection, version: int) -> int | None:
    """Make live the arms that a version brings, or else the newest set from before any version's arms.

    To be called within the transaction that records the promotion of the version, or a rollback to it.

    Returns:
        The position of the live set; None before the first set.
    """
    brought = _find_brought(connection, version)
    newest = operations.find_newest(connection, Operation.ARM_SET)
    if brought is None:
        return None if newest is None else int(newest.seq)
    bringing, arms = brought
    configured = _digest({}) if newest is None else newest.document["configured"]
    return _insert(connection, arms, configured, bringing).seq


def find_brought(store: Store, version: int) -> tuple[str, ...] | None:
    """Return the arms that a promotion of a version would make live; None: the live arms stay."""
    with store.reading() as connection:
        brought = _find_brought(connection, version)
    return None if brought is None else tuple(brought[1])


def _find_brought(connection: sa.Connection, version: int) -> tuple[int | None, list[str]] | None:
    """Return the arms to make live, with the version that brings them; None: the live arms stay.

    The version is None for a set that an operator or the configuration wrote.
    """
    v = t.versions.c
    brought: list[str] | None = connection.scalar(sa.select(v.arms).where(v.version == version))
    if brought is not None:
        return version, brought
    newest = operations.find_newest(connection, Operation.ARM_SET)
    if newest is None or newest.version is None:
        return None
    base = _find_base(connection)
    return None if base is None else (None, base.document["arms"])


def _find_started(connection: sa.Connection, configured: Declared) -> sa.Row[Any] | None:
    """Return the newest set, unless a start with these arms would replace it."""
    row = operations.find_newest(connection, Operation.ARM_SET)
    return None if row is None or row.document["configured"] != _digest(configured) else row


def _find_base(connection: sa.Connection) -> sa.Row[Any] | None:
    """Return the newest set that an operator or the configuration wrote."""
    sets = operations.read_all(connection, Operation.ARM_SET)
    return next((row for row in reversed(sets) if row.version is None), None)


def _read_set(row: sa.Row[Any]) -> ArmSet:
    return ArmSet(row.seq, tuple(row.document["arms"]), row.version)


def _insert(
    connection: sa.Connection, names: Sequence[str], configured: str, version: int | None = None
) -> ArmSet:
    """Add a set, within a write transaction, under the digest of the arms in the configuration file."""
    at, document = row_time(connection, time.time()), {"arms": list(names), "configured": configured}
    seq = operations.record(connection, Operation.ARM_SET, at, document, version=version)
    return ArmSet(seq, tuple(names), version)


def _digest(arms: Declared) -> str:
    return hashlib.sha256(json.dumps(arms, sort_keys=True).encode()).hexdigest()


def switch(store: Store, arm: str, enabled: bool, now: float) -> None:
    """Record that an arm is switched on or off from now on."""
    with store.writing() as connection:
        at = row_time(connection, now)
        operations.record(connection, Operation.SWITCH, at, {"enabled": enabled}, subject=arm)


def list_disabled(store: Store) -> frozenset[str]:
    """Return the arms whose newest switch is off."""
    with store.reading() as connection:
        switches = operations.find_newest_of_each(connection, Operation.SWITCH)
    return frozenset(row.subject for row in switches if not row.document["enabled"])
