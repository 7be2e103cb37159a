"""The model registry: a version is a policy's state at a position of the training log.

A version's row is a fact; its checkpoint, the bytes in `state`, is a cache: a replay of the training log up
to `examples_seq` gives the same bytes. Checkpoints are thinned out with age, so that a replay of any version
can begin near it. Lists of versions leave the bytes out, which are most of a row.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import RebuiltError
from armwise.feedback.log import Operation, Store, chain, insert, operations
from armwise.feedback.log import tables as t
from armwise.feedback.training_log import REBUILD, confirm_epoch, newest_epoch, read_position

KEPT_CHECKPOINTS = 20
"""Newest versions that all keep their checkpoints. So do the newest version of each recipe, and every version
that was promoted, rolled back to or made a canary."""

BESIDE = "a candidate"
"""Holder of the first epoch if a candidate is published before any learner ran."""


@dataclass(frozen=True, slots=True)
class Version:
    """One published state of a policy.

    Attributes:
        version: Number of the version, increasing; 0 before it is published.
        parent: The version it continues; None: it is the first of its recipe.
        recipe: Digest of all that shaped the state besides the training log.
        join: Digest of the rule by which the training log was joined.
        policy: The policy's specification.
        examples_seq: Position of the training log that it has learned up to.
        applied_seq: Position of the log up to which facts are applied.
        digest: SHA-256 of the state.
        epoch: Epoch of the learner that wrote it.
        created_at: Seconds since the epoch, UTC.
        start: Where learning began, a `armwise.feedback.training_log.StartingPoint` document; None: at the
            beginning of the log.
        router: Digest of the router whose scores it learned from; None: the configured router, if any.
        arms: Names of the arms that a promotion makes live; None: the live arms stay.
        arithmetic: What computed it: the kernel of BLAS and the libraries.
    """

    version: int
    parent: int | None
    recipe: str
    join: str
    policy: dict[str, Any]
    examples_seq: int
    applied_seq: int
    digest: str
    epoch: int
    created_at: float
    start: dict[str, Any] | None = None
    router: str | None = None
    arms: list[str] | None = None
    arithmetic: str | None = None


@dataclass(frozen=True, slots=True)
class RecipeVersions:
    """The versions of one recipe.

    Attributes:
        newest: The newest version.
        count: Number of versions, at least 1.
    """

    newest: Version
    count: int


def digest_state(state: bytes) -> str:
    """Return the SHA-256 of a policy's state, in hexadecimal."""
    return hashlib.sha256(state).hexdigest()


def publish(store: Store, version: Version, state: bytes) -> int:
    """Write a version with its checkpoint and return its number; older checkpoints are pruned.

    Raises:
        SupersededError: Another learner has taken over.
        RebuiltError: The training log was rebuilt.
    """
    with store.writing() as connection:
        confirm_epoch(connection, version.epoch)
        return add(connection, version, state)


def publish_beside(store: Store, version: Version, state: bytes) -> int:
    """Write a version of an inactive recipe while the learner keeps its epoch; return its number.

    If the recipe has a version that has learned as much, return the number of that one.

    Args:
        store: The log.
        version: The version; its epoch is the newest before its training log was read, 0 without epochs.
        state: The bytes of its checkpoint.

    Raises:
        RebuiltError: The training log was rebuilt since that epoch.
    """
    with store.writing() as connection:
        for epoch in operations.read_all(connection, Operation.EPOCH, after=version.epoch):
            if epoch.document["holder"] == REBUILD:
                raise RebuiltError(
                    f"epoch {epoch.seq} rebuilt the training log, so this version must be learned again"
                )
        as_much = sa.select(sa.func.max(_v.version)).where(
            _v.recipe == version.recipe, _v.examples_seq >= version.examples_seq
        )
        there: int | None = connection.scalar(as_much)
        if there is not None:
            return there
        newest, _ = newest_epoch(connection)
        if not newest:  # no learner ever ran, and a version needs an epoch
            document = {"holder": BESIDE}
            newest = operations.record(connection, Operation.EPOCH, version.created_at, document)
        return add(connection, replace(version, epoch=version.epoch or newest), state)


def add(connection: sa.Connection, version: Version, state: bytes) -> int:
    """Write a version and prune checkpoints, within a write transaction."""
    row = {name: getattr(version, name) for name in Version.__slots__ if name != "version"}
    joined = read_position(connection, version.join)
    logged = {"logged_seq": joined.log_seq, "chain": joined.chain}
    number = insert(connection, t.versions, {**row, "state": state, **logged})
    _drop(connection, [kept for kept in connection.scalars(_PRUNABLE) if not is_kept(kept, number)])
    return number


_v, _o = t.versions.c, t.operations.c

_KEPT = _v.state.is_not(None)

_VERSION = sa.select(*(_v[name] for name in Version.__slots__))

PROMOTED = sa.select(_o.version).where(_o.kind.in_(operations.PROMOTIONS))
"""Query of the versions that were promoted, rolled back to or made a canary."""

_PRUNABLE = sa.select(_v.version).where(
    _KEPT,
    _v.version.not_in(PROMOTED),
    _v.version.not_in(sa.select(sa.func.max(_v.version)).group_by(_v.recipe)),
)


def restore_state(connection: sa.Connection, version: int, state: bytes) -> None:
    """Write the checkpoint of a version again; bytes with another digest than the version's are ignored."""
    its = (_v.version == version) & (_v.digest == digest_state(state))
    connection.execute(sa.update(t.versions).where(its).values(state=state))


def drop_damaged(connection: sa.Connection) -> None:
    """Drop the checkpoints whose bytes are not those of their version, which nobody loads."""
    stored = connection.execute(sa.select(_v.version, _v.state, _v.digest).where(_KEPT))
    _drop(connection, [row.version for row in stored if digest_state(row.state) != row.digest])


