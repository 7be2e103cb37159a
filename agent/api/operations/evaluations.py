"""`/v1/evaluations`: submit an off-policy evaluation, and read its progress, result and report."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from agent.access import Caller
from agent.api.documented import documented, link
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller, location_of
from agent.api.replies import operations as replies
from agent.api.schemas import PageBefore, PageLimit, PathNumber
from agent.evaluation import CandidateError, EvaluationRequest, refuse_untrusted
from agent.learning import configuration_of
from agent.serving import Replica
from feedback.log import database
from feedback.registry import Evaluation
from feedback.registry import evaluations as registry_evaluations

router = APIRouter(tags=["evaluations"])

PAGE_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""A report is read from the log: no script of it runs, whatever the log holds."""


@router.post(
    "/v1/evaluations",
    **documented(
        "createEvaluation",
        replies.EvaluationState,
        *("empty_window", "too_many_evaluations"),
        scopes=("operate",),
        status=202,
        success=link("getEvaluation", number="$response.body#/id"),
        example={"candidates": ["uniform", "fixed:bm25"]},
    ),
)
async def submit(replica: AppReplica, caller: RequestCaller, body: EvaluationRequest) -> JSONResponse:
    """Request an evaluation of other policies on the log; the response has its number.

    It runs beside the service at low priority: poll its `status` and `done`. A policy is written out
    in full, as `policy:{kind: linucb, params: {alpha: 0.5}}`, and names no file.
    """
    submitted = await asyncio.to_thread(submit_now, replica, caller, body)
    return JSONResponse(_document(submitted), 202, location_of(replica, f"/v1/evaluations/{submitted.seq}"))


@router.get("/v1/evaluations", **documented("listEvaluations", replies.EvaluationList, scopes=("read",)))
async def evaluations(replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None) -> JSONResponse:
    """The evaluations, newest first, without their results.

    A page ends with the evaluation of id N: get the next one with `before=N`.
    """
    listed = await asyncio.to_thread(registry_evaluations.page, replica.store, limit, before)
    return JSONResponse({"evaluations": [_document(one) for one in listed]})


@router.get(
    "/v1/evaluations/{number}",
    **documented("getEvaluation", replies.EvaluationResult, "evaluation_not_found", scopes=("read",)),
)
async def evaluation(replica: AppReplica, number: PathNumber) -> JSONResponse:
    """One evaluation: its progress, and its `result` once `status` is `done`.

    `status` is `queued`, `running`, `done` or `failed`; `error` says why it failed. `done` is the
    share of the work that is done, from 0 to 1.
    """
    found, result = await _found(replica, number), None
    if found.status is registry_evaluations.State.DONE:
        result = await asyncio.to_thread(registry_evaluations.result_of, replica.store, number)
    return JSONResponse({**_document(found), "result": result})


@router.get(
    "/v1/evaluations/{number}/report",
    response_class=HTMLResponse,
    **documented("getEvaluationReport", None, "evaluation_not_found", "not_done", scopes=("read",)),
)
async def report(replica: AppReplica, number: PathNumber) -> HTMLResponse:
    """The result of an evaluation that is done, as one self-contained HTML page with plots."""
    found = await _found(replica, number)
    html = await asyncio.to_thread(registry_evaluations.html_of, replica.store, number)
    if html is None:
        message = f"evaluation {number} is {found.status}: only one that is done has a report"
        raise ApiError("not_done", message, "number")
    return HTMLResponse(html, headers=PAGE_POLICY)


def submit_now(replica: Replica, caller: Caller, body: EvaluationRequest) -> Evaluation:
    """Queue an evaluation in the share of the caller's project; blocks. Raises ApiError, QueueFullError."""
    now = replica.clock()
    try:
        refuse_untrusted(body, replica.config, replica.store)
    except CandidateError as error:
        raise ApiError("invalid_value", str(error), "candidates") from None
    if body.since is not None and body.since.timestamp() > now:
        message = f"since {body.since.isoformat()} is in the future: the window is empty"
        raise ApiError("empty_window", message, "since")
    if not replica.store.newest(1):
        raise ApiError("empty_window", "the log holds no decision yet", None)
    request = body.model_dump(mode="json")
    try:
        database.dumps(request)
    except TypeError as error:  # valid JSON that a log cannot hold: half a surrogate pair, a huge number
        raise ApiError("invalid_value", f"the request cannot be stored: {error}") from None
    configured = configuration_of(replica.config)
    return registry_evaluations.submit(replica.store, configured, request, now, project=caller.project)


async def _found(replica: Replica, number: int) -> Evaluation:
    found = await asyncio.to_thread(registry_evaluations.find, replica.store, number)
    if found is None:
        raise ApiError("evaluation_not_found", f"there is no evaluation {number}", "number")
    return found


def _document(one: Evaluation) -> dict[str, Any]:
    columns = ("status", "done", "submitted_at", "started_at", "finished_at", "error", "request")
    return {"id": one.seq, **{name: getattr(one, name) for name in columns}}
