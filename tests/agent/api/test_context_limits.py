"""What callers send as context, tags and names is bounded before anything is decided or stored."""

from typing import Any

import pytest

from tests.agent.asking import look_up, post, refused, rows
from tests.agent.fakes import Service

LARGE = "x" * 3000  # the bodies of the test service have at most 4096 bytes


@pytest.mark.parametrize(
    ("context", "param", "message"),
    [
        (
            {"age": 1e9},
            "agent.context.age",
            "context 'age' is 1e+09; a number from -1e+06 to 1e+06 was expected",
        ),
        ({"age": -(2**53)}, "agent.context.age", "context 'age' is -9.0072e+15; a number from"),
        (
            {"tier": LARGE},
            "agent.context.tier",
            "'xxxxxxxxxxxxxxxxxxxx' and so on has 3000 characters; at most 200",
        ),
        ({LARGE: 1}, f"agent.context.{LARGE[:200]}", "and so on has 3000 characters; at most 200 are read"),
        ({str(i): i for i in range(33)}, "agent.context", "the context has 33 names; at most 32 are read"),
        ({str(i): "x" * 200 for i in range(21)}, "agent.context", "have 4232 bytes; at most 4096 are read"),
        ({str(i): "é" * 200 for i in range(11)}, "agent.context", "have 4412 bytes; at most 4096 are read"),
    ],
    ids=["number", "negative number", "text", "name", "names", "bytes", "bytes of UTF-8"],
)
async def test_a_context_beyond_its_limits_is_refused_before_the_draw(
    tmp_path: Any, context: dict[str, Any], param: str, message: str
) -> None:
    limits = {"body_bytes": 8192}
    async with Service(tmp_path, limits=limits).running() as service:
        found = refused(await look_up(service, agent={"context": context}), 400, "invalid_value", param)
        assert message in found
        assert len(found) < 500
        assert (await rows(service))["decisions"] == 0


async def test_a_context_at_its_limits_is_accepted_and_policies_see_its_logarithm(service: Service) -> None:
    context = {"x" * 200: "y" * 200, "age": 1e6, "half": 0.5, "small": -1e6} | {str(i): i for i in range(28)}
    answer = await look_up(service, agent={"context": context, "return": ["decision"]})
    assert answer.status_code == 200, answer.text
    features = answer.json()["agent"]["features"]
    assert (features["age"], features["half"], features["small"]) == (7.0, 0.5, -7.0)


FULL = {f"{i:02}": "x" * 126 for i in range(32)}
"""A context of 4096 bytes."""


AT_LIMITS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("/v1/retrieve", {"query": "é" * 1000}, {"query": "é" * 1001}, "has 1001 characters; at most 1000"),
    ("/v1/retrieve", {"query": "q", "k": 50}, {"k": 51}, "k is 51; at most 50 passages"),
    (
        "/v1/retrieve",
        {"query": "q", "agent": {"context": FULL}},
        {"agent": {"context": {**FULL, "00": "x" * 127}}},
        "have 4097 bytes; at most 4096 are read",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "q"}], "max_tokens": 300},
        {"max_tokens": 301},
        "301 tokens were requested; the limit is 300",
    ),
]
"""A path, a body whose value is at a limit, the field that makes it too large, and what is said of it."""


async def test_a_value_at_a_limit_is_served_and_one_beyond_not(
    tmp_path: Any, subtests: pytest.Subtests
) -> None:
    limits = {
        "question_chars": 1000,
        "completion_tokens": 300,
        "body_bytes": 8192,
    }
    async with Service(tmp_path, limits=limits).running() as service:
        for path, body, beyond, message in AT_LIMITS:
            with subtests.test(message):
                served = await service.client.post(path, json=body)
                assert served.status_code == 200, served.text
                refusal = await service.client.post(path, json=body | beyond)
                assert message in refused(refusal, 400, "invalid_value", refusal.json()["error"]["param"])


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000], ids=len)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/retrieve", b'{"query": "q", "agent": {"context": {"a": %s}}}'),
        ("/v1/retrieve", b'{"query": "q", "k": %s}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "q"}], "max_tokens": %s}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "q"}], "temperature": %s}'),
        ("/v1/feedback", b'{"decision_id": "d-1", "metric_name": "thumb", "value": %s}'),
        ("/v1/feedback", b'{"decision_id": "d-1", "metric_name": "thumb", "value": 1, "event_time": %s}'),
    ],
)
@pytest.mark.slow
async def test_numbers_that_are_none_are_a_400(tmp_path: Any, path: str, body: bytes, literal: bytes) -> None:
    async with Service(tmp_path, limits={"body_bytes": 8192}).running() as service:
        response = await post(service, path, body % literal)
        assert response.status_code == 400, response.text
        assert len(response.text) < 1000
        assert (await rows(service))["decisions"] == (await rows(service))["feedback"] == 0


@pytest.mark.parametrize("path", ["/v1/retrieve", "/v1/chat/completions", "/v1/feedback", "/v1/evaluations"])
async def test_json_that_is_too_deep_is_a_400(tmp_path: Any, path: str) -> None:
    async with Service(tmp_path, limits={"body_bytes": 1 << 20}).running() as service:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            body = b'{"query": %s}' % (opening * 90_000 + b"1" + closing * 90_000)
            refused(await post(service, path, body), 400, "invalid_request")
