"""Promotions: rows of the log that say which version serves. Every replica reads them; the newest counts.

    promote     learn and serve the recipe of this version from now on, always its newest version
    rollback    serve exactly this version, while the learner goes on
    canary      serve exactly this version to a share of the traffic; a share of 0, a promotion or a
                rollback ends it. Up to `MOST_CANARIES` run at once, each with a share

A promotion holds for one configuration, which learns and serves its own recipe until the first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import ChangedMeanwhileError
from armwise.feedback.log import Operation, Store, operations, row_time
from armwise.feedback.log import tables as t
from armwise.feedback.registry import arm_sets
from armwise.feedback.registry.runs import Run, RunState, update
from armwise.feedback.registry.versions import restore_state

LARGEST_SHARE = 0.5
"""Most of the traffic that a candidate may take."""

MOST_CANARIES = 4
"""Number of canaries at once."""


class Action(StrEnum):
    """What to do with a version."""

    PROMOTE = Operation.PROMOTE
    ROLLBACK = Operation.ROLLBACK
    CANARY = Operation.CANARY


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
    arm_set = promotion.arm_set
    with store.writing() as connection:
        if after is not None:
            newer = operations.read_all(connection, *operations.PROMOTIONS, subject=configured, after=after)
            if newer:
                last = newer[-1].seq
                raise ChangedMeanwhileError(f"promotion {last} changed the active policy in the meantime")
        if promotion.action is not Action.CANARY:
            arm_set = arm_sets.bring(connection, promotion.version)
        operations.record(
            connection,
            Operation(promotion.action),
            row_time(connection, promotion.at),
            {**{name: getattr(promotion, name) for name in _DOCUMENT}, "arm_set": arm_set},
            subject=configured,
            version=promotion.version,
        )
        if finished is not None:
            ended = {"status": RunState.PROMOTED.value, "alive_at": promotion.at, "finished_at": promotion.at}
            update(connection, finished.run, **finished.columns, **ended)
        if state is not None:
            restore_state(connection, promotion.version, state)


_DOCUMENT = ("reason", "forced", "share", "evaluation", "automatic")


def active_policy(store: Store, configured: str) -> ActivePolicy:
    """Return what the configuration with this recipe digest learns and serves now."""
    active = ActivePolicy(configured)
    # the newest promotion, rollback, and row of each canary
    of_canary = sa.case((_o.kind == Operation.CANARY, _o.version), else_=0)
    last = sa.select(sa.func.max(_o.seq)).where(_IS_PROMOTION, _o.subject == configured)
    for row, recipe in _read(store, _o.seq.in_(last.group_by(_o.kind, of_canary))):  # later rows override
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
    promoted = _read(store, _o.subject == configured, _o.kind == Operation.PROMOTE)
    return recipe == configured or any(of_row == recipe for _, of_row in promoted)


def newest(store: Store, limit: int, before: int | None = None) -> list[Promotion]:
    """Return the newest promotions, rollbacks and canaries of all configurations, newest first."""
    upto = [] if before is None else [_o.seq < before]
    with store.reading() as connection:
        rows = connection.execute(_QUERY.where(*upto).order_by(_o.seq.desc()).limit(limit))
        return [_read_promotion(row) for row in rows]


def find_by_recipe(store: Store, configured: str, recipes: Collection[str]) -> dict[str, Promotion]:
    """Return the newest promotion of each recipe under a configuration, by digest, where it has one."""
    promoted = _read(store, _o.subject == configured, _o.kind == Operation.PROMOTE)
    return {recipe: promotion for promotion, recipe in promoted if recipe in recipes}


def first_starts(store: Store, versions: Collection[int]) -> set[int]:
    """Return the numbers of the promotions of these versions that the warm start of a first start made.

    Such a promotion lacks a verdict: there was too little traffic to compare the candidate with. It is the
    first promotion of the candidate; a later one that lacks a verdict is an operator's.
    """
    j = t.jobs.c
    candidates = sa.select(j.candidate).where(j.status == RunState.PROMOTED, j.candidate.in_(versions))
    firsts: dict[int, Promotion] = {}
    for promotion, _ in _read(store, _o.kind == Operation.PROMOTE, _o.version.in_(candidates)):
        firsts.setdefault(promotion.version, promotion)
    return {first.seq for first in firsts.values() if first.forced and first.evaluation is None}


_o = t.operations.c

_IS_PROMOTION = _o.kind.in_(operations.PROMOTIONS)

_QUERY = sa.select(t.operations, t.versions.c.recipe).join(t.versions).where(_IS_PROMOTION)


def _read(store: Store, *which: sa.ColumnElement[bool]) -> list[tuple[Promotion, str]]:
    """Return promotions, rollbacks and canaries, each with the recipe of its version, the oldest first."""
    with store.reading() as connection:
        rows = connection.execute(_QUERY.where(*which).order_by(_o.seq))
        return [(_read_promotion(row), row.recipe) for row in rows]


def _read_promotion(row: sa.Row[Any]) -> Promotion:
    return Promotion(row.seq, row.version, Action(row.kind), at=row.at, **row.document)
