"""Personalizer's protocol, a request at a time; `tests/clients` has its own clients speak it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.api import ranking
from armwise.agent.api.errors import ApiError
from armwise.agent.api.personalizer import evaluations, protocol
from armwise.agent.api.personalizer import service as settings
from armwise.agent.learning import configuration_of
from armwise.agent.serving import ask as asking
from armwise.feedback.log import Record
from armwise.feedback.registry import evaluations as registry_evaluations
from armwise.feedback.registry import versions
from armwise.feedback.training_log import StartingPoint
from armwise.feedback.training_log.observed import Also
from tests.agent.fakes import Service

NEWS = {
    "actions": "request",
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.2 -q sf"}},
    "reward": {"metrics": {"click": {"range": [-1, 1]}}, "cost_weight": 0.0},
}
CONTRACT = {
    "name": "which settings",
    "startTime": "2020-01-01T00:00:00Z",
    "endTime": "2120-01-01T00:00:00Z",
}
ACTIONS = [{"id": name} for name in "abc"]
OLDER = "/personalizer/v1.0"
NEWER = "/personalizer"


@pytest.fixture
async def news(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with one decision, which an evaluation needs."""
    async with Service(tmp_path, points={"news": NEWS}, personalizer="news").running() as service:
        assert (await service.client.post(f"{OLDER}/rank", json={"actions": ACTIONS})).status_code == 201
        yield service


