"""How far a join has read the log, and how far the log reaches."""

from dataclasses import asdict, dataclass, field

import sqlalchemy as sa

from armwise.feedback.log import tables as t


@dataclass(frozen=True, slots=True)
class Position:
    """How far a join has read.

    Attributes:
        log_seq: Facts up to this position are joined.
        log_at: The log's time there, seconds since the epoch.
        examples_seq: Length of the training log.
        left_out: Raters of the newest decisions that were left out since the last rated example, in order.
        settled_seq: Decisions up to this position are settled together, before their time is over; see
            `find_settled_together`.
        chain: The chain of the facts up to `log_seq`, by `armwise.feedback.log.chain`. It is not
            compared, since salts are random.
    """

    log_seq: int
    log_at: float
    examples_seq: int
    left_out: tuple[str, ...] = ()
    settled_seq: int = 0
    chain: str = field(default=t.NO_FACTS, compare=False, repr=False)


def read_position(connection: sa.Connection, join: str) -> Position:
    """Return how far a join has read."""
    row = connection.execute(_PROGRESS, {"join": join}).first()
    if row is None:
        return Position(0, 0.0, 0)
    left_out = tuple(row.left_out)
    return Position(row.log_seq, row.log_at, row.examples_seq, left_out, row.settled_seq, row.chain)


def write_position(connection: sa.Connection, join: str, position: Position) -> None:
    """Write how far a join has read."""
    moved = asdict(position)
    if not connection.execute(_MOVE, {"of": join, **moved}).rowcount:
        connection.execute(_BEGIN, {"reader": join, **moved})


def read_head(connection: sa.Connection) -> int:
    """Return the last position of the log; 0: it is empty."""
    return int(connection.scalar(_HEAD) or 0)


_PROGRESS = sa.select(t.progress).where(t.progress.c.reader == sa.bindparam("join"))

_MOVE = sa.update(t.progress).where(t.progress.c.reader == sa.bindparam("of"))

_BEGIN = sa.insert(t.progress)

_HEAD = sa.select(t.log.c.seq)
