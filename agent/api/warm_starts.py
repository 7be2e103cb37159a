"""`/v1/warm-starts`: the runs that turn labels into a candidate, and the request for a new one."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api.errors import RESPONSES, ApiError
from agent.api.middleware import AppReplica, require
from agent.api.schemas import PageBefore, PageLimit, PathNumber
from agent.serving import Replica
from agent.warmstart import Planned, next_run
from feedback.errors import UnderWayError
from feedback.registry import Run
from feedback.registry import runs as registry_runs


class WarmStartRoutes:
    """The routes of warm starts. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def ask(self) -> JSONResponse:
        """Ask for a warm start now, whatever the schedule says, and get a number to look for it by.

        One is done at a time: where one is under way, or was asked for already, this is refused.
        """
        if self._replica.config.warm_start is None:
            message = "the configuration has no `warm_start`, so nobody knows what to learn from"
            raise ApiError(409, "not_configured", message)
        try:
            configured = self._replica.watcher.configured.digest
            asked = await asyncio.to_thread(
                registry_runs.ask, self._replica.store, configured, self._replica.clock()
            )
        except UnderWayError as error:
            raise ApiError(409, "under_way", str(error)) from None
        return JSONResponse(_document(asked), 202, {"location": f"/v1/warm-starts/{asked.seq}"})

    async def runs(self, limit: Limit = 50, before: Before = None) -> JSONResponse:
        """The warm starts, newest first, and when the `next` one is due.

        `status` is `asked`, `running`, `promoted`, `held`, `nothing_new`, `failed` or `abandoned`, the
        last one where the process that did it died. `next` is null where none comes by itself, and while
        one is under way. A page ends with the run of id N: the next one is asked for with `before=N`.
        """
        listed = await asyncio.to_thread(registry_runs.page, self._replica.store, limit, before)
        comes = await asyncio.to_thread(self._next)
        told = None if comes is None else {"at": comes.at, "trigger": comes.trigger.value}
        return JSONResponse({"warm_starts": [_document(one) for one in listed], "next": told})

    async def run(self, number: Number) -> JSONResponse:
        """One warm start: what went into it, as digests and positions, and each step with what it found."""
        found = await asyncio.to_thread(registry_runs.find, self._replica.store, number)
        if found is None:
            raise ApiError(404, "warm_start_not_found", f"there is no warm start {number}", "number")
        return JSONResponse({**_document(found), "inputs": found.inputs, "steps": list(found.steps)})

    def _next(self) -> Planned | None:
        replica, now = self._replica, self._replica.clock()
        spec, configured = replica.config.warm_start, replica.watcher.configured.digest
        if spec is None or registry_runs.under_way(replica.store, now):
            return None
        return next_run(replica.store, spec, configured, replica.alarms, now)


@router.post("/v1/warm-starts", status_code=202, dependencies=[require("admin")])
async def ask(replica: AppReplica) -> JSONResponse:
    """Request a warm start now, whatever the schedule says; the response has its number.

    One runs at a time: while another is queued or running, this is refused.
    """
    if replica.config.warm_start is None:
        message = "the configuration has no `warm_start`, so there are no labels to learn from"
        raise ApiError("not_configured", message)
    configured = replica.lookout.configured.digest
    try:
        run = await asyncio.to_thread(registry_runs.request, replica.store, configured, replica.clock())
    except UnderWayError as error:
        raise ApiError("under_way", str(error)) from None
    return JSONResponse(_document(run), 202, {"location": f"/v1/warm-starts/{run.seq}"})


@router.get("/v1/warm-starts", dependencies=[require("decide")])
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


@router.get("/v1/warm-starts/{number}", dependencies=[require("decide")])
async def run(replica: AppReplica, number: PathNumber) -> JSONResponse:
    """One warm start: its inputs, as digests and positions, and each step with its result."""
    found = await asyncio.to_thread(registry_runs.find, replica.store, number)
    if found is None:
        raise ApiError("warm_start_not_found", f"there is no warm start {number}", "number")
    return JSONResponse({**_document(found), "inputs": found.inputs, "steps": list(found.steps)})


def _planned(replica: Replica) -> Planned | None:
    spec, configured, now = replica.config.warm_start, replica.lookout.configured.digest, replica.clock()
    if spec is None or registry_runs.under_way(replica.store, now):
        return None
    return look(replica.store, spec, configured, replica.alarms, now)


def _document(one: Run) -> dict[str, Any]:
    columns = ("trigger", "status", "started_at", "finished_at", "candidate", "evaluation", "error")
    return {"id": one.seq, **{name: getattr(one, name) for name in columns}}
