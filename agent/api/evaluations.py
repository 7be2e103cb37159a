"""`/v1/evaluations`: submit an off-policy evaluation, and read its progress, result and report."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, require
from agent.api.schemas import LARGEST, PageBefore, PageLimit, PathNumber
from agent.config import AppConfig
from agent.evaluation import CandidateError, EvaluationRequest, candidate_names
from agent.learning import configuration_of
from agent.policies import PolicyError, untrusted
from agent.serving import Replica
from arms.suggestions import did_you_mean
from feedback.log import Store, database
from feedback.registry import Evaluation, arm_sets, versions
from feedback.registry import evaluations as registry_evaluations

router = APIRouter(responses=RESPONSES)


@router.post("/v1/evaluations", status_code=202, dependencies=[require("admin")])
async def submit(replica: AppReplica, body: EvaluationRequest) -> JSONResponse:
    """Request an evaluation of other policies on the log; the response has its number.

    It runs beside the service at low priority: poll its `status` and `done`. A policy is written out
    in full, as `policy:{kind: linucb, params: {alpha: 0.5}}`, and names no file.
    """
    submitted = await asyncio.to_thread(_submit, replica, body)
    return JSONResponse(_document(submitted), 202, {"location": f"/v1/evaluations/{submitted.seq}"})


@router.get("/v1/evaluations", dependencies=[require("decide")])
async def evaluations(replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None) -> JSONResponse:
    """The evaluations, newest first, without their results.

    A page ends with the evaluation of id N: get the next one with `before=N`.
    """
    listed = await asyncio.to_thread(registry_evaluations.page, replica.store, limit, before)
    return JSONResponse({"evaluations": [_document(one) for one in listed]})


@router.get("/v1/evaluations/{number}", dependencies=[require("decide")])
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
    responses={200: {"content": {"text/html": {}}}},
    dependencies=[require("decide")],
)
async def report(replica: AppReplica, number: PathNumber) -> HTMLResponse:
    """The result of an evaluation that is done, as one self-contained HTML page with plots."""
    found = await _found(replica, number)
    html = await asyncio.to_thread(registry_evaluations.html_of, replica.store, number)
    if html is None:
        message = f"evaluation {number} is {found.status}: only one that is done has a report"
        raise ApiError("not_done", message, "number")
    return HTMLResponse(html)


def _submit(replica: Replica, body: EvaluationRequest) -> Evaluation:
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
    return registry_evaluations.submit(replica.store, configuration_of(replica.config), request, now)


async def _found(replica: Replica, number: int) -> Evaluation:
    found = await asyncio.to_thread(registry_evaluations.find, replica.store, number)
    if found is None:
        raise ApiError("evaluation_not_found", f"there is no evaluation {number}", "number")
    return found


def _document(one: Evaluation) -> dict[str, Any]:
    columns = ("status", "done", "submitted_at", "started_at", "finished_at", "error", "request")
    return {"id": one.seq, **{name: getattr(one, name) for name in columns}}


def refuse_untrusted(request: EvaluationRequest, config: AppConfig, store: Store) -> None:
    """Refuse a request that cannot be evaluated, or that a client may not make over HTTP.

    Args:
        request: What to evaluate.
        config: The settled configuration, with the arms that are live.
        store: The log.

    Raises:
        CandidateError: A version, an arm or a kind of policy that does not exist, a model that is not
            allowed, a file.
        LogUnavailableError: Try again later.
    """
    arms = {
        name for name, arm in arm_sets.defined(store).items() if arm.get("action", True)
    } | config.actions.keys()
    for name in dict.fromkeys((*request.candidates, request.baseline)):
        candidate = candidate_names.parse_name(name)
        match candidate.kind:
            case candidate_names.Kind.FIXED if candidate.argument not in arms:
                raise CandidateError(
                    f"candidate {name!r} names no arm{did_you_mean(candidate.argument, arms)}"
                )
            case candidate_names.Kind.VERSION | candidate_names.Kind.RECIPE if not _is_version(
                store, candidate.number
            ):
                raise CandidateError(f"candidate {name!r}: there is no version {candidate.number}")
            case candidate_names.Kind.POLICY:
                assert candidate.policy is not None
                try:
                    untrusted.check_untrusted(candidate.policy, config.policy)
                except PolicyError as error:
                    raise CandidateError(f"candidate {name!r}: {error}") from None
            case candidate_names.Kind.ROUTER:
                _refuse_router(candidate, config)


def _is_version(store: Store, number: int) -> bool:
    return number <= LARGEST and versions.find(store, number) is not None


def _refuse_router(candidate: candidate_names.CandidateName, config: AppConfig) -> None:
    folder = Path(candidate.argument).resolve()
    own = config.router is not None and folder == config.router.path.resolve()
    if not own and config.home_path.resolve() not in folder.parents:
        raise CandidateError(
            f"candidate {candidate.name!r}: only the configured router, and those below the folder of the "
            "service, can be named over HTTP"
        )
