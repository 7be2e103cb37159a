"""`/v1/warm-starts`: the runs that turn labels into a candidate, and the request for a new one."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api.documented import documented, link
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, location_of
from agent.api.replies import operations as replies
from agent.api.schemas import PageBefore, PageLimit, PathNumber
from agent.serving import Replica
from agent.warmstart import Planned, next_run
from feedback.errors import UnderWayError
from feedback.registry import Run
from feedback.registry import runs as registry_runs

router = APIRouter(tags=["warm starts"])


@router.post(
    "/v1/warm-starts",
    **documented(
        "createWarmStart",
        replies.WarmStart,
        *("not_configured", "under_way"),
        scopes=("operate",),
        status=202,
        success=link("getWarmStart", number="$response.body#/id"),
    ),
)
async def ask(replica: AppReplica) -> JSONResponse:
    """Request a warm start now, whatever the schedule says; the response has its number.

    One runs at a time: while another is queued or running, this is refused.
    """
    if replica.config.warm_start is None:
        message = "the configuration has no `warm_start`, so there are no labels to learn from"
        raise ApiError("not_configured", message)
    configured = replica.watcher.configured.digest
    try:
        run = await asyncio.to_thread(registry_runs.request, replica.store, configured, replica.clock())
    except UnderWayError as error:
        raise ApiError("under_way", str(error)) from None
    return JSONResponse(_document(run), 202, location_of(replica, f"/v1/warm-starts/{run.seq}"))


@router.get("/v1/warm-starts", **documented("listWarmStarts", replies.WarmStartList, scopes=("read",)))
async def runs(replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None) -> JSONResponse:
    """The warm starts, newest first, and when the `next` one is due.

    `status` is `asked`, `running`, `promoted`, `held`, `nothing_new`, `failed`, or `abandoned` if its
    process died. `next` is null if none is scheduled, and while one is queued or running. A page ends
    with the run of id N: get the next one with `before=N`.
    """
    listed = await asyncio.to_thread(registry_runs.page, replica.store, limit, before)
    planned = await asyncio.to_thread(_planned, replica)
    due = None if planned is None else {"at": planned.at, "trigger": planned.trigger.value}
    return JSONResponse({"warm_starts": [_document(one) for one in listed], "next": due})


@router.get(
    "/v1/warm-starts/{number}",
    **documented("getWarmStart", replies.WarmStartSteps, "warm_start_not_found", scopes=("read",)),
)
async def run(replica: AppReplica, number: PathNumber) -> JSONResponse:
    """One warm start: its inputs, as digests and positions, and each step with its result."""
    found = await asyncio.to_thread(registry_runs.find, replica.store, number)
    if found is None:
        raise ApiError("warm_start_not_found", f"there is no warm start {number}", "number")
    return JSONResponse({**_document(found), "inputs": found.inputs, "steps": list(found.steps)})


def _planned(replica: Replica) -> Planned | None:
    spec, configured, now = replica.config.warm_start, replica.watcher.configured.digest, replica.clock()
    if spec is None or registry_runs.under_way(replica.store, now):
        return None
    return next_run(replica.store, spec, configured, replica.alarms, now)


def _document(one: Run) -> dict[str, Any]:
    columns = ("trigger", "status", "started_at", "finished_at", "candidate", "evaluation", "error")
    return {"id": one.seq, **{name: getattr(one, name) for name in columns}}
