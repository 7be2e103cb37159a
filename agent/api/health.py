"""The probes and `/metrics`: what load balancers and monitoring read."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from armwise.agent.access import Caller, Keyring, UnauthorizedError
from armwise.agent.api.documented import documented
from armwise.agent.api.errors import ApiError
from armwise.agent.api.failures import failures_at
from armwise.agent.api.middleware import AppService, ServiceCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.background import Work, WorkFailure, recorded
from armwise.agent.config import DEFAULT_POINT
from armwise.agent.replies import Reply, Time, among, construct
from armwise.agent.run_folder import Building
from armwise.agent.serving import DecisionPoint, PointState
from armwise.agent.serving import ask as asking
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.training_log import lag as training_log_lag
from armwise.feedback.training_log import rollups, settled

router = APIRouter(tags=["service"])


class Health(Reply):
    """The process answers."""

    status: Literal["ok"]


class Deciding(Reply):
    """The replica chooses arms."""

    status: Literal["decides"]


class BackgroundFailure(Reply):
    """Work in the background that has failed and has not succeeded since."""

    work: Annotated[str, among(*Work)]
    point: str
    what: str
    why: str | None = Field(description="The last error; null without a key of scope `read`.")
    remedy: str
    attempts: int = Field(description="Failed attempts in a row.")
    next_attempt_at: Time | None = Field(description="Null where the work is given up.")


class Ready(Reply):
    """Questions can be answered and logged.

    Attributes:
        mode: Whether the parts of the service are deployments of Ray Serve, or run in one process.
        building: What is built behind the service at its first start, how far it has come, and the seconds
            that this piece of work is expected to take; null where everything is built.
        failed: Work in the background that fails; empty where all goes well.
    """

    status: Literal["ready"]
    version: int
    mode: Literal["ray_serve", "one_process"]
    building: str | None
    failed: list[BackgroundFailure]


@router.get("/health", **documented("health", Health))
async def health() -> Response:
    """Whether the process answers."""
    return StdlibJson(construct(Health, status="ok"))


@router.get("/health/decides", **documented("healthDecides", Deciding))
async def decides(service: AppService) -> Response:
    """Whether this replica chooses arms. The log is not read: a load balancer may ask many times a second."""
    if not service.decides:
        raise ApiError("not_ready", asking.LOADING)
    return StdlibJson(construct(Deciding, status="decides"))


@router.get("/ready", **documented("ready", Ready))
async def ready(request: Request, service: AppService) -> Response:
    """Whether questions can be answered and logged: a version is loaded, the log reads and writes.

    With `log_away: answer` the service stays ready while the log is away, and `failed` says so.
    Work in the background that fails is listed under `failed`: the service answers without it. It needs no
    key, and no key is refused; one of scope `read` adds why.
    """
    if not service.ready:
        raise ApiError("not_ready", asking.LOADING)
    for point in service.points.values():
        try:
            await point.outage.ask(partial(asyncio.to_thread, point.log.check))
            await point.outage.ask(partial(asyncio.to_thread, point.store.check_tables))
        except LOG_UNUSABLE:
            if not point.outage.answers:
                raise
    shows = _may_read(request, service.keyring)
    failed = [
        construct(
            BackgroundFailure,
            work=failure.work.value,
            point=failure.point,
            what=failure.what,
            why=failure.why if shows else None,
            remedy=failure.remedy,
            attempts=failure.attempts,
            next_attempt_at=failure.next_at,
        )
        for point in service.points.values()
        for failure in await asyncio.to_thread(failures_at, point)
    ]
    building = Building.read()
    version = service.points[DEFAULT_POINT].decider.serving.version
    return StdlibJson(
        construct(
            Ready,
            status="ready",
            version=version,
            mode="one_process" if service.deployments is None else "ray_serve",
            building=None if building is None else str(building),
            failed=failed,
        )
    )


def _may_read(request: Request, keyring: Keyring) -> bool:
    try:
        return "read" in keyring.caller(request.headers.get("authorization")).scopes
    except UnauthorizedError:
        return False


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    **documented("metrics", None, "invalid_api_key", "rate_limit_exceeded"),
)
async def metrics(service: AppService, caller: ServiceCaller) -> Response:
    """Counters and latencies for Prometheus, of all replicas on this machine.

    It needs no key. One of scope `read` adds the series of the keys of its project, one of scope `admin`
    those of all keys. While the log is unavailable, the metrics that come from it are left out.
    """
    states = {name: await asyncio.to_thread(_state, point) for name, point in service.points.items()}
    shows = partial(_shows, caller, service.keyring)
    text = service.telemetry.exposition(states, service.clock(), service.clock.jump_s, shows)
    return Response(text, media_type=service.telemetry.media_type)


def _shows(caller: Caller, keyring: Keyring, key: str) -> bool:
    """Return whether a caller may see what a key has cost; the sum of further keys is of all projects."""
    if caller.sees_all or "read" not in caller.scopes:
        return caller.sees_all
    return keyring.find_project(key) == caller.project


def _attempts(failures: Iterable[WorkFailure]) -> dict[Work, int]:
    """Return the failed attempts of each work."""
    counted = Counter[Work]()
    for failure in failures:
        counted[failure.work] += failure.attempts
    return counted


def _state(point: DecisionPoint) -> PointState:
    """Return the state of a point; what is read from the log is left out while that is unavailable."""
    state = PointState(
        version=point.versions.version,
        alarms=point.versions.alarms.count,
        canaries={canary.version: canary.share for canary in point.decider.canaries},
        failed=_attempts(recorded(point.name)),
    )
    if point.outage.since is not None:
        return replace(state, failed=_attempts(failures_at(point)))
    with suppress(*LOG_UNUSABLE):
        store, reward = point.store, point.config.reward
        learned = None if point.versions.version is None else point.versions.version.examples_seq
        now = min(point.service.clock(), settled.read(store, reward).before)  # later rewards may change
        until = (int(now) // rollups.MINUTE + 1) * rollups.MINUTE
        sums = rollups.read(store, until - rollups.HOUR, until, rollups.MINUTE)
        rewards = {arm: sums.where(sums.arm == arm).total() for arm in sorted(set(sums.arm.tolist()))}
        return replace(
            state,
            failed=_attempts(failures_at(point)),
            lag=training_log_lag.measure_lag(store, reward.join, learned),
            dangling=training_log_lag.dangling(store, reward.wait_s),
            rewards={
                arm: (total["rewarded"], total["reward"])
                for arm, total in rewards.items()
                if total["rewarded"]
            },
        )
    return state
