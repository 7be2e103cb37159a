"""Keys, the configuration that holds, and the health of this replica and of the log."""

import asyncio
from collections.abc import Mapping
from typing import Any

import yaml
from fastapi import Request, Response

from agent.access import NewKey
from agent.api.console.page import ACTION, form_of, number, page, pages, seen, valid
from agent.api.middleware import AppReplica, RequestCaller, require
from agent.api.operations import keys
from agent.api.schemas import PublicId
from agent.serving import Replica
from feedback.log import without_password
from feedback.training_log import lag

router = pages()

PATIENCE_S = 0.2
"""How long the page waits for Ray Serve."""

TEXTS, NUMBERS = (
    ("project", "source", "budget_duration", "expires"),
    ("rpm_limit", "tpm_limit", "max_budget", "token_budget"),
)
"""Fields of a new key that may be left empty."""


@router.get("/system", dependencies=[require("read")])
async def system(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """The health of this replica and of the log; with more scopes, the configuration and the keys."""
    return await _shown(request, replica, caller.scopes, None)


@router.post("/system/keys", dependencies=[require("admin"), ACTION])
async def create(request: Request, replica: AppReplica, caller: RequestCaller) -> Response:
    """Make a key, and show its secret once."""
    fields = await form_of(request)
    asked: dict[str, Any] = {name: fields[name] for name in TEXTS if name in fields}
    asked |= {name: number(fields[name]) for name in NUMBERS if name in fields}
    asked |= {"name": fields.get("name", ""), "scopes": fields.get("scopes", "").split()}
    asked["groups"] = fields.get("groups", "").split()
    made = (await keys.create(replica, valid(NewKey, asked))).reply
    return await _shown(request, replica, caller.scopes, made)


@router.post("/system/keys/{public_id}", dependencies=[require("admin"), ACTION])
async def disable(request: Request, replica: AppReplica, public_id: PublicId) -> Response:
    """Disable a key for good."""
    await keys.disable(replica, public_id)
    return seen(request, "/system")


async def _shown(
    request: Request, replica: Replica, scopes: frozenset[Any], made: keys.NewKeyState | None
) -> Response:
    health = await asyncio.to_thread(_health, replica)
    deployed = await _deployed(request.app.state, replica)
    listed = (await keys.listed(replica)).reply.keys if "admin" in scopes else None
    configuration = None
    if "operate" in scopes:
        document = replica.config.model_dump(mode="json", exclude_defaults=True)
        document["log_url"] = without_password(replica.config.database_url)
        configuration = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return page(
        request,
        "system.html",
        health=health,
        deployed=deployed,
        keys=listed,
        configuration=configuration,
        made=made,
    )


async def _deployed(state: Any, replica: Replica) -> Mapping[str, tuple[bool, str]]:
    """Return how every deployment is; one question at a time, as Ray Serve may not answer."""
    asked: asyncio.Task[Mapping[str, tuple[bool, str]]] | None = getattr(state, "deployed", None)
    if asked is None or asked.done():
        asked = state.deployed = asyncio.create_task(asyncio.to_thread(replica.deployments))
    done, _ = await asyncio.wait([asked], timeout=PATIENCE_S)
    return asked.result() if done else {"Ray Serve": (False, f"did not answer within {PATIENCE_S:g} s")}


def _health(replica: Replica) -> list[tuple[str, bool, str]]:
    """Return what was checked, whether it is well, and what was found."""
    replica.store.check_tables()
    learned = None if replica.version is None else replica.version.examples_seq
    behind = lag.lag_of(replica.store, replica.config.reward.join, learned)
    loading = sorted(replica.decider.health.loading)
    jump_s = replica.clock.jump_s
    trouble = replica.log.trouble
    lost = lag.dangling(replica.store, replica.config.reward.wait_s)
    return [
        (
            "decides",
            replica.decides,
            "hosts were reached and a version is served" if replica.decides else "not yet",
        ),
        ("encoders", not loading, f"arms that wait: {', '.join(loading)}" if loading else "all are loaded"),
        ("log", not trouble, f"{behind.log_seq:,} facts" if not trouble else "facts cannot be written"),
        ("learner", behind.seconds(replica.clock()) < 60, f"{behind.facts:,} facts behind"),
        ("feedback", not lost, f"{lost:,} items refer to no decision"),
        ("clock", not jump_s, f"{jump_s:g} s ahead of the log" if jump_s else "followed"),
        (
            "requests",
            True,
            f"{len(replica.under_way)} in progress, {replica.config.limits.in_flight} at most",
        ),
    ]
