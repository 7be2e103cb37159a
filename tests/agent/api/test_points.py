"""Decision points: ids that name their point, logs that stay apart, arms that callers carry out."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.asking import ask, look_up, refused
from tests.agent.fakes import Service

POINTS: dict[str, Any] = {
    "news": {
        "arms": {"sport": {"kind": "external"}, "opera": {"kind": "external"}},
        "reward": {"metrics": {"click": {}}, "cost_weight": 0.0},
    },
    "cheap": {"arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}, "policy": {"kind": "uniform"}},
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a point whose callers carry out its arms, and one with other arms."""
    async with Service(tmp_path, points=POINTS).running() as service:
        yield service


@pytest.fixture
async def on_each(tmp_path: Path, log_url: str) -> AsyncIterator[Service]:
    async with Service(tmp_path, log_url=log_url, points=POINTS).running() as service:
        yield service


async def sent(service: Service, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    document = {"point": "news", "question": "which page?", **body}
    return await service.client.post("/v1/decisions", json=document, headers=headers)


async def chosen(service: Service, key: str | None = None, **body: Any) -> dict[str, Any]:
    answer = await sent(service, key, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["x-decision-id"] == found["decision_id"]
    return found


async def fed(service: Service, *items: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await service.client.post("/v1/feedback", json={"items": items})
    assert answer.status_code == 202, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


def click(decision_id: str, value: float = 1.0) -> dict[str, Any]:
    return {"decision_id": decision_id, "metric_name": "click", "value": value}


async def read(service: Service, path: str, **query: Any) -> dict[str, Any]:
    answer = await service.client.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# -- ids and logs ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_points_have_logs_of_their_own_on_either_database(on_each: Service) -> None:
    await chosen(on_each, "d-1")
    heads = [
        (await read(on_each, "/v1/policy", point=one))["log_seq"] for one in ("default", "news", "cheap")
    ]
    assert heads == [0, 1, 0]
    assert (await read(on_each, "/v1/decisions/news:d-1/verify"))["verified"]


async def test_feedback_finds_the_log_of_its_decision_by_the_id_alone(service: Service) -> None:
    default = (await look_up(service, {"idempotency-key": "d-1"})).json()["agent"]["decision_id"]
    news = (await chosen(service, "d-1", episode_id="e-1"))["decision_id"]
    cheap = (await look_up(service, {"idempotency-key": "d-1"}, model="point/cheap")).json()["agent"]
    assert (default, news, cheap["decision_id"]) == ("d-1", "news:d-1", "cheap:d-1")
    thumb = {"metric_name": "thumb", "value": 1}
    kept = await fed(
        service,
        {"decision_id": default, **thumb},
        click(news),
        {"decision_id": cheap["decision_id"], **thumb},
        {"episode_id": "news:e-1", "metric_name": "click", "value": 0},
        {"decision_id": news, **thumb},
    )
    assert [one.get("status") for one in kept] == ["accepted"] * 4 + [None]
    assert "metric 'thumb' is not declared" in kept[4]["error"]["message"]
    assert [one["decision_id"] for one in kept[:3]] == [default, news, "cheap:d-1"]
    assert kept[3]["episode_id"] == "news:e-1"
    record = await read(service, f"/v1/decisions/{news}")
    assert [item["metric_name"] for item in record["feedback"]] == ["click", "click"]
    assert record["episode_id"] == "news:e-1"


async def test_an_id_of_the_default_point_does_not_begin_with_the_name_of_another(service: Service) -> None:
    message = refused(await look_up(service, {"idempotency-key": "news:d-1"}), 400, "invalid_value")
    assert "'news:d-1' begins with the name of the decision point 'news'" in message
    assert (await look_up(service, {"idempotency-key": "nwes:d-1"})).status_code == 200
    assert (await chosen(service, "news:d-1")) == (await chosen(service, "d-1"))
    assert (await chosen(service, "cheap:d-1"))["decision_id"] == "news:cheap:d-1"
    assert (await fed(service, click("news:cheap:d-1")))[0]["status"] == "accepted"


async def test_the_decisions_of_a_project_are_its_own_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "admin")
    monkeypatch.setenv("SHOP_KEY", "shop")
    monkeypatch.setenv("OTHER_KEY", "other")
    keys = [
        {"env": "ADMIN_KEY", "scopes": ["admin"]},
        {"env": "SHOP_KEY", "project": "shop"},
        {"env": "OTHER_KEY"},
    ]
    async with Service(tmp_path, points=POINTS, keys=keys).running() as service:
        body = {"point": "news", "question": "which page?"}

        async def as_(key: str, method: str, path: str, **more: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
            return await service.client.request(method, path, headers=headers, **more)

        made = await as_("shop", "POST", "/v1/decisions", json=body, headers={"idempotency-key": "d-1"})
        assert made.json()["decision_id"] == "news:d-1"
        assert (await as_("shop", "GET", "/v1/decisions/news:d-1")).status_code == 200
        for key, shown in (("shop", ["news:d-1"]), ("admin", ["news:shop~d-1"]), ("other", [])):
            page = await as_(key, "GET", "/v1/decisions", params={"point": "news"})
            assert [one["decision_id"] for one in page.json()["decisions"]] == shown
        refused(await as_("admin", "GET", "/v1/decisions/news:d-1"), 404, "decision_not_found", "decision_id")
        seen = await as_("admin", "GET", "/v1/decisions/news:shop~d-1")
        assert seen.json()["decision_id"] == "news:shop~d-1"
        kept = await as_("shop", "POST", "/v1/feedback", json=click("news:d-1"))
        assert (kept.status_code, kept.json()["status"]) == (202, "accepted")
        assert kept.json()["decision_id"] == "news:d-1"


async def test_a_model_names_a_point_and_an_arm_there(service: Service) -> None:
    answer = await ask(service, model="point/cheap/arm/bm25")
    assert answer.json()["agent"]["mode"] == "forced"
    assert answer.json()["agent"]["decision_id"].startswith("cheap:")
    assert (await ask(service, model="point/cheap")).json()["agent"]["pmf"] == {"none": 0.5, "bm25": 0.5}
    refused(await ask(service, model="point/cheap/arm/dense"), 404, "model_not_found", "model")
    refused(await ask(service, model="point/cheep"), 404, "point_not_found", "point")
    assert "POST /v1/decisions" in refused(
        await ask(service, model="point/news"), 400, "invalid_value", "model"
    )
    models = {one["id"] for one in (await read(service, "/v1/models"))["data"]}
    assert models > {"auto", "arm/dense", "point/cheap", "point/cheap/arm/bm25"}


@pytest.mark.slow
async def test_every_route_that_asks_takes_a_point_by_its_model(service: Service) -> None:
    cheap, auto = "point/cheap/arm/bm25", "arm/bm25"
    for path, body in (
        ("/v1/retrieve", {"query": "heap"}),
        ("/v1/responses", {"input": "heap"}),
        ("/v1/responses", {"input": "heap", "stream": True}),
    ):
        for model, begins in ((cheap, "cheap:"), (auto, "")):
            answer = await service.client.post(path, json={"model": model, **body})
            assert answer.status_code == 200, answer.text
            decision_id = answer.headers["x-decision-id"]
            assert decision_id.startswith(begins)
            assert (":" in decision_id) == bool(begins)


async def test_operators_read_and_change_one_point(service: Service) -> None:
    assert (await read(service, "/v1/arms", point="cheap")).keys() == {"arms", "parts", "arm_set"}
    switched = await service.client.patch("/v1/arms/bm25", params={"point": "cheap"}, json={"enabled": False})
    assert switched.status_code == 200
    assert (await ask(service, model="point/cheap")).json()["agent"]["pmf"] == {"none": 1.0}
    assert "bm25" in (await ask(service)).json()["agent"]["pmf"]
    missing = await service.client.get("/v1/policy", params={"point": "x"})
    assert "there are: default, news, cheap" in refused(missing, 404, "point_not_found", "point")
