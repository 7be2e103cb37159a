"""The queue of evaluations: each is submitted, claimed by a worker and finished once.

    queued --claim--> running --finish--> done
       ^                 |  `---fail----> failed
       `-----release-----+
                         `-- no heartbeat for a lease: claimed again

A worker takes requests of its configuration only, since the result depends on it. Requests and results are
opaque JSON documents. A project may hold half of the places that other projects leave; projects are served in
turn.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import QueueFullError
from armwise.feedback.log import Store, dumps, storable
from armwise.feedback.log import tables as t
from armwise.feedback.registry.jobs import LEASE_S, Job, JobKind

MAX_PENDING = 20
"""Evaluations that may be queued or running at once."""


class EvaluationStatus(StrEnum):
    """Status of an evaluation."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether it is final."""
        return self in (EvaluationStatus.DONE, EvaluationStatus.FAILED)


@dataclass(frozen=True, slots=True)
class EvaluationRow(Job):
    """An off-policy evaluation in the queue; its result is read separately.

    Attributes:
        request: The request document.
        status: Status of the evaluation.
        done: Share of the work that is done, 0 to 1.
        project: The project that requested it; None: the service itself.
    """

    request: dict[str, Any]
    status: EvaluationStatus
    done: float
    project: str | None = None


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The result of an evaluation.

    Attributes:
        report: The statistics, as a JSON document.
        html: The report as a page, rendered by the worker: plots take a second.
    """

    report: dict[str, Any]
    html: str


_e = t.jobs.c

_JOBS = JobKind("evaluation", EvaluationRow, status=EvaluationStatus)

_IN_HAND = _JOBS.matches & _e.status.in_([EvaluationStatus.QUEUED, EvaluationStatus.RUNNING])

find = _JOBS.find


def submit(
    store: Store,
    config_digest: str,
    request: Mapping[str, Any],
    now: float,
    most: int | None = MAX_PENDING,
    project: str | None = None,
) -> EvaluationRow:
    """Queue an evaluation.

    Args:
        store: The log.
        config_digest: Digest of the configuration that evaluates it.
        request: The request, as a JSON document.
        now: Seconds since the epoch.
        most: Evaluations of the configuration that may be queued or running, including this one; None: any
            number.
        project: The project that requests it, and may hold half of the places that others leave; None: the
            service itself, which may hold them all.

    Raises:
        QueueFullError: `most` are queued or running already, or the project has used its share.
    """
    in_hand = sa.select(sa.func.count()).where(_IN_HAND, _e.configured == config_digest)
    with store.writing() as connection:
        if most is not None:
            waiting = connection.scalar(in_hand) or 0
            of_project = connection.scalar(in_hand.where(_e.project == project)) or 0
            _refuse_more(waiting, of_project, most, project)
        return _JOBS.add(
            connection,
            configured=config_digest,
            request=dict(request),
            status=EvaluationStatus.QUEUED,
            submitted_at=now,
            project=project,
        )


def _refuse_more(waiting: int, of_project: int, most: int, project: str | None) -> None:
    """Check that the queue, and the share of the project, have room. Raises QueueFullError.

    Args:
        waiting: Evaluations that are queued or running.
        of_project: Evaluations of the project among these.
        most: Largest number that may be queued or running.
        project: The project; None: the service itself, which has no share.
    """
    if waiting >= most:
        raise QueueFullError(f"{waiting} evaluations are queued or running, which is the maximum ({most})")
    share = math.ceil((most - (waiting - of_project)) / 2)
    if project is not None and of_project >= share:
        raise QueueFullError(
            f"{of_project} evaluations of project {project!r} are queued or running; it may have {share}, "
            f"half of the {most} places that other projects leave free"
        )


def claim(
    store: Store,
    config_digest: str,
    worker: str,
    now: float,
    only: int | None = None,
    lease_s: float = LEASE_S,
) -> EvaluationRow | None:
    """Claim the next evaluation of a configuration, if any.

    Projects take turns: the next is the oldest of the project that has waited longest since its last claim.

    An evaluation can be claimed while it is queued, when its lease has expired, and when the same worker
    claimed it before: a worker runs one at a time, so it must have crashed during that one.

    Args:
        store: The log.
        config_digest: Digest of the worker's configuration.
        worker: Name of the worker, unique among processes.
        now: Seconds since the epoch.
        only: Number of the only evaluation that may be claimed; None: any.
        lease_s: Time without a heartbeat after which a claim expires.
    """
    oldest = _OLDEST if only is None else _OLDEST.where(_e.seq == only)
    by = {"configuration": config_digest, "claimed_by": worker, "expired": now - lease_s}
    with store.reading() as connection:  # usually there is nothing, and a reader blocks no writer
        if connection.scalar(oldest, by) is None:
            return None
    with store.writing() as connection:
        seq = connection.scalar(oldest, by)
        # None: another worker was faster
        return None if seq is None else _JOBS.begin(connection, seq, worker, now)


_LOST = (_e.alive_at < sa.bindparam("expired")) | (_e.worker == sa.bindparam("claimed_by"))

_of_project = t.jobs.alias().c

_LAST_CLAIM = sa.select(sa.func.coalesce(sa.func.max(_of_project.started_at), 0.0)).where(
    _of_project.kind == _e.kind,
    _of_project.configured == sa.bindparam("configuration"),
    _of_project.project.is_not_distinct_from(_e.project),
)

_OLDEST = (
    sa.select(_e.seq)
    .where(
        _IN_HAND,
        (_e.status == EvaluationStatus.QUEUED) | _LOST,
        _e.configured == sa.bindparam("configuration"),
    )
    .order_by(_LAST_CLAIM.scalar_subquery(), _e.seq)
    .limit(1)
)


def report_progress(store: Store, mine: EvaluationRow, done: float, now: float) -> None:
    """Record the progress of an evaluation and a heartbeat of its worker.

    Args:
        store: The log.
        mine: The evaluation, as `claim` returned it.
        done: Share of the work that is done, 0 to 1.
        now: Seconds since the epoch.

    Raises:
        SupersededError: Another worker has claimed it.
    """
    _JOBS.write(store, mine, done=done, alive_at=now)


def finish(store: Store, mine: EvaluationRow, answer: StoredResult, now: float) -> None:
    """Store the result of an evaluation. Raises SupersededError if another worker has claimed it."""
    ended = {"status": EvaluationStatus.DONE, "done": 1.0, "alive_at": now, "finished_at": now}
    _JOBS.write(store, mine, result=answer.report, page=zlib.compress(answer.html.encode()), **ended)


def fail(store: Store, mine: EvaluationRow, error: str, now: float) -> None:
    """Record why an evaluation failed. Raises SupersededError if another worker has claimed it."""
    ended = {"status": EvaluationStatus.FAILED, "alive_at": now, "finished_at": now}
    _JOBS.write(store, mine, error=storable(error), **ended)


def release(store: Store, mine: EvaluationRow) -> None:
    """Queue a claimed evaluation again. Raises SupersededError if another worker has claimed it."""
    unclaimed = dict.fromkeys(("worker", "started_at", "alive_at"))
    _JOBS.write(store, mine, status=EvaluationStatus.QUEUED, done=0.0, **unclaimed)


def read_result(store: Store, seq: int) -> dict[str, Any] | None:
    """Return the report of an evaluation as a JSON document; None until it is done."""
    with store.reading() as connection:
        report: dict[str, Any] | None = connection.scalar(sa.select(_e.result).where(_e.seq == seq))
        return report


def read_html(store: Store, seq: int) -> str | None:
    """Return the report of an evaluation as an HTML page; None until it is done."""
    with store.reading() as connection:
        packed: bytes | None = connection.scalar(sa.select(_e.page).where(_e.seq == seq))
    return None if packed is None else zlib.decompress(packed).decode()


def page(
    store: Store, limit: int, before: int | None = None, project: str | None = None
) -> list[EvaluationRow]:
    """Return the newest evaluations, newest first.

    Args:
        store: The log.
        limit: Largest length of the page.
        before: Number that all must be below.
        project: Leave out requests that read the decisions of another project; None: list all.
    """
    of_project = _e.request["project"].as_string()
    readable = () if project is None else (of_project.is_(None) | (of_project == project),)
    return _JOBS.page(store, limit, before, *readable)


def find_newest(store: Store, config_digest: str, request: Mapping[str, Any]) -> EvaluationRow | None:
    """Return the newest evaluation of a configuration with exactly this request, if any."""
    same = sa.cast(_e.request, sa.Text) == dumps(dict(request))
    return _JOBS.find_newest(store, same, _e.configured == config_digest)