def failure(answer: httpx.Response, status: int) -> tuple[str, str | None]:
    """Return the code and the target of an error in the shape of the protocol."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error["code"], error.get("target")


async def put(service: Service, name: str) -> httpx.Response:
    return await service.client.put(f"{NEWER}/evaluations/{name}", json=CONTRACT)


async def listed(service: Service, **query: int) -> list[str]:
    answer = await service.client.get(f"{NEWER}/evaluations", params=query)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["value"]]


@pytest.mark.parametrize("name", ["none", "7", "9" * 15, "9" * 16, "9" * 20, "9" * 256])
async def test_an_evaluation_that_is_not_there_is_not_found_however_many_digits_its_id_has(
    news: Service, name: str
) -> None:
    await put(news, "e-1")
    for ask in (news.client.get, news.client.delete):
        found = failure(await ask(f"{OLDER}/evaluations/{name}"), 404)
        assert found == ("ResourceNotFound", "evaluationId")


async def test_an_evaluation_is_found_by_the_id_of_its_client_and_by_its_number(news: Service) -> None:
    number = "12345678901234567890"
    for name in ("e-1", number):
        assert (await put(news, name)).json()["id"] == name
        assert failure(await put(news, name), 409) == ("Conflict", "evaluationId")
    made = await news.client.post(f"{OLDER}/evaluations", json=CONTRACT)
    assert (made.status_code, made.json()["id"]) == (201, "3")
    assert made.headers["location"] == f"{OLDER}/evaluations/3"
    found = [
        (await news.client.get(f"{NEWER}/evaluations/{name}")).json()["id"]
        for name in ("e-1", "1", number, "2", "3")
    ]
    assert found == ["e-1", "e-1", number, number, "3"]


async def test_an_evaluation_of_an_operator_has_its_number_and_its_own_name(news: Service) -> None:
    body = {"candidates": ["uniform"], "name": "nightly"}
    asked = await news.client.post("/v1/evaluations?point=news", json=body)
    assert asked.status_code == 202, asked.text
    await put(news, "e-1")
    found = [await sent(news, "GET", f"/evaluations/{name}") for name in ("1", "e-1")]
    assert [(one["id"], one["name"]) for one in found] == [("1", "nightly"), ("e-1", "which settings")]


async def test_evaluations_are_listed_newest_first_from_where_the_client_skips_to(
    news: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await listed(news) == []
    for i in range(5):
        assert (await put(news, f"e-{i}")).status_code == 200
    assert await listed(news) == ["e-4", "e-3", "e-2", "e-1", "e-0"]
    assert await listed(news, top=2) == ["e-4", "e-3"]
    assert await listed(news, top=2, skip=2) == ["e-2", "e-1"]
    assert await listed(news, top=2, skip=4) == ["e-0"]
    assert await listed(news, skip=5) == []
    assert await listed(news, top=1, skip=0) == ["e-4"]
    older = await news.client.get(f"{OLDER}/evaluations", params={"top": 1})
    assert [one["id"] for one in older.json()] == ["e-4"]
    for query in ({"top": 0}, {"top": 1001}, {"skip": -1}, {"skip": 1001}):
        answer = await news.client.get(f"{NEWER}/evaluations", params=query)
        assert answer.status_code == 400, query
    monkeypatch.setattr(evaluations, "MOST", 2)
    assert (await news.client.get(f"{NEWER}/evaluations/e-3")).status_code == 200
    assert (await news.client.get(f"{NEWER}/evaluations/e-2")).status_code == 404
    assert (await news.client.get(f"{NEWER}/evaluations/3")).json()["id"] == "e-2", "a number is a position"


def slots(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": f"slot-{i}", "baselineAction": name, **fields} for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"slots": [*slots("a"), *slots("b")]}, "slots"),
        ({"slots": slots("a", "b", "c", "a")}, "slots"),
        ({"slots": slots("a", "d")}, "slots.baselineAction"),
    ],
)
async def test_slots_that_cannot_be_filled_are_refused(
    news: Service, body: dict[str, Any], target: str
) -> None:
    answer = await news.client.post(f"{OLDER}/multislot/rank", json={"actions": ACTIONS, **body})
    assert failure(answer, 400) == ("BadRequest", target)


async def test_as_many_slots_as_actions_show_each_action_once_and_are_rewarded_each(news: Service) -> None:
    body = {"eventId": "m-1", "actions": ACTIONS, "slots": slots("c", "b", "a"), "deferActivation": True}
    answer = await news.client.post(f"{OLDER}/multislot/rank", json=body)
    assert answer.status_code == 201, answer.text
    shown = {one["id"]: one["rewardActionId"] for one in answer.json()["slots"]}
    assert sorted(shown.values()) == ["a", "b", "c"]
    values = [{"slotId": f"slot-{i}", "value": i / 2} for i in range(3)]
    path = f"{OLDER}/multislot/events/m-1"
    assert (await news.client.post(f"{path}/reward", json={"reward": values})).status_code == 204
    assert (await news.client.post(f"{path}/activate")).status_code == 204
    store = news.points["news"].store
    for i in range(3):
        logged = store.record(f"m-1:slot-{i}")
        assert logged is not None
        record = ranking.record_by_ids(logged)
        assert record.decision.drawn == shown[f"slot-{i}"]
        assert [(item.kind, item.value) for item in record.feedback] == [
            ("value", i / 2),
            ("activation", None),
        ]


async def test_the_most_slots_that_a_request_may_have_are_all_activated(news: Service) -> None:
    names = [f"action-{i}" for i in range(50)]
    body = {
        "eventId": "m-50",
        "actions": [{"id": name} for name in names],
        "deferActivation": True,
        "slots": slots(*names),
    }
    answer = await news.client.post(f"{OLDER}/multislot/rank", json=body)
    assert answer.status_code == 201, answer.text
    assert (await news.client.post(f"{OLDER}/multislot/events/m-50/activate")).status_code == 204
    store = news.points["news"].store
    records = [store.record(f"m-50:slot-{i}") for i in range(50)]
    assert [[item.kind for item in record.feedback] for record in records if record] == [["activation"]] * 50


async def test_what_a_request_excludes_is_shown_in_no_slot(news: Service) -> None:
    for i in range(8):
        body = {"eventId": f"m-{i}", "actions": ACTIONS, "excludedActions": ["a"], "slots": slots("b", "c")}
        answer = await news.client.post(f"{OLDER}/multislot/rank", json=body)
        assert answer.status_code == 201, answer.text
        assert {slot["rewardActionId"] for slot in answer.json()["slots"]} == {"b", "c"}


SETTINGS = "--cb_explore_adf --epsilon 0.3 --power_t 0 -l 0.001 --cb_type mtr -q ::"
CONTEXT = [{"user": {"tier": "free"}}, {"device": {"os": "linux", "mobile": False}}]


async def sent(service: Service, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    """Return the document of a response; None without one."""
    answer = await service.client.request(method, NEWER + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def refusal(service: Service, method: str, path: str, body: Any = None, status: int = 400) -> Any:
    """Return the error of a refused request."""
    error = (await sent(service, method, path, body, status))["error"]
    assert error.keys() == {"code", "message", "target", "details", "innerError"}
    return error


def logged(service: Service, event: str) -> Record:
    """Return what the log holds of an event, by the ids of its actions."""
    found = service.points["news"].store.record(event)
    assert found is not None
    return ranking.record_by_ids(found)


async def test_an_event_is_ranked_activated_and_rewarded(news: Service) -> None:
    meals = [
        {"id": name, "features": [{"meal": {"taste": name}}, {"calories": 3}]} for name in ("a", "b", "c")
    ]
    request = {"contextFeatures": CONTEXT, "actions": meals, "excludedActions": ["b", "x"], "eventId": "e-1"}
    found = await sent(news, "POST", "/rank", {**request, "deferActivation": True}, 201)
    assert (found["eventId"], found.keys()) == ("e-1", {"ranking", "eventId", "rewardActionId"})
    p = {one["id"]: one["probability"] for one in found["ranking"]}
    assert p.keys() == {"a", "c"}
    assert sum(p.values()) == pytest.approx(1.0)
    assert found["rewardActionId"] in p
    await sent(news, "POST", "/events/e-1/activate", status=204)
    await sent(news, "POST", "/events/e-1/reward", {"value": 0.5}, 204)
    record = logged(news, "e-1")
    assert record.decision.context.features.keys() == {
        *("user.tier=free", "device.os=linux", "device.mobile=false")
    }
    assert record.decision.context.arms["a"].keys() == {"id=a", "meal.taste=a", "calories"}
    kept = [(one.kind, one.metric, one.value) for one in record.feedback]
    assert kept == [("activation", "", None), ("value", "click", 0.5)]
    unnamed = await sent(news, "POST", "/rank", {"actions": ACTIONS}, 201)
    await sent(news, "POST", f"/events/{unnamed['eventId']}/reward", {"value": 1.0}, 204)
    store = news.points["news"].store
    (newest,) = store.newest(1)
    found = store.record(newest.id)
    assert found is not None
    assert [one.value for one in found.feedback] == [1.0]


async def test_slots_share_the_context_and_each_begins_with_its_baseline(news: Service) -> None:
    places = [
        {"id": "top", "baselineAction": "b", "features": [{"size": "large"}, {"page": 2}]},
        {"id": "side", "baselineAction": "c", "excludedActions": ["a"]},
    ]
    request = {"contextFeatures": CONTEXT, "actions": ACTIONS, "slots": places, "eventId": "m-2"}
    found = await sent(news, "POST", "/multislot/rank", {**request, "excludedActions": ["x"]}, 201)
    assert found.keys() == {"eventId", "slots"}
    assert [one["id"] for one in found["slots"]] == ["top", "side"]
    top, side = logged(news, "m-2:top").decision, logged(news, "m-2:side").decision
    assert (top.arms[0], set(top.arms)) == ("b", {"a", "b", "c"})
    assert set(side.arms) == {"b", "c"} - {top.drawn}
    assert side.arms[0] == ("b" if top.drawn == "c" else "c")
    shared = {"user.tier=free", "device.os=linux", "device.mobile=false"}
    assert top.context.features.keys() == {*shared, "slot.size=large", "slot.page"}
    assert side.context.features.keys() == shared
    assert top.episode_id == side.episode_id == "m-2"
    again = await sent(news, "POST", "/multislot/rank", {"actions": ACTIONS, "slots": places}, 201)
    assert again["eventId"]
    assert logged(news, f"{again['eventId']}:top").decision.drawn == again["slots"][0]["rewardActionId"]


async def test_the_configuration_is_that_of_the_point_and_most_of_it_is_fixed(news: Service) -> None:
    found = await sent(news, "GET", "/configurations/service")
    assert found == {
        "rewardWaitTime": "PT30M",
        "defaultReward": 0.0,
        "rewardAggregation": "last",
        "explorationPercentage": 0.2,
        "modelExportFrequency": "PT0.25S",
        "logRetentionDays": -1,
        "modelRetrainDays": 0,
        "logMirrorEnabled": False,
        "isAutoOptimizationEnabled": False,
        "learningMode": "Online",
        "lastConfigurationEditDate": None,
    }
    path = "/configurations/service"
    assert await sent(news, "PUT", path, {**found, "rewardWaitTime": "PT1800S"}) == found
    for name, value, where in (
        ("rewardWaitTime", "PT5M", "set `reward` of the point"),
        ("defaultReward", 0.5, "set `reward` of the point"),
        ("rewardAggregation", "sum", "set `reward` of the point"),
        ("modelExportFrequency", "PT9M", "set `learning.poll_s`"),
        ("logRetentionDays", 90, "it is part of how this service works"),
        ("logMirrorEnabled", True, "it is part of how this service works"),
    ):
        error = await refusal(news, "PUT", path, {**found, name: value})
        assert (error["code"], error["target"]) == ("BadRequest", name)
        assert "request cannot change it" in error["message"]
        assert where in error["message"]
        assert error["innerError"] == {"code": "invalid_value"}


@pytest.mark.parametrize(("ours", "theirs"), [("sum", "sum"), ("first", "earliest")])
async def test_the_first_metric_takes_the_rewards_and_the_default_is_that_of_the_point(
    tmp_path: Path, ours: str, theirs: str
) -> None:
    metrics = {"click": {"range": [-1, 1], "aggregation": ours}, "stars": {"range": [0, 5]}}
    own = {**NEWS, "reward": {"metrics": metrics, "cost_weight": 0.0, "default": 0.25}}
    async with Service(tmp_path, points={"news": own}, personalizer="news").running() as service:
        found = await sent(service, "GET", "/configurations/service")
        assert (found["defaultReward"], found["rewardAggregation"]) == (-0.5, theirs)
        await sent(service, "POST", "/rank", {"actions": ACTIONS, "eventId": "e-1"}, 201)
        await sent(service, "POST", "/events/e-1/reward", {"value": 0.5}, 204)
        (kept,) = logged(service, "e-1").feedback
    assert (kept.metric, kept.value) == ("click", 0.5)


async def test_a_request_counts_as_one_for_each_slot(news: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    more: list[int] = []

    async def admit(_replica: object, _caller: object, requests: int) -> None:
        more.append(requests)

    monkeypatch.setattr(asking, "admit", admit)
    places = [{"id": name, "baselineAction": name} for name in "abc"]
    await sent(news, "POST", "/multislot/rank", {"actions": ACTIONS, "slots": places}, 201)
    assert more == [2], "the request itself was counted as one"


async def test_an_evaluation_that_failed_says_why(news: Service) -> None:
    await put(news, "e-1")
    point, now = news.points["news"], news.replica.service.clock()
    claimed = registry_evaluations.claim(point.store, configuration_of(point.config), "w", now)
    assert claimed is not None
    registry_evaluations.fail(point.store, claimed, "no room on the disk", now)
    found = await sent(news, "GET", "/evaluations/e-1")
    assert (found["status"], found["description"]) == ("Failed", "no room on the disk")


async def test_a_policy_that_cannot_be_estimated_has_no_summary(news: Service) -> None:
    await put(news, "e-1")
    point, now = news.points["news"], news.replica.service.clock()
    claimed = registry_evaluations.claim(point.store, configuration_of(point.config), "w", now)
    assert claimed is not None
    unknown = [{"name": "uniform", "estimates": [{"value": None}]}, {"name": "fixed:a", "estimates": []}]
    answer = registry_evaluations.Answer({"candidates": unknown}, "")
    registry_evaluations.finish(point.store, claimed, answer, now)
    found = await sent(news, "GET", "/evaluations/e-1")
    assert [(one["name"], one["summary"]) for one in found["content"]["value"]] == [
        ("Random", None),
        ("fixed:a", None),
    ]


async def test_a_reset_model_learns_the_observations_that_it_learned_before(
    news: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[Any] = []

    async def adopt(_replica: object, recipe: Any, reason: str) -> None:
        adopted.append((recipe.start, reason))

    monkeypatch.setattr(settings, "_adopt", adopt)
    monkeypatch.setattr(settings, "_joined", lambda _: 7)
    versions = news.points["news"].versions
    start = StartingPoint(runs=(3,), after=1, also=Also(judge=True))
    monkeypatch.setattr(versions, "recipe", replace(versions.recipe, start=start))
    await sent(news, "DELETE", "/model", status=204)
    assert adopted == [(StartingPoint(after=7, also=Also(judge=True)), "the model was reset")]


def test_each_reason_of_an_error_is_a_detail_under_the_code_of_its_status() -> None:
    assert protocol.DIALECT.body is not None
    error = ApiError("promotion_gate_failed", "version 2 is held", "version", reasons=["too few", "too low"])
    assert protocol.DIALECT.body(error).model_dump() == {
        "error": {
            "code": "Conflict",
            "message": "version 2 is held",
            "target": "version",
            "details": [
                {"code": "Conflict", "message": "too few"},
                {"code": "Conflict", "message": "too low"},
            ],
            "innerError": {"code": "promotion_gate_failed"},
        }
    }


async def test_exploration_and_mode_are_changed_by_a_promotion(news: Service) -> None:
    path = "/configurations/service"
    for share in (0.6, 0.0, 1.0):
        changed = await sent(news, "PUT", path, {"explorationPercentage": share})
        assert (changed["explorationPercentage"], changed["learningMode"]) == (share, "Online")
    promotion = news.points["news"].versions.active.promotion
    assert promotion is not None
    assert (promotion.reason, promotion.forced) == ("explorationPercentage 1.0", True)
    at = datetime.fromtimestamp(promotion.at, UTC).isoformat()
    assert changed["lastConfigurationEditDate"] == at
    for share in (-0.01, 1.01):
        assert (await refusal(news, "PUT", path, {"explorationPercentage": share}))["target"] == (
            "explorationPercentage"
        )
    both = {"learningMode": "Apprentice", "explorationPercentage": 0.2}
    changed = await sent(news, "PUT", path, both)
    assert (changed["learningMode"], changed["explorationPercentage"]) == ("Apprentice", 0.2)
    found = await sent(
        news, "POST", "/rank", {"actions": ACTIONS, "excludedActions": ["a"], "eventId": "p-1"}, 201
    )
    p = {one["id"]: one["probability"] for one in found["ranking"]}
    assert p == {"b": pytest.approx(0.99), "c": pytest.approx(0.01)}
    settled = await sent(news, "PUT", "/configurations/policy", {"name": "mine", "arguments": SETTINGS})
    assert settled == {"name": "mine", "arguments": SETTINGS}
    assert (await sent(news, "GET", path))["learningMode"] == "Apprentice"
    assert (await sent(news, "PUT", path, {"learningMode": "Online"}))["learningMode"] == "Online"
    assert (await refusal(news, "PUT", path, {"learningMode": "LoggingOnly"}))["target"] == "learningMode"


async def test_a_new_exploration_leaves_the_other_parameters_of_the_policy(tmp_path: Path) -> None:
    params = {"args": "--cb_explore_adf --epsilon 0.2 -q sf", "baseline": 0.5}
    own = {**NEWS, "policy": {"kind": "vowpal", "params": params}}
    async with Service(tmp_path, points={"news": own}, personalizer="news").running() as service:
        await sent(service, "POST", "/rank", {"actions": ACTIONS}, 201)
        await sent(service, "PUT", "/configurations/service", {"explorationPercentage": 0.4})
        promotion = service.points["news"].versions.active.promotion
        assert promotion is not None
        version = versions.find(service.points["news"].store, promotion.version)
        assert version is not None
        expected = {"args": "--cb_explore_adf --epsilon 0.4 -q sf", "baseline": 0.5}
        assert version.policy["params"] == expected


async def test_learning_settings_are_promoted_and_taken_back(news: Service) -> None:
    path = "/configurations/policy"
    before = await sent(news, "GET", path)
    assert before == {"name": "vowpal", "arguments": "--cb_explore_adf --epsilon 0.2 -q sf"}
    changed = await sent(news, "PUT", path, {"name": "mine", "arguments": SETTINGS})
    assert changed == await sent(news, "GET", path) == {"name": "mine", "arguments": SETTINGS}
    assert (await sent(news, "GET", "/configurations/service"))["explorationPercentage"] == 0.3
    for wrong in ("--cb_explore_adf -f /tmp/model -q sf", "--cb_explore_adf --epsilon 0.1", "--oaa 3"):
        error = await refusal(news, "PUT", path, {"name": "x", "arguments": wrong})
        assert (error["code"], error["target"]) == ("BadRequest", "arguments")
    assert await sent(news, "DELETE", path) == before


async def test_another_policy_is_shown_as_json_and_has_no_exploration_to_set(tmp_path: Path) -> None:
    own = {**NEWS, "policy": {"kind": "uniform"}}
    async with Service(tmp_path, points={"news": own}, personalizer="news").running() as service:
        found = await sent(service, "GET", "/configurations/policy")
        assert found["name"] == "uniform"
        assert json.loads(found["arguments"])["kind"] == "uniform"
        assert (await sent(service, "GET", "/configurations/service"))["explorationPercentage"] == 0.01
        error = await refusal(service, "PUT", "/configurations/service", {"explorationPercentage": 0.5})
    assert error["message"].endswith("in [0, 1], which these do not have")


async def test_a_model_that_is_not_there_yet_can_be_read_later(
    news: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(news.points["news"].versions), "version", None)
    for path in ("/model", "/model/properties"):
        answer = await news.client.get(f"{NEWER}{path}")
        assert failure(answer, 503) == ("InternalServerError", None)
        assert answer.json()["error"]["innerError"] == {"code": "not_ready"}
    monkeypatch.setattr(type(news.points["news"]), "decides", False)
    assert (await sent(news, "GET", "/status"))["apiStatus"] == "NotReady"


async def test_the_model_is_read_and_reset_and_the_log_stays(news: Service) -> None:
    for n in range(4):
        await sent(news, "POST", "/rank", {"actions": ACTIONS, "eventId": f"l-{n}"}, 201)
        await sent(news, "POST", f"/events/l-{n}/reward", {"value": 1.0}, 204)
    await news.learn_at("news")
    model = await news.client.get(f"{NEWER}/model")
    assert model.headers["content-type"] == "application/octet-stream"
    trained = model.content
    assert b"--epsilon 0.2" in trained
    version = news.points["news"].versions.version
    assert version is not None
    at = datetime.fromtimestamp(version.created_at, UTC).isoformat()
    assert await sent(news, "GET", "/model/properties") == {"creationTime": at, "lastModifiedTime": at}
    await sent(news, "DELETE", "/model", status=204)
    assert (await news.client.get(f"{NEWER}/model")).content != trained
    dates = (await sent(news, "GET", "/logs/properties"))["dateRange"]
    assert dates["from"] < dates["to"]
    assert await sent(news, "GET", "/status") == {
        "service": "personalizer",
        "apiStatus": "Valid",
        "apiStatusMessage": "news",
    }
    assert "append-only" in (await refusal(news, "DELETE", "/logs"))["message"]
    assert "learned from the log" in (await refusal(news, "PUT", "/model"))["message"]
    assert (await refusal(news, "GET", "/model?signed=true"))["target"] == "signed"


async def test_learning_settings_are_evaluated_on_the_log_and_applied(news: Service) -> None:
    for n in range(12):
        found = await sent(news, "POST", "/rank", {"actions": ACTIONS, "eventId": f"v-{n}"}, 201)
        value = float(found["rewardActionId"] == "b")
        await sent(news, "POST", f"/events/v-{n}/reward", {"value": value}, 204)
    await news.learn_at("news")
    await news.settle("news")
    contract = {**CONTRACT, "policies": [{"name": "mine", "arguments": SETTINGS}]}
    submitted = await sent(news, "PUT", "/evaluations/e-1", contract)
    creation = datetime.fromisoformat(submitted.pop("creationTime"))
    assert abs((datetime.now(UTC) - creation).total_seconds()) < 600
    assert submitted == {
        "id": "e-1",
        "name": "which settings",
        "startTime": "2020-01-01T00:00:00Z",
        "endTime": "2120-01-01T00:00:00Z",
        "evaluationType": "Manual",
        "status": "NotSubmitted",
        "description": "",
    }
    asked = registry_evaluations.page(news.points["news"].store, 1)[0].request
    policy = json.dumps({"kind": "vowpal", "params": {"args": SETTINGS}})
    assert asked["candidates"] == ["fixed:action-1", "uniform", f"policy:{policy} # mine"]
    assert asked["estimators"] == ["snips"]
    with news.working("news"):
        async with asyncio.timeout(60):
            while (found := await sent(news, "GET", "/evaluations/e-1"))["status"] != "Succeeded":
                assert found["status"] in ("NotSubmitted", "Running"), found
                await asyncio.sleep(0.01)
    values = {one["name"]: one for one in found["content"]["value"]}
    assert {name: (one["policySource"], one["arguments"]) for name, one in values.items()} == {
        "Online": ("Online", ""),
        "Baseline": ("Baseline", ""),
        "Random": ("Random", ""),
        "mine": ("Custom", SETTINGS),
    }
    for one in values.values():
        low, high = one["summary"]["confidenceInterval"]
        assert low <= one["summary"]["expectedReward"] <= high
    apply = "/configurations/applyFromEvaluation"
    await sent(news, "POST", apply, {"evaluationId": "e-1", "policyName": "mine"}, 204)
    assert await sent(news, "GET", "/configurations/policy") == {"name": "mine", "arguments": SETTINGS}
    for name in ("Random", "yours"):
        error = await refusal(news, "POST", apply, {"evaluationId": "e-1", "policyName": name})
        assert error["target"] == "policyName"
    assert "are kept" in (await refusal(news, "DELETE", "/evaluations/e-1"))["message"]
    assert await sent(news, "GET", "/featureImportances") == {"value": []}
    for method in ("GET", "PUT", "DELETE"):
        assert "not computed" in (await refusal(news, method, "/featureImportances/i-1"))["message"]


async def test_each_request_needs_its_scope_and_none_is_in_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READ_KEY", "read-secret")
    keys = [{"env": "READ_KEY", "scopes": ["read"]}]
    points = {"news": NEWS}
    async with Service(tmp_path, points=points, personalizer="news", keys=keys).running() as service:
        assert (await refusal(service, "GET", "/status", status=401))["code"] == "Unauthorized"
        service.client.headers["ocp-apim-subscription-key"] = "read-secret"
        assert (await sent(service, "GET", "/status"))["apiStatus"] == "Valid"
        for method, path in (("DELETE", "/model"), ("POST", "/rank"), ("DELETE", "/logs")):
            error = await refusal(service, method, path, {"actions": ACTIONS}, 403)
            assert (error["code"], error["innerError"]["code"]) == ("Forbidden", "forbidden")
        document = (await service.client.get("/openapi.json")).json()
    assert not [path for path in document["paths"] if "personalizer" in path]
