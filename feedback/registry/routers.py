"""Routers: trained routers that recipes name, kept in the log, where every replica and learner finds them."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t


@dataclass(frozen=True, slots=True)
class StoredRouter:
    """A trained router as bytes.

    Attributes:
        about: The facts of its training, as JSON.
        model: The router.
        unseen: Out-of-fold scores of the questions that it was trained on.
    """

    about: dict[str, Any]
    model: bytes
    unseen: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, in hexadecimal."""
        parts = json.dumps(self.about, sort_keys=True).encode(), self.model, self.unseen
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def add(store: Store, router: StoredRouter, now: float) -> str:
    """Write a router, unless it is there already, and return its digest."""
    digest = router.digest
    with store.writing() as connection:
        there = sa.select(t.routers.c.digest).where(t.routers.c.digest == digest)
        if connection.scalar(there) is None:
            connection.execute(sa.insert(t.routers), {**asdict(router), "digest": digest, "at": now})
    return digest


def find(store: Store, digest: str) -> StoredRouter | None:
    """Return the router with a digest; None if there is none."""
    r = t.routers.c
    with store.reading() as connection:
        row = connection.execute(sa.select(r.about, r.model, r.unseen).where(r.digest == digest)).first()
    return None if row is None else StoredRouter(row.about, bytes(row.model), bytes(row.unseen))


def prune(store: Store, kept: int) -> None:
    """Remove routers, and their scores, that no version has that was promoted or made a canary.

    Args:
        store: The log.
        kept: How many of the newest stay in any case.
    """
    r, s, v = t.routers.c, t.router_scores.c, t.versions.c
    chosen = sa.select(v.router).join(t.promotions, t.promotions.c.version == v.version)
    with store.writing() as connection:
        newest = connection.scalars(sa.select(r.digest).order_by(r.at.desc(), r.digest).limit(kept)).all()
        old = sa.select(r.digest).where(
            r.digest.not_in(newest), r.digest.not_in(chosen.where(v.router != ""))
        )
        gone = connection.scalars(old).all()
        connection.execute(sa.delete(t.router_scores).where(s.router.in_(gone)))
        connection.execute(sa.delete(t.routers).where(r.digest.in_(gone)))
