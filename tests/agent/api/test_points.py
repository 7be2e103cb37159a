"""Decision points: ranking the actions of a request, ids that name their point, logs that stay apart."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from armwise.agent.api import ranking
from armwise.agent.policies import PolicySpec, build_policy
from armwise.feedback.events import Context, Decision
from tests.agent.asking import ask, look_up, refused
from tests.agent.fakes import Service

POINTS: dict[str, Any] = {
    "news": {
        "actions": "request",
        "features": {"words": 0, "shape": False},
        "reward": {"metrics": {"click": {}}, "cost_weight": 0.0},
    },
    "cheap": {"arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}, "policy": {"kind": "uniform"}},
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a point whose actions come with the request, and one with arms of its own."""
    async with Service(tmp_path, points=POINTS).running() as service:
        yield service


@pytest.fixture
async def on_each(tmp_path: Path, log_url: str) -> AsyncIterator[Service]:
    async with Service(tmp_path, log_url=log_url, points=POINTS).running() as service:
        yield service


def actions(*names: str, **features: Any) -> list[dict[str, Any]]:
    return [{"id": name, "features": features} for name in names]


async def sent(service: Service, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    document = {"point": "news", "actions": actions("a", "b"), **body}
    return await service.client.post("/v1/decisions", json=document, headers=headers)


async def ranked(service: Service, key: str | None = None, **body: Any) -> dict[str, Any]:
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


# -- actions of the request --------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_action_of_the_request_is_chosen_logged_and_verified(service: Service) -> None:
    context = {"user": {"tier": "free", "seen": [3, None]}}
    found = await ranked(service, "d-1", actions=actions("sport", "art", "law", age=2), context=context)
    assert found["decision_id"] == "news:d-1"
    assert found["pmf"].keys() == {"sport", "art", "law"}
    assert sum(found["pmf"].values()) == pytest.approx(1.0)
    assert found["ranking"][0] == {"id": found["chosen"], "probability": found["propensity"]}
    assert {one["id"]: one["probability"] for one in found["ranking"]} == found["pmf"]
    record = await read(service, "/v1/decisions/news:d-1")
    assert record["arm_drawn"] == record["arm_served"] == found["chosen"]
    assert record["features"].keys() == {"user.tier=free", "user.seen.0"}
    assert record["arm_features"]["art"] == {"id=art": 1.0, "age": pytest.approx(1.30103)}
    assert (record["pmf"], record["status"], record["cost"]["total"]) == (found["pmf"], "ok", 0.0)
    assert (await read(service, "/v1/decisions/news:d-1/verify"))["verified"]
    assert (await read(service, "/v1/decisions/d-1/verify", point="news"))["verified"]


def test_a_ranking_begins_with_the_chosen_action_and_falls_from_there() -> None:
    p = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.4}
    decision = Decision("d-1", Context("?"), tuple(p), tuple(p.values()), "c", "vowpal", 1)
    order = [(action.id, action.probability) for action in ranking.ranked(decision)]
    assert order == [("c", 0.2), ("d", 0.4), ("b", 0.3), ("a", 0.1)]


@pytest.mark.slow
async def test_the_same_request_again_is_the_same_decision_and_another_is_a_conflict(
    service: Service,
) -> None:
    first = await ranked(service, "d-1")
    assert await ranked(service, "d-1") == first
    refused(
        await sent(service, "d-1", actions=actions("b", "a")), 409, "idempotency_conflict", "Idempotency-Key"
    )


@pytest.mark.slow
async def test_an_excluded_action_is_never_drawn_and_the_most_probable_one_on_request(
    service: Service,
) -> None:
    drawn = [await ranked(service, actions=actions("a", "b", "c"), excluded=["b"]) for _ in range(20)]
    assert {name for one in drawn for name in one["pmf"]} == {"a", "c"}
    assert {one["chosen"] for one in drawn} == {"a", "c"}
    greedy = await ranked(service, explore=False)
    assert (greedy["mode"], greedy["propensity"]) == ("greedy", max(greedy["pmf"].values()))


OUT_OF_BOUNDS: list[tuple[dict[str, Any], str, str]] = [
    ({"actions": actions("a", "a")}, "actions", "'a' is the id of two actions"),
    ({"actions": actions(*map(str, range(51)))}, "actions", "51 actions were sent; at most 50"),
    ({"actions": []}, "actions", "at least 1 item"),
    ({"actions": actions("a\0b")}, "actions.0.id", "NUL"),
    ({"excluded": ["z"]}, "excluded", "'z' is not one of the actions"),
    ({"context": {"x": 10**400}}, "context.x", "from -1e+06 to 1e+06"),
    ({"context": {"x": 1e7}}, "context.x", "from -1e+06 to 1e+06"),
    ({"context": {"x": ["a\0b"]}}, "context.x.0", "NUL"),
    ({"context": {"x" * 201: 1}}, "context." + "x" * 201, "201 characters"),
    ({"context": {"a": [[[[[[[[[1]]]]]]]]]}}, "context", "nested more than 8 levels"),
    ({"context": {"x": list(range(65))}}, "context", "more than 64 features"),
    ({"actions": [{"id": "a", "feature": {}}]}, "actions.0.feature", "unknown field"),
    ({"point": "nwes"}, "point", "there are: default, news, cheap"),
    ({"point": "cheap"}, "point", "has arms of its own; those whose actions come with a request: news"),
]


