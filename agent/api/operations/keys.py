"""`/v1/keys`: make, list and disable keys of callers, and report what they have used."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from armwise.agent.access import Caller, NewKey
from armwise.agent.api.documented import document_route, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import PublicId
from armwise.agent.config import Scope
from armwise.agent.replies import Reply, Time, among, construct
from armwise.feedback.registry import keys, usage

router = APIRouter(tags=["keys"])


class Spent(Reply):
    """What a key has used in a period."""

    requests: int
    tokens: int
    usd: float


class Spend(Reply):
    """What a key has used."""

    day: Spent
    month: Spent
    total: Spent


class KeyBase(Reply):
    """What every key has."""

    public_id: str
    name: str
    scopes: list[Scope]
    project: str
    source: str | None
    groups: list[str] = Field(
        description=(
            "Groups that the callers belong to. Callers see a passage if its `allowed_groups` names one of "
            "these groups, or if it lacks that field."
        )
    )


class KeyState(KeyBase):
    """A key of the log, without its secret."""

    expires: Time | None
    tags: dict[str, str]
    rpm_limit: int | None
    tpm_limit: int | None
    max_budget: float | None
    token_budget: int | None
    budget_duration: Annotated[str, among("1d", "1mo")] | None
    created_at: Time
    disabled_at: Time | None
    configured: Literal[False]


class NewKeyState(KeyState):
    """A key that was made, with its secret: only this reply has it."""

    key: str


class UsedKey(KeyState):
    """A key of the log and what it has used."""

    spend: Spend


class ConfiguredKey(KeyBase):
    """A key of the configuration and what it has used."""

    configured: Literal[True]
    spend: Spend


class KeyList(Reply):
    """The keys."""

    keys: list[UsedKey | ConfiguredKey]


UNUSED = {"day": usage.UsageAmount(), "month": usage.UsageAmount(), "total": usage.UsageAmount()}


@router.post(
    "/v1/keys",
    **document_route(
        "createKey",
        NewKeyState,
        "project_taken",
        scopes=("admin",),
        status=201,
        success=link("disableKey", public_id="$response.body#/public_id"),
        example={"name": "shop", "scopes": ["decide", "feedback"], "rpm_limit": 600},
    ),
)
async def create(replica: AppReplica, body: NewKey) -> StdlibJson[NewKeyState]:
    """Make a key. Only this response has its secret; every replica knows it within a second."""
    if replica.keyring.is_open and "admin" not in body.scopes:
        message = f"the first key closes the service: with {list(body.scopes)} nobody could make another one"
        raise ApiError("invalid_value", f"{message}; give it the scope 'admin'", "scopes")
    reason = "the key would have a budget in dollars"
    if body.max_budget is not None and (problem := replica.config.describe_unpriced(reason)):
        raise ApiError("invalid_value", problem, "max_budget")
    now = replica.clock()
    try:
        settings = body.settings(now)
    except ValueError as error:
        raise ApiError("invalid_value", str(error), "expires") from None
    key, token = await asyncio.to_thread(keys.create, replica.store, settings, now)
    await asyncio.to_thread(replica.keyring.refresh, replica.store)
    return StdlibJson(construct(NewKeyState, key=token, **_state(key)), 201, {"cache-control": "no-store"})


@router.get("/v1/keys", **document_route("listKeys", KeyList, scopes=("admin",)))
async def list_keys(replica: AppReplica) -> StdlibJson[KeyList]:
    """List the keys without their secrets, with what each has used: today, this month and in total."""
    await replica.quota.report()
    made = await asyncio.to_thread(keys.read, replica.store)
    spent = await asyncio.to_thread(usage.spend, replica.store, replica.clock())
    rows: list[UsedKey | ConfiguredKey] = [
        *(
            _describe_configured(caller, _spend(spent.get(caller.key or "", UNUSED)))
            for caller in replica.keyring.configured
        ),
        *(construct(UsedKey, **_state(key), spend=_spend(spent.get(key.public_id, UNUSED))) for key in made),
    ]
    return StdlibJson(construct(KeyList, keys=rows))


@router.delete(
    "/v1/keys/{public_id}",
    **document_route("disableKey", KeyState, "key_not_found", scopes=("admin",)),
)
async def disable(replica: AppReplica, public_id: PublicId) -> StdlibJson[KeyState]:
    """Disable a key permanently; every replica refuses it within a second."""
    key = await asyncio.to_thread(keys.disable, replica.store, public_id, replica.clock())
    if key is None:
        raise ApiError("key_not_found", f"there is no key {public_id!r} in the log", "public_id")
    await asyncio.to_thread(replica.keyring.refresh, replica.store)
    return StdlibJson(construct(KeyState, **_state(key)))


def _state(key: keys.ApiKey) -> dict[str, Any]:
    """Return the fields of a key without its secret."""
    settings = asdict(key.settings)
    limits = settings.pop("limits")
    times = {"created_at": key.created_at, "disabled_at": key.disabled_at}
    return {"public_id": key.public_id, **settings, **limits, **times, "configured": False}


def _spend(spent: Mapping[str, usage.UsageAmount]) -> Spend:
    return construct(Spend, **{name: construct(Spent, **asdict(amount)) for name, amount in spent.items()})


def _describe_configured(caller: Caller, spend: Spend) -> ConfiguredKey:
    """Describe a key of the configuration, whose public id is its name."""
    name = caller.key or ""
    return construct(
        ConfiguredKey,
        public_id=name,
        name=name,
        scopes=sorted(caller.scopes),
        project=caller.project,
        source=caller.source,
        groups=sorted(caller.groups),
        configured=True,
        spend=spend,
    )