def _drop(connection: sa.Connection, numbers: Sequence[int]) -> None:
    if numbers:
        connection.execute(sa.update(t.versions).where(_v.version.in_(numbers)).values(state=None))


def is_kept(version: int, newest: int) -> bool:
    """Return whether the checkpoint of a version is kept at its age.

    The newest are all kept; before these, every second of as many, every fourth of twice as many, and so on:
    about ten per doubling of the number of versions. What is pruned stays pruned.

    >>> [version for version in range(1, 71) if is_kept(version, newest=100)]
    [8, 16, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 62, 64, 66, 68, 70]
    """
    age = newest - version
    return version % (1 << (age // KEPT_CHECKPOINTS).bit_length()) == 0


def latest(store: Store, recipe: str | None = None, after: int = 0) -> Version | None:
    """Return the newest version of a recipe, or of any, if it is newer than `after`."""
    query = _VERSION.where(_v.version > after).order_by(_v.version.desc()).limit(1)
    return next(_read(store, query if recipe is None else query.where(_v.recipe == recipe)), None)


def _read(store: Store, query: sa.Select[Any]) -> Iterator[Version]:
    with store.reading() as connection:
        return iter([Version(*row) for row in connection.execute(query)])


def is_computed_alike(store: Store, version: Version, arithmetic: str) -> bool:
    """Return whether a version, and all before it in its recipe, were computed with this arithmetic.

    If so, learning again gives the same bytes; otherwise the same numbers up to rounding.
    """
    others = sa.select(sa.func.count()).where(
        _v.recipe == version.recipe,
        _v.version <= version.version,
        _v.arithmetic.is_distinct_from(arithmetic),
    )
    with store.reading() as connection:
        return connection.scalar(others) == 0


def positions(store: Store, join: str, numbers: Collection[int]) -> dict[int, int]:
    """Return how many examples of a training log each version has learned, by number.

    Args:
        store: The log.
        join: Digest of the rule by which the training log is joined.
        numbers: Numbers of versions; only versions that learned from this training log are returned.
    """
    query = sa.select(_v.version, _v.examples_seq).where(_v.join == join)
    with store.reading() as connection:
        return {row.version: row.examples_seq for row in connection.execute(query) if row.version in numbers}


def list_kept_upto(store: Store, recipe: str, examples_seq: int) -> list[Version]:
    """Return the versions of a recipe with a checkpoint at or before a position of the log, newest first."""
    query = _VERSION.where(_KEPT, _v.recipe == recipe, _v.examples_seq <= examples_seq)
    return list(_read(store, query.order_by(_v.examples_seq.desc(), _v.version.desc())))


def list_kept(store: Store, recipe: str) -> list[Version]:
    """Return the versions of a recipe whose checkpoints are stored, or kept at their age, oldest first."""
    with store.reading() as connection:
        newest = connection.scalar(sa.select(sa.func.max(_v.version))) or 0
    round_ones = [number for number in range(1, newest + 1) if is_kept(number, newest)]
    query = _VERSION.where(_v.recipe == recipe, _v.version.in_(round_ones) | _KEPT)
    return list(_read(store, query.order_by(_v.version)))


def list_heads(store: Store) -> dict[str, chain.LogHead]:
    """Return the head that the join had read when each version was written, such as of `version 3`."""
    query = sa.select(_v.version, _v.logged_seq, _v.chain).order_by(_v.version)
    with store.reading() as connection:
        return {f"version {number}": chain.LogHead(*head) for number, *head in connection.execute(query)}


def counts(store: Store) -> dict[str, int]:
    """Return the number of versions of each recipe."""
    with store.reading() as connection:
        rows = connection.execute(sa.select(_v.recipe, sa.func.count()).group_by(_v.recipe))
        return {row[0]: row[1] for row in rows}


def find(store: Store, number: int) -> Version | None:
    """Return the version with a number, if any."""
    return next(_read(store, _VERSION.where(_v.version == number)), None)


def recipes(
    store: Store, limit: int, before: int | None = None, recipe: str | None = None
) -> list[RecipeVersions]:
    """Return the recipes by their newest versions, newest first."""
    newest = sa.func.max(_v.version)
    groups = sa.select(newest.label("newest"), sa.func.count().label("count")).group_by(_v.recipe)
    if before is not None:
        groups = groups.having(newest < before)
    if recipe is not None:
        groups = groups.where(_v.recipe == recipe)
    listed = groups.order_by(newest.desc()).limit(limit).subquery()
    query = _VERSION.add_columns(listed.c.count).join(listed, listed.c.newest == _v.version)
    with store.reading() as connection:
        rows = connection.execute(query.order_by(_v.version.desc()))
        return [RecipeVersions(Version(*row), count) for *row, count in rows]


def page(
    store: Store, limit: int, before: int | None = None, recipe: str | None = None
) -> list[tuple[Version, bool]]:
    """Return the newest versions, newest first, each with whether it has a checkpoint."""
    query = _VERSION.add_columns(_KEPT.label("kept"))
    if before is not None:
        query = query.where(_v.version < before)
    if recipe is not None:
        query = query.where(_v.recipe == recipe)
    with store.reading() as connection:
        rows = connection.execute(query.order_by(_v.version.desc()).limit(limit))
        return [(Version(*row), kept) for *row, kept in rows]


def checkpoint(store: Store, version: int) -> bytes | None:
    """Return the bytes of a version's checkpoint; None if it was pruned."""
    with store.reading() as connection:
        state = connection.scalar(sa.select(_v.state).where(_v.version == version))
    return None if state is None else bytes(state)