@pytest.mark.slow
async def test_what_is_out_of_bounds_is_named(service: Service, subtests: pytest.Subtests) -> None:
    for body, param, message in OUT_OF_BOUNDS:
        with subtests.test(message):
            content = json.dumps({"point": "news", "actions": actions("a", "b"), **body})
            headers = {"content-type": "application/json"}
            answer = await service.client.post("/v1/decisions", content=content, headers=headers)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (404 if "there are" in message else 400, param)
            assert message in error["message"]
    assert (await read(service, "/v1/policy", point="news"))["log_seq"] == 0


async def test_names_and_texts_are_bounded_in_bytes(tmp_path: Path) -> None:
    async with Service(tmp_path, points=POINTS, limits={"action_bytes": 100}).running() as service:
        assert (await sent(service, actions=actions("a", "b", topic="x" * 40))).status_code == 200
        message = refused(
            await sent(service, actions=actions("a", "b", topic="x" * 50)), 400, "invalid_value", "actions"
        )
        assert "more than 100 bytes" in message


async def test_features_of_actions_are_bounded_as_configured(tmp_path: Path) -> None:
    limits = {"action_features": 2, "context_number": 10.0, "context_text": 5}
    async with Service(tmp_path, points=POINTS, limits=limits).running() as service:
        assert (await sent(service, actions=actions("a", "b", age=10, topic="opera"))).status_code == 200
        for features, message in (
            ({"age": 1, "topic": "x", "more": 1}, "there are more than 2 features"),
            ({"age": 11}, "a number from -10 to 10 was expected"),
            ({"topic": "sports"}, "has 6 characters; at most 5 are read"),
        ):
            answer = await sent(service, actions=actions("a", "b", **features))
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]


async def test_a_deferred_decision_counts_once_it_is_activated(service: Service) -> None:
    found = await ranked(service, defer_activation=True)
    answer = await service.client.post(f"/v1/decisions/{found['decision_id']}/activate")
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    assert (await read(service, f"/v1/decisions/{found['decision_id']}"))["activated"]


@pytest.mark.slow
async def test_decisions_are_listed_by_what_is_asked_of_them(on_each: Service) -> None:
    for n in range(6):
        await ranked(on_each, f"d-{n}", actions=actions("a", "b"), episode_id=f"e-{n % 2}")
    await fed(on_each, click("news:d-1"), {"episode_id": "news:e-0", "metric_name": "click", "value": 0})
    everything = (await read(on_each, "/v1/decisions", point="news"))["decisions"]
    assert [one["decision_id"] for one in everything] == [f"news:d-{n}" for n in range(5, -1, -1)]
    chosen = {one["decision_id"]: one["arm_drawn"] for one in everything}

    async def listed(**query: Any) -> list[str]:
        found, before = list[str](), None
        while True:
            page = await read(on_each, "/v1/decisions", point="news", limit=2, **query, **(before or {}))
            found += [one["decision_id"] for one in page["decisions"]]
            assert len(page["decisions"]) <= 2
            if page["next"] is None:
                return found
            before = {"before": page["next"]}

    assert await listed() == [*chosen]
    assert await listed(arm="a") == [name for name, arm in chosen.items() if arm == "a"]
    assert await listed(episode="news:e-1") == ["news:d-5", "news:d-3", "news:d-1"]
    assert await listed(metric="click") == ["news:d-1"]
    assert await listed(status="ok", version=1) == [*chosen]
    assert await listed(status="running") == await listed(version=99) == await listed(key="k") == []
    between = (everything[3]["decided_at"] + everything[4]["decided_at"]) / 2
    middle = datetime.fromtimestamp(between, UTC).isoformat()
    assert await listed(since=middle) == [*chosen][:4]
    assert await listed(until=middle) == [*chosen][4:]
    assert (await read(on_each, "/v1/decisions"))["decisions"] == []
    wrong = await on_each.client.get("/v1/decisions", params={"status": "done"})
    assert "status" in refused(wrong, 400, "invalid_value", "status")


