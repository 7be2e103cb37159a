"""`/v1/evaluations`: submit an off-policy evaluation, and read its progress, result and report."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import Field

from armwise.agent.access import Caller
from armwise.agent.api.documented import document_route, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import PageBefore, PageLimit, PathNumber
from armwise.agent.evaluation import CandidateError, EvaluationRequest, refuse_untrusted
from armwise.agent.learning import digest_configuration
from armwise.agent.replies import Reply, Time, among, construct
from armwise.agent.serving import Replica
from armwise.feedback.log import dumps
from armwise.feedback.registry import EvaluationRow
from armwise.feedback.registry import evaluations as registry_evaluations

router = APIRouter(tags=["evaluations"])

PAGE_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""A report is read from the log: no script of it runs, whatever the log holds."""


class EvaluationState(Reply):
    """An evaluation without its result."""

    id: int
    status: Annotated[str, among("queued", "running", "done", "failed")]
    done: float = Field(description="Share of the work that is done.")
    submitted_at: Time
    started_at: Time | None
    finished_at: Time | None
    error: str | None
    request: dict[str, Any]


class EvaluationResult(EvaluationState):
    """An evaluation, with its result once it is done."""

    result: dict[str, Any] | None


class EvaluationList(Reply):
    """Evaluations, newest first."""

    evaluations: list[EvaluationState]


@router.post(
    "/v1/evaluations",
    **document_route(
        "createEvaluation",
        EvaluationState,
        *("empty_window", "too_many_evaluations"),
        scopes=("operate",),
        status=202,
        success=link("getEvaluation", number="$response.body#/id"),
        example={"candidates": ["uniform", "fixed:bm25"]},
    ),
)
async def submit(
    replica: AppReplica, caller: RequestCaller, body: EvaluationRequest
) -> StdlibJson[EvaluationState]:
    """Request an evaluation of other policies on the log; the response has its number.

    It runs in the background at low priority: poll its `status` and `done`. A policy is written out
    in full, as `policy:{kind: linucb, params: {alpha: 0.5}}`, and names no file.
    """
    submitted = await asyncio.to_thread(_submit, replica, caller, body)
    return StdlibJson(
        construct(EvaluationState, **_state(submitted)),
        202,
        {"location": f"/v1/evaluations/{submitted.seq}"},
    )


@router.get("/v1/evaluations", **document_route("listEvaluations", EvaluationList, scopes=("read",)))
async def evaluations(
    replica: AppReplica, caller: RequestCaller, limit: PageLimit = 50, before: PageBefore = None
) -> StdlibJson[EvaluationList]:
    """List evaluations, newest first, without results; those about only other projects are left out.

    A page ends with the evaluation of id N: get the next one with `before=N`.
    """
    project = None if caller.sees_all else caller.project
    listed = await asyncio.to_thread(registry_evaluations.page, replica.store, limit, before, project)
    states = [construct(EvaluationState, **_state(evaluation)) for evaluation in listed]
    return StdlibJson(construct(EvaluationList, evaluations=states))


@router.get(
    "/v1/evaluations/{number}",
    **document_route("getEvaluation", EvaluationResult, "evaluation_not_found", scopes=("read",)),
)
async def evaluation(
    replica: AppReplica, caller: RequestCaller, number: PathNumber
) -> StdlibJson[EvaluationResult]:
    """Return one evaluation: its progress, and its `result` once `status` is `done`.

    `status` is `queued`, `running`, `done` or `failed`; `error` says why it failed. `done` is the
    share of the work that is done, from 0 to 1.
    """
    return StdlibJson(await read_result(replica, caller, number))


async def read_result(replica: Replica, caller: Caller, number: int) -> EvaluationResult:
    """Return an evaluation, with its result once it is done. Raises ApiError."""
    state, result = await _find_evaluation(replica, caller, number), None
    if state.status is registry_evaluations.EvaluationStatus.DONE:
        result = await asyncio.to_thread(registry_evaluations.read_result, replica.store, number)
    return construct(EvaluationResult, **_state(state), result=result)


@router.get(
    "/v1/evaluations/{number}/report",
    response_class=HTMLResponse,
    **document_route("getEvaluationReport", None, "evaluation_not_found", "not_done", scopes=("read",)),
)
async def report(replica: AppReplica, caller: RequestCaller, number: PathNumber) -> HTMLResponse:
    """Return the result of an evaluation that is done, as one self-contained HTML page with plots."""
    state = await _find_evaluation(replica, caller, number)
    html = await asyncio.to_thread(registry_evaluations.read_html, replica.store, number)
    if html is None:
        message = f"evaluation {number} is {state.status}: only one that is done has a report"
        raise ApiError("not_done", message, "number")
    return HTMLResponse(html, headers=PAGE_POLICY)


def _submit(replica: Replica, caller: Caller, body: EvaluationRequest) -> EvaluationRow:
    """Queue an evaluation in the share of the caller's project; blocks. Raises ApiError, QueueFullError."""
    now, body = replica.clock(), _within_project(caller, body)
    try:
        refuse_untrusted(body, replica.config, replica.store)
    except CandidateError as error:
        raise ApiError("invalid_value", str(error), "candidates") from None
    if body.since is not None and body.since.timestamp() > now:
        message = f"since {body.since.isoformat()} is in the future: the window is empty"
        raise ApiError("empty_window", message, "since")
    if not replica.store.newest(1):
        raise ApiError("empty_window", "the log has no decisions yet", None)
    request = body.model_dump(mode="json")
    try:
        dumps(request)
    except TypeError as error:  # valid JSON that a log cannot hold: half a surrogate pair, a huge number
        raise ApiError("invalid_value", f"the request cannot be stored: {error}") from None
    config_digest = digest_configuration(replica.config)
    return registry_evaluations.submit(replica.store, config_digest, request, now, project=caller.project)


def _within_project(caller: Caller, body: EvaluationRequest) -> EvaluationRequest:
    """Return a request whose numbers say nothing of single decisions of other projects. Raises ApiError.

    One feature can select one decision, and the value of that is its reward.
    """
    if caller.sees_all:
        return body
    if body.project not in (None, caller.project):
        message = f"this key is for project {caller.project!r}, not {body.project!r}"
        raise ApiError("forbidden", message, "project")
    return body.model_copy(update={"project": caller.project}) if body.features else body


async def _find_evaluation(replica: Replica, caller: Caller, number: int) -> EvaluationRow:
    state = await asyncio.to_thread(registry_evaluations.find, replica.store, number)
    if state is None or not (caller.sees_all or state.request.get("project") in (None, caller.project)):
        raise ApiError("evaluation_not_found", f"there is no evaluation {number}", "number")
    return state


def _state(evaluation: EvaluationRow) -> dict[str, Any]:
    columns = ("status", "done", "submitted_at", "started_at", "finished_at", "error", "request")
    return {"id": evaluation.seq, **{name: getattr(evaluation, name) for name in columns}}
