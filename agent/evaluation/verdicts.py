"""What the gate says of candidates: an evaluation that is asked for like any other, and waited for.

A service that runs may answer it; where none has taken it up, whoever waits answers it, in a process of its
own as everywhere.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.config import AppConfig
from agent.evaluation.job import evaluate_apart
from agent.jobs import Evaluations, Heard
from agent.recipe import configuration_of
from arms.corpus import Progress
from feedback.evaluations import Answer, State, find, result_of, submit
from feedback.store import Store

POLL_S = 0.5
"""Pause between two looks for the answer, while somebody else works on it."""

PARTS = 100
"""Parts in which progress is told."""


class UnansweredError(Exception):
    """An evaluation has failed; the message says why."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An evaluation that is done.

    Attributes:
        number: Under which it is kept.
        report: What it found, as JSON has it.
    """

    number: int
    report: dict[str, Any]


def answered(
    store: Store,
    config: AppConfig,
    request: Mapping[str, Any],
    worker: str,
    tell: Progress,
    clock: Callable[[], float] = time.time,
) -> Answered:
    """Ask for an evaluation, and return it once it is done, whoever does it.

    Args:
        store: The log.
        config: The settled configuration.
        request: What is to be evaluated, an `EvaluationRequest` as JSON has it.
        worker: Who works here; a name that no other process has.
        tell: Told of the progress.
        clock: Seconds since the epoch.

    Raises:
        UnansweredError: It failed.
        LogUnavailableError: Try again later.
    """

    def evaluate(asked: Mapping[str, Any], heard: Heard) -> Answer:
        def both(done: float) -> None:
            tell("evaluating", round(done * PARTS), PARTS)
            heard(done)

        return evaluate_apart(config, asked, both)

    configured, never = configuration_of(config), threading.Event()
    number = submit(store, configured, request, clock(), most=None).seq  # a run asks for two, one at a time
    work = Evaluations(store, configured, worker, evaluate, clock, only=number)
    while True:
        found = find(store, number)
        assert found is not None  # nobody takes one away
        if found.status.ended:
            break
        if work.due(clock()):
            work.run(never)
        else:
            time.sleep(POLL_S)
    report = result_of(store, number)
    if found.status is State.FAILED or report is None:
        raise UnansweredError(f"evaluation {number} failed: {found.error}")
    return Answered(number, report)


def verdict_on(report: Mapping[str, Any], candidate: str) -> dict[str, Any]:
    """Return what the gate says of a candidate of a report."""
    (verdict,) = (one["verdict"] for one in report["candidates"] if one["name"] == candidate)
    return dict(verdict)


__all__ = ["Answered", "UnansweredError", "answered", "verdict_on"]