# -- ids and logs ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_points_have_logs_of_their_own_on_either_database(on_each: Service) -> None:
    await ranked(on_each, "d-1")
    heads = [
        (await read(on_each, "/v1/policy", point=one))["log_seq"] for one in ("default", "news", "cheap")
    ]
    assert heads == [0, 2, 0]
    assert (await read(on_each, "/v1/decisions/news:d-1/verify"))["verified"]


async def test_feedback_finds_the_log_of_its_decision_by_the_id_alone(service: Service) -> None:
    default = (await look_up(service, {"idempotency-key": "d-1"})).json()["agent"]["decision_id"]
    news = (await ranked(service, "d-1", episode_id="e-1"))["decision_id"]
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
    assert (await ranked(service, "news:d-1")) == (await ranked(service, "d-1"))
    assert (await ranked(service, "cheap:d-1"))["decision_id"] == "news:cheap:d-1"
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
        body = {"point": "news", "actions": actions("a", "b")}

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
    assert not any("news" in one for one in models)


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
    assert (await read(service, "/v1/arms", point="cheap")).keys() == {"arms", "parts", "specs", "arm_set"}
    switched = await service.client.patch("/v1/arms/bm25", params={"point": "cheap"}, json={"enabled": False})
    assert switched.status_code == 200
    assert (await ask(service, model="point/cheap")).json()["agent"]["pmf"] == {"none": 1.0}
    assert "bm25" in (await ask(service)).json()["agent"]["pmf"]
    missing = await service.client.get("/v1/policy", params={"point": "x"})
    assert "there are: default, news, cheap" in refused(missing, 404, "point_not_found", "point")
    refused(
        await service.client.put(
            "/v1/arms", params={"point": "news"}, json={"arms": {"none": {"kind": "none"}}}
        ),
        400,
        "invalid_value",
        "point",
    )


# -- learning ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_policy_over_features_beats_uniform_on_ids_that_never_come_again(tmp_path: Path) -> None:
    async with Service(tmp_path, points=POINTS, limits={"in_flight": 4}).running() as service:
        await _beats_uniform(service)


async def _beats_uniform(service: Service) -> None:
    rng = np.random.default_rng(7)
    earned = list[float]()
    for step in range(4):
        items = []
        for n in range(60):
            user = str(rng.choice(["young", "old"]))
            topics = rng.permutation(["games", "opera", "law"]).tolist()
            shown = [
                {"id": f"{step}-{n}-{i}", "features": {"topic": topic}} for i, topic in enumerate(topics)
            ]
            found = await ranked(service, f"r-{step}-{n}", actions=shown, context={"user": user})
            topic = topics[int(found["chosen"].rpartition("-")[2])]
            liked = topic == {"young": "games", "old": "opera"}[user]
            earned.append(float(rng.random() < (0.9 if liked else 0.1)))
            items.append(click(found["decision_id"], earned[-1]))
        await fed(service, *items)
        await service.learn_at("news")
    assert np.mean(earned[:60]) < 0.55
    assert np.mean(earned[120:]) > 0.7  # uniform earns 0.37
    answer = await service.client.post(
        "/v1/evaluations",
        params={"point": "news"},
        json={"candidates": ["uniform", "configured"], "gate": True},
    )
    place = answer.headers["location"]
    with service.working("news"):
        async with asyncio.timeout(60):
            while (done := await read(service, place))["status"] in ("queued", "running"):
                await asyncio.sleep(0.01)
    assert done["status"] == "done", done["error"]
    result = done["result"]
    assert (result["rows"], len(result["candidates"])) == (240, 3)
    assert any("distributions were computed again, and 0 differed." in one for one in result["assumptions"])
    served, uniform, configured = (one["estimates"][0]["value"]["value"] for one in result["candidates"])
    assert served == pytest.approx(np.mean(earned))
    assert uniform == pytest.approx(0.37, abs=0.12)
    assert configured > uniform + 0.1
    checked = await read(service, "/v1/policy", point="news")
    assert checked["applied_seq"] == checked["log_seq"]


def test_a_policy_over_actions_does_not_grow_with_their_ids() -> None:
    args = "--cb_explore_adf --squarecb --gamma_scale 20 --clip_p 1 -q sf -b 10"
    policy = build_policy(PolicySpec(kind="vowpal", params={"args": args}), [])
    names = ("action-1", "action-2")
    for n in range(3000):
        described = {name: {f"id={n}-{name}": 1.0, "topic=x": 1.0} for name in names}
        seen = Context("?", {"tier=free": 1.0}, (), described)
        policy.learn(Decision(str(n), seen, names, (0.5, 0.5), names[n % 2], "vowpal", 1), n % 3 / 2)
    assert len(policy.save()) < 2**10 * 16 + 2000  # a table of so many weights, and not of 6,000 ids
