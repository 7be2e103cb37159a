"""`/v1/keys`: make, list and disable keys of callers, and report what they have used."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.access import Caller, NewKey
from agent.api.documented import documented, link
from agent.api.errors import ApiError
from agent.api.middleware import ServiceReplica
from agent.api.replies import operations as replies
from agent.api.schemas import PublicId
from feedback.registry import keys, usage

router = APIRouter(tags=["keys"])

UNUSED = {"day": usage.Amount(), "month": usage.Amount(), "total": usage.Amount()}


@router.post(
    "/v1/keys",
    **documented(
        "createKey",
        replies.NewKeyState,
        "project_taken",
        scopes=("admin",),
        status=201,
        success=link("disableKey", public_id="$response.body#/public_id"),
        example={"name": "shop", "scopes": ["decide", "feedback"], "rpm_limit": 600},
    ),
)
async def create(replica: ServiceReplica, body: NewKey) -> JSONResponse:
    """Make a key. Only this response has its secret; every replica knows it within a second."""
    if replica.keyring.is_open and "admin" not in body.scopes:
        message = f"the first key closes the service: with {list(body.scopes)} nobody could make another one"
        raise ApiError("invalid_value", f"{message}; give it the scope 'admin'", "scopes")
    now = replica.clock()
    try:
        settings = body.settings(now)
    except ValueError as error:
        raise ApiError("invalid_value", str(error), "expires") from None
    key, token = await asyncio.to_thread(keys.create, replica.store, settings, now)
    await asyncio.to_thread(replica.keyring.refresh, replica.store)
    return JSONResponse({"key": token, **document(key)}, 201, {"cache-control": "no-store"})


@router.get("/v1/keys", **documented("listKeys", replies.KeyList, scopes=("admin",)))
async def listed(replica: ServiceReplica) -> JSONResponse:
    """Every key, without its secret, with what it has used: today, this month and in total."""
    await replica.quota.report()
    made = await asyncio.to_thread(keys.read, replica.store)
    spent = await asyncio.to_thread(usage.spend, replica.store, replica.clock())
    rows = [_configured(caller) for caller in replica.keyring.configured] + [document(key) for key in made]
    return JSONResponse({"keys": [row | spend_of(spent.get(row["public_id"], UNUSED)) for row in rows]})


@router.delete(
    "/v1/keys/{public_id}",
    **documented("disableKey", replies.KeyState, "key_not_found", scopes=("admin",)),
)
async def disable(replica: ServiceReplica, public_id: PublicId) -> JSONResponse:
    """Disable a key for good; every replica refuses it within a second."""
    key = await asyncio.to_thread(keys.disable, replica.store, public_id, replica.clock())
    if key is None:
        raise ApiError("key_not_found", f"there is no key {public_id!r} in the log", "public_id")
    await asyncio.to_thread(replica.keyring.refresh, replica.store)
    return JSONResponse(document(key))


def document(key: keys.ApiKey) -> dict[str, Any]:
    """Return a key without its secret."""
    settings = asdict(key.settings)
    limits = settings.pop("limits")
    times = {"created_at": key.created_at, "disabled_at": key.disabled_at}
    return {"public_id": key.public_id, **settings, **limits, **times, "configured": False}


def spend_of(spent: Mapping[str, usage.Amount]) -> dict[str, Any]:
    """Return what a key has used, as a field of its document."""
    return {"spend": {name: asdict(amount) for name, amount in spent.items()}}


def _configured(caller: Caller) -> dict[str, Any]:
    """Describe a key of the configuration."""
    about = {"public_id": caller.key, "name": caller.key, "scopes": sorted(caller.scopes)}
    rest = {"project": caller.project, "source": caller.source, "groups": sorted(caller.groups)}
    return {**about, **rest, "configured": True}
