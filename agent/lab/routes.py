"""`/v1/warm-starts`: the runs that turn labels into a candidate, and the request for a new one."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from armwise.agent.api.documented import document_route, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import PageBefore, PageLimit, PathNumber
from armwise.agent.jobs import plan_warm_start
from armwise.agent.replies import Reply, Time, among, construct
from armwise.feedback.errors import UnderWayError
from armwise.feedback.registry import Run
from armwise.feedback.registry import runs as registry_runs

router = APIRouter(tags=["warm starts"])


class WarmStart(Reply):
    """A warm start."""

    id: int
    trigger: Annotated[str, among("schedule", "alarm", "request", "command", "first", "resumed")]
    status: Annotated[
        str, among("asked", "running", "promoted", "held", "nothing_new", "failed", "abandoned")
    ]
    started_at: Time
    finished_at: Time | None
    candidate: int | None = Field(description="The version that it published.")
    evaluation: int | None
    error: str | None


class WarmStartSteps(WarmStart):
    """A warm start with its inputs and steps."""

    inputs: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]


class Due(Reply):
    """When the next warm start is due."""

    at: Time
    trigger: str


class WarmStartList(Reply):
    """Warm starts, newest first, and the next one."""

    warm_starts: list[WarmStart]
    next: Due | None


@router.post(
    "/v1/warm-starts",
    **document_route(
        "createWarmStart",
        WarmStart,
        *("not_configured", "under_way"),
        scopes=("operate",),
        status=202,
        success=link("getWarmStart", number="$response.body#/id"),
    ),
)
async def ask(replica: AppReplica) -> StdlibJson[WarmStart]:
    """Request a warm start now, whatever the schedule says; the response has its number.

    One runs at a time: while another is queued or running, this is refused.
    """
    if replica.config.warm_start is None:
        message = "the configuration has no `warm_start`, so there are no labels to learn from"
        raise ApiError("not_configured", message)
    configured = replica.versions.configured.digest
    try:
        run = await asyncio.to_thread(registry_runs.request, replica.store, configured, replica.clock())
    except UnderWayError as error:
        raise ApiError("under_way", str(error)) from None
    return StdlibJson(construct(WarmStart, **_state(run)), 202, {"location": f"/v1/warm-starts/{run.seq}"})


@router.get("/v1/warm-starts", **document_route("listWarmStarts", WarmStartList, scopes=("read",)))
async def runs(
    replica: AppReplica, limit: PageLimit = 50, before: PageBefore = None
) -> StdlibJson[WarmStartList]:
    """List the warm starts, newest first, and when the `next` one is due.

    `status` is `asked`, `running`, `promoted`, `held`, `nothing_new`, `failed`, or `abandoned` if its
    process died. `next` is null if none is scheduled. While one is running, it is the next one by `cron`. A
    page ends with the run of id N: get the next one with `before=N`.
    """
    listed = await asyncio.to_thread(registry_runs.page, replica.store, limit, before)
    planned = await asyncio.to_thread(plan_warm_start, replica)
    due = None if planned is None else construct(Due, at=planned.at, trigger=planned.trigger.value)
    states = [construct(WarmStart, **_state(run)) for run in listed]
    return StdlibJson(construct(WarmStartList, warm_starts=states, next=due))


@router.get(
    "/v1/warm-starts/{number}",
    **document_route("getWarmStart", WarmStartSteps, "warm_start_not_found", scopes=("read",)),
)
async def run(replica: AppReplica, number: PathNumber) -> StdlibJson[WarmStartSteps]:
    """Return one warm start: its inputs, as digests and positions, and each step with its result."""
    state = await asyncio.to_thread(registry_runs.find, replica.store, number)
    if state is None:
        raise ApiError("warm_start_not_found", f"there is no warm start {number}", "number")
    return StdlibJson(construct(WarmStartSteps, **_state(state), inputs=state.inputs, steps=state.steps))


def _state(run: Run) -> dict[str, Any]:
    columns = ("trigger", "status", "started_at", "finished_at", "candidate", "evaluation", "error")
    return {"id": run.seq, **{name: getattr(run, name) for name in columns}}


ROUTES = tuple(router.routes)

DIALECTS = ()
