"""Requests that cannot be served: the error names the field at fault, and no row is written."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.agent.asking import AN_ANSWER, CHAT, HUGE, QUESTION, look_up, post, refused, rows
from tests.agent.fakes import Service

REFUSED: list[tuple[str, str, dict[str, Any], str, str | None]] = [
    ("unknown field of agent", AN_ANSWER, CHAT | {"agent": {"arm": 1}}, "invalid_request", "agent.arm"),
    ("no messages", AN_ANSWER, {"model": "auto"}, "invalid_request", "messages"),
    ("empty messages", AN_ANSWER, CHAT | {"messages": []}, "invalid_value", "messages"),
    (
        "no user message",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "system", "content": "x"}]},
        "invalid_value",
        "messages",
    ),
    (
        "a number as content",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": 3}]},
        "invalid_value",
        "messages.0.content",
    ),
    (
        "a sound",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "unsupported_parameter",
        "messages.0.content.0.type",
    ),
    (
        "an image that is none",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "invalid_value",
        "messages.0.content.0",
    ),
    (
        "an unknown role",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "king", "content": "x"}]},
        "invalid_value",
        "messages.0.role",
    ),
    (
        "an empty question",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": " \n"}]},
        "invalid_value",
        "messages",
    ),
    (
        "a question too long",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": "a" * 2000}]},
        "invalid_value",
        "messages",
    ),
    (
        "a NUL in the question",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": "a\0b"}]},
        "invalid_value",
        "messages.0.content",
    ),
    ("a number as model", AN_ANSWER, CHAT | {"model": 3}, "invalid_value", "model"),
    (
        "an unknown excluded arm",
        AN_ANSWER,
        CHAT | {"agent": {"excluded_arms": ["x"]}},
        "unknown_arm",
        "agent.excluded_arms",
    ),
    (
        "an unknown allowed arm",
        AN_ANSWER,
        CHAT | {"agent": {"allowed_arms": ["x"]}},
        "unknown_arm",
        "agent.allowed_arms",
    ),
    (
        "every arm excluded",
        AN_ANSWER,
        CHAT | {"agent": {"excluded_arms": ["none", "bm25", "dense"]}},
        "no_eligible_arm",
        "agent.excluded_arms",
    ),
    (
        "no arm allowed",
        AN_ANSWER,
        CHAT | {"agent": {"allowed_arms": []}},
        "no_eligible_arm",
        "agent.excluded_arms",
    ),
    (
        "a list in the context",
        AN_ANSWER,
        CHAT | {"agent": {"context": {"a": []}}},
        "invalid_value",
        "agent.context.a",
    ),
    (
        "a huge number in the context",
        AN_ANSWER,
        CHAT | {"agent": {"context": {"a": HUGE}}},
        "invalid_value",
        "agent.context.a",
    ),
    ("more tokens than the limit", AN_ANSWER, CHAT | {"max_tokens": 100_000}, "invalid_value", "max_tokens"),
    (
        "more completion tokens than the limit",
        AN_ANSWER,
        CHAT | {"max_completion_tokens": HUGE},
        "invalid_value",
        "max_completion_tokens",
    ),
    ("no tokens", AN_ANSWER, CHAT | {"max_tokens": 0}, "invalid_value", "max_tokens"),
    ("a temperature of 3", AN_ANSWER, CHAT | {"temperature": 3}, "invalid_value", "temperature"),
    ("a huge temperature", AN_ANSWER, CHAT | {"temperature": HUGE}, "invalid_value", "temperature"),
    ("an empty stop", AN_ANSWER, CHAT | {"stop": ""}, "invalid_value", "stop"),
    ("an empty stop among others", AN_ANSWER, CHAT | {"stop": ["x", ""]}, "invalid_value", "stop.1"),
    (
        "half a surrogate",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": "\ud800"}]},
        "invalid_value",
        "messages.0.content",
    ),
    ("half a surrogate as a field", "/v1/retrieve", {"query": "x", "\ud800": 1}, "invalid_value", None),
    (
        "half a surrogate in the context",
        AN_ANSWER,
        CHAT | {"agent": {"context": {"\ud800": 1}}},
        "invalid_value",
        "agent.context.\ufffd\ufffd\ufffd",
    ),
    (
        "half a surrogate as a name in a schema",
        AN_ANSWER,
        CHAT | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"\ud800": 1}}}]},
        "invalid_value",
        "tools.0.function.parameters",
    ),
    ("no query", "/v1/retrieve", {}, "invalid_request", "query"),
    ("an empty query", "/v1/retrieve", {"query": ""}, "invalid_value", "query"),
    ("too many passages", "/v1/retrieve", {"query": "x", "k": 11}, "invalid_value", "k"),
    ("no passage", "/v1/retrieve", {"query": "x", "k": 0}, "invalid_value", "k"),
    (
        "a bad episode",
        "/v1/retrieve",
        {"query": "x", "agent": {"episode_id": "a b"}},
        "invalid_value",
        "agent.episode_id",
    ),
    (
        "feedback on nothing",
        "/v1/feedback",
        {"metric_name": "thumb", "value": 1},
        "invalid_value",
        None,
    ),
    (
        "feedback without a value",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb"},
        "invalid_request",
        "value",
    ),
    (
        "an unknown metric",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumbs", "value": 1},
        "unknown_metric",
        "metric_name",
    ),
    (
        "a value out of range",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": 7},
        "invalid_value",
        "value",
    ),
    (
        "a huge value",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": HUGE},
        "invalid_value",
        "value",
    ),
    (
        "a string as value",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": "1"},
        "invalid_value",
        "value",
    ),
    (
        "a boolean for a number",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": True},
        "invalid_value",
        "value",
    ),
    (
        "a number for a boolean",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "right", "value": 0.5},
        "invalid_value",
        "value",
    ),
    (
        "a time without a zone",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": 1, "event_time": "2026-01-01T00:00:00"},
        "invalid_value",
        "event_time",
    ),
    ("an empty batch", "/v1/feedback", {"items": []}, "invalid_value", "items"),
    ("a batch with more beside it", "/v1/feedback", {"items": [1], "value": 1}, "invalid_request", "value"),
]


@pytest.mark.parametrize(
    ("path", "body", "code", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_a_wrong_request_is_a_400_that_names_the_field_and_leaves_no_row(
    service: Service, path: str, body: dict[str, Any], code: str, param: str | None
) -> None:
    before = await rows(service)
    response = await post(service, path, json.dumps(body).encode())
    message = refused(response, 400, code, param)
    assert len(message) < 300
    assert await rows(service) == before


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"", "invalid_request", "field 'body' is missing"),
        (b"{", "invalid_request", "the body is not JSON"),
        (b"[]", "invalid_value", "body: "),
        (b'"\xff"', "invalid_request", "the body is not UTF-8"),
        (b'{"query": "x", "agent": {"context": {"a": NaN}}}', "invalid_value", "nan"),
        (b'{"query": "x", "agent": {"context": {"a": 1e999}}}', "invalid_value", "inf"),
        (b'{"query": "x", "k": 1' + b"0" * 4000 + b"}", "invalid_value", "k"),
    ],
    ids=["nothing", "half", "list", "not UTF-8", "NaN", "infinity", "digits"],
)
async def test_a_body_that_cannot_be_read_is_a_400(
    service: Service, body: bytes, code: str, message: str
) -> None:
    response = await post(service, "/v1/retrieve", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == code
    assert message in response.json()["error"]["message"]


async def test_a_body_that_is_not_declared_as_json_is_a_400_that_says_so(service: Service) -> None:
    response = await service.client.post("/v1/retrieve", content=b'{"query": "x"}')
    assert "content-type: application/json" in refused(response, 400, "invalid_request")


async def test_nan_as_feedback_is_refused(service: Service) -> None:
    body = b'{"decision_id": "d", "metric_name": "thumb", "value": NaN}'
    refused(await post(service, "/v1/feedback", body), 400, "invalid_value", "value")


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
async def test_a_body_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not(
    service: Service, chunked: bool
) -> None:
    limit = service.config.limits.body_bytes
    for size, status in ((limit, 200), (limit + 1, 413)):
        body = json.dumps({"query": QUESTION}).encode().ljust(size)

        async def pieces(body: bytes = body) -> AsyncIterator[bytes]:
            yield body[:100]
            yield body[100:]

        response = await post(service, "/v1/retrieve", pieces() if chunked else body)
        assert response.status_code == status, response.text


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
    ("path", "methods"),
    [
        ("/health", "GET"),
        ("/v1/arms", "GET, PUT"),
        ("/v1/evaluations", "GET, POST"),
        ("/v1/arms/bm25", "PATCH"),
        ("/v1/keys/k", "DELETE"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_a_405_that_names_those_it_has(
    service: Service, path: str, methods: str
) -> None:
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
    ("POST", AN_ANSWER, CHAT | {"agent": {"cost_weight": True}}, "agent.cost_weight"),
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
