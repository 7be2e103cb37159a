"""Arms switched on and off while the service runs: facts, seen by every replica."""

import sqlalchemy as sa

from feedback import tables as t
from feedback.store import Store


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
