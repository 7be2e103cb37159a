"""Evaluations as jobs: asked for, claimed by one worker, and answered once.

    queued --claim--> running --finish--> done
       ^                 |  `---fail----> failed
       `----give_back----+
                         `-- its worker is silent for a lease: claimed again

Whoever asks and whoever works share nothing but the rows, so both may be any number of processes. Services
of several configurations may share a log: each answers what was asked of its own, as the answer follows from
the configuration, too. What an evaluation asks and what it answers are documents; what is in them is no
matter of the queue.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from feedback.errors import QueueFullError, SupersededError
from feedback.log import Store, database
from feedback.log import tables as t

MOST = 20
"""Evaluations that may be queued or running at once."""

LEASE_S = 60.0
"""How long a worker may be silent before what it works on is given to another one."""


class State(StrEnum):
    """How far an evaluation is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self in (State.DONE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What other policies would have earned: asked for, and perhaps answered.

    Attributes:
        seq: Its number; what was asked for later has a higher one.
        configured: Digest of the configuration that it is answered by.
        request: What is asked for.
        status: How far it is.
        submitted_at: When it was asked for; this and the other times are seconds since the epoch, UTC.
        started_at: When it was claimed; None before.
        alive_at: When its worker was last heard of; None before it has one.
        finished_at: When it was done or had failed; None before.
        worker: Who works on it, or did; None before.
        done: Share of the work that is done, 0 to 1.
        error: Why it failed; None where it did not.
    """

    seq: int
    configured: str
    request: dict[str, Any]
    status: State
    submitted_at: float
    started_at: float | None
    alive_at: float | None
    finished_at: float | None
    worker: str | None
    done: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What an evaluation has found.

    Attributes:
        report: As figures: a document.
        html: The same as a page. It is made with the figures, and not when somebody wants to see it: plots
            take a second, which whoever serves has not.
    """

    report: dict[str, Any]
    html: str


_e = t.evaluations.c

_EVALUATION = [_e[name] for name in Evaluation.__slots__]

_IN_HAND = _e.status.in_([State.QUEUED.value, State.RUNNING.value])


def submit(
    store: Store, configured: str, request: Mapping[str, Any], now: float, most: int | None = MOST
) -> Evaluation:
    """Ask for an evaluation.

    Args:
        store: The log.
        configured: Digest of the configuration that it is to be answered by.
        request: What is asked for, as JSON can say it.
        now: Seconds since the epoch.
        most: Evaluations of the configuration that may be queued or running, this one among them; None
            for any number.

    Raises:
        QueueFullError: So many are queued or running; nothing was written.
    """
    row: dict[str, object] = {
        "configured": configured,
        "request": dict(request),
        "status": State.QUEUED.value,
        "submitted_at": now,
        "done": 0.0,
    }
    in_hand = sa.select(sa.func.count()).where(_IN_HAND, _e.configured == configured)
    with store.writing() as connection:
        waiting = connection.scalar(in_hand) or 0
        if most is not None and waiting >= most:
            raise QueueFullError(f"{waiting} evaluations are queued or running: at most {most} may be")
        result = connection.execute(sa.insert(t.evaluations), row)
        assert result.inserted_primary_key is not None
        return _found(connection, int(result.inserted_primary_key[0]))


def claim(
    store: Store,
    configured: str,
    worker: str,
    now: float,
    only: int | None = None,
    lease_s: float = LEASE_S,
) -> Evaluation | None:
    """Take the oldest evaluation of a configuration that waits for a worker; None where none does.

    It waits when nobody has claimed it, when whoever has was silent for longer than the lease, and when
    that is the same worker: it works on one at a time, so it did not come to an end with it.

    Args:
        store: The log.
        configured: Digest of the configuration that the worker answers by.
        worker: Who claims it; a name that no other process has.
        now: Seconds since the epoch.
        only: Number of the one that is wanted; None for any.
        lease_s: How long a worker may be silent.
    """
    lost = (_e.status == State.RUNNING.value) & ((_e.alive_at < now - lease_s) | (_e.worker == worker))
    waiting = ((_e.status == State.QUEUED.value) | lost) & (_e.configured == configured)
    if only is not None:
        waiting &= _e.seq == only
    oldest = sa.select(_e.seq).where(waiting).order_by(_e.seq).limit(1)
    with store.reading() as connection:  # a look holds up nobody, and mostly there is nothing
        if connection.scalar(oldest) is None:
            return None
    taken = {"status": State.RUNNING.value, "worker": worker, "started_at": now, "alive_at": now, "done": 0.0}
    with store.writing() as connection:
        seq = connection.scalar(oldest)
        if seq is None:  # somebody was faster
            return None
        connection.execute(sa.update(t.evaluations).where(_e.seq == seq).values(**taken))
        return _found(connection, seq)


def progressed(store: Store, mine: Evaluation, done: float, now: float) -> None:
    """Say how far an evaluation is, and that its worker is alive.

    Args:
        store: The log.
        mine: As it was claimed.
        done: Share of the work that is done, 0 to 1.
        now: Seconds since the epoch.

    Raises:
        SupersededError: Another worker has it by now.
    """
    _update(store, mine, done=done, alive_at=now)


def finish(store: Store, mine: Evaluation, answer: Answer, now: float) -> None:
    """Answer an evaluation. Raises SupersededError where another worker has it by now."""
    found = {"result": answer.report, "html": zlib.compress(answer.html.encode())}
    _update(store, mine, status=State.DONE.value, **found, done=1.0, alive_at=now, finished_at=now)


def fail(store: Store, mine: Evaluation, error: str, now: float) -> None:
    """Say why an evaluation has no answer. Raises SupersededError where another worker has it by now."""
    _update(store, mine, status=State.FAILED.value, error=database.kept(error), alive_at=now, finished_at=now)


def give_back(store: Store, mine: Evaluation) -> None:
    """Let another worker have an evaluation. Raises SupersededError where one has it by now."""
    _update(store, mine, status=State.QUEUED.value, worker=None, started_at=None, alive_at=None, done=0.0)


def find(store: Store, seq: int) -> Evaluation | None:
    """Return the evaluation of a number; None where there is none."""
    with store.reading() as connection:
        row = connection.execute(sa.select(*_EVALUATION).where(_e.seq == seq)).first()
        return None if row is None else _evaluation_of(row)


def result_of(store: Store, seq: int) -> dict[str, Any] | None:
    """Return what an evaluation has found, as a document; None as long as it is not done."""
    with store.reading() as connection:
        found: dict[str, Any] | None = connection.scalar(sa.select(_e.result).where(_e.seq == seq))
        return found


def html_of(store: Store, seq: int) -> str | None:
    """Return what an evaluation has found, as a page; None as long as it is not done."""
    with store.reading() as connection:
        found: bytes | None = connection.scalar(sa.select(_e.html).where(_e.seq == seq))
    return None if found is None else zlib.decompress(found).decode()


def page(store: Store, limit: int, before: int | None = None) -> list[Evaluation]:
    """Return the newest evaluations, newest first.

    Args:
        store: The log.
        limit: How many at most.
        before: Only those whose number is below; None for the newest of all.
    """
    query = sa.select(*_EVALUATION).order_by(_e.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_e.seq < before)
    with store.reading() as connection:
        return [_evaluation_of(row) for row in connection.execute(query)]


def newest_of(store: Store, configured: str, request: Mapping[str, Any]) -> Evaluation | None:
    """Return the newest evaluation that was asked of a configuration in exactly these words, if any was."""
    same = sa.cast(_e.request, sa.Text) == database.dumps(dict(request))
    query = sa.select(*_EVALUATION).where(same, _e.configured == configured).order_by(_e.seq.desc()).limit(1)
    with store.reading() as connection:
        row = connection.execute(query).first()
        return None if row is None else _evaluation_of(row)


def _update(store: Store, mine: Evaluation, **values: Any) -> None:
    ours = (_e.seq == mine.seq) & (_e.status == State.RUNNING.value)
    ours &= (_e.worker == mine.worker) & (_e.started_at == mine.started_at)
    with store.writing() as connection:
        if not connection.execute(sa.update(t.evaluations).where(ours).values(**values)).rowcount:
            holder = connection.scalar(sa.select(_e.worker).where(_e.seq == mine.seq))
            raise SupersededError(f"evaluation {mine.seq} of {mine.worker} was taken over by {holder}")


def _found(connection: sa.Connection, seq: int) -> Evaluation:
    return _evaluation_of(connection.execute(sa.select(*_EVALUATION).where(_e.seq == seq)).one())


def _evaluation_of(row: "sa.Row[Any]") -> Evaluation:
    seq, configured, request, status, *rest = tuple(row)
    return Evaluation(seq, configured, request, State(status), *rest)
