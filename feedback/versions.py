"""Versions: a policy's state at a position of the training log.

A version's row is a fact; its bytes are a cache. What is pruned or lost can be
made again by replaying the training log up to `examples_seq`.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from feedback import tables as t
from feedback.joins import confirm_epoch
from feedback.store import Store

KEPT_CHECKPOINTS = 20
"""Newest versions whose bytes are kept."""


@dataclass(frozen=True, slots=True)
class Version:
    """One published state of a policy.

    Attributes:
        version: Its number, rising; 0 before it is published.
        parent: The version it went on from; None for the first of a recipe.
        recipe: Digest of everything besides the training log that shaped it.
        policy: The policy's specification.
        examples_seq: Position of the training log that it has learned up to.
        applied_seq: Feedback up to this position was looked at.
        digest: SHA-256 of the state.
        epoch: The learner that wrote it.
        created_at: Seconds since the epoch, UTC.
    """

    version: int
    parent: int | None
    recipe: str
    policy: dict[str, Any]
    examples_seq: int
    applied_seq: int
    digest: str
    epoch: int
    created_at: float


def digest_of(state: bytes) -> str:
    """Return the SHA-256 of a policy's state, in hexadecimal."""
    return hashlib.sha256(state).hexdigest()


def publish(store: Store, version: Version, state: bytes) -> int:
    """Write a version with its bytes and return its number; older bytes are pruned.

    Raises:
        SupersededError: Another learner has taken over; nothing was written.
    """
    row = {name: getattr(version, name) for name in Version.__slots__ if name != "version"}
    with store.writing() as connection:
        confirm_epoch(connection, version.epoch)
        result = connection.execute(sa.insert(t.versions), row)
        assert result.inserted_primary_key is not None
        number = int(result.inserted_primary_key[0])
        connection.execute(sa.insert(t.checkpoints), {"version": number, "state": state})
        connection.execute(
            sa.delete(t.checkpoints).where(t.checkpoints.c.version <= number - KEPT_CHECKPOINTS)
        )
    return number


def latest(store: Store, recipe: str | None = None, after: int = 0) -> Version | None:
    """Return the newest version of a recipe, or of any; None when none is newer than `after`."""
    query = sa.select(t.versions).where(t.versions.c.version > after)
    if recipe is not None:
        query = query.where(t.versions.c.recipe == recipe)
    with store.reading() as connection:
        row = connection.execute(query.order_by(t.versions.c.version.desc()).limit(1)).mappings().first()
    return None if row is None else Version(**row)


def checkpoint(store: Store, version: int) -> bytes | None:
    """Return the bytes of a version; None when they were pruned."""
    with store.reading() as connection:
        state = connection.scalar(sa.select(t.checkpoints.c.state).where(t.checkpoints.c.version == version))
    return None if state is None else bytes(state)
