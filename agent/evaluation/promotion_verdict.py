"""The gate before a promotion: request an evaluation of the candidate, wait for it, and return its verdict.

The rules are in `armwise.feedback.ope.gate`. The evaluation runs in a job, like any other. A caller that
stops waiting may ask again later, and gets the same evaluation.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.candidate_names import CandidateKind
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.evaluation_task import Evaluations, evaluate_apart
from armwise.agent.jobs import ProgressCallback
from armwise.agent.learning import digest_configuration
from armwise.arms.base import Progress
from armwise.feedback.errors import UndecidedError
from armwise.feedback.log import Store
from armwise.feedback.registry import ActivePolicy, EvaluationRow, evaluations

WAIT_S = 20.0
"""Seconds that a promotion waits for its verdict."""

GATE_POLL_S = 0.2
"""Seconds between two polls."""

FRESH_S = 60.0
"""Seconds for which a verdict is reused, so that a repeated request gets it."""


def name_candidate(version: int, active: ActivePolicy) -> str:
    """Return the name of the candidate under which a version is judged before its promotion.

    A canary is judged as a frozen version on the decisions that it took part in, where weights are at most
    1 / share. Any other version is judged as its recipe, which learns as the log is replayed.

    >>> name_candidate(7, ActivePolicy("recipe"))
    'recipe:7'
    """
    return f"{CandidateKind.CANARY if active.canary(version) else CandidateKind.RECIPE}:{version}"


async def verdict(
    store: Store,
    config_digest: str,
    version: int,
    active: ActivePolicy,
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    poll_s: float = GATE_POLL_S,
    clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Return the verdict on a version.

    An evaluation that is running, or that finished or failed within `FRESH_S`, is used; otherwise one is
    requested.
    Evaluations from before the last promotion, rollback or canary are left out: they compare with another
    policy.

    Args:
        store: The log.
        config_digest: Digest of the configuration.
        version: A published version.
        active: Active policy.
        force: Whether to use an existing verdict only.
        wait_s: Seconds to wait for the evaluation.
        poll_s: Seconds between two polls.
        clock: Seconds since the epoch.

    Returns:
        `armwise.feedback.ope.gate.Verdict.document` with the number of the `evaluation`. A candidate that
        cannot be evaluated is held for that reason.

    Raises:
        UndecidedError: The evaluation continues after `wait_s`; or, with `force`, no verdict exists.
        QueueFullError: Too many evaluations are queued.
        LogUnavailableError: Try again later.
    """
    name, request = name_candidate(version, active), _request(version, active)
    evaluation = await asyncio.to_thread(_fresh, store, config_digest, version, active, clock())
    if force and (evaluation is None or evaluation.status is not evaluations.EvaluationStatus.DONE):
        raise UndecidedError(f"there is no verdict on version {version}")
    if evaluation is None:
        evaluation = await asyncio.to_thread(evaluations.submit, store, config_digest, request, clock())
    give_up = time.monotonic() + wait_s
    while not evaluation.status.ended:
        if time.monotonic() >= give_up:
            raise UndecidedError(
                f"evaluation {evaluation.seq}, which judges version {version}, is {evaluation.status}: "
                "it continues, so send the same request again to get the verdict"
            )
        await asyncio.sleep(poll_s)
        evaluation = await asyncio.to_thread(evaluations.find, store, evaluation.seq)
        assert evaluation is not None  # evaluations are never deleted
    if evaluation.status is evaluations.EvaluationStatus.FAILED:
        reason = f"Version {version} cannot be evaluated: {evaluation.error}"
        return {"verdict": "hold", "promote": False, "reasons": [reason], "evaluation": evaluation.seq}
    report = await asyncio.to_thread(evaluations.read_result, store, evaluation.seq)
    assert report is not None  # the evaluation is done
    (judged,) = (result for result in report["candidates"] if result["name"] == name)
    return {**judged["verdict"], "evaluation": evaluation.seq}


