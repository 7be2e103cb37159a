"""Epoch fencing: the one learner that may write."""

import sqlalchemy as sa

from feedback.errors import RebuiltError, SupersededError
from feedback.log import Store
from feedback.log import tables as t

REBUILD = "armwise rebuild"
"""Holder of an epoch that was taken for a rebuild, not by a learner."""


def take_epoch(store: Store, holder: str, now: float) -> int:
    """Supersede every other learner and return the new epoch, the only one that may write."""
    with store.writing() as connection:
        result = connection.execute(sa.insert(t.epochs), {"holder": holder, "taken_at": now})
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def confirm_epoch(connection: sa.Connection, epoch: int) -> None:
    """Check within a write transaction that `epoch` is the newest.

    Raises:
        SupersededError: Another learner has taken over.
        RebuiltError: The training log was rebuilt.
    """
    found, holder = newest_epoch(connection)
    if found == epoch:
        return
    if holder == REBUILD:
        raise RebuiltError(f"epoch {epoch} ended with a rebuild: restart from the rebuilt training log")
    raise SupersededError(f"epoch {epoch} was superseded by epoch {found} of {holder}")


def newest_epoch(connection: sa.Connection) -> tuple[int, str]:
    """Return the epoch that may write and its holder; 0 and `nobody` if there is none."""
    newest = sa.select(t.epochs.c.epoch, t.epochs.c.holder).order_by(t.epochs.c.epoch.desc()).limit(1)
    row = connection.execute(newest).first()
    return (row.epoch, row.holder) if row else (0, "nobody")
