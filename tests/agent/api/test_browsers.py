"""The attacker has a page that a user of the service opens, or reaches `/metrics` without a key."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from armwise.agent.api.middleware import ErrorBoundary
from armwise.agent.api.pages import ANY_SITE
from armwise.agent.api.routes import list_routes
from tests.agent.api.test_tenants import bearer
from tests.agent.asking import look_up, refused
from tests.agent.fakes import Service

EVIL = {"origin": "https://evil.test"}


def operations() -> list[tuple[str, str]]:
    """Return the method and a path of each route."""
    return sorted(
        (method, re.sub(r"\{(\w+)(:path)?\}", "1", route.path))
        for route in list_routes()
        for method in getattr(route, "methods", None) or ()
    )


@pytest.mark.slow
async def test_an_open_service_does_nothing_for_the_page_of_another_site_on_any_route(
    service: Service, subtests: pytest.Subtests
) -> None:
    await look_up(service)
    before = service.replica.store.log_seq()
    closed = [(method, path) for method, path in operations() if path not in ANY_SITE]
    assert len(closed) > 80
    for method, path in closed:
        with subtests.test(f"{method} {path}"):
            response = await service.client.request(method, path, headers=EVIL)
            assert response.status_code == 403, response.text
    assert service.replica.store.log_seq() == before


async def test_activation_is_accepted_from_a_program_and_refused_from_another_site(service: Service) -> None:
    post, path = service.client.post, "/v1/decisions/x/activate"
    refused(await post(path, headers=EVIL), 403, "forbidden")
    refused(await post(path, headers={"origin": "null"}), 403, "forbidden")
    assert (await post(path)).status_code == 202
    assert (await post(path, headers={"origin": "http://service"})).status_code == 202


@pytest.mark.slow
async def test_a_browser_takes_every_response_for_what_it_is_declared_as(
    service: Service, subtests: pytest.Subtests
) -> None:
    for method, path in [*operations(), ("GET", "/nothing"), ("BREW", "/v1/arms")]:
        with subtests.test(f"{method} {path}"):
            response = await service.client.request(method, path)
            assert response.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_an_internal_error_is_declared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Service(tmp_path).running() as service:

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("armwise.agent.api.health._state", broken)
        response = await service.client.get("/metrics", headers={"x-request-id": "r-1"})
    assert (response.status_code, response.headers["x-content-type-options"]) == (500, "nosniff")
    error = response.json()["error"]
    assert (error["code"], error["request_id"]) == ("internal_error", "r-1")
    assert error["message"] == "ZeroDivisionError: see the service's log"


async def test_a_response_that_breaks_off_is_not_ended_as_if_it_were_whole_and_raises_nothing() -> None:
    sent: list[str] = []

    async def breaking(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ZeroDivisionError

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {"type": "http", "method": "GET", "path": "/v1/export"}
    await ErrorBoundary(breaking)(scope, AsyncMock(), send)
    assert sent == ["http.response.start", "http.response.body"]


SECRETS = {
    "ADMIN_KEY": ("admin", "default"),
    "SHOP_READ": ("read", "shop"),
    "SHOP_DECIDE": ("decide", "shop"),
    "OTHER_OPERATE": ("operate", "other"),
}


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, set()),
        ("SHOP_DECIDE", set()),
        ("SHOP_READ", {"SHOP_DECIDE"}),
        ("OTHER_OPERATE", {"OTHER_OPERATE"}),
        ("ADMIN_KEY", {"SHOP_DECIDE", "OTHER_OPERATE", "gone", "others"}),
    ],
)
async def test_metrics_show_what_keys_have_cost_to_those_who_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, shown: set[str]
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"{name}-secret")
    keys = [
        {"env": name, "scopes": [scope], "project": project} for name, (scope, project) in SECRETS.items()
    ]
    async with Service(tmp_path, keys=keys).running() as service:
        for name in ("SHOP_DECIDE", "OTHER_OPERATE", "gone", "others"):
            service.replica.telemetry.add_key_cost(name, 0.25)
        response = await service.client.get(
            "/metrics", headers={} if key is None else bearer(f"{key}-secret")
        )
    assert response.status_code == 200
    assert set(re.findall(r'armwise_key_cost_usd_total\{key="(\w+)"\}', response.text)) == shown
    assert "armwise_build_info" in response.text
    if not shown:
        assert not any(name in response.text for name in (*SECRETS, "gone", "armwise_key_cost"))


async def test_a_wrong_key_is_refused_by_metrics_and_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_KEY", "right")
    async with Service(tmp_path, keys=[{"env": "APP_KEY", "scopes": ["admin"]}]).running() as service:
        refused(await service.client.get("/metrics", headers=bearer("wrong")), 401, "invalid_api_key", None)
        assert (await service.client.get("/health", headers=bearer("wrong"))).status_code == 200
