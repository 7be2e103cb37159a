"""Requests that cannot be served: the error names the field at fault, and no row is written."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.agent.asking import AN_ANSWER, CHAT, HUGE, QUESTION, look_up, post, record, refused, rows
from tests.agent.fakes import Service

Sent = tuple[str, dict[str, Any]]


def chat(**fields: Any) -> Sent:
    return AN_ANSWER, CHAT | fields


def said(content: Any, role: str = "user") -> Sent:
    return chat(messages=[{"role": role, "content": content}])


def agent(**fields: Any) -> Sent:
    return chat(agent=fields)


def search(**fields: Any) -> Sent:
    return "/v1/retrieve", {"query": "x", **fields}


def thumb(**fields: Any) -> Sent:
    return "/v1/feedback", {"decision_id": "d", "metric_name": "thumb", "value": 1, **fields}


LARGE = "x" * 3000  # the bodies of the test service have at most 4096 bytes

REFUSED: list[tuple[Sent, str, str | None]] = [
    (agent(arm=1), "invalid_request", "agent.arm"),
    ((AN_ANSWER, {"model": "auto"}), "invalid_request", "messages"),
    (chat(messages=[]), "invalid_value", "messages"),
    (chat(messages=["x"]), "invalid_value", "messages.0"),
    (said(3), "invalid_value", "messages"),
    (said([{"type": "input_audio"}]), "unsupported_parameter", "messages"),
    (said([{"type": "image_url"}]), "unsupported_parameter", "messages"),
    (said(" \n"), "invalid_value", "messages"),
    (chat(model=3), "invalid_value", "model"),
    (agent(excluded_arms=["x"]), "unknown_arm", "agent.excluded_arms"),
    (agent(allowed_arms=["x"]), "unknown_arm", "agent.allowed_arms"),
    (agent(excluded_arms=["none", "bm25", "dense"]), "no_eligible_arm", "agent.excluded_arms"),
    (agent(allowed_arms=[]), "no_eligible_arm", "agent.excluded_arms"),
    (search(model="arm/bm25", agent={"excluded_arms": ["bm25"]}), "no_eligible_arm", "model"),
    (search(model="arm/bm25", agent={"allowed_arms": ["none"]}), "no_eligible_arm", "model"),
    (search(model="arm/bm25", agent={"allowed_arms": []}), "no_eligible_arm", "model"),
    (agent(context={"a": []}), "invalid_value", "agent.context.a"),
    (agent(context={"a": HUGE}), "invalid_value", "agent.context.a"),
    (chat(max_tokens=200_000), "invalid_value", "max_tokens"),
    (chat(max_completion_tokens=HUGE), "invalid_value", "max_completion_tokens"),
    (chat(max_tokens=0), "invalid_value", "max_tokens"),
    (chat(temperature=3), "invalid_value", "temperature"),
    (chat(temperature=HUGE), "invalid_value", "temperature"),
    (chat(stream=1), "invalid_value", "stream"),
    (chat(tools=["x"]), "invalid_value", "tools.0"),
    (search(**{"\ud800": 1}), "invalid_value", None),
    (("/v1/retrieve", {}), "invalid_request", "query"),
    (search(query=""), "invalid_value", "query"),
    (search(k=51), "invalid_value", "k"),
    (search(k=0), "invalid_value", "k"),
    (search(agent={"episode_id": "a b"}), "invalid_value", "agent.episode_id"),
    (search(model=f"arm/{LARGE}"), "invalid_value", "model"),
    (search(agent={"allowed_arms": [LARGE]}), "invalid_value", "agent.allowed_arms.0"),
    (search(agent={"excluded_arms": [LARGE]}), "invalid_value", "agent.excluded_arms.0"),
    (search(agent={"allowed_arms": ["a"] * 1001}), "invalid_value", "agent.allowed_arms"),
    (("/v1/feedback", {"metric_name": "thumb", "value": 1}), "invalid_value", None),
    (thumb(episode_id="e"), "invalid_value", None),
    (("/v1/feedback", {"decision_id": "d", "metric_name": "thumb"}), "invalid_request", "value"),
    (thumb(metric_name="thumbs"), "unknown_metric", "metric_name"),
    (thumb(value=7), "invalid_value", "value"),
    (thumb(value=HUGE), "invalid_value", "value"),
    (thumb(value="1"), "invalid_value", "value"),
    (thumb(value=True), "invalid_value", "value"),
    (thumb(metric_name="right", value=0.5), "invalid_value", "value"),
    (thumb(event_time="2026-01-01T00:00:00"), "invalid_value", "event_time"),
    (thumb(metric_name=LARGE), "invalid_value", "metric_name"),
    (thumb(tags={"note": LARGE}), "invalid_value", "tags.note"),
    (thumb(tags={LARGE: "note"}), "invalid_value", f"tags.{LARGE}"[:300]),
    (thumb(tags={str(i): "" for i in range(33)}), "invalid_value", "tags"),
    (thumb(value=1e308), "invalid_value", "value"),
    (("/v1/feedback", {"items": []}), "invalid_value", "items"),
    (("/v1/feedback", {"items": [1], "value": 1}), "invalid_request", "value"),
]


@pytest.mark.parametrize(("sent", "code", "param"), REFUSED)
async def test_a_wrong_request_names_the_field_and_leaves_no_row(
    service: Service, sent: Sent, code: str, param: str | None
) -> None:
    path, body = sent
    before = await rows(service)
    response = await post(service, path, json.dumps(body, separators=(",", ":")).encode())
    message = refused(response, 400, code, param)
    assert len(message) < 500
    assert await rows(service) == before


ANSWERED: list[Any] = [
    said("x", role="system"),
    said("x", role="king"),
    said([{"type": "hologram"}]),
    said("a" * 2000),
    said("a\0b \ud800"),
    chat(stop=["", "x"], tools=[{"\ud800": [None]}], tool_choice=7, response_format="x"),
    agent(context={"\ud800": 1}),
]
"""What no model is asked about, and what is read of it."""


@pytest.mark.parametrize("sent", ANSWERED)
async def test_what_the_service_does_not_read_is_no_error(service: Service, sent: Sent) -> None:
    path, body = sent
    response = await post(service, path, json.dumps(body).encode())
    assert response.status_code == 200, response.text
    found = await record(service, response.headers["x-decision-id"], bool)
    assert 0 < len(found.decision.context.question) <= 1000


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (b"", "invalid_request", "'body' is missing"),
        (b"{", "invalid_request", "as JSON"),
        (b"[]", "invalid_value", "body"),
        (b'"\xff"', "invalid_request", "not UTF-8"),
    ],
    ids=["nothing", "half", "list", "not UTF-8"],
)
async def test_a_body_that_cannot_be_read_is_a_400(
    service: Service, body: bytes, code: str, named: str
) -> None:
    response = await post(service, "/v1/retrieve", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == code
    assert named in response.json()["error"]["message"]


async def test_a_body_that_is_not_declared_as_json_is_a_400(service: Service) -> None:
    response = await service.client.post("/v1/retrieve", content=b'{"query": "x"}')
    assert "content-type: application/json" in refused(response, 400, "invalid_request")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon", "1_0", "+1"])
async def test_a_bad_deadline_is_a_400(service: Service, timeout: str) -> None:
    response = await look_up(service, {"x-request-timeout-seconds": timeout})
    refused(response, 400, "invalid_value", "X-Request-Timeout-Seconds")


@pytest.mark.parametrize("key", ["", "a b", "x" * 129])
async def test_a_bad_idempotency_key_is_a_400(service: Service, key: str) -> None:
    refused(await look_up(service, {"idempotency-key": key}), 400, "invalid_value", "Idempotency-Key")


async def test_the_id_of_a_request_is_echoed_in_its_failure(service: Service) -> None:
    response = await look_up(service, {"x-request-id": "r-1"}, k=0)
    assert response.json()["error"]["request_id"] == "r-1"


async def test_a_request_without_an_id_is_given_one(service: Service) -> None:
    failed, found = await look_up(service, k=0), await look_up(service)
    assert failed.json()["error"]["request_id"] == failed.headers["x-request-id"]
    assert len({failed.headers["x-request-id"], found.headers["x-request-id"]}) == 2


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413_declared_or_streamed(service: Service, chunked: bool) -> None:
    body = json.dumps({"query": QUESTION}).encode() + b" " * 5000

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    before = await rows(service)
    response = await post(service, "/v1/retrieve", pieces() if chunked else body, **{"x-request-id": "r-1"})
    assert refused(response, 413, "payload_too_large") == "the body is larger than 4096 bytes"
    assert response.json()["error"]["request_id"] == "r-1"
    assert await rows(service) == before, "the bytes before the limit are a valid body, and are not answered"


@pytest.mark.slow
async def test_unknown_decisions_arms_and_routes_are_refused(on_each: Service) -> None:
    refused(await on_each.client.get("/v1/decisions/nope"), 404, "decision_not_found", "decision_id")
    for path in ("/v1/decisions/%00%ff", "/v1/decisions/a%20b", "/v1/decisions/%00/verify"):
        refused(await on_each.client.get(path), 400, "invalid_value", "decision_id")
    refused(await on_each.client.get("/v1/nope"), 404, "not_found")
    response = await on_each.client.patch("/v1/arms/bm52", json={"enabled": True})
    assert "none, bm25, dense" in refused(response, 404, "arm_not_found", "name")


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "named"),
    [
        ("/v1/chat/completions", b'{"messages": []}', 400, "messages", ["messages is empty"]),
        ("/v1/chat/completions", b'{"messages": [', 400, None, ["JSON", "line 1"]),
        ("/v1/feedback", b'{"items": [}', 400, None, ["JSON", "column 12"]),
        ("/v1/chat/completion", b"{}", 404, None, ["/v1/chat/completion;", "/v1/chat/completions?"]),
        ("/v1/" + "a" * 5000, b"{}", 404, None, ["/openapi.json"]),
    ],
    ids=["no message", "cut off", "broken", "nearly a route", "no route"],
)
async def test_what_is_wrong_has_its_place_and_a_remedy(
    service: Service, path: str, body: bytes, status: int, param: str | None, named: list[str]
) -> None:
    response = await post(service, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert [part for part in named if part not in error["message"]] == [], error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET"),
        ("/v1/arms", "GET, PUT"),
        ("/v1/evaluations", "GET, POST"),
        ("/v1/arms/bm25", "PATCH"),
        ("/v1/keys/k", "DELETE"),
    ],
)
async def test_a_405_names_the_methods_that_a_path_has(service: Service, path: str, methods: str) -> None:
    response = await service.client.request("TRACE", path)
    refused(response, 405, "method_not_allowed")
    assert response.headers["allow"] == methods


NOT_STRICT: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/v1/policies/1/canary", {"reason": "x", "share": False}, "share"),
    ("POST", "/v1/policies/1/canary", {"reason": "x", "share": "0.1"}, "share"),
    ("POST", "/v1/policies/1/promote", {"reason": "x", "force": 1}, "force"),
    ("PATCH", "/v1/arms/bm25", {"enabled": "true"}, "enabled"),
    ("POST", AN_ANSWER, CHAT | {"temperature": True}, "temperature"),
    ("POST", AN_ANSWER, CHAT | {"seed": True}, "seed"),
    ("POST", AN_ANSWER, CHAT | {"agent": {"explore": 1}}, "agent.explore"),
    ("POST", "/v1/retrieve", {"query": "x", "k": "3"}, "k"),
    ("POST", "/v1/evaluations", {"gate": 1}, "gate"),
    ("POST", "/v1/evaluations", {"seed": True}, "seed"),
    ("POST", "/v1/evaluations", {"cost_weight": "0.1"}, "cost_weight"),
    ("POST", "/v1/evaluations", {"cost": {"steps": True}}, "cost.steps"),
    ("POST", "/v1/evaluations", {"budget": {"usd_per_request": False}}, "budget.usd_per_request"),
    ("POST", "/v1/evaluations", {"versions": [True, 2]}, "versions.0"),
    ("POST", "/v1/evaluations", {"since": 20260101}, "since"),
    ("POST", "/v1/keys", {"name": "x", "scopes": ["admin"], "rpm_limit": True}, "rpm_limit"),
    ("POST", "/v1/keys", {"name": "x", "scopes": ["admin"], "expires": 4e9}, "expires"),
    ("POST", "/v1/keys", {"name": "x", "scopes": ["admin"], "expires": "4000000000"}, "expires"),
    (
        "POST",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": 1, "event_time": 1},
        "event_time",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "param"), NOT_STRICT)
async def test_a_value_of_another_json_type_is_not_converted(
    service: Service, method: str, path: str, body: dict[str, Any], param: str
) -> None:
    refused(await service.client.request(method, path, json=body), 400, "invalid_value", param)


@pytest.mark.parametrize("text", ["1_0", "+1", " 1", "1.0", "true", "\uff11"])
async def test_a_number_in_a_query_or_a_path_is_digits_alone(service: Service, text: str) -> None:
    for param in ("limit", "before"):
        response = await service.client.get("/v1/policies", params={param: text})
        refused(response, 400, "invalid_value", param)
    response = await service.client.get(f"/v1/evaluations/{quote(text)}")
    refused(response, 400, "invalid_value", "number")
