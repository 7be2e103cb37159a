"""Promotions: which version is served, recorded in the log and read by every replica. The newest one counts.

    promote     learn and serve the recipe of this version from now on, always its newest version
    rollback    serve exactly this version, while the learner goes on
    canary      serve exactly this version to a share of the traffic; a share of 0, a promotion or a
                rollback ends it. There may be several, each with a share of the decisions of its turn

A promotion is valid for one configuration. Without any, a configuration learns and serves its own recipe.
"""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import ChangedMeanwhileError
from armwise.feedback.log import Store, row_time
from armwise.feedback.log import tables as t
from armwise.feedback.registry import arm_sets
from armwise.feedback.registry.runs import Run, RunState, update
from armwise.feedback.registry.versions import digest_state, store_checkpoint

LARGEST_SHARE = 0.5
"""Most of the traffic that a candidate may take."""

MOST_CANARIES = 4
"""Number of canaries at once."""


class Action(StrEnum):
    """What to do with a version."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A decision about a version, of an operator or of the service.

    Attributes:
        seq: Number of the promotion; later ones are higher. 0 before it is recorded.
        version: The version that it is about.
        action: What to do with it.
        reason: Why, as it was put by who decided.
        at: Seconds since the epoch, UTC.
        forced: Whether it is promoted against the verdict of the gate, or without one.
        share: Share of the traffic that a canary gets, in [0, 0.5]; 0 ends it.
        evaluation: Number of the evaluation behind the verdict of the gate; None for none.
        arm_set: The set of arms that is live with it, assigned as it is recorded; None before the first
            set, and of a canary.
        automatic: Whether the service decided it: a warm start, or the evidence on a canary.
    """

    seq: int
    version: int
    action: Action
    reason: str
    at: float
    forced: bool = False
    share: float = 0.0
    evaluation: int | None = None
    arm_set: int | None = None
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """What a configuration learns and serves now, by its promotions.

    Attributes:
        recipe: Digest of the recipe that is learned, and served unless one version is pinned.
        promotion: The promotion of that recipe; None if it is the configured one.
        pin: The rollback that pins the served version; None if the newest version is served.
        canaries: The newest row of each canary that gets a share of the traffic, in the order of versions.
        newest: The newest promotion, rollback or canary; None if there is none.
    """

    recipe: str
    promotion: Promotion | None = None
    pin: Promotion | None = None
    canaries: tuple[Promotion, ...] = ()
    newest: Promotion | None = None

    def canary(self, version: int) -> Promotion | None:
        """Return the newest row of a version that is a canary; None if it is none."""
        return next((canary for canary in self.canaries if canary.version == version), None)

    @property
    def arm_set(self) -> int:
        """Position of the set of arms that the promotion or the rollback was recorded with; 0 for none."""
        chosen = self.pin or self.promotion
        return (chosen and chosen.arm_set) or 0

    @property
    def seq(self) -> int:
        """Number of the newest promotion, rollback or canary; 0 if there is none."""
        return 0 if self.newest is None else self.newest.seq


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run of the warm start that ends with a promotion.

    Attributes:
        run: As it was claimed.
        columns: Further columns of its row.
    """

    run: Run
    columns: Mapping[str, Any]


def record(
    store: Store,
    configured: str,
    promotion: Promotion,
    state: bytes | None = None,
    *,
    after: int | None = None,
    finished: FinishedRun | None = None,
    same: arm_sets.Same = operator.eq,
) -> None:
    """Record a promotion, a rollback or a canary, with everything that belongs to it, in one transaction.

    Args:
        store: The log.
        configured: Digest of the configured recipe for which it is valid.
        promotion: What to record; its number is assigned here.
        state: The bytes of its version, to be stored again if they were pruned; ignored if their digest
            is not the version's.
        after: Number of the newest promotion that the decision rests on, 0 for none; None to record it
            unconditionally.
        finished: The run that decided it, and ends with it; None for none.
        same: Whether two descriptions mean the same arm; for a version that brings arms.

    Raises:
        ChangedMeanwhileError: There is a newer promotion than `after`; nothing was written.
        ConflictError: The version brings an arm whose name stood for another one; nothing was written.
        SupersededError: The run is no longer under way; nothing was written.
        LogUnavailableError: Try again later.
    """
    row = {name: getattr(promotion, name) for name in Promotion.__slots__ if name != "seq"}
    digest = sa.select(t.versions.c.digest).where(t.versions.c.version == promotion.version)
    p = t.promotions.c
    with store.writing() as connection:
        if after is not None:
            last = connection.scalar(sa.select(sa.func.max(p.seq)).where(p.configured == configured)) or 0
            if last != after:
                raise ChangedMeanwhileError(f"the active policy was changed meanwhile, by promotion {last}")
        if promotion.action is not Action.CANARY:
            row["arm_set"] = arm_sets.bring(connection, promotion.version, same)
        row["at"] = row_time(connection, promotion.at)
        connection.execute(sa.insert(t.promotions), {**row, "configured": configured})
        if finished is not None:
            ended = {"status": RunState.PROMOTED.value, "alive_at": promotion.at, "finished_at": promotion.at}
            update(connection, finished.run, **finished.columns, **ended)
        if state is not None and digest_state(state) == connection.scalar(digest):
            store_checkpoint(connection, promotion.version, state)


def active_policy(store: Store, configured: str) -> ActivePolicy:
    """Return what the configuration of a recipe digest learns and serves now.

    Raises:
        LogUnavailableError: Try again later.
    """
    p = t.promotions.c
    canary = sa.case((p.action == Action.CANARY.value, p.version), else_=0)
    last = sa.select(sa.func.max(p.seq)).where(p.configured == configured).group_by(p.action, canary)
    with_recipe = sa.select(*_COLUMNS, t.versions.c.recipe).join_from(t.promotions, t.versions)
    query = with_recipe.where(p.seq.in_(last)).order_by(p.seq)
    active = ActivePolicy(configured)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    for *values, recipe in rows:  # later rows override earlier ones
        row = _read_promotion(values)
        match row.action:
            case Action.PROMOTE:
                active = ActivePolicy(recipe, row, newest=row)
            case Action.ROLLBACK:
                active = ActivePolicy(active.recipe, active.promotion, row, newest=row)
            case Action.CANARY:
                others = [canary for canary in active.canaries if canary.version != row.version]
                canaries = sorted(
                    [*others, row] if row.share else others, key=lambda promotion: promotion.version
                )
                active = ActivePolicy(active.recipe, active.promotion, active.pin, tuple(canaries), row)
    return active


def was_active(store: Store, configured: str, recipe: str) -> bool:
    """Return whether a recipe is or was ever the active one of a configuration."""
    p, v = t.promotions.c, t.versions.c
    promoted = (
        sa.select(p.seq)
        .join_from(t.promotions, t.versions)
        .where(p.configured == configured, p.action == Action.PROMOTE.value, v.recipe == recipe)
    )
    with store.reading() as connection:
        return recipe == configured or connection.scalar(promoted.limit(1)) is not None


def had_automatic_canary(store: Store) -> bool:
    """Return whether an automatic canary ever had a share of the traffic of a log."""
    p = t.promotions.c
    canary = sa.select(p.seq).where(p.action == Action.CANARY.value, p.automatic, p.share > 0.0)
    with store.reading() as connection:
        return connection.scalar(canary.limit(1)) is not None


def newest(store: Store, limit: int, before: int | None = None) -> list[Promotion]:
    """Return the newest promotions, rollbacks and canaries of all configurations, newest first.

    Args:
        store: The log.
        limit: How many at most.
        before: Only those with a lower number; None for the newest of all.
    """
    query = sa.select(*_COLUMNS).order_by(t.promotions.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(t.promotions.c.seq < before)
    with store.reading() as connection:
        return [_read_promotion(row) for row in connection.execute(query)]


def of_recipes(store: Store, configured: str, recipes: Collection[str]) -> dict[str, Promotion]:
    """Return the newest promotion under a configuration of each of these recipes that has one, by digest."""
    p, v = t.promotions.c, t.versions.c
    last = (
        sa.select(sa.func.max(p.seq))
        .join_from(t.promotions, t.versions)
        .where(p.configured == configured, p.action == Action.PROMOTE.value, v.recipe.in_(recipes))
        .group_by(v.recipe)
    )
    query = sa.select(*_COLUMNS, v.recipe).join_from(t.promotions, t.versions).where(p.seq.in_(last))
    with store.reading() as connection:
        return {recipe: _read_promotion(row) for *row, recipe in connection.execute(query)}


def first_starts(store: Store, versions: Collection[int]) -> set[int]:
    """Return the numbers of the promotions of these versions that a warm start made before any traffic.

    Such a promotion has no verdict, since nothing was served that the candidate could be compared with. It is
    the first promotion of the candidate; a later one without a verdict is an operator's.
    """
    p, r = t.promotions.c, t.runs.c
    candidates = sa.select(r.candidate).where(r.status == RunState.PROMOTED.value, r.candidate.in_(versions))
    firsts = (
        sa.select(sa.func.min(p.seq))
        .where(p.action == Action.PROMOTE.value, p.version.in_(candidates))
        .group_by(p.version)
    )
    query = sa.select(p.seq).where(p.seq.in_(firsts), p.forced, p.evaluation.is_(None))
    with store.reading() as connection:
        return set(connection.scalars(query))


_COLUMNS = tuple(t.promotions.c[name] for name in Promotion.__slots__)


def _read_promotion(row: Sequence[Any]) -> Promotion:
    seq, version, action, *rest = row
    return Promotion(seq, version, Action(action), *rest)
