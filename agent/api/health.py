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
from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.failures import failures_at
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.background import Work, WorkFailure, read_failures
from armwise.agent.replies import Reply, Time, among, construct
from armwise.agent.run_folder import Building
from armwise.agent.serving import Replica, ScrapedState, admission
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.training_log import lag as training_log_lag
from armwise.feedback.training_log import summary

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


@router.get("/health", **document_route("health", Health))
async def health() -> Response:
    """Check whether the process is alive."""
    return StdlibJson(construct(Health, status="ok"))


@router.get("/health/decides", **document_route("healthDecides", Deciding))
async def decides(replica: AppReplica) -> Response:
    """Check whether this replica chooses arms. The log is not read: a load balancer may poll often."""
    if not replica.decides:
        raise ApiError("not_ready", admission.LOADING)
    return StdlibJson(construct(Deciding, status="decides"))


@router.get("/ready", **document_route("ready", Ready))
async def ready(request: Request, replica: AppReplica) -> Response:
    """Check whether questions can be answered and logged: a version is loaded, the log reads and writes.

    With `log_away: answer` the service stays ready while the log is away, and `failed` says so.
    Work in the background that fails is listed under `failed`: the service answers without it. It needs no
    key, and no key is refused; one of scope `read` adds why.
    """
    if not replica.ready:
        raise ApiError("not_ready", admission.LOADING)
    try:
        await replica.outage.ask(partial(asyncio.to_thread, replica.log.check))
        await replica.outage.ask(partial(asyncio.to_thread, replica.store.check_tables))
    except LOG_UNUSABLE:
        if not replica.outage.answers:
            raise
    shows = _may_read(request, replica.keyring)
    failed = [
        construct(
            BackgroundFailure,
            work=failure.work.value,
            what=failure.what,
            why=failure.why if shows else None,
            remedy=failure.remedy,
            attempts=failure.attempts,
            next_attempt_at=failure.next_at,
        )
        for failure in await asyncio.to_thread(failures_at, replica)
    ]
    building = Building.read()
    version = replica.decider.serving.version
    return StdlibJson(
        construct(
            Ready,
            status="ready",
            version=version,
            mode="one_process" if replica.deployments is None else "ray_serve",
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
    **document_route("metrics", None, "invalid_api_key", "rate_limit_exceeded"),
)
async def metrics(replica: AppReplica, caller: RequestCaller) -> Response:
    """Return counters and latencies for Prometheus, of all replicas on this machine.

    You need no key. A key with the scope `read` adds the series of its project's keys; a key with the scope
    `admin` adds the series of all keys. While the log is unavailable, its metrics are left out.
    """
    state = await asyncio.to_thread(_state, replica)
    shows = partial(_shows, caller, replica.keyring)
    text = replica.telemetry.exposition(state, replica.clock(), replica.clock.jump_s, shows)
    return Response(text, media_type=replica.telemetry.media_type)


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


def _state(replica: Replica) -> ScrapedState:
    """Return the state at a scrape; what is read from the log is left out while that is unavailable."""
    state = ScrapedState(
        version=replica.versions.version,
        alarms=replica.versions.state.alarms.count,
        classes_back=len(replica.versions.state.returned.falls),
        canaries={canary.version: canary.share for canary in replica.canaries},
        failed=_attempts(read_failures()),
    )
    if replica.outage.since is not None:
        return replace(state, failed=_attempts(failures_at(replica)))
    with suppress(*LOG_UNUSABLE):
        store, reward = replica.store, replica.config.reward
        learned = None if replica.versions.version is None else replica.versions.version.examples_seq
        document = summary.read_document(store) or {}
        return replace(
            state,
            failed=_attempts(failures_at(replica)),
            lag=training_log_lag.measure_lag(store, reward, learned),
            dangling=training_log_lag.count_undecided(store, reward.wait_s)[1],
            rewards=document.get("rewards", {}),
        )
    return state
