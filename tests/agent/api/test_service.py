"""The HTTP surface over a log on disk, with fakes instead of Ray handles: answers, feedback, learning."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.base import ArmError
from armwise.arms.llm import base
from armwise.feedback.errors import LogUnavailableError
from tests.agent.api.conftest import prompt_of
from tests.agent.asking import (
    HUGE,
    ask,
    events,
    forced,
    look_up,
    post,
    refused,
    rows,
    tell,
)
from tests.agent.fakes import Service, failing

# -- asking ------------------------------------------------------------------------------------------


async def test_a_completion_has_the_shape_of_openai_and_the_fields_of_the_decision(service: Service) -> None:
    response = await ask(service, agent={"return": ["passages", "decision"], "episode_id": "e-1"})
    assert response.status_code == 200
    body, ours = response.json(), response.json()["agent"]
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The Danube does."},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 3
    assert body["model"] == f"arm/{ours['arm_served']}"
    assert ours["arm_drawn"] == ours["arm_served"]
    assert ours["pmf"].keys() == service.config.arms.keys()
    assert math.isclose(sum(ours["pmf"].values()), 1.0)
    assert ours["pmf"][ours["arm_drawn"]] == ours["propensity"]
    assert (ours["mode"], ours["episode_id"], ours["policy_version"]) == ("explore", "e-1", 1)
    assert ours["cost"]["total"] == ours["cost"]["steps"] == float(ours["arm_served"] != "none")
    assert len(ours["passages"]) == 4
    assert ours["features"]["w=vienna"] == 1.0
    assert (
        dict(response.headers).items()
        >= {
            "x-decision-id": ours["decision_id"],
            "x-arm": ours["arm_served"],
            "x-propensity": f"{ours['propensity']:.6g}",
            "x-policy-version": "1",
        }.items()
    )


async def test_passages_and_features_are_returned_only_on_request(service: Service) -> None:
    ours = (await ask(service)).json()["agent"]
    assert ours.keys().isdisjoint({"passages", "features"})


async def test_a_stream_begins_with_the_decision_and_ends_with_the_cost(service: Service) -> None:
    response = await ask(service, stream=True, stream_options={"include_usage": True})
    first, *words, last, usage = events(response)
    decision_id = first["agent"]["decision_id"]
    assert response.headers["x-decision-id"] == decision_id
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["agent"]["cost"] is None
    assert [w["choices"][0]["delta"]["content"] for w in words] == ["The", " Danube", " does."]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert last["agent"]["cost"]["tokens"] == usage["usage"]["total_tokens"] > 3
    assert usage["choices"] == []
    assert {frame["id"] for frame in (first, *words, last, usage)} == {f"chatcmpl-{decision_id}"}


async def test_retrieve_returns_passages_and_generates_nothing(service: Service) -> None:
    response = await look_up(service, model="arm/bm25", k=2)
    body = response.json()
    assert [passage["id"] for passage in body["passages"]] == ["bm25-1", "bm25-2"]
    first = {"id": "bm25-1", "title": "title 1", "text": "text 1", "score": 1.0, "metadata": {}}
    assert body["passages"][0] == first
    assert (body["object"], body["model"]) == ("retrieval", "arm/bm25")
    assert (body["agent"]["mode"], body["agent"]["propensity"]) == ("forced", 1.0)
    assert response.headers["x-arm"] == "bm25"
    assert isinstance(service.generator, base.ScriptedGenerator)
    assert service.generator.last_prompt is None


async def test_generation_parameters_reach_the_language_model(service: Service) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.3,
        "top_p": 0.8,
        "seed": 5,
        "max_completion_tokens": 2,
        "stop": "x",
    }
    body = (await ask(service, **fields)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    prompt = prompt_of(service)
    assert (prompt.temperature, prompt.top_p, prompt.seed, prompt.max_tokens, prompt.stop) == (
        0.3,
        0.8,
        5,
        2,
        ("x",),
    )


async def test_the_model_reads_a_developer_as_the_system(service: Service) -> None:
    roles = ("system", "developer", "user", "assistant", "user")
    messages = [{"role": role, "content": f"message {i}"} for i, role in enumerate(roles)]
    assert (await ask(service, model="arm/none", messages=messages)).status_code == 200
    prompt = prompt_of(service)
    system, *conversation = prompt.messages
    assert system["content"].startswith("message 0\n\nmessage 1\n\n")
    assert conversation == messages[2:]


async def test_switched_off_excluded_and_not_allowed_arms_are_not_drawn(service: Service) -> None:
    switched = await service.client.patch("/v1/arms/none", json={"enabled": False})
    assert (switched.status_code, switched.json()["enabled"]) == (200, False)
    assert (await look_up(service)).json()["agent"]["pmf"].keys() == {"bm25", "dense"}
    narrowed = await look_up(service, agent={"allowed_arms": ["none", "dense"]})
    assert narrowed.json()["agent"]["pmf"] == {"dense": 1.0}
    refused(await look_up(service, model="arm/none"), 400, "no_eligible_arm", "model")
    arms = (await service.client.get("/v1/arms")).json()["arms"]
    assert {arm["name"]: arm["enabled"] for arm in arms} == {"none": False, "bm25": True, "dense": True}
    await service.client.patch("/v1/arms/none", json={"enabled": True})
    assert (await look_up(service)).json()["agent"]["pmf"].keys() == {"none", "bm25", "dense"}


async def test_an_arm_switched_at_one_replica_is_switched_at_another(
    service: Service, tmp_path: Path
) -> None:
    async with Service(tmp_path).running() as other:
        await service.client.patch("/v1/arms/bm25", json={"enabled": False})
        await other.refresh()
        assert "bm25" not in (await look_up(other)).json()["agent"]["pmf"]


# -- feedback and learning ---------------------------------------------------------------------------


async def test_feedback_is_accepted_once_and_learned_once(service: Service) -> None:
    response = await look_up(service)
    decision_id = response.json()["agent"]["decision_id"]
    kept = await tell(service, decision_id, 0.5, feedback_id="f-1", tags={"who": "ada"})
    assert kept.status_code == 202
    assert kept.json() == {
        "feedback_id": "f-1",
        "decision_id": decision_id,
        "episode_id": None,
        "status": "stored",
        "log_seq": 3,
    }
    policy = (await service.client.get("/v1/policy")).json()
    assert (policy["log_seq"], policy["applied_seq"], policy["version"]) == (3, 0, 1)
    await service.learn()
    policy = (await service.client.get("/v1/policy")).json()
    assert (policy["log_seq"], policy["applied_seq"], policy["version"]) == (3, 3, 2)
    assert (policy["examples_seq"], policy["parent"]) == (1, 1)
    again = await tell(service, decision_id, 0.5, feedback_id="f-1")
    assert (again.json()["status"], again.json()["log_seq"]) == ("duplicate", 3)
    late = await tell(service, decision_id, 1)
    assert (late.json()["status"], late.json()["log_seq"]) == ("stored", 4)
    await service.learn()
    policy = (await service.client.get("/v1/policy")).json()
    assert (policy["applied_seq"], policy["version"]) == (4, 2), "applied, and nothing was learned"
    assert (await look_up(service)).json()["agent"]["policy_version"] == 2


async def test_a_batch_has_a_status_for_each_item(service: Service) -> None:
    decision_id = await forced(service, "bm25")
    good = {"decision_id": decision_id, "metric_name": "thumb", "value": 1, "feedback_id": "f-1"}
    items = [
        good,
        good,
        good | {"value": 0},
        good | {"feedback_id": "f-2", "metric_name": "right", "value": True},
        {"decision_id": "unseen", "metric_name": "thumb", "value": -1},
        {"decision_id": "d", "metric_name": "thumbs", "value": 1},
        {"decision_id": "d", "metric_name": "thumb", "value": HUGE},
        {"x": 1},
        3,
    ]
    response = await post(service, "/v1/feedback", json.dumps({"items": items}).encode())
    assert response.status_code == 202
    items_answered = response.json()["items"]
    assert [row.get("status") or row["error"]["code"] for row in items_answered] == [
        "stored",
        "duplicate",
        "idempotency_conflict",
        "stored",
        "stored",
        "unknown_metric",
        "invalid_value",
        "invalid_request",
        "invalid_value",
    ]
    assert items_answered[0]["log_seq"] == items_answered[1]["log_seq"]
    assert items_answered[6]["error"]["param"] == "value"
    assert (await rows(service))["feedback"] == 3


async def test_a_decision_is_read_back_in_full(service: Service) -> None:
    response = await ask(service, agent={"context": {"tier": "free", "n": 0.5}, "episode_id": "e-1"})
    ours = response.json()["agent"]
    decision_id = ours["decision_id"]
    path = f"/v1/decisions/{decision_id}"
    found = (await service.client.get(path)).json()
    assert found.items() >= {**ours, "state": "open", "status": "ok", "answer": "The Danube does."}.items()
    assert found["features"].items() >= {"tier=free": 1.0, "n": 0.5, "w=river": 1.0}.items()
    assert found["arm_features"]["dense"]["backbone=tiny"] == 1.0
    assert (found["feedback"], found["metrics"], found["reward"]) == ([], {}, None)
    time = "2026-01-02T03:04:05+01:00"
    await tell(service, decision_id, 0.5, feedback_id="f-1", tags={"who": "ada"}, event_time=time)
    found = (await service.client.get(path)).json()
    assert found["reward"] == pytest.approx(0.75 - 0.1 * ours["cost"]["steps"])
    await service.learn()
    found = (await service.client.get(path)).json()
    assert (found["state"], found["example_seq"], found["metrics"]) == ("learned", 1, {"thumb": 0.5})
    (item,) = found["feedback"]
    assert (item["feedback_id"], item["value"], item["tags"]) == ("f-1", 0.5, {"who": "ada"})
    assert item["event_time"] == 1767319445.0


async def test_a_version_that_cannot_be_read_leaves_the_one_before_in_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(service, (await look_up(service)).json()["agent"]["decision_id"])
    monkeypatch.setattr("armwise.feedback.registry.versions.checkpoint", lambda *_: b"damaged")
    await service.learn()
    assert (await look_up(service)).json()["agent"]["policy_version"] == 1
    service.replica.check()
    monkeypatch.undo()
    await service.refresh()
    assert (await look_up(service)).json()["agent"]["policy_version"] == 2


async def test_polling_for_versions_continues_while_the_log_is_unavailable(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(*_: object) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise LogUnavailableError("gone")

    monkeypatch.setattr("armwise.feedback.registry.arm_sets.list_disabled", away)
    await asyncio.wait_for(failed.wait(), 10)
    monkeypatch.undo()
    service.replica.check()
    assert service.replica.ready


async def test_arms_whose_encoder_is_still_loaded_are_not_drawn_and_the_others_answer(tmp_path: Path) -> None:
    async with Service(tmp_path, loading=frozenset({"tiny"})).running() as service:
        while not service.replica.decides:
            await asyncio.sleep(0)
        assert refused(await service.client.get("/ready"), 503, "not_ready")
        assert set((await look_up(service)).json()["agent"]["pmf"]) == {"none", "bm25"}
        assert "dense" in refused(await look_up(service, model="arm/dense"), 503, "not_ready")
        service.embedders.may_load.set()
        while not service.replica.ready:
            await asyncio.sleep(0)
        assert (await service.client.get("/ready")).status_code == 200
        assert set((await look_up(service)).json()["agent"]["pmf"]) == {"none", "bm25", "dense"}


async def test_a_replica_whose_encoder_cannot_be_loaded_is_replaced(tmp_path: Path) -> None:
    async with Service(tmp_path, loading=frozenset({"tiny"})).running() as service:
        service.embedders.error = ArmError("no such file")
        service.embedders.may_load.set()
        while service.replica.decides:
            await asyncio.sleep(0)
        with pytest.raises(ArmError, match="no such file"):
            service.replica.check()


async def test_metrics_count_what_happened(service: Service) -> None:
    decision_id = await forced(service, "bm25")
    await tell(service, decision_id)
    service.arms.behaviour["dense"] = failing
    await look_up(service, model="arm/dense")
    response = await service.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = set(response.text.splitlines())
    assert {
        'armwise_decisions_total{arm="bm25",mode="forced"} 1.0',
        'armwise_executions_total{arm="bm25",status="ok"} 1.0',
        'armwise_feedback_total{metric="thumb",status="stored"} 1.0',
        'armwise_failures_total{code="arm_failed"} 1.0',
        "armwise_log_seq 5.0",
        "armwise_lag_facts 5.0",
        "armwise_policy_version 1.0",
    } <= lines


async def test_while_the_log_is_unavailable_metrics_leave_out_what_comes_from_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await look_up(service, model="arm/bm25")

    def away(*_: object) -> None:
        raise LogUnavailableError("gone")

    monkeypatch.setattr("armwise.agent.api.health.training_log_lag.measure_lag", away)
    response = await service.client.get("/metrics")
    assert response.status_code == 200
    lines = response.text.splitlines()
    assert 'armwise_decisions_total{arm="bm25",mode="forced"} 1.0' in lines
    assert "armwise_policy_version 1.0" in lines
    assert not any(line.startswith("armwise_log_seq") for line in lines)
