"""Which version is served: facts, seen by every replica. What was said last counts.

    promote     the recipe of this version is learned and served from here on, always the newest of it
    rollback    exactly this version is served, while the learner goes on
    canary      exactly this version takes a share of the traffic, beside what is served; a share of 0,
                a promotion and a rollback end that

Each word is said under a configuration, and binds no other: of one that nothing was said under, its own
recipe is learned and served.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from feedback.errors import ChangedMeanwhileError
from feedback.log import Store
from feedback.log import tables as t
from feedback.registry.runs import Run, State, write
from feedback.registry.versions import digest_of, put_back

LARGEST_SHARE = 0.5
"""Most of the traffic that a candidate may take."""


class Action(StrEnum):
    """What an operator wants of a version."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Promotion:
    """What an operator said.

    Attributes:
        seq: Its number; what was said later has a higher one. 0 before it is recorded.
        version: The version that it is about.
        action: What is wanted of it.
        reason: Why, in the operator's words.
        at: Seconds since the epoch, UTC.
        forced: Whether it is promoted against the verdict of the gate, or without one.
        share: How much of the traffic a canary takes, in [0, 0.5]; 0 ends it.
        evaluation: Number of the evaluation that the gate judged by; None for none.
    """

    seq: int
    version: int
    action: Action
    reason: str
    at: float
    forced: bool = False
    share: float = 0.0
    evaluation: int | None = None


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """What of all that was said under a configuration holds now.

    Attributes:
        recipe: Digest of what is learned, and served unless one version is pinned.
        promotion: What put it in the place of the configured one; None where nothing was promoted.
        pin: The rollback that holds; None where the newest version is served.
        canary: What takes a share of the traffic; None for nothing.
        newest: The last word, whatever it was; None where nothing was said.
    """

    recipe: str
    promotion: Promotion | None = None
    pin: Promotion | None = None
    canary: Promotion | None = None
    newest: Promotion | None = None

    @property
    def seq(self) -> int:
        """Number of the last word; 0 where nothing was said."""
        return 0 if self.newest is None else self.newest.seq


@dataclass(frozen=True, slots=True)
class Finished:
    """A run of the warm start that comes to its end with a promotion.

    Attributes:
        run: As it was taken.
        told: What else is written down of it: columns of its row.
    """

    run: Run
    told: Mapping[str, Any]


def record(
    store: Store,
    configured: str,
    said: Promotion,
    state: bytes | None = None,
    *,
    after: int | None = None,
    finished: Finished | None = None,
) -> None:
    """Record what is wanted of a version from now on: all that belongs to it, or nothing.

    Args:
        store: The log.
        configured: Digest of the configured recipe, under which alone it holds.
        said: What is wanted; its number is given out here.
        state: The bytes of its version, which are put back where they were pruned; unless they are
            not its own.
        after: Number of the last word that was known when this was decided, 0 for none; None where it is
            wanted whatever was said.
        finished: The run that wants it, and ends with it; None for somebody else.

    Raises:
        ChangedMeanwhileError: Something was said since; nothing was written.
        SupersededError: The run is no longer under way; nothing was written.
        LogUnavailableError: Try again later.
    """
    row = {name: getattr(said, name) for name in Promotion.__slots__ if name != "seq"}
    digest = sa.select(t.versions.c.digest).where(t.versions.c.version == said.version)
    p = t.promotions.c
    with store.writing() as connection:
        if after is not None:
            last = connection.scalar(sa.select(sa.func.max(p.seq)).where(p.configured == configured)) or 0
            if last != after:
                raise ChangedMeanwhileError(f"what is served was changed meanwhile, by word {last}")
        connection.execute(sa.insert(t.promotions), {**row, "configured": configured})
        if finished is not None:
            ended = {"status": State.PROMOTED.value, "alive_at": said.at, "finished_at": said.at}
            write(connection, finished.run, **finished.told, **ended)
        if state is not None and digest_of(state) == connection.scalar(digest):
            put_back(connection, said.version, state)


def active_policy(store: Store, configured: str) -> ActivePolicy:
    """Return what holds under a configuration.

    Args:
        store: The log.
        configured: Digest of its recipe.

    Raises:
        LogUnavailableError: Try again later.
    """
    p = t.promotions.c
    last = sa.select(sa.func.max(p.seq)).where(p.configured == configured).group_by(p.action)
    with_recipe = sa.select(*_COLUMNS, t.versions.c.recipe).join_from(t.promotions, t.versions)
    query = with_recipe.where(p.seq.in_(last)).order_by(p.seq)
    found = ActivePolicy(configured)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    for *values, recipe in rows:  # a later word takes away what an earlier one left
        said = _promotion_of(values)
        match said.action:
            case Action.PROMOTE:
                found = ActivePolicy(recipe, said, newest=said)
            case Action.ROLLBACK:
                found = ActivePolicy(found.recipe, found.promotion, said, newest=said)
            case Action.CANARY:
                canary = said if said.share else None
                found = ActivePolicy(found.recipe, found.promotion, found.pin, canary, said)
    return found


def was_followed(store: Store, configured: str, recipe: str) -> bool:
    """Whether a recipe is, or was ever, the one that was followed under a configuration."""
    p, v = t.promotions.c, t.versions.c
    promoted = (
        sa.select(p.seq)
        .join_from(t.promotions, t.versions)
        .where(p.configured == configured, p.action == Action.PROMOTE.value, v.recipe == recipe)
    )
    with store.reading() as connection:
        return recipe == configured or connection.scalar(promoted.limit(1)) is not None


def newest(store: Store, limit: int) -> list[Promotion]:
    """Return what was said last, of any version, newest first."""
    query = sa.select(*_COLUMNS).order_by(t.promotions.c.seq.desc()).limit(limit)
    with store.reading() as connection:
        return [_promotion_of(row) for row in connection.execute(query)]


_COLUMNS = tuple(t.promotions.c[name] for name in Promotion.__slots__)


def _promotion_of(row: Sequence[Any]) -> Promotion:
    seq, version, action, *rest = row
    return Promotion(seq, version, Action(action), *rest)
