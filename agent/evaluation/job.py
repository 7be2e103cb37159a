"""Run one evaluation in a child process at the lowest priority, so that serving is not affected.

    parent                                       child
    starts it, sends {config, request}  ------>  begins
    on_progress(share)                  <------  {"done": 0.25}
    the answer, or an error             <------  {"answer": ...} or {"failed": ...} or {"away": ...}
    closes the pipe, or dies            ------>  exits at once

The child only reads the log. The parent writes the state of the evaluation at normal priority, so that a
process that waits for the CPU never holds a lock. The child's memory is freed when it exits; a child killed
for lack of memory is a failed evaluation.
"""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import orjson
from pydantic import ValidationError

from armwise.agent.background import Work, retry
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation.candidates import EvaluationError
from armwise.agent.evaluation.replay_log import replay
from armwise.agent.evaluation.report import make_page
from armwise.agent.evaluation.request import EvaluationRequest, refuse_untrusted
from armwise.agent.jobs import (
    BEAT_S,
    JobFailedError,
    ProgressCallback,
    StoppedError,
)
from armwise.agent.low_priority import command_of_a_child, environment_of_a_child
from armwise.agent.reporting import log_plainly
from armwise.agent.spec import lines
from armwise.arms.base import Progress
from armwise.feedback.errors import LogUnavailableError, SupersededError, describe_error
from armwise.feedback.log import Store
from armwise.feedback.registry import EvaluationRow, evaluations
from armwise.feedback.sources import LogSource

Evaluate = Callable[[Mapping[str, Any], ProgressCallback], evaluations.StoredResult]
"""Evaluates a request, and returns the result to store. Raises JobFailedError."""


RETRIES_S = (2.0, 10.0)
"""Pauses before an evaluation is tried again after its process ended or hit a defect."""


class ChildEndedError(JobFailedError):
    """The process of an evaluation ended without an answer."""


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
        pauses_s: Pauses between attempts after failures that are not the request's fault, shorter than the
            lease; None: a single attempt, whose error is raised.
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
        pauses_s: Sequence[float] | None = None,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._config_digest, self._only = store, config_digest, only
        self._worker, self._evaluate = worker, evaluate
        self._clock, self._timer = clock, timer
        self._pauses_s, self._changed = pauses_s, changed
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
            answer = self._attempt(mine, stop)
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

    def _attempt(self, mine: EvaluationRow, stop: threading.Event) -> evaluations.StoredResult:
        """Evaluate, and retry failures that are not the request's fault."""

        def evaluate() -> evaluations.StoredResult:
            if stop.is_set():  # during the pause
                raise StoppedError
            return self._evaluate(mine.request, self._progress(mine, stop))

        if self._pauses_s is None:
            return evaluate()
        return retry(
            Work.EVALUATION,
            evaluate,
            wait=stop.wait,
            pauses_s=self._pauses_s,
            final=_is_final,
            clock=self._clock,
        )

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


def _is_final(error: Exception) -> bool:
    """Return whether an error would recur in another attempt, or did not come from the evaluation."""
    of_others = isinstance(error, StoppedError | LogUnavailableError | SupersededError)
    return of_others or (isinstance(error, JobFailedError) and not isinstance(error, ChildEndedError))


logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds that the parent waits for a message before it reports progress again."""

END_S = 10.0
"""Seconds that a child may take to exit after its last message."""


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
    with _child() as (child, pipe):
        try:
            return send_request(pipe, config, request, on_progress)
        except (EOFError, ConnectionError):
            status = child.wait(END_S)
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise ChildEndedError(f"the process of the evaluation ended with {how}: see its output") from None


def send_request(
    pipe: "Connection[Any, Any]", config: AppConfig, request: Mapping[str, Any], on_progress: ProgressCallback
) -> evaluations.StoredResult:
    """Send a request to the child, and wait for the answer. Raises EOFError if the child ends without one."""
    pipe.send_bytes(orjson.dumps({"config": config.model_dump(mode="json"), "request": dict(request)}))
    done = 0.0
    while True:
        if pipe.poll(POLL_S):
            match orjson.loads(pipe.recv_bytes()):
                case {"answer": answer}:
                    return evaluations.StoredResult(**answer)
                case {"failed": why}:
                    raise JobFailedError(why)
                case {"away": why}:
                    raise LogUnavailableError(why)
                case {"done": share}:
                    done = share
        on_progress(done)


def handle_request(pipe: "Connection[Any, Any]", task: bytes) -> None:
    """Evaluate a request in the child, and send the answer."""
    document = orjson.loads(task)

    def on_progress(done: float) -> None:
        pipe.send_bytes(orjson.dumps({"done": done}))

    message: dict[str, Any]
    try:
        message = {
            "answer": asdict(evaluate_here(parse(document["config"]), document["request"], on_progress))
        }
    except JobFailedError as error:
        message = {"failed": str(error)}
    except LogUnavailableError as error:
        message = {"away": str(error)}
    except Exception as error:
        logger.exception("the evaluation failed")
        message = {"failed": describe_error(error)}
    pipe.send_bytes(orjson.dumps(message))


def main(descriptor: str) -> None:
    """Run the child: handle the request that comes through a pipe.

    Args:
        descriptor: File descriptor of this end of the pipe.
    """
    pipe: Connection[Any, Any] = Connection(int(descriptor))
    task = pipe.recv_bytes()
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()
    logging.basicConfig(level=logging.INFO)
    log_plainly()
    handle_request(pipe, task)


def _exit_with_parent(pipe: "Connection[Any, Any]") -> None:
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(1)


@contextmanager
def _child() -> Iterator[tuple["subprocess.Popen[bytes]", "Connection[Any, Any]"]]:
    """Start the child with a pipe to it; kill it at the end."""
    ours, theirs = Pipe()
    with closing(ours):
        with closing(theirs):
            child = subprocess.Popen(
                command_of_a_child(__name__, main.__name__, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                env=environment_of_a_child(),
                pass_fds=[theirs.fileno()],
            )
        try:
            yield child, ours
        finally:
            child.kill()
            child.wait()
