"""Epoch fencing: the one learner that may write."""

import sqlalchemy as sa

from feedback.errors import RebuiltError, SupersededError
from feedback.log import Store
from feedback.log import tables as t

REBUILD = "armwise rebuild"
"""Holder of an epoch that was taken to repair, and by no learner."""


def take_epoch(store: Store, holder: str, now: float) -> int:
    """Become the only learner: every older epoch loses the right to write."""
    with store.writing() as connection:
        result = connection.execute(sa.insert(t.epochs), {"holder": holder, "taken_at": now})
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def confirm_epoch(connection: sa.Connection, epoch: int) -> None:
    """Check, inside a write transaction, that `epoch` is still the newest.

    Raises:
        SupersededError: Another learner has taken over.
        RebuiltError: The training log was made anew.
    """
    found, holder = newest_epoch(connection)
    if found == epoch:
        return
    if holder == REBUILD:
        raise RebuiltError(f"epoch {epoch} ended with a rebuild: start again from what is there now")
    raise SupersededError(f"epoch {epoch} was superseded by epoch {found} of {holder}")


def newest_epoch(connection: sa.Connection) -> tuple[int, str]:
    """Return the epoch that may write, and who holds it; 0 and nobody where there is none."""
    newest = sa.select(t.epochs.c.epoch, t.epochs.c.holder).order_by(t.epochs.c.epoch.desc()).limit(1)
    row = connection.execute(newest).first()
    return (row.epoch, row.holder) if row else (0, "nobody")
