"""The task that runs evaluations, each in a child process of low priority, so that serving is not affected.

    parent                                       child
    starts it with {config, request}    ------>  begins
    on_progress(share)                  <------  {"done": 0.25}
    the answer, or an error             <------  {"answer": ...} or {"failed": ...} or {"away": ...}

The child only reads the log. The parent writes the state of the evaluation at normal priority, so that a
process that waits for the CPU never holds a lock. The child's memory is freed when it exits; a child killed
for lack of memory is a failed evaluation.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import orjson
from pydantic import ValidationError

from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation.candidate_names import EvaluationError
from armwise.agent.evaluation.evaluation_request import EvaluationRequest, refuse_untrusted
from armwise.agent.evaluation.replay_log import replay
from armwise.agent.evaluation.replay_page import make_page
from armwise.agent.jobs import BEAT_S, JobFailedError, ProgressCallback, StoppedError
from armwise.agent.low_priority import begin_child, end_child, read_task
from armwise.agent.reporting import log_plainly
from armwise.agent.spec import lines
from armwise.arms.base import Progress
from armwise.feedback.errors import LogUnavailableError, SupersededError, describe_error
from armwise.feedback.log import Store
from armwise.feedback.registry import EvaluationRow, evaluations
from armwise.feedback.sources import LogSource

Evaluate = Callable[[Mapping[str, Any], ProgressCallback], evaluations.StoredResult]
"""Evaluates a request, and returns the result to store. Raises JobFailedError."""

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds after which the parent looks at its child, and reports progress, again."""


class Evaluations:
    """Runs requested evaluations, oldest first. Implements `Task`.

    Args:
        store: The log.
        config_digest: Digest of the configuration; requests under another one are ignored.
        worker: Unique name of this process.
        evaluate: Evaluates a request.
        clock: Seconds since the epoch.
        timer: Monotonic seconds.
        only: Number of the evaluation to run; None: all.
        changed: Whether the log is worth a look for the next request.
    """

    def __init__(
        self,
        store: Store,
        config_digest: str,
        worker: str,
        evaluate: Evaluate,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        only: int | None = None,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._config_digest, self._only = store, config_digest, only
        self._worker, self._evaluate = worker, evaluate
        self._clock, self._timer = clock, timer
        self._changed = changed
        self._mine: EvaluationRow | None = None

    def due(self, now: float) -> bool:
        """Claim the next request, if there is one."""
        if not self._changed():
            return False
        self._mine = evaluations.claim(self._store, self._config_digest, self._worker, now, self._only)
        return self._mine is not None

    def run(self, stop: threading.Event) -> None:
        """Run the claimed evaluation, or record why it failed."""
        mine, self._mine = self._mine, None
        assert mine is not None
        try:
            self._answer(mine, stop)
        except SupersededError as error:
            logger.warning("dropped an answer: %s", error)

    def _answer(self, mine: EvaluationRow, stop: threading.Event) -> None:
        try:
            answer = self._evaluate(mine.request, self._progress(mine, stop))
            evaluations.finish(self._store, mine, answer, self._clock())
        except StoppedError:
            evaluations.release(self._store, mine)
        except (LogUnavailableError, SupersededError):
            raise
        except JobFailedError as error:
            evaluations.fail(self._store, mine, str(error), self._clock())
        except Exception as error:
            logger.exception("evaluation %d failed", mine.seq)
            evaluations.fail(self._store, mine, describe_error(error), self._clock())

    def _progress(self, mine: EvaluationRow, stop: threading.Event) -> ProgressCallback:
        reported_at = self._timer()

        def on_progress(done: float) -> None:
            nonlocal reported_at
            if stop.is_set():
                raise StoppedError
            if self._timer() >= reported_at + BEAT_S:
                evaluations.report_progress(self._store, mine, done, self._clock())
                reported_at = self._timer()

        return on_progress


def evaluate_here(
    config: AppConfig, request: Mapping[str, Any], on_progress: ProgressCallback
) -> evaluations.StoredResult:
    """Evaluate in this process.

    Args:
        config: The resolved configuration.
        request: An `EvaluationRequest` as JSON.
        on_progress: Called with the share that is done.

    Raises:
        JobFailedError: The request cannot be answered.
        LogUnavailableError: Try again later.
    """
    try:
        parsed_request = EvaluationRequest.model_validate_json(orjson.dumps(request))
    except ValidationError as error:  # a row that a client of another version submitted
        raise JobFailedError("; ".join(lines(error, EvaluationRequest))) from None
    with closing(Store(config.database_url, config.reward.join)) as store:
        try:
            refuse_untrusted(parsed_request, config, store)
            document = replay(
                config, parsed_request, LogSource(store, config.reward), store, _shares(on_progress)
            )
        except EvaluationError as error:
            raise JobFailedError(str(error)) from None
    return evaluations.StoredResult(dict(document), make_page(document))


def _shares(on_progress: ProgressCallback) -> Progress:
    """Return a callback that turns the progress of steps into a share of the total.

    The number of steps is unknown, so each counts for half of what was left when it began.

    >>> shares = []
    >>> progress = _shares(shares.append)
    >>> for step in [("read", 1, 2), ("read", 2, 2), ("learn", 1, 2), ("judge", 0, 9)]:
    ...     progress(*step)
    >>> shares
    [0.25, 0.5, 0.625, 0.75]
    """
    steps: list[str] = []

    def progress(step: str, done: int, total: int | None) -> None:
        if step not in steps:
            steps.append(step)
        left = 0.5 ** steps.index(step)
        on_progress(1 - left + left / 2 * (done / total if total else 0))

    return progress


def evaluate_apart(
    config: AppConfig, request: Mapping[str, Any], on_progress: ProgressCallback
) -> evaluations.StoredResult:
    """Run `evaluate_here` in a child process, which ends with this call."""
    task = {"config": config.model_dump(mode="json"), "request": dict(request)}
    done = 0.0
    with TemporaryFile() as said:
        child = begin_child(__name__, run_child.__name__, task, stdout=said)
        try:
            while child.poll() is None:
                done = _read_last(said).get("done", done)
                on_progress(done)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_S)
        finally:
            end_child(child)
        return _conclude(_read_last(said), child.returncode)


