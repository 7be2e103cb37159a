"""The page of keys, the active configuration, and the health of this replica and of the log."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import yaml
from fastapi import Request, Response

from armwise.agent.access import NewKey
from armwise.agent.api.failures import failures_at
from armwise.agent.api.middleware import AppReplica, RequestCaller, require
from armwise.agent.api.operations import keys
from armwise.agent.api.schemas import PublicId
from armwise.agent.console.page import ACTION, number, page, pages, read_form, redirect, valid
from armwise.agent.run_folder import Building
from armwise.agent.serving import Replica
from armwise.feedback.log import without_password
from armwise.feedback.training_log import lag

router = pages()

PATIENCE_S = 0.2
"""Seconds that the page waits for Ray Serve; the page asks again until it has answered."""

UNWELL_S = 5.0
"""Seconds without an answer after which Ray Serve counts as not well."""

FRESH_S = 60.0
"""Seconds for which an answer is shown to who asks after it has come."""

TEXTS, NUMBERS = (
    ("project", "source", "budget_duration", "expires"),
    ("rpm_limit", "tpm_limit", "max_budget", "token_budget"),
)
"""Fields of a new key that may be left empty."""


@router.get("/system", dependencies=[require("read")])
async def system(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """The health of this replica and of the log; with more scopes, the configuration and the keys."""
    return await _show_page(request, replica, caller.scopes, None)


@router.post("/system/keys", dependencies=[require("admin"), ACTION])
async def create(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Make a key, and show its secret once."""
    fields = await read_form(request)
    body: dict[str, Any] = {name: fields[name] for name in TEXTS if name in fields}
    body |= {name: number(fields[name]) for name in NUMBERS if name in fields}
    body |= {"name": fields.get("name", ""), "scopes": fields.get("scopes", "").split()}
    body["groups"] = fields.get("groups", "").split()
    made = (await keys.create(replica, valid(NewKey, body))).reply
    return await _show_page(request, replica, caller.scopes, made)


@router.post("/system/keys/{public_id}", dependencies=[require("admin"), ACTION])
async def disable(request: Request, replica: AppReplica, public_id: PublicId) -> Response:
    """Disable a key permanently."""
    await keys.disable(replica, public_id)
    return redirect(request, "/system")


async def _show_page(
    request: Request, replica: Replica, scopes: frozenset[Any], made: keys.NewKeyState | None
) -> Response:
    health = await asyncio.to_thread(_health, replica)
    deployed, waited_s = await ask_deployments(request.app.state, replica)
    reads_keys = "admin" in scopes and replica.outage.since is None
    listed = (await keys.list_keys(replica)).reply.keys if reads_keys else None
    configuration = None
    if "operate" in scopes:
        document = replica.config.model_dump(mode="json", exclude_defaults=True)
        document["log_url"] = without_password(replica.config.database_url)
        if replica.config.digest is not None:
            document["digest"]["url"] = replica.config.digest.shown_url
        configuration = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return page(
        request,
        "system.html",
        health=health,
        deployed=deployed,
        waited_s=waited_s,
        unwell_s=UNWELL_S,
        keys=listed,
        configuration=configuration,
        made=made,
    )


Deployed = Mapping[str, tuple[bool, str]]
"""Whether each deployment is healthy, and the state of its replicas, by name."""


async def ask_deployments(state: Any, replica: Replica) -> tuple[Deployed, float | None]:
    """Return the health of every deployment; only one request is sent at a time, as Ray Serve may hang.

    Args:
        state: State of the application, which holds the request under way.
        replica: Asks Ray Serve.

    Returns:
        The health, and None; or nothing, and the seconds that Ray Serve has not answered for. Of one process
        nothing, and None.
    """
    if replica.deployments is None:
        return {}, None
    asked: tuple[float, asyncio.Task[Deployed]] | None = getattr(state, "deployed", None)
    if asked is None or (asked[1].done() and time.monotonic() - asked[0] > FRESH_S):
        asked = time.monotonic(), asyncio.create_task(asyncio.to_thread(replica.deployments))
    state.deployed, (since, task) = asked, asked
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    if not done:
        return {}, time.monotonic() - since
    state.deployed = None
    return task.result(), None


def _health(replica: Replica) -> list[tuple[str, bool | None, str]]:
    """Return the checks: name, whether it passed (None: not yet), and a finding as text."""
    if (outage := replica.outage.failure) is not None:
        return [("log", False, str(outage))]  # the other checks read it
    replica.store.check_tables()
    learned = None if replica.versions.version is None else replica.versions.version.examples_seq
    behind = lag.measure_lag(replica.store, replica.config.reward, learned)
    loading = sorted(replica.decider.health.loading)
    jump_s = replica.clock.jump_s
    trouble, building = replica.log.trouble, Building.read()
    failed = [(failure.what, False, str(failure)) for failure in failures_at(replica)]
    rule = replica.config.reward
    waiting, lost = lag.count_undecided(replica.store, rule.wait_s)
    return [
        (
            "decides",
            replica.decides,
            "it reaches its hosts and serves a version" if replica.decides else "not yet",
        ),
        ("encoders", not loading, f"waiting for {', '.join(loading)}" if loading else "all loaded"),
        ("arms", True if building is None else None, str(building or "all built")),
        *(failed or [("background", True, "no failures")]),
        ("log", not trouble, f"{behind.log_seq:,} facts" if not trouble else "facts cannot be written"),
        ("learner", behind.seconds(replica.clock()) < 60, f"{behind.facts:,} facts behind"),
        (
            "feedback",
            not lost,
            f"{lost:,} items older than {rule.wait_time} refer to no decision; "
            f"{waiting:,} newer ones wait for theirs",
        ),
        ("clock", not jump_s, f"{jump_s:g} s ahead of the log" if jump_s else "in step with the log"),
        (
            "requests",
            True,
            f"{len(replica.under_way)} requests running, at most {replica.config.limits.in_flight}",
        ),
    ]
