"""Both clients of Azure Personalizer, as Microsoft released them: their calls, and what is logged of them."""

import io
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

from azure.ai.personalizer import PersonalizerAdministrationClient, PersonalizerClient  # noqa: E402
from azure.cognitiveservices import personalizer as v1  # noqa: E402
from azure.core.credentials import AzureKeyCredential  # noqa: E402
from azure.core.exceptions import HttpResponseError  # noqa: E402
from msrest.authentication import CognitiveServicesCredentials  # noqa: E402

from tests.clients.conftest import Listening, listening  # noqa: E402

KEY = "subscription-key"
NEWS = {
    "actions": "request",
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.2 -q sf"}},
    "reward": {
        "metrics": {"reward": {"range": [-1, 1], "aggregation": "first"}},
        "cost_weight": 0.0,
        "wait_time": "PT10M",
    },
}
CONTEXT = [{"user": {"tier": "free"}}, {"device": {"os": "linux", "mobile": False}}]
SETTINGS = "--cb_explore_adf --epsilon 0.3 --power_t 0 -l 0.001 --cb_type mtr -q ::"


def actions(*names: str) -> list[dict[str, Any]]:
    return [{"id": name, "features": [{"meal": {"taste": name}}, {"calories": len(name)}]} for name in names]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADMIN_KEY", KEY)
        keys = [{"env": "ADMIN_KEY", "scopes": ["admin"]}]
        folder = tmp_path_factory.mktemp("personalizer")
        with listening(folder, points={"news": NEWS}, personalizer="news", keys=keys, limits={}) as found:
            yield found


@pytest.fixture
def client(running: Listening) -> Iterator[PersonalizerClient]:
    with PersonalizerClient(running.url, AzureKeyCredential(KEY), retry_total=0) as found:
        yield found


@pytest.fixture
def admin(running: Listening) -> Iterator[PersonalizerAdministrationClient]:
    with PersonalizerAdministrationClient(running.url, AzureKeyCredential(KEY), retry_total=0) as found:
        yield found


def record(running: Listening, event: str) -> dict[str, Any]:
    """What the log holds of an event."""
    headers = {"authorization": f"Bearer {KEY}"}
    place = f"{running.url}/v1/decisions/news:{event}"
    found = httpx.get(place, headers=headers).json()
    return {**found, "verified": httpx.get(f"{place}/verify", headers=headers).json()["verified"]}


def until(look: Callable[[], bytes], seen: Callable[[bytes], bool]) -> bytes:
    """Look until something is seen: a replica follows the log by itself."""
    deadline = time.monotonic() + 30
    while not seen(found := look()):
        assert time.monotonic() < deadline
    return found


def refusal(call: Any, *args: Any) -> dict[str, Any]:
    with pytest.raises(HttpResponseError) as refused:
        call(*args)
    error: dict[str, Any] = refused.value.response.json()["error"]
    assert error.keys() == {"code", "message", "target", "details", "innerError"}
    return error


def test_the_client_of_version_1_ranks_activates_and_rewards(running: Listening) -> None:
    client = v1.PersonalizerClient(running.url, CognitiveServicesCredentials(KEY))
    client.config.retry_policy.retries = 0
    meals = [
        v1.models.RankableAction(id=one["id"], features=one["features"]) for one in actions("pasta", "soup")
    ]
    request = v1.models.RankRequest(
        actions=meals,
        context_features=CONTEXT,
        excluded_actions=["soup"],
        event_id="e-1",
        defer_activation=True,
    )
    found = client.rank(rank_request=request)
    assert (found.event_id, found.reward_action_id) == ("e-1", "pasta")
    assert [(one.id, one.probability) for one in found.ranking] == [("pasta", 1.0)]
    client.events.activate(event_id="e-1")
    client.events.reward(event_id="e-1", value=0.5)
    kept = record(running, "e-1")
    assert (kept["activated"], kept["reward"], kept["verified"]) == (True, 0.75, True)
    assert kept["features"] == {"user.tier=free": 1.0, "device.os=linux": 1.0, "device.mobile=false": 1.0}
    assert kept["arm_features"]["pasta"].keys() == {"id=pasta", "meal.taste=pasta", "calories"}
    with pytest.raises(v1.models.ErrorResponseException) as refused:
        client.rank(rank_request=v1.models.RankRequest(actions=[]))
    assert refused.value.error.error.code == "BadRequest"


