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

from armwise.feedback.log import Store, row_time
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
        row = connection.execute(_NEWEST).first()
        if row is None or row.configured != _digest(configured):
            _insert(connection, actions(configured), _digest(configured))
            row = connection.execute(_NEWEST).one()
        return _read_set(row)


def live(store: Store, after: int = 0) -> ArmSet | None:
    """Return the newest set of arms, if its position is above `after`."""
    with store.reading() as connection:
        row = connection.execute(_NEWER, {"after": after}).first()
        return None if row is None else _read_set(row)


def every(store: Store) -> list[ArmSet]:
    """Return all sets that were ever live, the oldest first."""
    with store.reading() as connection:
        return [
            _read_set(row) for row in connection.execute(sa.select(t.arm_sets).order_by(t.arm_sets.c.seq))
        ]


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
    s, w = t.arm_sets.c, t.switches.c
    with store.reading() as connection:
        sets = connection.execute(sa.select(s.at, s.arms, s.version).order_by(s.seq)).all()
        switches = connection.execute(sa.select(w.at, w.arm, w.enabled).order_by(w.seq)).all()
    # sorted by time alone: a set comes before a switch of the same time
    changes = sorted(
        [*((row, False) for row in sets), *((row, True) for row in switches)], key=lambda c: c[0].at
    )
    periods: list[LiveArms] = []
    live: frozenset[str] = frozenset()
    off: set[str] = set()
    for row, switched in changes:
        if switched:
            (off.discard if row.enabled else off.add)(row.arm)
        else:
            live = frozenset(row.arms)
        before, after = periods[-1].arms if periods else frozenset[str](), live - off
        if after != before:
            moved = tuple(sorted(after - before)), tuple(sorted(before - after))
            periods.append(LiveArms(row.at, after, *moved, switched, None if switched else row.version))
    return periods


def at_start(store: Store, configured: Declared) -> tuple[str, ...]:
    """Return the arms that `start` would return; only reads."""
    with store.reading() as connection:
        row = connection.execute(_NEWEST).first()
        if row is None or row.configured != _digest(configured):
            return tuple(actions(configured))
        return tuple(row.arms)


def without_versions(store: Store, configured: Declared) -> ArmSet:
    """Return the live arms for a version that brings none, after a start with `configured` arms."""
    with store.reading() as connection:
        newest = connection.execute(_NEWEST).first()
        if newest is None or newest.configured != _digest(configured):
            return ArmSet(0, tuple(actions(configured)))
        base = connection.execute(_NEWEST_BASE).first()
        return _read_set(newest if base is None else base)


def list_defined(store: Store) -> list[str]:
    """Return the names of all arms that were ever live, in the order in which they entered."""
    with store.reading() as connection:
        sets = connection.scalars(sa.select(t.arm_sets.c.arms).order_by(t.arm_sets.c.seq))
        return list(dict.fromkeys(chain.from_iterable(sets)))


def replace(store: Store, names: Sequence[str], configured: Declared) -> ArmSet:
    """Make these the live arms.

    Args:
        store: The log.
        names: Every arm that is live from now on.
        configured: The arms in the configuration file; a start after these changed replaces this set.
    """
    with store.writing() as connection:
        _insert(connection, names, _digest(configured))
        return _read_set(connection.execute(_NEWEST).one())


def bring(connection: sa.Connection, version: int) -> int | None:
    """Make live the arms that a version brings, or else the newest set from before any version's arms.

    To be called within the transaction that records the promotion of the version, or a rollback to it.

    Args:
        connection: Connection of a write transaction.
        version: A published version.

    Returns:
        The position of the live set; None before the first set.
    """
    brought, newest = _find_brought(connection, version), connection.execute(_NEWEST).first()
    if brought is None:
        return None if newest is None else int(newest.seq)
    bringing, arms = brought
    _insert(connection, arms, _digest({}) if newest is None else newest.configured, bringing)
    return int(connection.execute(_NEWEST).one().seq)


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
    newest = connection.execute(_NEWEST).first()
    if newest is None or newest.version is None:
        return None
    base = connection.execute(_NEWEST_BASE).first()
    return None if base is None else (None, base.arms)


_NEWEST = sa.select(t.arm_sets).order_by(t.arm_sets.c.seq.desc()).limit(1)

_NEWER = _NEWEST.where(t.arm_sets.c.seq > sa.bindparam("after"))

_NEWEST_BASE = _NEWEST.where(t.arm_sets.c.version.is_(None))  # an operator or the configuration wrote it


def _read_set(row: Any) -> ArmSet:
    return ArmSet(row.seq, tuple(row.arms), row.version)


def _insert(
    connection: sa.Connection, names: Sequence[str], configured: str, version: int | None = None
) -> None:
    """Add a set.

    Args:
        connection: Connection of a write transaction.
        names: Names of its arms.
        configured: Digest of the arms in the configuration file.
        version: The version that brings it; None: an operator or the configuration does.
    """
    row = {"arms": list(names), "configured": configured, "version": version}
    connection.execute(sa.insert(t.arm_sets), {**row, "at": row_time(connection, time.time())})


def _digest(arms: Declared) -> str:
    return hashlib.sha256(json.dumps(arms, sort_keys=True).encode()).hexdigest()


def switch(store: Store, arm: str, enabled: bool, now: float) -> None:
    """Record that an arm is switched on or off from now on."""
    with store.writing() as connection:
        row = {"arm": arm, "enabled": enabled, "at": row_time(connection, now)}
        connection.execute(sa.insert(t.switches), row)


def list_disabled(store: Store) -> frozenset[str]:
    """Return the arms whose newest switch is off."""
    with store.reading() as connection:
        return frozenset(connection.scalars(_DISABLED))


_DISABLED = sa.select(t.switches.c.arm).where(
    t.switches.c.seq.in_(sa.select(sa.func.max(t.switches.c.seq)).group_by(t.switches.c.arm)),
    ~t.switches.c.enabled,
)
