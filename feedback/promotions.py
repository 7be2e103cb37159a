"""Which version is served: facts, seen by every replica. The newest one of a recipe counts.

    rollback    exactly this version is served, while the learner goes on
    promote     the newest versions are served again, from this one on

Both speak for the recipe of their version alone: what was said of one configuration does not
bind another.
"""

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from feedback import tables as t
from feedback.store import Store
from feedback.versions import Version, digest_of, put_back


class Action(StrEnum):
    """What an operator wants of a version."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What an operator said.

    Attributes:
        seq: Its number; what was said later has a higher one.
        version: The version that it is about.
        action: What is wanted of it.
        reason: Why, in the operator's words.
        at: Seconds since the epoch, UTC.
    """

    seq: int
    version: int
    action: Action
    reason: str
    at: float

    @property
    def pins(self) -> bool:
        """Whether this version is served, and no newer one."""
        return self.action is Action.ROLLBACK


def record(
    store: Store, version: Version, action: Action, reason: str, now: float, state: bytes | None = None
) -> None:
    """Record what is wanted of a version from now on.

    Args:
        store: The log.
        version: One that was published.
        action: What is wanted of it.
        reason: Why, in words.
        now: Seconds since the epoch.
        state: Its bytes, which are put back where they were pruned; unless they are not its own.
    """
    number = version.version
    row = {"version": number, "action": action.value, "reason": reason, "at": now}
    with store.writing() as connection:
        connection.execute(sa.insert(t.promotions), row)
        if state is not None and digest_of(state) == version.digest:
            put_back(connection, number, state)


def in_force(store: Store, recipe: str) -> Promotion | None:
    """Return what was said last of a version of the recipe; None where nothing was."""
    of_recipe = sa.select(t.promotions).join(t.versions).where(t.versions.c.recipe == recipe)
    with store.reading() as connection:
        row = connection.execute(of_recipe.order_by(t.promotions.c.seq.desc()).limit(1)).first()
    return None if row is None else _promotion_of(row)


def newest(store: Store, limit: int) -> list[Promotion]:
    """Return what was said last, of any version, newest first."""
    query = sa.select(t.promotions).order_by(t.promotions.c.seq.desc()).limit(limit)
    with store.reading() as connection:
        return [_promotion_of(row) for row in connection.execute(query)]


def _promotion_of(row: "sa.Row[tuple[int, int, str, str, float]]") -> Promotion:
    return Promotion(row.seq, row.version, Action(row.action), row.reason, row.at)
