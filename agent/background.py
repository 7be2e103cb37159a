"""Failures of background work: each is recorded until the work succeeds.

    work outside of the log    record, clear    --> a file in the folder of the run --> read_failures
    warm starts, the digest    rows of the log  --> `find_failed_run`, `find_failed_digest` of `agent.jobs`

`/ready`, `/metrics`, the console and `armwise status` show both. Builds before the service answers are left
out, since they end with an exit code.
"""

import logging
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import orjson

from armwise.agent.run_folder import RUN_FOLDER

logger = logging.getLogger(__name__)


class Work(StrEnum):
    """A kind of work in the background."""

    FIRST_START = "first_start"
    """Vectors, profiles and indexes of arms that a first start has left, and what it does before its run."""

    SOURCES = "sources"
    """Sources of passages that could not be read when the service started, or cannot be asked."""

    ARMS = "arms"
    """Arms that became live and that a replica builds."""

    LEARNER = "learner"
    WARM_START = "warm_start"
    EVALUATION = "evaluation"
    CANARY = "canary"
    DIGEST = "digest"

    MODELS = "models"
    """Language models whose endpoints refuse the key, the account or the model of the service."""

    LOG = "log"
    """Commits, while questions are answered without them."""


ABOUT = {
    Work.FIRST_START: (
        "arms behind the first start",
        "remove the cause: it is tried again, and goes on with what is built",
    ),
    Work.SOURCES: (
        "sources",
        "make the source readable again, or correct the proxy, then restart the service",
    ),
    Work.ARMS: ("live arms in a replica", "restore what they need, or put other arms in place"),
    Work.LEARNER: (
        "learning",
        "decisions go on, by what was learned before: remove the cause, which the log of the service has; "
        "the learner is started again, and goes on from the log",
    ),
    Work.WARM_START: (
        "warm start",
        "remove the cause, then `armwise lab warm-start` or POST /v1/warm-starts does it now",
    ),
    Work.EVALUATION: ("evaluations", "remove the cause, which the log of the service has, then ask again"),
    Work.MODELS: (
        "language models",
        "correct `api_key_env` or `model`, or the account at the provider; arms of other models answer "
        "until then",
    ),
    Work.LOG: (
        "the log",
        "make the database reachable and writable: until then the fallback answers, and nothing is logged or "
        "learned",
    ),
    Work.DIGEST: (
        "the digest",
        "remove the cause, then `armwise report --send` sends the last week",
    ),
    Work.CANARY: ("canaries", "remove the cause, which the log of the service has: it is tried again"),
}
"""Description of each kind of work, and the remedy for its failure."""


@dataclass(frozen=True, slots=True)
class WorkFailure:
    """The failure of work that has not succeeded since.

    Attributes:
        work: The kind of work.
        why: The last error.
        attempts: Failed attempts in a row.
        next_at: When the next attempt is due, or has begun, seconds since the epoch, UTC; None: given up.
    """

    work: Work
    why: str
    attempts: int
    next_at: float | None

    @property
    def what(self) -> str:
        """The work, in words."""
        return ABOUT[self.work][0]

    @property
    def remedy(self) -> str:
        """The remedy, in words."""
        return ABOUT[self.work][1]

    def __str__(self) -> str:
        """Return a line for people.

        >>> print(WorkFailure(Work.EVALUATION, "out of memory", 1, 60.0))
        evaluations: out of memory (failed once; trying again now): remove the cause, which the log of the \
service has, then ask again
        """
        return failure_line(self.what, self.why, self.remedy, self.attempts, self.next_at)


def failure_line(what: str, why: str | None, remedy: str, attempts: int, next_at: float | None) -> str:
    """Return a line for people on a failure, with the reason if one is given.

    >>> failure_line("warm start", None, "look there", 3, None)
    'warm start (failed 3 times; given up): look there'
    >>> failure_line("warm start", None, "look there", 1, 4e9)
    'warm start (failed once; next attempt 2096-10-02 07:06:40 UTC): look there'
    """
    again = "given up"
    if next_at is not None and next_at <= time.time():
        again = "trying again now"
    elif next_at is not None:
        again = f"next attempt {datetime.fromtimestamp(next_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    often = "once" if attempts == 1 else f"{attempts} times"
    return f"{what}{'' if why is None else f': {why}'} (failed {often}; {again}): {remedy}"


def record(failure: WorkFailure, folder: Path | None = None) -> None:
    """Write a failure in place of an earlier one of the same work; does nothing without a run folder.

    If the disk is full, the failure is logged, and the work goes on.

    Args:
        failure: The failure.
        folder: Folder of the run; None: the folder named by the environment.
    """
    if (path := _path(failure.work, folder)) is None:
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        why = failure.why.encode(errors="replace").decode()
        unfinished.write_bytes(orjson.dumps({**asdict(failure), "why": why}))
        unfinished.replace(path)  # atomic
    except OSError as error:
        logger.warning("%s; it cannot be recorded: %s", failure, error)


def clear(work: Work, folder: Path | None = None) -> None:
    """Remove the recorded failure of work that has succeeded."""
    if (path := _path(work, folder)) is not None:
        path.unlink(missing_ok=True)


def read_failures() -> list[WorkFailure]:
    """Return the recorded failures of all processes of this run."""
    found = []
    for work in Work:
        if (path := _path(work)) is None:
            continue
        try:
            document = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        found.append(WorkFailure(**{**document, "work": work}))
    return found


def _path(work: Work, folder: Path | None = None) -> Path | None:
    of_run = folder or os.environ.get(RUN_FOLDER)
    return None if of_run is None else Path(of_run) / "failed" / f"{work}.json"
