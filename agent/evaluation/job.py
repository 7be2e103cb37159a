"""One evaluation in a process of its own, at the lowest priority there is: serving does not notice it.

    parent                                       child
    starts it, sends {config, request}  ------>  begins
    Heard(share)                        <------  {"done": 0.25}
    the answer, or an error             <------  {"answer": ...} or {"failed": ...} or {"away": ...}
    hangs up, or is no more             ------>  ends at once

The child only reads the log. All that is written about the evaluation is written by the parent, at its usual
priority, so that no lock is ever held by a process that waits for its turn. What the child took of memory is
free again when it ends, and a child that is killed for lack of memory is an evaluation that failed.
"""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import orjson

from agent.config import AppConfig, parse
from agent.jobs import BEAT_S, JobFailedError, ProgressCallback, StoppedError, environment_of_a_child
from arms.base import Progress
from feedback.errors import LogUnavailableError, SupersededError, described
from feedback.log import Store
from feedback.registry import Evaluation, evaluations

Evaluate = Callable[[Mapping[str, Any], ProgressCallback], evaluations.Answer]
"""Makes the answer of a request. Raises JobFailedError."""


class Evaluations:
    """Answers what was asked for, oldest first. Implements `Task`.

    Args:
        store: The log.
        configured: Digest of the configuration that is answered by: what was asked of another is left alone.
        worker: Who works here; a name that no other process has.
        evaluate: Makes an answer.
        clock: Seconds since the epoch.
        timer: Seconds, never going back.
        only: Number of the one that is answered; None for all.
    """

    def __init__(
        self,
        store: Store,
        configured: str,
        worker: str,
        evaluate: Evaluate,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        only: int | None = None,
    ) -> None:
        self._store, self._configured, self._only = store, configured, only
        self._worker, self._evaluate = worker, evaluate
        self._clock, self._timer = clock, timer
        self._mine: Evaluation | None = None

    def due(self, now: float) -> bool:
        """Claim the next one; there may be none."""
        self._mine = evaluations.claim(self._store, self._configured, self._worker, now, self._only)
        return self._mine is not None

    def run(self, stop: threading.Event) -> None:
        """Answer the one that was claimed, or record why that cannot be done."""
        mine, self._mine = self._mine, None
        assert mine is not None
        try:
            self._answer(mine, stop)
        except SupersededError as error:
            logger.warning("an answer is dropped: %s", error)

    def _answer(self, mine: Evaluation, stop: threading.Event) -> None:
        try:
            answer = self._evaluate(mine.request, self._heard(mine, stop))
            evaluations.finish(self._store, mine, answer, self._clock())
        except StoppedError:
            evaluations.give_back(self._store, mine)
        except (LogUnavailableError, SupersededError):
            raise
        except JobFailedError as error:
            evaluations.fail(self._store, mine, str(error), self._clock())
        except Exception as error:
            logger.exception("evaluation %d failed", mine.seq)
            evaluations.fail(self._store, mine, described(error), self._clock())

    def _heard(self, mine: Evaluation, stop: threading.Event) -> ProgressCallback:
        told_at = self._timer()

        def heard(done: float) -> None:
            nonlocal told_at
            if stop.is_set():
                raise StoppedError
            if self._timer() >= told_at + BEAT_S:
                evaluations.progressed(self._store, mine, done, self._clock())
                told_at = self._timer()

        return heard


logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""How long the parent waits for a word before it tells that the work goes on."""

END_S = 10.0
"""How long a child that has said its last word may take to end."""

CHILD = "agent.evaluation"


def evaluate_here(
    config: AppConfig, request: Mapping[str, Any], heard: ProgressCallback
) -> evaluations.Answer:
    """Evaluate in this process.

    Args:
        config: The settled configuration.
        request: An `EvaluationRequest`, as JSON says it.
        heard: Told how far it is.

    Raises:
        JobFailedError: The request cannot be answered.
        LogUnavailableError: Try again later.
    """
    # these bring in all that can learn and be judged, which only the child needs
    from agent.evaluation.candidate_names import EvaluationError
    from agent.evaluation.evaluate import evaluate_log
    from agent.evaluation.request import EvaluationRequest
    from feedback.dataset import LogSource

    asked = EvaluationRequest.model_validate_json(orjson.dumps(request))
    with closing(Store(config.database_url, config.reward.join)) as store:
        try:
            report = evaluate_log(config, asked, LogSource(store, config.reward), store, _shares(heard))
        except EvaluationError as error:
            raise JobFailedError(str(error)) from None
    return evaluations.Answer(report.as_json(), report.html())


def _shares(heard: ProgressCallback) -> Progress:
    """Tell how far the whole work is, where only its steps are told, and not how many there will be.

    Each step counts for half of what was left when it began.

    >>> told = []
    >>> progress = _shares(told.append)
    >>> for step in [("read", 1, 2), ("read", 2, 2), ("learn", 1, 2), ("judge", 0, 9)]:
    ...     progress(*step)
    >>> told
    [0.25, 0.5, 0.625, 0.75]
    """
    steps: list[str] = []

    def progress(step: str, done: int, total: int | None) -> None:
        if step not in steps:
            steps.append(step)
        left = 0.5 ** steps.index(step)
        heard(1 - left + left / 2 * (done / total if total else 0))

    return progress


def evaluate_apart(
    config: AppConfig, request: Mapping[str, Any], heard: ProgressCallback
) -> evaluations.Answer:
    """Do what `evaluate_here` does in a process of its own, which ends with this call however that ends."""
    with _child() as (child, pipe):
        try:
            return ask(pipe, config, request, heard)
        except (EOFError, ConnectionError):
            status = child.wait(END_S)
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise JobFailedError(f"the process of the evaluation ended with {how}: see its output") from None


def ask(
    pipe: "Connection[Any, Any]", config: AppConfig, request: Mapping[str, Any], heard: ProgressCallback
) -> evaluations.Answer:
    """Be the parent: send what is to be done, and wait for the answer. Raises EOFError where none comes."""
    pipe.send_bytes(orjson.dumps({"config": config.model_dump(mode="json"), "request": dict(request)}))
    done = 0.0
    while True:
        if pipe.poll(LOOK_S):
            match orjson.loads(pipe.recv_bytes()):
                case {"answer": answer}:
                    return evaluations.Answer(**answer)
                case {"failed": why}:
                    raise JobFailedError(why)
                case {"away": why}:
                    raise LogUnavailableError(why)
                case {"done": share}:
                    done = share
        heard(done)


def answer(pipe: "Connection[Any, Any]", task: bytes) -> None:
    """Be the child: do what was sent, and answer."""
    asked = orjson.loads(task)

    def heard(done: float) -> None:
        pipe.send_bytes(orjson.dumps({"done": done}))

    word: dict[str, Any]
    try:
        word = {"answer": asdict(evaluate_here(parse(asked["config"]), asked["request"], heard))}
    except JobFailedError as error:
        word = {"failed": str(error)}
    except LogUnavailableError as error:
        word = {"away": str(error)}
    except Exception as error:
        logger.exception("the evaluation failed")
        word = {"failed": described(error)}
    pipe.send_bytes(orjson.dumps(word))


@contextmanager
def _child() -> Iterator[tuple["subprocess.Popen[bytes]", "Connection[Any, Any]"]]:
    """Run the child, with a pipe to it; at the end it is gone."""
    ours, theirs = Pipe()
    with closing(ours):
        with closing(theirs):
            child = subprocess.Popen(
                [sys.executable, "-m", CHILD, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment_of_a_child(),
                pass_fds=[theirs.fileno()],
            )
        try:
            yield child, ours
        finally:
            child.kill()
            child.wait()
