"""The gate before a promotion: request an evaluation of the candidate, wait for it, and return its verdict.

The rules are in `feedback.ope.gate`. The evaluation runs beside the service like any other. A caller that
stops waiting may ask again later and finds the same evaluation.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.config import AppConfig
from agent.evaluation.job import Evaluations, evaluate_apart
from agent.evaluation.request import EvaluationRequest
from agent.jobs import ProgressCallback, UndecidedError
from agent.learning import configuration_of
from arms.base import Progress
from feedback.log import Store
from feedback.registry import Evaluation, evaluations

WAIT_S = 20.0
"""How long a promotion waits for its verdict."""

GATE_POLL_S = 0.2
"""Seconds between two looks for it."""

FRESH_S = 60.0
"""How old a verdict may be that is used again: whoever comes back for one shall find it."""


async def verdict(
    store: Store,
    configured: str,
    version: int,
    since: float,
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    poll_s: float = GATE_POLL_S,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Say whether a version may be promoted.

    An evaluation of it that is under way, or was made within `FRESH_S`, is used; else one is asked for. One
    that was asked for before the last word on what is served compares with something else.

    Args:
        store: The log.
        configured: Digest of the configuration that judges.
        version: One that was published.
        since: When the last word on what is served was said, seconds since the epoch; 0 for none.
        force: Whether to use a verdict that is there, and else to ask for none.
        wait_s: How long the evaluation is waited for.
        poll_s: Seconds between two looks at it.
        clock: Seconds since the epoch.

    Returns:
        What `feedback.ope.gate.Verdict.document` says, with the number of the `evaluation`. A candidate that
        cannot be evaluated is held, for that reason.

    Raises:
        UndecidedError: The evaluation goes on without anybody waiting for it; with `force`, there is none.
        QueueFullError: Too many evaluations wait already.
        LogUnavailableError: Try again later.
    """
    name = f"recipe:{version}"
    request = EvaluationRequest(candidates=(name,), gate=True).model_dump(mode="json")
    found = await asyncio.to_thread(_known, store, configured, request, since, clock())
    if force and (found is None or found.status is not evaluations.State.DONE):
        raise UndecidedError(f"there is no verdict on version {version}")
    if found is None:
        found = await asyncio.to_thread(evaluations.submit, store, configured, request, clock())
    give_up = time.monotonic() + wait_s
    while not found.status.ended:
        if time.monotonic() >= give_up:
            raise UndecidedError(
                f"evaluation {found.seq}, by which version {version} is judged, is {found.status}: "
                "it goes on, and the same request finds its verdict once it is done"
            )
        await asyncio.sleep(poll_s)
        found = await asyncio.to_thread(_again, store, found.seq)
    if found.status is evaluations.State.FAILED:
        reason = f"Version {version} cannot be evaluated: {found.error}"
        return {"verdict": "hold", "promote": False, "reasons": [reason], "evaluation": found.seq}
    report = await asyncio.to_thread(evaluations.result_of, store, found.seq)
    assert report is not None  # it is done
    (judged,) = (one for one in report["candidates"] if one["name"] == name)
    return {**judged["verdict"], "evaluation": found.seq}


def _known(
    store: Store, configured: str, request: Mapping[str, Any], since: float, now: float
) -> Evaluation | None:
    """Return an evaluation of this request that will do; None where there is none."""
    known = evaluations.newest_of(store, configured, request)
    if known is None or known.status is evaluations.State.FAILED or known.submitted_at < since:
        return None
    return known if known.finished_at is None or known.finished_at >= now - FRESH_S else None


def _again(store: Store, seq: int) -> Evaluation:
    found = evaluations.find(store, seq)
    assert found is not None  # it was there, and nobody deletes it
    return found


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

    def evaluate(asked: Mapping[str, Any], heard: ProgressCallback) -> evaluations.Answer:
        def both(done: float) -> None:
            tell("evaluating", round(done * PARTS), PARTS)
            heard(done)

        return evaluate_apart(config, asked, both)

    configured, never = configuration_of(config), threading.Event()
    number = evaluations.submit(
        store, configured, request, clock(), most=None
    ).seq  # a run asks for two, one at a time
    work = Evaluations(store, configured, worker, evaluate, clock, only=number)
    while True:
        found = evaluations.find(store, number)
        assert found is not None  # nobody takes one away
        if found.status.ended:
            break
        if work.due(clock()):
            work.run(never)
        else:
            time.sleep(POLL_S)
    report = evaluations.result_of(store, number)
    if found.status is evaluations.State.FAILED or report is None:
        raise UnansweredError(f"evaluation {number} failed: {found.error}")
    return Answered(number, report)


def verdict_on(report: Mapping[str, Any], candidate: str) -> dict[str, Any]:
    """Return what the gate says of a candidate of a report."""
    (verdict,) = (one["verdict"] for one in report["candidates"] if one["name"] == candidate)
    return dict(verdict)