def test_the_newer_client_ranks_activates_and_rewards(running: Listening, client: PersonalizerClient) -> None:
    request = {"actions": actions("a", "b", "c"), "contextFeatures": CONTEXT, "eventId": "e-2"}
    found = client.rank(request)
    assert client.rank(request) == found
    assert {one["id"] for one in found["ranking"]} == {"a", "b", "c"}
    assert sum(one["probability"] for one in found["ranking"]) == pytest.approx(1.0)
    client.activate("e-2")
    client.reward("e-2", {"value": 1.0})
    client.reward("an-event-that-comes-later", {"value": 1.0})
    assert record(running, "e-2")["reward"] == 1.0
    assert client.rank({"actions": actions("a", "b")})["eventId"]
    assert refusal(client.reward, "e-2", {"value": 2.0})["code"] == "BadRequest"
    assert refusal(client.rank, {"actions": actions("a", "a")})["target"] == "actions"
    assert refusal(client.rank, {**request, "contextFeatures": []})["code"] == "Conflict"


def test_each_slot_gets_an_action_of_its_own(running: Listening, client: PersonalizerClient) -> None:
    slots = [
        {"id": "top", "baselineAction": "a", "features": [{"size": "large"}]},
        {"id": "side", "baselineAction": "b", "excludedActions": ["c"]},
    ]
    request = {"actions": actions("a", "b", "c"), "slots": slots, "eventId": "m-1", "deferActivation": True}
    found = client.rank_multi_slot(request)
    assert found["eventId"] == "m-1"
    chosen = {one["id"]: one["rewardActionId"] for one in found["slots"]}
    assert (len(set(chosen.values())), chosen["side"] != "c") == (2, True)
    assert client.rank_multi_slot(request) == found
    client.activate_multi_slot("m-1")
    client.reward_multi_slot(
        "m-1", {"reward": [{"slotId": "top", "value": 1.0}, {"slotId": "side", "value": 0.0}]}
    )
    top, side = record(running, "m-1:top"), record(running, "m-1:side")
    assert (top["arm_drawn"], top["reward"], top["activated"]) == (chosen["top"], 1.0, True)
    assert (side["arm_drawn"], side["reward"], side["verified"]) == (chosen["side"], 0.5, True)
    assert top["episode_id"] == side["episode_id"] == "news:m-1"
    assert "size" in str(top["features"])


def test_the_configuration_is_that_of_the_point(admin: PersonalizerAdministrationClient) -> None:
    found = admin.get_service_configuration()
    assert (
        found.items()
        >= {
            "rewardWaitTime": "PT10M",
            "defaultReward": 0.0,
            "rewardAggregation": "earliest",
            "explorationPercentage": 0.2,
            "logRetentionDays": -1,
            "learningMode": "Online",
        }.items()
    )
    assert (
        admin.update_service_configuration({**found, "rewardWaitTime": "PT600S"})["rewardWaitTime"] == "PT10M"
    )
    for name, value in (("rewardWaitTime", "PT5M"), ("defaultReward", 0.5), ("logRetentionDays", 90)):
        error = refusal(admin.update_service_configuration, {**found, name: value})
        assert (error["code"], error["target"]) == ("BadRequest", name)
        assert "request cannot change it" in error["message"]


def test_learning_settings_are_promoted_and_every_decision_stays_verifiable(
    running: Listening, admin: PersonalizerAdministrationClient, client: PersonalizerClient
) -> None:
    before = admin.get_policy()
    assert before == {"name": "vowpal", "arguments": "--cb_explore_adf --epsilon 0.2 -q sf"}
    client.rank({"actions": actions("a", "b"), "eventId": "before"})
    changed = admin.update_policy({"name": "mine", "arguments": SETTINGS})
    assert changed == admin.get_policy() == {"name": "mine", "arguments": SETTINGS}
    assert admin.get_service_configuration()["explorationPercentage"] == 0.3
    found = client.rank({"actions": actions("a", "b"), "eventId": "after", "contextFeatures": CONTEXT})
    assert {round(one["probability"], 2) for one in found["ranking"]} <= {0.15, 0.5, 0.85}
    more = admin.update_service_configuration({"explorationPercentage": 0.6})
    assert more["explorationPercentage"] == 0.6
    assert [record(running, event)["verified"] for event in ("before", "after")] == [True, True]
    for wrong in ("--cb_explore_adf -f /tmp/model -q sf", "--cb_explore_adf --epsilon 0.1", "--oaa 3"):
        assert refusal(admin.update_policy, {"name": "x", "arguments": wrong})["code"] == "BadRequest"
    assert admin.reset_policy() == before


