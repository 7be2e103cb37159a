"""Digests: rows of the log that say which periods were reported by themselves, so that none is sent twice.

    claim --> reading --> sending --> sent
                 |           |-----> refused --> claim of the next attempt, after a pause
                 |           `-----> failed      given up
                 `-- its worker died: claim of the next attempt

What is being sent may have arrived, whatever happens to its worker: it is never sent again.
"""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Operation, Store, operations

SENDING_S = 60.0
"""Seconds that no worker needs to send a digest: one that is still sending was interrupted."""

INTERRUPTED = "the service stopped while it was being sent: it may not have arrived, and is not sent again"


class DigestState(StrEnum):
    """How far a digest is."""

    BEGUN = "begun"
    """The first row: what the schedule had before is not sent."""
    READING = "reading"
    """A worker reads the log. Nothing was sent yet."""
    SENDING = "sending"
    SENT = "sent"
    REFUSED = "refused"
    """It did not arrive, and is tried again."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Digest:
    """An attempt to send a digest.

    Attributes:
        seq: Number of the attempt in the log.
        since: Begin of its period, seconds since the epoch, UTC.
        until: End of its period, which names it.
        attempt: Number of the attempt, from 1 on.
        state: How far it is.
        at: When it came so far.
        why: Why it failed.
    """

    seq: int
    since: float
    until: float
    attempt: int
    state: DigestState
    at: float
    why: str = ""


def newest(store: Store) -> Digest | None:
    """Return the newest attempt, if any."""
    with store.reading() as connection:
        return _newest(connection)


def begin(store: Store, now: float) -> Digest:
    """Return the newest attempt; before the first one, a row from which on the schedule counts."""
    with store.writing() as connection:
        if (last := _newest(connection)) is not None:
            return last
        first = Digest(0, now, now, 0, DigestState.BEGUN, now)
        operations.record(connection, Operation.DIGEST, now, _write(first))
    return first


def has_failed(digest: Digest, now: float) -> bool:
    """Return whether an attempt failed for good, or has been sending for so long that its worker is dead."""
    interrupted = digest.state is DigestState.SENDING and now > digest.at + SENDING_S
    return interrupted or digest.state is DigestState.FAILED


def list_failed(store: Store, limit: int, now: float) -> list[Digest]:
    """Return the newest attempts that failed for good or were interrupted, the newest first."""
    with store.reading() as connection:
        every = [_read(row) for row in operations.read_all(connection, Operation.DIGEST)]
    failed = [one for one in reversed(every) if has_failed(one, now)]
    return [replace(one, why=one.why or INTERRUPTED) for one in failed[:limit]]


def claim(store: Store, since: float, until: float, attempt: int, now: float) -> Digest | None:
    """Begin an attempt; None: it, or a later one, has begun already."""
    with store.writing() as connection:
        last = _newest(connection)
        if last is not None and (last.until, last.attempt) >= (until, attempt):
            return None
        why = last.why if last is not None and last.until == until else ""
        mine = Digest(0, since, until, attempt, DigestState.READING, now, why)
        return replace(mine, seq=operations.record(connection, Operation.DIGEST, now, _write(mine)))


def advance(store: Store, mine: Digest, state: DigestState, now: float, why: str = "") -> None:
    """Record how far an attempt is.

    Raises:
        SupersededError: Another worker has begun a later attempt.
        LogUnavailableError: It may not have been recorded.
    """
    with store.writing() as connection:
        last = _newest(connection)
        if last is None or last.seq != mine.seq:
            raise SupersededError(f"attempt {mine.attempt} of the digest is no longer the newest")
        operations.change(connection, mine.seq, now, _write(replace(mine, state=state, why=why)))


def _newest(connection: sa.Connection) -> Digest | None:
    row = operations.find_newest(connection, Operation.DIGEST)
    return None if row is None else _read(row)


def _write(digest: Digest) -> dict[str, Any]:
    document = asdict(digest)
    del document["seq"], document["at"]
    return document


def _read(row: sa.Row[Any]) -> Digest:
    document = {**row.document, "state": DigestState(row.document["state"])}
    return Digest(seq=row.seq, at=row.at, **document)
