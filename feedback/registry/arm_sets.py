"""Arm sets: rows of the log that say which arms are live. Every replica reads them; the newest set counts.

A set is written when the service starts and the arms in its configuration have changed, when the arms are
replaced at run time, and when a version that brings arms is promoted or rolled back to. So the latest change
wins, and a replica that restarts serves the same arms as the others. A promotion of, or a rollback to, a
version that brings none makes the newest set live again that an operator or the configuration wrote.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import ConflictError
from armwise.feedback.log import Store, row_time
from armwise.feedback.log import tables as t

Arms = Mapping[str, Mapping[str, Any]]
"""Arm name -> its description as JSON, without defaults."""

Same = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class ArmSet:
    """The arms that are live since a point in the log.

    Attributes:
        seq: Position of the set, increasing.
        arms: Every arm by name, as JSON.
        version: The version that brought them; None: an operator or the configuration did.
    """

    seq: int
    arms: Arms
    version: int | None = None


def started(store: Store, configured: Arms) -> ArmSet:
    """Return the live arms after a start: the configured ones if these changed since the last start."""
    with store.writing() as connection:
        row = connection.execute(_NEWEST).first()
        if row is None or row.configured != _digest(configured):
            _insert(connection, configured, configured)
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


def actions(arms: Arms) -> list[str]:
    """Return the names of the arms that a policy chooses among; the others are members of these.

    >>> actions({"bm25": {"kind": "bm25", "action": False}, "fused": {"kind": "rrf"}})
    ['fused']
    """
    return [name for name, arm in arms.items() if arm.get("action", True)]


def history(store: Store) -> list[LiveArms]:
    """Return the periods in which the same arms were live and switched on, the oldest first.

    Arms that are only members of other arms (`action: false`) are left out.
    """
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
            live = frozenset(actions(row.arms))
        before, after = periods[-1].arms if periods else frozenset[str](), live - off
        if after != before:
            moved = tuple(sorted(after - before)), tuple(sorted(before - after))
            periods.append(LiveArms(row.at, after, *moved, switched, None if switched else row.version))
    return periods


def at_start(store: Store, configured: Arms) -> Arms:
    """Return the arms that `started` would return; only reads."""
    with store.reading() as connection:
        row = connection.execute(_NEWEST).first()
        return configured if row is None or row.configured != _digest(configured) else row.arms


def without_versions(store: Store, configured: Arms) -> ArmSet:
    """Return the live arms for a version that brings none, after a start with `configured` arms."""
    with store.reading() as connection:
        newest = connection.execute(_NEWEST).first()
        if newest is None or newest.configured != _digest(configured):
            return ArmSet(0, configured)
        base = connection.execute(_NEWEST_BASE).first()
        return _read_set(newest if base is None else base)


def defined(store: Store) -> dict[str, Mapping[str, Any]]:
    """Return every arm that was ever live, by name, in its newest definition."""
    with store.reading() as connection:
        return _defined(connection)


def _defined(connection: sa.Connection) -> dict[str, Mapping[str, Any]]:
    newest: dict[str, Mapping[str, Any]] = {}
    for arms in connection.scalars(_DEFINITIONS):
        newest |= arms
    return newest


_DEFINITIONS = sa.select(t.arm_sets.c.arms).order_by(t.arm_sets.c.seq)


def replace(store: Store, arms: Arms, configured: Arms, same: Same) -> ArmSet:
    """Make these the live arms.

    Args:
        store: The log.
        arms: Every arm that is live from now on.
        configured: The arms in the configuration file; a start after these changed replaces this set.
        same: Returns whether two descriptions mean the same arm.

    Raises:
        ConflictError: A name stood for another arm before; a policy would apply what it learned about that
            arm to this one.
    """
    with store.writing() as connection:
        _refuse_other(_defined(connection), arms, same)
        _insert(connection, arms, configured)
        row = connection.execute(_NEWEST).one()
        return _read_set(row)


def bring(connection: sa.Connection, version: int, same: Same) -> int | None:
    """Make live the arms that a version brings, or else the newest set from before any version's arms.

    To be called within the transaction that records the promotion of the version, or a rollback to it.

    Args:
        connection: Connection of a write transaction.
        version: A published version.
        same: Returns whether two descriptions mean the same arm.

    Returns:
        The position of the live set; None before the first set.

    Raises:
        ConflictError: A name has been used for another arm meanwhile.
    """
    brought, newest = _brought(connection, version), connection.execute(_NEWEST).first()
    if brought is None:
        return None if newest is None else int(newest.seq)
    bringing, arms = brought
    if bringing is not None:
        _refuse_other(_defined(connection), arms, same)
    configured = _digest({}) if newest is None else newest.configured
    row = {
        "arms": arms,
        "configured": configured,
        "at": row_time(connection, time.time()),
        "version": bringing,
    }
    connection.execute(sa.insert(t.arm_sets), row)
    return int(connection.execute(_NEWEST).one().seq)


def brought_by(store: Store, version: int) -> Arms | None:
    """Return the arms that a promotion of a version would make live; None: the live arms stay."""
    with store.reading() as connection:
        brought = _brought(connection, version)
    return None if brought is None else brought[1]


def _brought(connection: sa.Connection, version: int) -> tuple[int | None, Arms] | None:
    """Return the arms to make live, with the version that brings them; None: the live arms stay.

    The version is None for a set that an operator or the configuration wrote.
    """
    v = t.versions.c
    brought: Arms | None = connection.scalar(sa.select(v.arms).where(v.version == version))
    if brought is not None:
        return version, brought
    newest = connection.execute(_NEWEST).first()
    if newest is None or newest.version is None:
        return None
    base = connection.execute(_NEWEST_BASE).first()
    return None if base is None else (None, base.arms)


def _refuse_other(before: Mapping[str, Mapping[str, Any]], arms: Arms, same: Same) -> None:
    """Refuse a name that stood for another arm before. Raises ConflictError."""
    for name, spec in arms.items():
        if name in before and not same(before[name], spec):
            was = json.dumps(dict(before[name]))
            raise ConflictError(f"arm {name!r} was defined as {was} before: give this one another name")


_NEWEST = sa.select(t.arm_sets).order_by(t.arm_sets.c.seq.desc()).limit(1)

_NEWER = _NEWEST.where(t.arm_sets.c.seq > sa.bindparam("after"))

_NEWEST_BASE = _NEWEST.where(t.arm_sets.c.version.is_(None))  # an operator or the configuration wrote it


def _read_set(row: Any) -> ArmSet:
    return ArmSet(row.seq, row.arms, row.version)


def _insert(connection: sa.Connection, arms: Arms, configured: Arms) -> None:
    row = {"arms": dict(arms), "configured": _digest(configured), "at": row_time(connection, time.time())}
    connection.execute(sa.insert(t.arm_sets), row)


def _digest(arms: Arms) -> str:
    return hashlib.sha256(json.dumps(arms, sort_keys=True).encode()).hexdigest()


def switch(store: Store, arm: str, enabled: bool, now: float) -> None:
    """Record that an arm is switched on or off from now on."""
    with store.writing() as connection:
        row = {"arm": arm, "enabled": enabled, "at": row_time(connection, now)}
        connection.execute(sa.insert(t.switches), row)


def disabled(store: Store) -> frozenset[str]:
    """Return the arms whose newest switch is off."""
    with store.reading() as connection:
        return frozenset(connection.scalars(_DISABLED))


_DISABLED = sa.select(t.switches.c.arm).where(
    t.switches.c.seq.in_(sa.select(sa.func.max(t.switches.c.seq)).group_by(t.switches.c.arm)),
    ~t.switches.c.enabled,
)