def newest_judgement(
    store: Store, config_digest: str, version: int, active: ActivePolicy
) -> EvaluationRow | None:
    """Return the newest evaluation that judges a version against the active policy, if there is one.

    Evaluations from before the last promotion, rollback or canary are left out: they compare with another
    policy.

    Args:
        store: The log.
        config_digest: Digest of the configuration.
        version: A published version.
        active: Active policy.

    Raises:
        LogUnavailableError: Try again later.
    """
    since = 0.0 if active.newest is None else active.newest.at
    evaluation = evaluations.find_newest(store, config_digest, _request(version, active))
    return None if evaluation is None or evaluation.submitted_at < since else evaluation


def _request(version: int, active: ActivePolicy) -> dict[str, Any]:
    name = name_candidate(version, active)
    return EvaluationRequest(candidates=(name,), gate=True).model_dump(mode="json")


def _fresh(
    store: Store, config_digest: str, version: int, active: ActivePolicy, now: float
) -> EvaluationRow | None:
    """Return an evaluation that is running or fresh, if there is one."""
    evaluation = newest_judgement(store, config_digest, version, active)
    if evaluation is None:
        return None
    return evaluation if evaluation.finished_at is None or evaluation.finished_at >= now - FRESH_S else None


POLL_S = 0.5
"""Seconds between two polls while another process runs the evaluation."""

PARTS = 100
"""Number of steps in which progress is reported."""


class EvaluationFailedError(Exception):
    """An evaluation has failed; the message says why."""


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """An evaluation that is done.

    Attributes:
        number: Number of the evaluation.
        report: Report as JSON.
    """

    number: int
    report: dict[str, Any]


def run_evaluation(
    store: Store,
    config: AppConfig,
    request: Mapping[str, Any],
    worker: str,
    on_progress: Progress,
    clock: Callable[[], float] = time.time,
    evaluate: Callable[[AppConfig, Mapping[str, Any], ProgressCallback], evaluations.StoredResult]
    | None = None,
) -> FinishedEvaluation:
    """Request an evaluation, run it unless another process does, and return its result.

    Args:
        store: The log.
        config: The resolved configuration.
        request: An `EvaluationRequest` as JSON.
        worker: Unique name of this process.
        on_progress: Called with the progress.
        clock: Seconds since the epoch.
        evaluate: Evaluates; `evaluate_here` is for an evaluation that somebody waits for. None is
            `evaluate_apart`.

    Raises:
        EvaluationFailedError: The evaluation failed.
        LogUnavailableError: Try again later.
    """

    def reporting(stored_request: Mapping[str, Any], on_share: ProgressCallback) -> evaluations.StoredResult:
        def both(done: float) -> None:
            on_progress("evaluating", round(done * PARTS), PARTS)
            on_share(done)

        return (evaluate or evaluate_apart)(config, stored_request, both)

    config_digest, never = digest_configuration(config), threading.Event()
    number = evaluations.submit(
        store, config_digest, request, clock(), most=None
    ).seq  # a run requests two, one after the other
    work = Evaluations(store, config_digest, worker, reporting, clock, only=number)
    while True:
        evaluation = evaluations.find(store, number)
        assert evaluation is not None  # evaluations are never deleted
        if evaluation.status.ended:
            break
        if work.due(clock()):
            work.run(never)
        else:
            time.sleep(POLL_S)
    report = evaluations.read_result(store, number)
    if evaluation.status is evaluations.EvaluationStatus.FAILED or report is None:
        raise EvaluationFailedError(f"evaluation {number} failed: {evaluation.error}")
    return FinishedEvaluation(number, report)


def verdict_on(report: Mapping[str, Any], candidate: str) -> dict[str, Any]:
    """Return the verdict on a candidate of a report."""
    (verdict,) = (result["verdict"] for result in report["candidates"] if result["name"] == candidate)
    return dict(verdict)
