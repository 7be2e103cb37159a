"""The probes and `/metrics`: what load balancers and monitoring read."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from agent.api.admission import LOADING
from agent.api.documented import documented
from agent.api.errors import LOG_UNUSABLE, ApiError
from agent.api.middleware import ServiceReplica
from agent.api.replies import service
from feedback.training_log import lag as training_log_lag

router = APIRouter(tags=["service"])


@router.get("/health", **documented("health", service.Health))
async def health() -> JSONResponse:
    """Whether the process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/health/decides", **documented("healthDecides", service.Deciding))
async def decides(replica: ServiceReplica) -> JSONResponse:
    """Whether this replica chooses arms. The log is not read: a load balancer may ask many times a second."""
    if not all(one.decides for one in replica.points.values()):
        raise ApiError("not_ready", LOADING)
    return JSONResponse({"status": "decides"})


@router.get("/ready", **documented("ready", service.Ready))
async def ready(replica: ServiceReplica) -> JSONResponse:
    """Whether questions can be answered and logged: a version is loaded, the log reads and writes."""
    if not all(one.ready for one in replica.points.values()):
        raise ApiError("not_ready", LOADING)
    for one in replica.points.values():
        await asyncio.to_thread(one.log.check)
        await asyncio.to_thread(one.store.check_tables)
    return JSONResponse({"status": "ready", "version": replica.decider.serving.version})


@router.get("/metrics", response_class=PlainTextResponse, **documented("metrics", None))
async def metrics(replica: ServiceReplica) -> Response:
    """Counters and latencies for Prometheus, of all replicas on this machine.

    While the log is unavailable, the metrics that come from it are left out.
    """
    lag, lost, reward = None, 0, replica.config.reward
    with suppress(*LOG_UNUSABLE):
        learned = None if replica.version is None else replica.version.examples_seq
        lag = await asyncio.to_thread(training_log_lag.lag_of, replica.store, reward.join, learned)
        lost = await asyncio.to_thread(training_log_lag.dangling, replica.store, reward.wait_s)
    now, jump_s = replica.clock(), replica.clock.jump_s
    text = replica.telemetry.exposition(lag, replica.version, now, replica.alarms.count, lost, jump_s)
    return Response(text, media_type=replica.telemetry.media_type)
