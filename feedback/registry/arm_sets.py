"""Arm sets: which arms are live, recorded in the log and read by every replica. The newest set counts.

A set is written when the service starts with other arms in its configuration than the last time, and when
the arms are replaced at run time. So the latest change wins, whether made in the file or by a call, and a
replica that restarts serves the same arms as the others.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from feedback.errors import ConflictError
from feedback.log import Store
from feedback.log import tables as t

Arms = Mapping[str, Mapping[str, Any]]
"""Arm name -> its description as JSON, without defaults."""

Same = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class ArmSet:
    """The arms that are live since a point in the log.

    Attributes:
        seq: Its position; newer ones are higher.
        arms: Every arm by name, as JSON.
    """

    seq: int
    arms: Arms


def started(store: Store, configured: Arms) -> ArmSet:
    """Return the live arms after a start; configured arms that changed since the last start replace them."""
    with store.writing() as connection:
        row = connection.execute(_NEWEST).first()
        if row is None or row.configured != _digest(configured):
            _insert(connection, configured, configured)
            row = connection.execute(_NEWEST).one()
        return ArmSet(row.seq, row.arms)


def live(store: Store, after: int = 0) -> ArmSet | None:
    """Return the live arms; None where there are none, or none newer than position `after`."""
    with store.reading() as connection:
        row = connection.execute(_NEWEST.where(t.arm_sets.c.seq > after)).first()
        return None if row is None else ArmSet(row.seq, row.arms)


def at_start(store: Store, configured: Arms) -> Arms:
    """Return the arms that `started` would return, and write nothing."""
    with store.reading() as connection:
        row = connection.execute(_NEWEST).first()
        return configured if row is None or row.configured != _digest(configured) else row.arms


def defined(store: Store) -> dict[str, Mapping[str, Any]]:
    """Return every arm that was ever live, by name, in its newest definition."""
    with store.reading() as connection:
        return _defined(connection)


def _defined(connection: sa.Connection) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for arms in connection.scalars(sa.select(t.arm_sets.c.arms).order_by(t.arm_sets.c.seq)):
        found |= arms
    return found


def replace(store: Store, arms: Arms, configured: Arms, same: Same) -> ArmSet:
    """Make these the live arms.

    Args:
        store: The log.
        arms: Every arm that is live from now on.
        configured: Those of the configuration file; a later start with other arms in it replaces this set.
        same: Whether two descriptions mean the same arm.

    Raises:
        ConflictError: A name was used for another arm before; a policy would apply what it learned about
            that arm to this one.
    """
    with store.writing() as connection:
        before = _defined(connection)
        for name, spec in arms.items():
            if name in before and not same(before[name], spec):
                was = json.dumps(dict(before[name]))
                raise ConflictError(f"arm {name!r} was defined as {was} before: give this one another name")
        _insert(connection, arms, configured)
        row = connection.execute(_NEWEST).one()
        return ArmSet(row.seq, row.arms)


_NEWEST = sa.select(t.arm_sets).order_by(t.arm_sets.c.seq.desc()).limit(1)


def _insert(connection: sa.Connection, arms: Arms, configured: Arms) -> None:
    row = {"arms": dict(arms), "configured": _digest(configured), "at": time.time()}
    connection.execute(sa.insert(t.arm_sets), row)


def _digest(arms: Arms) -> str:
    return hashlib.sha256(json.dumps(arms, sort_keys=True).encode()).hexdigest()


def switch(store: Store, arm: str, enabled: bool, now: float) -> None:
    """Record that an arm is switched on or off from now on."""
    with store.writing() as connection:
        connection.execute(sa.insert(t.switches), {"arm": arm, "enabled": enabled, "at": now})


def disabled(store: Store) -> frozenset[str]:
    """Return the arms whose newest switch is off."""
    newest = sa.select(sa.func.max(t.switches.c.seq)).group_by(t.switches.c.arm)
    query = sa.select(t.switches.c.arm).where(t.switches.c.seq.in_(newest)).where(~t.switches.c.enabled)
    with store.reading() as connection:
        return frozenset(connection.scalars(query))