def _read_last(said: BinaryIO) -> dict[str, Any]:
    """Return the last complete message of a child, which may go on writing; empty: there is none."""
    *_, last, _ = b"\n", *os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0).split(b"\n")
    return dict(orjson.loads(last)) if last.strip() else {}


def _conclude(message: Mapping[str, Any], status: int) -> evaluations.StoredResult:
    """Return the answer of a child. Raises JobFailedError or LogUnavailableError."""
    match message:
        case {"answer": answer}:
            return evaluations.StoredResult(**answer)
        case {"failed": why}:
            raise JobFailedError(why)
        case {"away": why}:
            raise LogUnavailableError(why)
    how = f"signal {-status}" if status < 0 else f"status {status}"
    raise JobFailedError(f"the process of the evaluation ended with {how}: see its output")


def run_child() -> None:
    """Evaluate the task of this child process, and write messages to its standard output."""
    task = read_task()
    said = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no message
    logging.basicConfig(level=logging.INFO)
    log_plainly()
    answer(task, lambda message: said.writelines([orjson.dumps(message), b"\n"]))


def answer(task: Mapping[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Evaluate a task, and send its progress, and then its outcome."""
    message: dict[str, Any]
    try:
        found = evaluate_here(parse(task["config"]), task["request"], lambda done: send({"done": done}))
        message = {"answer": asdict(found)}
    except JobFailedError as error:
        message = {"failed": str(error)}
    except LogUnavailableError as error:
        message = {"away": str(error)}
    except Exception as error:
        logger.exception("the evaluation failed")
        message = {"failed": describe_error(error)}
    send(message)
