"""Every route of the application is in one table, with the scope that its key must have."""

import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from armwise.agent.access.keyring import SCOPES, caller_scopes
from armwise.agent.api.pages import FEEDBACK_BUTTON
from armwise.agent.config import Scope
from armwise.agent.console.page import CONSOLE
from tests.agent.asking import refused
from tests.agent.fakes import Service

OPEN: None = None

USE: tuple[Scope, ...] = ("decide", "read")

ROUTES: dict[tuple[str, str], tuple[Scope, ...] | None] = {
    ("GET", "/"): OPEN,
    ("GET", "/docs"): OPEN,
    ("GET", "/docs/favicon.png"): OPEN,
    ("GET", "/docs/swagger-ui-bundle.js"): OPEN,
    ("GET", "/docs/swagger-ui.css"): OPEN,
    ("GET", "/health"): OPEN,
    ("GET", "/health/decides"): OPEN,
    ("GET", "/metrics"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/ready"): OPEN,
    ("POST", "/mcp"): ("decide", "read", "feedback"),
    ("GET", "/v1/arms"): USE,
    ("PUT", "/v1/arms"): ("operate",),
    ("PATCH", "/v1/arms/{name}"): ("operate",),
    ("POST", "/v1/chat/completions"): ("decide",),
    ("GET", "/v1/decisions"): USE,
    ("POST", "/v1/decisions"): ("decide",),
    ("GET", "/v1/decisions/{decision_id}"): USE,
    ("POST", "/v1/decisions/{decision_id}/activate"): ("feedback",),
    ("GET", "/v1/decisions/{decision_id}/now"): USE,
    ("GET", "/v1/decisions/{decision_id}/verify"): ("operate",),
    ("DELETE", "/v1/decisions/{decision_id}"): ("admin",),
    ("DELETE", "/v1/episodes/{episode_id}"): ("admin",),
    ("GET", "/v1/erasures"): ("admin",),
    ("GET", "/v1/evaluations"): ("read",),
    ("POST", "/v1/evaluations"): ("operate",),
    ("GET", "/v1/evaluations/{number}"): ("read",),
    ("GET", "/v1/evaluations/{number}/report"): ("read",),
    ("GET", "/v1/export"): ("admin",),
    ("POST", "/v1/feedback"): ("feedback",),
    ("GET", "/v1/keys"): ("admin",),
    ("POST", "/v1/keys"): ("admin",),
    ("DELETE", "/v1/keys/{public_id}"): ("admin",),
    ("GET", "/feedback.js"): None,
    ("GET", "/chat"): None,
    ("GET", "/chat.js"): None,
    ("GET", "/chat/chat.css"): None,
    ("GET", "/chat/chat_page.js"): None,
    ("POST", "/chat/ask"): ("chat",),
    ("GET", "/v1/models"): USE,
    ("GET", "/v1/models/{model:path}"): USE,
    ("GET", "/v1/policies"): ("read",),
    ("POST", "/v1/policies/{version}/canary"): ("operate",),
    ("POST", "/v1/policies/{version}/promote"): ("operate",),
    ("POST", "/v1/policies/{version}/rollback"): ("operate",),
    ("GET", "/v1/policy"): USE,
    ("POST", "/v1/responses"): ("decide",),
    ("POST", "/v1/retrieve"): ("decide",),
    ("DELETE", "/v1/users/{user:path}"): ("admin",),
    ("GET", "/v1/warm-starts"): ("read",),
    ("POST", "/v1/warm-starts"): ("operate",),
    ("GET", "/v1/warm-starts/{number}"): ("read",),
}
"""The scopes of each route, of which a key needs one; None for a route that needs no key.

A route that is not here needs a key, and the scopes that its document has.
"""

BY_TOKEN = (FEEDBACK_BUTTON,)
"""Paths where a token of one decision stands for a key: `test_buttons.py`."""


def routes_of(app: FastAPI) -> dict[tuple[str, str], tuple[Scope, ...]]:
    """Return the scopes that the document has of each route of the API; HEAD is answered with GET."""
    found = dict[tuple[str, str], tuple[Scope, ...]]()
    for route in app.routes:
        assert isinstance(route, Route), f"{route}: a mount or a router, which says no scope"
        if route.path.startswith(CONSOLE):
            continue
        extra = getattr(route, "openapi_extra", None) or {}
        for method in (route.methods or set()) - {"HEAD"}:
            found[method, route.path] = tuple(extra.get("x-scopes", ()))
    return found


class Values(dict[str, object]):
    """Values of parameters of paths; any other one is `x`."""

    def __missing__(self, name: str) -> object:
        return "x"


IDS = Values(name="bm25", model="auto", decision_id="d-1", number=1, version=1, public_id="k", user="ada")


@pytest.mark.slow
async def test_each_route_requires_a_key_with_its_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    tried = [scope for scope in SCOPES if scope != "chat"]  # which `test_chat.py` tries everywhere
    for scope in tried:
        monkeypatch.setenv(f"{scope.upper()}_KEY", f"{scope}-secret")
    keys = [{"env": f"{scope.upper()}_KEY", "scopes": [scope]} for scope in tried]
    async with Service(tmp_path, keys=keys).running() as service:
        routes = routes_of(service.app)
        assert routes.keys() >= ROUTES.keys(), "a route is gone"
        new = {route: scopes for route, scopes in routes.items() if route not in ROUTES}
        new = {route: scopes for route, scopes in new.items() if route[1] not in BY_TOKEN}
        assert all(new.values()), f"give each of {[*new]} its scopes by **documented(..., scopes=(...))"
        for (method, path), required in {**ROUTES, **new}.items():
            with subtests.test(f"{method} {path}"):
                url = path.replace(":path", "").format_map(IDS)
                without = await service.client.request(method, url)
                if required is None:
                    assert without.status_code in (200, 307)
                    continue
                refused(without, 401, "invalid_api_key")
                for scope in tried:
                    headers = {"authorization": f"Bearer {scope}-secret"}
                    answer = await service.client.request(method, url, headers=headers)
                    if caller_scopes((scope,)) & set(required):
                        assert answer.status_code not in (401, 403), answer.text
                    else:
                        assert f"scope '{required[0]}'" in refused(answer, 403, "forbidden")


OFTEN = {
    *("/v1/retrieve", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/feedback", "/v1/decisions/{decision_id}/activate", "/v1/observations"),
}
"""Routes that read no byte of the body of a key without their scope."""


async def test_a_key_without_the_scope_is_refused_before_its_body_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READER", "reads")

    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    headers = {"authorization": "Bearer reads", "content-type": "application/json"}
    async with Service(tmp_path, keys=[{"env": "READER", "scopes": ["read"]}]).running() as service:
        for (method, path), scopes in routes_of(service.app).items():
            if method in ("POST", "PUT", "PATCH") and scopes and "read" not in scopes:
                body = unread() if path in OFTEN else b'{"messages": 1}'
                url = path.replace(":path", "").format_map(IDS)
                answer = await service.client.request(method, url, content=body, headers=headers)
                assert (method, path, answer.status_code) == (method, path, 403)


async def test_a_path_without_a_route_needs_a_key_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_KEY", "right")
    async with Service(tmp_path, keys=[{"env": "APP_KEY"}]).running() as service:
        for path in ("/v2/x", "/docs/x", "/mcp", "/health/x", "/health/"):
            refused(await service.client.get(path), 401, "invalid_api_key")
        found = await service.client.get("/v2/x", headers={"authorization": "Bearer right"})
        refused(found, 404, "not_found")


async def test_routes_keep_no_replica_that_was_stopped(tmp_path: Path) -> None:
    service = Service(tmp_path)
    async with service.running():
        assert (await service.client.get("/v1/policy")).status_code == 200
    replica = weakref.ref(service.replica)
    del service
    gc.collect()
    assert replica() is None, "the routes, or a cache of FastAPI, refer to it"
