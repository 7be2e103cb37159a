"""Trained routers of recipes, stored in the log, where every replica and learner can load them."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry.versions import PROMOTED


@dataclass(frozen=True, slots=True)
class StoredRouter:
    """A trained router as bytes.

    Attributes:
        about: Description of its training, as JSON.
        model: The serialized router.
        unseen: Out-of-fold scores of the questions that it was trained on.
    """

    about: dict[str, Any]
    model: bytes
    unseen: bytes

    @property
    def digest(self) -> str:
        """SHA-256 over the three parts, in hexadecimal."""
        parts = json.dumps(self.about, sort_keys=True).encode(), self.model, self.unseen
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def add(store: Store, router: StoredRouter, now: float) -> str:
    """Write a router that the log lacks, and return its digest."""
    digest = router.digest
    with store.writing() as connection:
        there = sa.select(t.routers.c.digest).where(t.routers.c.digest == digest)
        if connection.scalar(there) is None:
            connection.execute(sa.insert(t.routers), {**asdict(router), "digest": digest, "at": now})
    return digest


def find(store: Store, digest: str) -> StoredRouter | None:
    """Return the router with a digest, if any."""
    r = t.routers.c
    with store.reading() as connection:
        row = connection.execute(sa.select(r.about, r.model, r.unseen).where(r.digest == digest)).first()
    return None if row is None else StoredRouter(row.about, bytes(row.model), bytes(row.unseen))


def prune(store: Store, kept: int) -> None:
    """Keep the newest routers and those of versions that were promoted or canaries; remove others and scores.

    Args:
        store: The log.
        kept: Number of the newest routers to keep.
    """
    r, s, v = t.routers.c, t.router_scores.c, t.versions.c
    chosen = sa.select(v.router).where(v.version.in_(PROMOTED))
    with store.writing() as connection:
        newest = connection.scalars(sa.select(r.digest).order_by(r.at.desc(), r.digest).limit(kept)).all()
        old = sa.select(r.digest).where(
            r.digest.not_in(newest), r.digest.not_in(chosen.where(v.router != ""))
        )
        gone = connection.scalars(old).all()
        connection.execute(sa.delete(t.router_scores).where(s.router.in_(gone)))
        connection.execute(sa.delete(t.routers).where(r.digest.in_(gone)))
