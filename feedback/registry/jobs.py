"""Jobs: rows of work that one worker at a time may write. Evaluations and runs of the warm start are jobs.

    requested --begin--> running --update--> ended
                            `-- no heartbeat for a lease: its worker is dead

Clients and workers share only the rows, so either may be many processes. A worker holds a lease that it
renews; once another process has claimed or ended its job, what it writes is refused. Each kind of job decides
which one is next, and what becomes of one whose worker is dead.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import sqlalchemy as sa

from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store, insert
from armwise.feedback.log import tables as t

LEASE_S = 60.0
"""Seconds without a heartbeat after which the worker of a job counts as dead."""

RUNNING = "running"
"""Status of a job of any kind that a worker has claimed."""

_j = t.jobs.c


class Job(Protocol):
    """What tells one claim of a job from another."""

    @property
    def seq(self) -> int: ...  # noqa: D102

    @property
    def worker(self) -> str | None: ...  # noqa: D102

    @property
    def started_at(self) -> float | None: ...  # noqa: D102


J = TypeVar("J", bound=Job)


class JobKind(Generic[J]):
    """Reads and writes the jobs of one kind.

    Args:
        kind: Name of the kind, in rows and messages.
        fields: Fields of a job that are read from its row.
        make: Makes a job from their values.
        columns: Columns of `jobs`, by field, for fields with another name than their column.
    """

    def __init__(self, kind: str, fields: Sequence[str], make: Callable[..., J], **columns: str) -> None:
        self.kind, self._make, self._names = kind, make, columns
        self._columns = [_j[columns.get(field, field)] for field in fields]

    def read(
        self, connection: sa.Connection, *conditions: sa.ColumnElement[bool], limit: int | None = None
    ) -> list[J]:
        """Return the jobs that meet all conditions, newest first."""
        query = sa.select(*self._columns).where(_j.kind == self.kind, *conditions)
        rows = connection.execute(query.order_by(_j.seq.desc()).limit(limit)).all()
        return [self._make(*row) for row in rows]

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
        """Add a job with some fields within a transaction."""
        seq = insert(connection, t.jobs, {"kind": self.kind, "done": 0.0, **self._rename(values)})
        return self.read(connection, _j.seq == seq)[0]

    def begin(self, connection: sa.Connection, seq: int, worker: str, now: float) -> J:
        """Claim a job for a worker within a transaction, which has found that it may be claimed."""
        claimed = {"status": RUNNING, "worker": worker, "started_at": now, "alive_at": now, "done": 0.0}
        connection.execute(sa.update(t.jobs).where(_j.seq == seq).values(**claimed))
        return self.read(connection, _j.seq == seq)[0]

    def update(self, connection: sa.Connection, mine: J, **values: object) -> None:
        """Update fields of a claimed job within a transaction.

        Raises:
            SupersededError: It has ended, or another worker has claimed it.
        """
        claimed = (_j.seq == mine.seq) & (_j.status == RUNNING)
        claimed &= (_j.worker == mine.worker) & (_j.started_at == mine.started_at)
        if not connection.execute(sa.update(t.jobs).where(claimed).values(self._rename(values))).rowcount:
            status, holder = connection.execute(_HELD, {"of": mine.seq}).one()
            lost = f"{mine.worker} no longer holds {self.kind} {mine.seq}"
            raise SupersededError(f"{lost}: it is {status}, last claimed by {holder}")

    def write(self, store: Store, mine: J, **values: object) -> None:
        """Update fields of a claimed job in a transaction of its own. Raises SupersededError, as `update`."""
        with store.writing() as connection:
            self.update(connection, mine, **values)

    def _rename(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return values of fields by the names of their columns."""
        return {self._names.get(field, field): value for field, value in values.items()}


_HELD = sa.select(_j.status, _j.worker).where(_j.seq == sa.bindparam("of"))
