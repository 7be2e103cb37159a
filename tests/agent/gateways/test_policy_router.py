"""The sidecar contract `policy_router_v1`: requests in the shape that Weave's router sends."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.gateways.policy_router import PATH, digest_roster
from armwise.feedback.registry import versions
from tests.agent.asking import refused
from tests.agent.fakes import Service

REWARD: dict[str, Any] = {
    "metrics": {
        "ok": {"type": "boolean"},
        "usd": {"range": [0, 1], "optimize": "min"},
        "seconds": {"range": [0, 60], "optimize": "min"},
        "thumb": {"range": [-1, 1]},
    },
    "cost_weight": 0.0,
}

MODELS: dict[str, Any] = {
    "models": {"actions": "request", "features": {"words": 0, "shape": False}, "reward": REWARD},
    "bare": {"actions": "request", "reward": {"metrics": {"thumb": {"type": "boolean"}}, "cost_weight": 0.0}},
}


def candidate(name: str, provider: str, usd_in: float, **more: Any) -> dict[str, Any]:
    """A candidate as the router sends it."""
    return {
        "roster_id": name,
        "catalog_id": name,
        "provider": provider,
        "upstream_id": name,
        "input_usd_per_1m": usd_in * 2,
        "output_usd_per_1m": usd_in * 10,
        "estimated_cost_usd": 0.03,
        "cache_read_multiplier": 0.1,
        "marginal_cost_factor": 0.5,
        "effective_input_usd_per_1m": usd_in,
        "effective_output_usd_per_1m": usd_in * 5,
        "effective_estimated_cost_usd": 0.015,
        "capabilities": {
            "context_window": 400_000,
            "tier": "high",
            "supports_tools": True,
            "supports_images": True,
        },
        **more,
    }


ROUTE: dict[str, Any] = {
    "schema_version": "policy_router_v1",
    "strategy": "models",
    "execution_mode": "serving",
    "route_id": "2f93b729-8ae2-4d23-889a-d7b59c729790",
    "organization_id": "org-1",
    "installation_id": "installation-1",
    "client_app": "codex",
    "harness": "codex",
    "rollout_id": "rollout-1",
    "requested_model": "claude-opus-4-8",
    "prompt_text": "a secret prompt",
    "latest_user_text": "a secret prompt",
    "turn_index": 7,
    "visible_turn_index": 7,
    "session_turn_count": 9,
    "turn_type": "tool_result",
    "previous_served_model": "claude-opus-4-8",
    "previous_provider": "anthropic",
    "cache_state": "warm",
    "prior_output_tokens": 321,
    "session_ever_switched": True,
    "history_truncated": False,
    "conversation_messages": [
        {"role": "user", "text": "a secret prompt"},
        {"role": "user", "tool_results": [{"tool_use_id": "toolu_1", "result_present": True}]},
    ],
    "available_tools": ["Read", "Grep"],
    "feedback_key": "a session of a user",
    "feedback_role": "default",
    "client_session_id": "client-session-1",
    "estimated_input_tokens": 1200,
    "has_tools": True,
    "has_images": False,
    "routing_intent": "high",
    "preferred_models": ["gpt-5.5"],
    "routing_knobs": {"quality_bias": 0.7},
    "quality_bias": 0.7,
    "training_allowed": True,
    "capture_mode": "full",
    "debug_enabled": False,
    "candidates": [
        candidate("gpt-5.5", "openai", 1.25, preference_rank=0),
        candidate("claude-opus-4-8", "anthropic", 5.0),
    ],
    "candidate_models": ["gpt-5.5", "claude-opus-4-8"],
    "candidate_providers": {"gpt-5.5": "openai", "claude-opus-4-8": "anthropic"},
}

OUTCOME: dict[str, Any] = {
    "route_id": ROUTE["route_id"],
    "strategy": "models",
    "organization_id": "org-1",
    "training_allowed": True,
    "selected_model": "gpt-5.5",
    "selected_provider": "openai",
    "served_model": "gpt-5.5",
    "served_provider": "openai",
    "selected_served_model_match": True,
    "authoritative_per_turn_selection": True,
    "status": 0,
    "error": "",
    "input_tokens": 900,
    "output_tokens": 100,
    "cache_creation_tokens": 0,
    "cache_read_tokens": 800,
    "route_latency_ms": 12,
    "upstream_latency_ms": 3400,
    "turn_type": "tool_result",
    "response_body": "a secret answer",
    "cost_usd": 0.02,
}

RATING: dict[str, Any] = {
    "strategy": "models",
    "feedback_key": "00ff",
    "feedback_role": "default",
    "rating": "up",
    "feedback": "right",
    "requested_model": "claude-opus-4-8",
    "router_user_id": "user-1",
    "client_app": "codex",
    "client_session_id": "client-session-1",
    "source": "user",
    "request_id": "request-1",
    "route_id": ROUTE["route_id"],
    "training_allowed": True,
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, points=MODELS).running() as service:
        yield service


async def post(service: Service, path: str, body: dict[str, Any], **changes: Any) -> httpx.Response:
    return await service.client.post(f"{PATH}/{path}", json={**body, **changes})


async def route(service: Service, **changes: Any) -> dict[str, Any]:
    answer = await post(service, "route", ROUTE, **changes)
    assert answer.status_code == 200, answer.text
    routed: dict[str, Any] = answer.json()
    return routed


async def report(service: Service, path: str, body: dict[str, Any], **changes: Any) -> int:
    answer = await post(service, path, body, **changes)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["kept"])


async def read(service: Service, decision_id: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/decisions/{decision_id}")
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


async def test_a_candidate_is_chosen_by_its_roster_id_and_logged_with_its_propensity(
    service: Service,
) -> None:
    routed = await route(service)
    record = await read(service, routed["debug_ref"])
    assert record["decision_id"] == f"models:{ROUTE['route_id']}"
    assert routed["route_id"] == ROUTE["route_id"]
    assert routed["selected_roster_id"] == record["arm_drawn"]
    provider = {"gpt-5.5": "openai", "claude-opus-4-8": "anthropic"}[routed["selected_roster_id"]]
    assert routed["selected_provider"] == provider
    assert routed["propensity"] == routed["score"] == record["propensity"]
    assert routed["candidate_scores"] == record["pmf"]
    assert routed["schema_version"] == "policy_router_v1"
    assert (routed["reason"], routed["policy_route_key"]) == (record["mode"], "models")


async def test_the_version_that_decided_is_named_with_its_digest(service: Service) -> None:
    routed = await route(service)
    point = service.points["models"]
    version = await asyncio.to_thread(versions.find, point.store, point.decider.serving.version)
    assert version is not None
    assert routed["policy_artifact_id"] == f"models-{version.version}"
    assert routed["policy_artifact_sha256"] == version.digest
    assert routed["roster_version"] == digest_roster(["claude-opus-4-8", "gpt-5.5"])


async def test_the_policy_sees_the_turn_and_the_prices_and_no_text(service: Service) -> None:
    record = await read(service, (await route(service))["debug_ref"])
    assert record["features"].keys() == {
        *("harness=codex", "requested=claude-opus-4-8", "intent=high", "turn=tool_result", "cache=warm"),
        *("before=claude-opus-4-8", "turns", "switched=true", "kilotokens_in", "kilotokens_before"),
        *("tools=true", "images=false", "quality"),
    }
    assert record["features"]["kilotokens_before"] == pytest.approx(0.321)
    opus, gpt = record["arm_features"]["claude-opus-4-8"], record["arm_features"]["gpt-5.5"]
    assert (opus["provider=anthropic"], gpt["provider=openai"]) == (1.0, 1.0)
    assert opus["usd_in"] > gpt["usd_in"] > 0.0
    assert opus["usd_out"] > gpt["usd_out"] > opus["usd_in"] > 0.0
    assert {"warm=true", "tier=high"} <= opus.keys()
    assert {"warm=false", "rank"} <= gpt.keys()
    assert "rank" not in opus
    assert "secret" not in str(record)


@pytest.mark.parametrize(
    "changes", [{"cache_state": "cold"}, {"previous_served_model": "another"}, {"previous_served_model": ""}]
)
async def test_a_model_is_warm_only_if_it_answered_before_and_its_cache_is_warm(
    service: Service, changes: dict[str, Any]
) -> None:
    unnamed = [candidate("gpt-5.5", "openai", 1.0), candidate("claude-opus-4-8", "anthropic", 5.0)]
    if changes.get("previous_served_model") == "":
        unnamed[1]["catalog_id"] = ""
    record = await read(service, (await route(service, candidates=unnamed, **changes))["debug_ref"])
    assert "warm=false" in record["arm_features"]["claude-opus-4-8"]


async def test_the_same_route_again_gets_the_same_choice_and_another_one_is_a_conflict(
    service: Service,
) -> None:
    first = await route(service)
    assert await route(service) == first
    sent = await post(service, "route", ROUTE, estimated_input_tokens=1201)
    refused(sent, 409, "idempotency_conflict", "Idempotency-Key")


async def test_the_smallest_route_of_the_contract_is_enough(service: Service) -> None:
    few = {"strategy": "models", "route_id": "r-1", "candidates": [{"roster_id": "a"}, {"roster_id": "b"}]}
    answer = await service.client.post(f"{PATH}/route", json=few)
    assert answer.json()["selected_roster_id"] in ("a", "b")
    assert answer.json()["selected_provider"] == ""


async def test_an_outcome_is_the_metrics_that_the_point_declares(service: Service) -> None:
    routed = await route(service)
    assert await report(service, "outcome", OUTCOME) == 3
    assert (await read(service, routed["debug_ref"]))["metrics"] == {
        "ok": 1.0,
        "usd": 0.02,
        "seconds": pytest.approx(3.412),
    }
    failed = {"error": "overloaded", "status": 529, "cost_usd": None, "route_id": "r-2"}
    await route(service, route_id="r-2")
    assert await report(service, "outcome", OUTCOME, **failed) == 2
    assert (await read(service, "models:r-2"))["metrics"]["ok"] == 0.0
    await route(service, strategy="bare")
    assert await report(service, "outcome", OUTCOME, strategy="bare") == 0


async def test_an_outcome_of_another_model_than_the_chosen_one_says_nothing_of_it(service: Service) -> None:
    routed = await route(service)
    assert await report(service, "outcome", OUTCOME, selected_served_model_match=False) == 0
    assert (await read(service, routed["debug_ref"]))["metrics"] == {}


async def test_a_rating_is_the_best_or_the_worst_value_of_the_thumb(service: Service) -> None:
    routed = await route(service)
    assert await report(service, "feedback", RATING) == 1
    (item,) = (await read(service, routed["debug_ref"]))["feedback"]
    assert (item["metric_name"], item["value"], item["content"]) == ("thumb", 1.0, {"comment": "right"})
    await route(service, strategy="bare")
    assert await report(service, "feedback", RATING, strategy="bare", rating="down", feedback="") == 1
    (item,) = (await read(service, f"bare:{ROUTE['route_id']}"))["feedback"]
    assert (item["value"], item["content"]) == (0.0, {})


async def test_a_note_without_a_rating_is_a_comment_and_nothing_at_all_is_kept_as_nothing(
    service: Service,
) -> None:
    routed = await route(service)
    assert await report(service, "feedback", RATING, rating="") == 1
    assert await report(service, "feedback", RATING, rating="", feedback="") == 0
    assert await report(service, "feedback", RATING, route_id="") == 0
    (item,) = (await read(service, routed["debug_ref"]))["feedback"]
    assert (item["metric_name"], item["content"]) == ("comment", {"comment": "right"})


async def test_a_rating_of_another_model_than_the_chosen_one_is_not_kept(service: Service) -> None:
    chosen = (await route(service))["selected_roster_id"]
    (other,) = {"gpt-5.5", "claude-opus-4-8"} - {chosen}
    assert await report(service, "feedback", RATING, served_model=other) == 0
    assert await report(service, "feedback", RATING, served_model=chosen) == 1
    assert await report(service, "feedback", RATING, route_id="not-yet", served_model=other) == 1


@pytest.mark.parametrize("changes", [{"training_allowed": False}, {"execution_mode": "shadow"}])
async def test_what_may_not_be_trained_on_is_decided_and_never_counts(
    service: Service, changes: dict[str, Any]
) -> None:
    record = await read(service, (await route(service, **changes))["debug_ref"])
    assert (record["deferred"], record["activated"], record["episode_id"]) == (True, False, None)
    counted = await read(service, (await route(service, route_id="r-2"))["debug_ref"])
    assert (counted["deferred"], counted["episode_id"] is None) == (False, False)
    assert "a session" not in counted["episode_id"]


async def test_outcomes_and_ratings_that_may_not_be_trained_on_are_dropped(service: Service) -> None:
    routed = await route(service)
    assert await report(service, "outcome", OUTCOME, training_allowed=False) == 0
    assert await report(service, "feedback", RATING, training_allowed=False) == 0
    del (unsaid := {**OUTCOME})["training_allowed"]
    assert await report(service, "outcome", unsaid) == 0
    assert (await read(service, routed["debug_ref"]))["feedback"] == []


async def test_probes_and_capabilities_are_those_of_the_contract(service: Service) -> None:
    for probe, status in (("livez", "ok"), ("readyz", "ready")):
        answer = await service.client.get(f"{PATH}/{probe}")
        assert (answer.status_code, answer.json()) == (200, {"status": status})
    found = (await service.client.get(f"{PATH}/capabilities")).json()
    assert found.pop("schema_version") == "policy_router_v1"
    assert {name for name, able in found.items() if able} == {
        *("reports_outcomes", "reports_feedback", "supports_shadow", "authoritative_per_turn_selection")
    }
    assert len(found) == 9


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("route", {"schema_version": "policy_router_v2"}, "schema_version", "policy_router_v1"),
    ("route", {"execution_mode": "preview"}, "execution_mode", "shadow"),
    ("route", {"route_id": "a b"}, "route_id", "pattern"),
    ("route", {"candidates": []}, "candidates", "at least 1 item"),
    ("route", {"candidates": [{"roster_id": ""}]}, "candidates.0.roster_id", "at least 1 item"),
    ("route", {"candidates": [candidate("a", "x", 1.0)] * 2}, "actions", "'a' is the id of two actions"),
    ("route", {"estimated_input_tokens": 10**400}, "estimated_input_tokens", "2147483647"),
    ("route", {"strategy": "default"}, "point", "has arms of its own"),
    ("outcome", {"upstream_latency_ms": 1e10}, "upstream_latency_ms", "1000000000"),
    ("outcome", {"cost_usd": -0.1}, "cost_usd", "greater than or equal to 0"),
    ("feedback", {"rating": "great"}, "rating", "'up'"),
    ("feedback", {"feedback": "a\0b"}, "feedback", "NUL"),
]


@pytest.mark.parametrize(("path", "changes", "param", "message"), REFUSED)
async def test_a_bad_request_is_refused_by_the_name_of_its_field(
    service: Service, path: str, changes: dict[str, Any], param: str, message: str
) -> None:
    body = {"route": ROUTE, "outcome": OUTCOME, "feedback": RATING}[path]
    answer = await post(service, path, body, **changes)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


async def test_an_unknown_strategy_names_the_points(service: Service) -> None:
    sent = await post(service, "route", ROUTE, strategy="quality")
    assert "models" in refused(sent, 404, "point_not_found", "point")


async def test_the_key_is_the_password_in_the_address_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_KEY", "a-secret")
    keys = [{"env": "ROUTER_KEY", "scopes": ["decide"]}]

    def basic(text: str) -> dict[str, str]:
        return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

    async with Service(tmp_path, keys=keys, points=MODELS).running() as service:
        for path in ("livez", "readyz", "capabilities"):
            assert (await service.client.get(f"{PATH}/{path}")).status_code == 401
            answer = await service.client.get(f"{PATH}/{path}", headers=basic("router:a-secret"))
            assert answer.status_code == 200
        wrong = await service.client.post(f"{PATH}/route", json=ROUTE, headers=basic("router:wrong"))
        refused(wrong, 401, "invalid_api_key")
        right = await service.client.post(f"{PATH}/route", json=ROUTE, headers=basic("router:a-secret"))
        assert right.status_code == 200
        rated = await service.client.post(f"{PATH}/feedback", json=RATING, headers=basic("router:a-secret"))
        refused(rated, 403, "forbidden")