def test_an_apprentice_takes_the_first_action_that_is_not_excluded(
    running: Listening, admin: PersonalizerAdministrationClient, client: PersonalizerClient
) -> None:
    assert admin.update_service_configuration({"learningMode": "Apprentice"})["learningMode"] == "Apprentice"
    assert admin.get_policy()["arguments"] == "--cb_explore_adf --epsilon 0.2 -q sf"
    found = client.rank({"actions": actions("a", "b", "c"), "excludedActions": ["a"], "eventId": "p-1"})
    p = {one["id"]: one["probability"] for one in found["ranking"]}
    assert p == {"b": pytest.approx(0.99), "c": pytest.approx(0.01)}
    kept = record(running, "p-1")
    assert (kept["policy"], kept["verified"], sum(kept["shadow"].values())) == (
        "apprentice",
        True,
        pytest.approx(1),
    )
    assert admin.update_service_configuration({"learningMode": "Online"})["learningMode"] == "Online"
    assert (
        refusal(admin.update_service_configuration, {"learningMode": "LoggingOnly"})["target"]
        == "learningMode"
    )


def test_the_model_is_read_and_reset_and_the_log_stays(
    running: Listening, admin: PersonalizerAdministrationClient, client: PersonalizerClient
) -> None:
    for n in range(8):
        client.rank({"actions": actions("a", "b"), "eventId": f"l-{n}"})
        client.reward(f"l-{n}", {"value": 1.0})
    before = b"".join(admin.export_model())
    running.service.step_at("news")
    trained = until(lambda: b"".join(admin.export_model()), lambda state: state != before)
    assert b"--epsilon 0.2" in trained
    properties = admin.get_model_properties()
    assert properties["creationTime"] <= datetime.now(UTC).isoformat()
    admin.reset_model()
    assert b"".join(admin.export_model()) != trained
    dates = admin.get_log_properties()["dateRange"]
    assert dates["from"] <= dates["to"] <= datetime.now(UTC).isoformat()
    assert "append-only" in refusal(admin.delete_logs)["message"]
    assert "learned from the log" in refusal(admin.import_model, io.BytesIO(trained))["message"]


def test_learning_settings_are_evaluated_on_the_log_and_applied(
    running: Listening, admin: PersonalizerAdministrationClient, client: PersonalizerClient
) -> None:
    for n in range(20):
        chosen = client.rank({"actions": actions("a", "b"), "eventId": f"v-{n}"})["rewardActionId"]
        client.reward(f"v-{n}", {"value": float(chosen == "b")})
    running.service.step_at("news")
    running.service.settled("news")
    window = {"start_time": datetime.now(UTC) - timedelta(days=1), "end_time": datetime.now(UTC)}
    contract = {
        "name": "which settings",
        "startTime": window["start_time"].isoformat(),
        "endTime": window["end_time"].isoformat(),
        "policies": [{"name": "mine", "arguments": SETTINGS}],
    }
    admin.create_evaluation("e-1", contract)
    assert refusal(admin.create_evaluation, "e-1", contract)["code"] == "Conflict"
    with running.service.working("news"):
        deadline = time.monotonic() + 60
        while (found := admin.get_evaluation("e-1", **window))["status"] in ("NotSubmitted", "Running"):
            assert time.monotonic() < deadline
    assert (found["status"], found["name"], found["id"]) == ("Succeeded", "which settings", "e-1")
    values = {one["name"]: one for one in found["content"]["value"]}
    assert values.keys() == {"Online", "Baseline", "Random", "mine"}
    assert values["mine"]["arguments"] == SETTINGS
    low, high = values["Online"]["summary"]["confidenceInterval"]
    assert low <= values["Online"]["summary"]["expectedReward"] <= high
    assert [one["id"] for one in admin.list_evaluations()] == ["e-1"]
    old = httpx.get(
        f"{running.url}/personalizer/v1.0/evaluations/1", headers={"Ocp-Apim-Subscription-Key": KEY}
    )
    assert old.json()["id"] == "e-1"
    admin.apply_from_evaluation({"evaluationId": "e-1", "policyName": "mine"})
    assert admin.get_policy() == {"name": "mine", "arguments": SETTINGS}
    assert "are kept" in refusal(admin.delete_evaluation, "e-1")["message"]
    assert [*admin.list_feature_importances()] == []
    importance = {"name": "x", "startTime": contract["startTime"], "endTime": contract["endTime"]}
    for call in (admin.get_feature_importance, admin.delete_feature_importance):
        assert "not computed" in refusal(call, "i-1")["message"]
    assert "not computed" in refusal(admin.create_feature_importance, "i-1", importance)["message"]


def test_a_wrong_key_and_a_service_without_the_protocol_are_told_in_its_shape(
    running: Listening, tmp_path: Any
) -> None:
    with PersonalizerClient(running.url, AzureKeyCredential("wrong"), retry_total=0) as stranger:
        assert refusal(stranger.rank, {"actions": actions("a")})["code"] == "Unauthorized"
    with (
        listening(tmp_path) as other,
        PersonalizerClient(other.url, AzureKeyCredential("any"), retry_total=0) as client,
    ):
        error = refusal(client.rank, {"actions": actions("a")})
        assert (error["code"], "`personalizer`" in error["message"]) == ("ResourceNotFound", True)
