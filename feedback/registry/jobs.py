"""Jobs: rows of work that one worker at a time may write. Evaluations and runs of the warm start are jobs.

    requested --begin--> running --update--> ended
                            `-- no heartbeat for a lease: its worker is dead

Clients and workers share only the rows, so either may be many processes. A worker holds a lease that it
renews; once another process has claimed or ended its job, what it writes is refused. Each kind of job decides
which one is next, and what becomes of one whose worker is dead.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Generic, TypeVar

import sqlalchemy as sa

from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store, insert
from armwise.feedback.log import tables as t

LEASE_S = 60.0
"""Seconds without a heartbeat after which the worker of a job counts as dead."""

RUNNING = "running"
"""Status of a job of any kind that a worker has claimed."""

_j = t.jobs.c


@dataclass(frozen=True, slots=True)
class Job:
    """A job of any kind.

    Attributes:
        seq: Number of the job, increasing; all kinds share the numbers.
        configured: Digest of the configuration, or of the configured recipe, that it belongs to.
        worker: Name of the worker; None until it is claimed.
        submitted_at: When it was requested; all times are seconds since the epoch, UTC.
        started_at: When it was claimed.
        alive_at: Last heartbeat of its worker.
        finished_at: When it ended.
        error: Why it failed.
    """

    seq: int
    configured: str
    worker: str | None
    submitted_at: float
    started_at: float | None
    alive_at: float | None
    finished_at: float | None
    error: str | None


J = TypeVar("J", bound=Job)


class JobKind(Generic[J]):
    """Reads and writes the jobs of one kind.

    Args:
        name: Name of the kind, in rows and messages.
        job: A job of the kind, with a field for each column that is read.
        enums: Types of the fields that are enumerations.
    """

    def __init__(self, name: str, job: type[J], **enums: type[StrEnum]) -> None:
        self._name, self._job, self._enums = name, job, enums
        self._columns = [_j[field.name] for field in fields(job)]
        self.matches = _j.kind == name

    def read(
        self, connection: sa.Connection, *conditions: sa.ColumnElement[bool], limit: int | None = None
    ) -> list[J]:
        """Return the jobs that meet all conditions, newest first."""
        query = sa.select(*self._columns).where(self.matches, *conditions)
        rows = connection.execute(query.order_by(_j.seq.desc()).limit(limit)).mappings().all()
        enums = self._enums.items()
        return [self._job(**{**row, **{name: enum(row[name]) for name, enum in enums}}) for row in rows]

    def find_newest(self, store: Store, *conditions: sa.ColumnElement[bool]) -> J | None:
        """Return the newest job that meets all conditions, if any."""
        with store.reading() as connection:
            return next(iter(self.read(connection, *conditions, limit=1)), None)

    def find(self, store: Store, seq: int) -> J | None:
        """Return the job with a number, if any."""
        return self.find_newest(store, _j.seq == seq)

    def page(
        self, store: Store, limit: int, before: int | None = None, *conditions: sa.ColumnElement[bool]
    ) -> list[J]:
        """Return a page of the newest jobs, newest first.

        Args:
            store: The log.
            limit: Largest length of the page.
            before: Number that all must be below.
            conditions: What they meet.
        """
        older = () if before is None else (_j.seq < before,)
        with store.reading() as connection:
            return self.read(connection, *older, *conditions, limit=limit)

    def add(self, connection: sa.Connection, **values: object) -> J:
        """Add a job within a transaction."""
        seq = insert(connection, t.jobs, {"kind": self._name, "done": 0.0, **values})
        return self.read(connection, _j.seq == seq)[0]

    def begin(self, connection: sa.Connection, seq: int, worker: str, now: float) -> J:
        """Claim a job for a worker within a transaction, which has found that it may be claimed."""
        claimed = {"status": RUNNING, "worker": worker, "started_at": now, "alive_at": now, "done": 0.0}
        connection.execute(sa.update(t.jobs).where(_j.seq == seq).values(**claimed))
        return self.read(connection, _j.seq == seq)[0]

    def update(self, connection: sa.Connection, mine: J, **values: object) -> None:
        """Update columns of a claimed job within a transaction.

        Raises:
            SupersededError: It has ended, or another worker has claimed it.
        """
        claimed = (_j.seq == mine.seq) & (_j.status == RUNNING)
        claimed &= (_j.worker == mine.worker) & (_j.started_at == mine.started_at)
        if not connection.execute(sa.update(t.jobs).where(claimed).values(**values)).rowcount:
            held = sa.select(_j.status, _j.worker).where(_j.seq == mine.seq)
            status, holder = connection.execute(held).one()
            lost = f"{mine.worker} no longer holds {self._name} {mine.seq}"
            raise SupersededError(f"{lost}: it is {status}, last claimed by {holder}")

    def write(self, store: Store, mine: J, **values: object) -> None:
        """Update columns of a claimed job in a transaction. Raises SupersededError, as `update` does."""
        with store.writing() as connection:
            self.update(connection, mine, **values)
