"""Promotions: rows of the log that say which version serves. Every replica reads them; the newest counts.

    promote     learn and serve the recipe of this version from now on, always its newest version
    rollback    serve exactly this version, while the learner goes on
    canary      serve exactly this version to a share of the traffic; a share of 0, a promotion or a
                rollback ends it. Up to `MOST_CANARIES` run at once, each with a share

A promotion holds for one configuration, which learns and serves its own recipe until the first.
"""

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
    """A promotion, rollback or canary, by an operator or by the service.

    Attributes:
        seq: Number of the promotion, increasing; 0 before it is recorded.
        version: The version.
        action: What to do with the version.
        reason: Why, in the words of the operator or the service.
        at: Seconds since the epoch, UTC.
        forced: Whether it is promoted against the verdict of the gate, or without a verdict.
        share: Share of the traffic that a canary gets, in [0, 0.5]; 0 ends it.
        evaluation: Number of the evaluation behind the verdict of the gate.
        arm_set: The set of arms that is live with it, assigned when it is recorded; None: a canary, or a
            promotion before the first set.
        automatic: Whether the service decided: a warm start, or the evidence on a canary.
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
        recipe: Digest of the recipe that is learned, and served unless a version is pinned.
        promotion: The promotion of that recipe; None: it is the configured recipe.
        pin: The rollback that pins the served version; None: the newest version is served.
        canaries: The newest row of each canary that gets a share of the traffic, in the order of versions.
        newest: The newest promotion, rollback or canary.
    """

    recipe: str
    promotion: Promotion | None = None
    pin: Promotion | None = None
    canaries: tuple[Promotion, ...] = ()
    newest: Promotion | None = None

    def canary(self, version: int) -> Promotion | None:
        """Return the newest row of a version, if it is a canary."""
        return next((canary for canary in self.canaries if canary.version == version), None)

    @property
    def arm_set(self) -> int:
        """Position of the set of arms that the promotion or the rollback was recorded with; 0: none was."""
        chosen = self.pin or self.promotion
        return (chosen and chosen.arm_set) or 0

    @property
    def seq(self) -> int:
        """Number of the newest promotion, rollback or canary; 0 before the first."""
        return 0 if self.newest is None else self.newest.seq


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run of the warm start that ends with a promotion.

    Attributes:
        run: The run, as it was claimed.
        columns: Further columns of its row, by name.
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
) -> None:
    """Record a promotion, a rollback or a canary, with its arms, run and checkpoint, in one transaction.

    Args:
        store: The log.
        configured: Digest of the configured recipe for which it holds.
        promotion: What to record; its number is assigned here.
        state: The bytes of its version, stored again if the checkpoint was pruned; ignored if the digest
            differs from the version's.
        after: Number of the newest promotion that the decision rests on, 0 before the first; None: record
            unconditionally.
        finished: The run that decided it, and ends with it.

    Raises:
        ChangedMeanwhileError: There is a newer promotion than `after`.
        SupersededError: The run is no longer under way.
        LogUnavailableError: Try again later. With all other errors, nothing was written.
    """
    row = {name: getattr(promotion, name) for name in Promotion.__slots__ if name != "seq"}
    digest = sa.select(t.versions.c.digest).where(t.versions.c.version == promotion.version)
    p = t.promotions.c
    with store.writing() as connection:
        if after is not None:
            last = connection.scalar(sa.select(sa.func.max(p.seq)).where(p.configured == configured)) or 0
            if last != after:
                raise ChangedMeanwhileError(f"promotion {last} changed the active policy in the meantime")
        if promotion.action is not Action.CANARY:
            row["arm_set"] = arm_sets.bring(connection, promotion.version)
        row["at"] = row_time(connection, promotion.at)
        connection.execute(sa.insert(t.promotions), {**row, "configured": configured})
        if finished is not None:
            ended = {"status": RunState.PROMOTED.value, "alive_at": promotion.at, "finished_at": promotion.at}
            update(connection, finished.run, **finished.columns, **ended)
        if state is not None and digest_state(state) == connection.scalar(digest):
            store_checkpoint(connection, promotion.version, state)


def active_policy(store: Store, configured: str) -> ActivePolicy:
    """Return what the configuration with this recipe digest learns and serves now.

    Raises:
        LogUnavailableError: Try again later.
    """
    active = ActivePolicy(configured)
    with store.reading() as connection:
        rows = connection.execute(_LAST, {"of_recipe": configured}).all()
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
    """Return whether an automatic canary ever had a share of the traffic."""
    p = t.promotions.c
    canary = sa.select(p.seq).where(p.action == Action.CANARY.value, p.automatic, p.share > 0.0)
    with store.reading() as connection:
        return connection.scalar(canary.limit(1)) is not None


def newest(store: Store, limit: int, before: int | None = None) -> list[Promotion]:
    """Return the newest promotions, rollbacks and canaries of all configurations, newest first.

    Args:
        store: The log.
        limit: Largest length of the list.
        before: Number that all must be below.
    """
    query = sa.select(*_COLUMNS).order_by(t.promotions.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(t.promotions.c.seq < before)
    with store.reading() as connection:
        return [_read_promotion(row) for row in connection.execute(query)]


def find_by_recipe(store: Store, configured: str, recipes: Collection[str]) -> dict[str, Promotion]:
    """Return the newest promotion of each recipe under a configuration, by digest, where it has one."""
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
    """Return the numbers of the promotions of these versions that the warm start of a first start made.

    Such a promotion lacks a verdict: there was too little traffic to compare the candidate with. It is the
    first promotion of the candidate; a later one that lacks a verdict is an operator's.
    """
    p, j = t.promotions.c, t.jobs.c
    candidates = sa.select(j.candidate).where(j.status == RunState.PROMOTED, j.candidate.in_(versions))
    firsts = (
        sa.select(sa.func.min(p.seq))
        .where(p.action == Action.PROMOTE.value, p.version.in_(candidates))
        .group_by(p.version)
    )
    query = sa.select(p.seq).where(p.seq.in_(firsts), p.forced, p.evaluation.is_(None))
    with store.reading() as connection:
        return set(connection.scalars(query))


_p = t.promotions.c

_COLUMNS = tuple(_p[name] for name in Promotion.__slots__)

_LAST = (  # promotion, rollback, and row of each canary
    sa.select(*_COLUMNS, t.versions.c.recipe)
    .join_from(t.promotions, t.versions)
    .where(
        _p.seq.in_(
            sa.select(sa.func.max(_p.seq))
            .where(_p.configured == sa.bindparam("of_recipe"))
            .group_by(_p.action, sa.case((_p.action == Action.CANARY.value, _p.version), else_=0))
        )
    )
    .order_by(_p.seq)
)


def _read_promotion(row: Sequence[Any]) -> Promotion:
    seq, version, action, *rest = row
    return Promotion(seq, version, Action(action), *rest)
