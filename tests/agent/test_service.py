"""The HTTP surface over a log on disk, with fakes instead of Ray handles: every endpoint, every refusal."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from arms.base import ArmError, Query, Retrieval
from arms.generator import Chunk, Generator, GeneratorError, Prompt, PromptTooLongError, ScriptedGenerator
from feedback.events import Status
from feedback.store import FeedbackStatus, LogUnavailableError, Record
from tests.agent.fakes import FakeArms, Service, failing, hanging

QUESTION = "which river runs through Vienna?"
CHAT: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path).running() as service:
        yield service


async def ask(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await service.client.post("/v1/chat/completions", json=CHAT | fields, headers=headers)


async def look_up(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await service.client.post("/v1/retrieve", json={"query": QUESTION} | fields, headers=headers)


async def tell(service: Service, decision_id: str, value: Any = 1.0, **fields: Any) -> httpx.Response:
    body = {"decision_id": decision_id, "metric_name": "thumb", "value": value} | fields
    return await service.client.post("/v1/feedback", json=body)


async def forced(service: Service, arm: str) -> str:
    return str((await look_up(service, model=f"arm/{arm}")).json()["agent"]["decision_id"])


def refused(response: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """Check an error envelope and return its message."""
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["retryable"] == (status in (408, 429, 502, 503, 504))
    assert ("retry-after" in response.headers) == (status in (429, 503))
    return str(error["message"])


async def rows(service: Service) -> dict[str, int]:
    return await asyncio.to_thread(service.replica.store.counts)


async def record(service: Service, decision_id: str, when: Callable[[Record], object]) -> Record:
    """Return a record once it is as wanted: a turn that nobody waits for is written behind its back."""
    async with asyncio.timeout(10):
        while True:
            found = await asyncio.to_thread(service.replica.store.record, decision_id)
            if found is not None and when(found):
                return found


def events(response: httpx.Response) -> list[Any]:
    """Return the server-sent events of a stream, checked to end as OpenAI's do."""
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


# -- asking ------------------------------------------------------------------------------------------


async def test_an_answer_has_the_shape_of_openai_with_our_fields_beside_it(service: Service) -> None:
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
    assert ours["cost"]["total"] == ours["cost"]["steps"] == len(ours["passages"]) / 4
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


async def test_only_what_was_asked_for_is_returned(service: Service) -> None:
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


async def test_without_being_asked_for_usage_is_no_event_of_its_own(service: Service) -> None:
    *_, last = events(await ask(service, stream=True))
    assert "usage" not in last
    assert last["agent"]["cost"]["tokens"] > 3


async def test_the_official_client_understands_answers_streams_and_refusals(service: Service) -> None:
    client = AsyncOpenAI(
        api_key="none", http_client=service.client, base_url="http://service/v1", max_retries=0
    )
    answer = await client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == "The Danube does."
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    stream = await client.chat.completions.create(**CHAT, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "The Danube does."
    assert [model.id async for model in client.models.list()] == ["auto", "arm/none", "arm/bm25", "arm/dense"]


async def test_retrieving_gives_passages_and_no_words(service: Service) -> None:
    response = await look_up(service, model="arm/bm25", k=2)
    body = response.json()
    assert [passage["id"] for passage in body["passages"]] == ["bm25-1", "bm25-2"]
    assert body["passages"][0] == {"id": "bm25-1", "title": "title 1", "text": "text 1", "score": 1.0}
    assert (body["object"], body["model"]) == ("retrieval", "arm/bm25")
    assert (body["agent"]["mode"], body["agent"]["propensity"]) == ("forced", 1.0)
    assert response.headers["x-arm"] == "bm25"
    assert isinstance(service.generator, ScriptedGenerator)
    assert service.generator.last_prompt is None


async def test_wishes_for_the_language_model_reach_it(service: Service) -> None:
    fields = {"temperature": 0.3, "top_p": 0.8, "seed": 5, "max_completion_tokens": 2, "stop": "x"}
    body = (await ask(service, **fields)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert isinstance(service.generator, ScriptedGenerator)
    prompt = service.generator.last_prompt
    assert prompt is not None
    assert (prompt.temperature, prompt.top_p, prompt.seed, prompt.max_tokens, prompt.stop) == (
        0.3,
        0.8,
        5,
        2,
        ("x",),
    )


async def test_the_last_user_message_is_looked_up_and_parts_are_joined(service: Service) -> None:
    parts = [{"type": "text", "text": "which river"}, {"type": "text", "text": "is longest?"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "tool_calls": None},
        {"role": "user", "content": parts, "name": "ada"},
    ]
    assert (await ask(service, model="arm/bm25", messages=messages)).status_code == 200
    (_, query, _) = service.arms.calls[-1]
    assert query.text == "which river\nis longest?"


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


async def test_a_replica_sees_what_was_switched_at_another(service: Service, tmp_path: Path) -> None:
    async with Service(tmp_path).running() as other:
        await service.client.patch("/v1/arms/bm25", json={"enabled": False})
        await other.replica.refresh()
        assert "bm25" not in (await look_up(other)).json()["agent"]["pmf"]


# -- refusals ----------------------------------------------------------------------------------------

HUGE = 10**400
AN_ANSWER = "/v1/chat/completions"
REFUSED: list[tuple[str, str, dict[str, Any], str, str | None]] = [
    ("unknown field", AN_ANSWER, CHAT | {"foo": 1}, "invalid_request", "foo"),
    ("unknown field of ours", AN_ANSWER, CHAT | {"agent": {"arm": 1}}, "invalid_request", "agent.arm"),
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
        "an image",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "invalid_value",
        "messages.0.content.0.type",
    ),
    (
        "a role unheard of",
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
        "messages",
    ),
    ("an arm unheard of", AN_ANSWER, CHAT | {"model": "arm/bm52"}, "unknown_arm", "model"),
    ("a model unheard of", AN_ANSWER, CHAT | {"model": "gpt-9"}, "unknown_arm", "model"),
    ("a number as model", AN_ANSWER, CHAT | {"model": 3}, "invalid_value", "model"),
    (
        "an excluded arm unheard of",
        AN_ANSWER,
        CHAT | {"agent": {"excluded_arms": ["x"]}},
        "unknown_arm",
        "agent.excluded_arms",
    ),
    (
        "an allowed arm unheard of",
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
        "more tokens, by their new name",
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
    ("two answers", AN_ANSWER, CHAT | {"n": 2}, "invalid_value", "n"),
    (
        "half a surrogate",
        AN_ANSWER,
        CHAT | {"messages": [{"role": "user", "content": "\ud800"}]},
        "invalid_value",
        "messages.0.content",
    ),
    ("half a surrogate as a field", AN_ANSWER, CHAT | {"\ud800": 1}, "invalid_request", "\\ud800"),
    (
        "half a surrogate in the context",
        AN_ANSWER,
        CHAT | {"agent": {"context": {"\ud800": 1}}},
        "invalid_value",
        "agent.context.\\ud800",
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
        "invalid_request",
        "decision_id",
    ),
    (
        "feedback without a value",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb"},
        "invalid_request",
        "value",
    ),
    (
        "a metric unheard of",
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
        "a word as value",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": "1"},
        "invalid_value",
        "value",
    ),
    (
        "a truth for a number",
        "/v1/feedback",
        {"decision_id": "d", "metric_name": "thumb", "value": True},
        "invalid_value",
        "value",
    ),
    (
        "a number for a truth",
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
    response = await service.client.post(path, content=json.dumps(body).encode())
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
@pytest.mark.parametrize("type_", ["application/json", None])
async def test_a_body_that_cannot_be_read_is_a_400(
    service: Service, body: bytes, code: str, message: str, type_: str | None
) -> None:
    headers = {"content-type": type_} if type_ else {}
    response = await service.client.post("/v1/retrieve", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == code
    assert message in response.json()["error"]["message"]


async def test_nan_as_feedback_is_refused(service: Service) -> None:
    body = b'{"decision_id": "d", "metric_name": "thumb", "value": NaN}'
    refused(await service.client.post("/v1/feedback", content=body), 400, "invalid_value", "value")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
async def test_a_bad_deadline_is_a_400(service: Service, timeout: str) -> None:
    response = await look_up(service, {"x-request-timeout-seconds": timeout})
    refused(response, 400, "invalid_value", "X-Request-Timeout-Seconds")


@pytest.mark.parametrize("key", ["", "a b", "x" * 129])
async def test_a_bad_idempotency_key_is_a_400(service: Service, key: str) -> None:
    refused(await look_up(service, {"idempotency-key": key}), 400, "invalid_value", "Idempotency-Key")


async def test_the_id_of_a_request_is_echoed_in_its_failure(service: Service) -> None:
    response = await look_up(service, {"x-request-id": "r-1"}, k=0)
    assert response.json()["error"]["request_id"] == "r-1"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413_declared_or_streamed(service: Service, chunked: bool) -> None:
    body = json.dumps({"query": QUESTION}).encode() + b" " * 5000

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    before = await rows(service)
    response = await service.client.post(
        "/v1/retrieve", content=pieces() if chunked else body, headers={"x-request-id": "r-1"}
    )
    assert refused(response, 413, "payload_too_large") == "the body is larger than 4096 bytes"
    assert response.json()["error"]["request_id"] == "r-1"
    assert await rows(service) == before, "what came before the limit looks whole, and is not answered"


async def test_what_is_not_there_is_not_found(service: Service) -> None:
    refused(await service.client.get("/v1/decisions/nope"), 404, "decision_not_found", "decision_id")
    refused(await service.client.get("/v1/decisions/%00%ff"), 404, "decision_not_found", "decision_id")
    refused(await service.client.get("/v1/nope"), 404, "not_found")
    refused(await service.client.post("/health"), 405, "method_not_allowed")
    response = await service.client.patch("/v1/arms/bm52", json={"enabled": True})
    assert "none, bm25, dense" in refused(response, 400, "unknown_arm", "name")


# -- failures on the way -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_arm_is_a_502_and_its_row_stays(service: Service, stream: bool) -> None:
    service.arms.behaviour["bm25"] = failing
    response = await ask(service, model="arm/bm25", stream=stream)
    assert refused(response, 502, "arm_failed") == "ArmError: the index is gone"
    decision_id = response.headers["x-decision-id"]
    assert response.json()["error"]["decision_id"] == decision_id
    found = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    assert (found["status"], found["arm_drawn"]) == ("arm_failed", "bm25")


async def test_with_a_fallback_the_answer_names_both_arms(tmp_path: Path) -> None:
    async with Service(tmp_path, fallback="none").running() as service:
        service.arms.behaviour["bm25"] = failing
        response = await ask(service, model="arm/bm25")
        ours = response.json()["agent"]
        assert (ours["arm_drawn"], ours["arm_served"]) == ("bm25", "none")
        assert (response.headers["x-arm"], response.json()["model"]) == ("none", "arm/none")
        found = (await service.client.get(f"/v1/decisions/{ours['decision_id']}")).json()
        assert (found["status"], found["error"]) == ("fell_back", "ArmError: the index is gone")


async def test_a_language_model_that_fails_is_a_502(service: Service) -> None:
    assert isinstance(service.generator, ScriptedGenerator)
    service.generator.error = PromptTooLongError("5000 tokens; 4096 fit")
    response = await ask(service)
    assert "4096 fit" in refused(response, 502, "llm_failed")
    found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
    assert found.execution is not None
    assert found.execution.status is Status.LLM_FAILED


async def test_a_stream_that_fails_half_way_says_so_in_its_last_event(service: Service) -> None:
    assert isinstance(service.generator, ScriptedGenerator)
    service.generator.error, service.generator.fail_after = GeneratorError("gone"), 2
    first, *words, last = events(await ask(service, stream=True))
    assert len(words) == 2
    assert (last["error"]["code"], last["error"]["decision_id"]) == (
        "llm_failed",
        first["agent"]["decision_id"],
    )


class Stuck(Generator):
    """Writes one word and then nothing, until it is closed."""

    model = "stuck"

    async def stream(self, prompt: Prompt) -> Any:
        yield Chunk("The")
        await asyncio.Event().wait()

    async def close(self) -> None: ...


async def test_a_language_model_that_hangs_is_a_504(tmp_path: Path) -> None:
    limits = {"llm_timeout_s": 0.05}
    async with Service(tmp_path, Stuck(), limits=limits).running() as service:
        response = await ask(service)
        refused(response, 504, "llm_timeout")
        found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
        assert found.execution is not None
        assert (found.execution.status, found.execution.answer) == (Status.LLM_TIMEOUT, "The")


async def test_a_request_past_its_own_deadline_is_a_408_and_its_decision_is_kept(service: Service) -> None:
    service.arms.behaviour["bm25"] = hanging
    response = await look_up(service, {"x-request-timeout-seconds": "0.05"}, model="arm/bm25")
    assert refused(response, 408, "deadline_exceeded") == "0.05 s have passed"
    found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
    assert found.execution is not None
    assert found.execution.status is Status.CANCELLED
    assert service.replica.in_flight == 0


async def test_a_stream_past_its_deadline_says_so_in_its_last_event(tmp_path: Path) -> None:
    async with Service(tmp_path, Stuck()).running() as service:
        *_, last = events(await ask(service, {"x-request-timeout-seconds": "0.2"}, stream=True))
        assert last["error"]["code"] == "deadline_exceeded"


async def test_an_encoder_that_is_away_before_the_draw_is_a_503(tmp_path: Path) -> None:
    features = {"embedding": {"backbone": "tiny", "dims": 4}}
    async with Service(tmp_path, features=features).running() as service:
        service.embedders.error = ArmError("the encoder restarts")
        assert "restarts" in refused(await look_up(service), 503, "not_ready")
        assert (await rows(service))["decisions"] == 0


async def test_load_is_shed_before_the_draw(service: Service) -> None:
    released = asyncio.Event()

    async def waiting(query: Query, k: int) -> Retrieval:
        await released.wait()
        return Retrieval()

    service.arms.behaviour["bm25"] = waiting
    busy = [asyncio.create_task(look_up(service, model="arm/bm25")) for _ in range(4)]
    while len(service.arms.calls) < 4:
        await asyncio.sleep(0)
    refused(await look_up(service), 503, "overloaded")
    refused(await ask(service, stream=True), 503, "overloaded")
    released.set()
    assert {(await task).status_code for task in busy} == {200}
    assert (await rows(service))["decisions"] == 4
    assert (await look_up(service)).status_code == 200
    assert "armwise_shed_total 2.0" in (await service.client.get("/metrics")).text


async def test_without_a_version_nothing_is_answered_but_feedback_is_kept(tmp_path: Path) -> None:
    async with Service(tmp_path).running(ready=False) as service:
        for response in (await ask(service), await ask(service, stream=True), await look_up(service)):
            refused(response, 503, "not_ready")
        refused(await service.client.get("/ready"), 503, "not_ready")
        assert (await service.client.get("/health")).json() == {"status": "ok"}
        assert (await service.client.get("/v1/policy")).json()["version"] is None
        assert (await tell(service, "d-1")).json()["status"] == "pending_decision"
        await service.learn()
        assert (await service.client.get("/ready")).json() == {"status": "ready", "version": 1}
        assert (await look_up(service)).status_code == 200


async def test_a_log_that_is_away_is_a_503_everywhere(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LogUnavailableError("the log cannot be used: disk full")

    store = service.replica.store
    for name in ("append", "log_seq", "record"):
        monkeypatch.setattr(store, name, away)
    responses = [
        await ask(service),
        await ask(service, stream=True),
        await look_up(service),
        await look_up(service, {"idempotency-key": "k-1"}),
        await tell(service, "d-1"),
        await service.client.get("/v1/decisions/d-1"),
        await service.client.get("/v1/policy"),
        await service.client.get("/ready"),
        await service.client.get("/metrics"),
    ]
    for response in responses:
        assert "disk full" in refused(response, 503, "log_unavailable")
    batch = {"items": [{"decision_id": "d-1", "metric_name": "thumb", "value": 1}]}
    response = await service.client.post("/v1/feedback", json=batch)
    assert response.json()["items"][0]["error"]["code"] == "log_unavailable"
    monkeypatch.undo()
    assert (await rows(service))["decisions"] == 0
    assert (await ask(service)).status_code == 200


async def test_a_bug_is_a_500_that_tells_no_secret(service: Service) -> None:
    async def broken(query: Query, k: int) -> Retrieval:
        raise KeyError("password=hunter2")

    service.arms.behaviour["bm25"] = broken
    message = refused(await look_up(service, model="arm/bm25"), 500, "internal_error")
    assert message == "KeyError: see the log of the service"
    assert service.replica.in_flight == 0


# -- clients that go away ------------------------------------------------------------------------------


class Connection:
    """A client that speaks ASGI, and leaves when it has read enough."""

    def __init__(self, body: dict[str, Any], leave_after: int) -> None:
        self.received = b""
        self._pieces = 0
        self._leave_after = leave_after
        self._gone = asyncio.Event()
        self._body = json.dumps(body).encode()
        self._sent = False
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": AN_ANSWER,
            "raw_path": AN_ANSWER.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if body := message.get("body"):
            self.received += body
            self._pieces += 1
            if self._pieces == self._leave_after:
                self._gone.set()


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_client_that_leaves_a_stream_is_recorded_as_cancelled(tmp_path: Path, pieces: int) -> None:
    async with Service(tmp_path, Stuck()).running() as service:
        client = Connection(CHAT | {"stream": True}, leave_after=pieces)
        await service.app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
        first = json.loads(client.received.partition(b"\n\n")[0].removeprefix(b"data: "))
        found = await record(service, first["agent"]["decision_id"], lambda r: r.execution)
        assert found.execution is not None
        assert found.execution.status is Status.CANCELLED
        assert service.replica.in_flight == 0


async def test_a_request_that_is_cancelled_makes_room_for_the_next(service: Service) -> None:
    service.arms.behaviour["bm25"] = hanging
    task = asyncio.create_task(look_up(service, model="arm/bm25"))
    while not service.arms.calls:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.replica.in_flight == 0


# -- asking again --------------------------------------------------------------------------------------


async def test_the_same_request_under_the_same_key_gets_the_stored_answer(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    first = await ask(service, key, agent={"return": ["passages"]})
    assert isinstance(service.generator, ScriptedGenerator)
    service.generator.error = GeneratorError("must not be asked again")
    again = await ask(service, key, agent={"return": ["passages"]})
    assert again.json() == first.json()
    assert again.json()["agent"]["decision_id"] == "k-1"
    assert (again.headers["x-arm"], again.headers["x-propensity"]) == (
        first.headers["x-arm"],
        first.headers["x-propensity"],
    )
    counts = await rows(service)
    assert (counts["decisions"], counts["executions"]) == (1, 1)


async def test_a_stream_is_repeated_as_a_stream(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    wishes = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    first = events(await ask(service, key, **wishes))
    again = events(await ask(service, key, **wishes))
    assert (again[0], again[-2:]) == (first[0], first[-2:])
    assert again[1]["choices"][0]["delta"]["content"] == "The Danube"
    assert again[-2]["choices"][0]["finish_reason"] == "length"


async def test_a_retrieval_is_repeated_under_its_key(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    first, again = await look_up(service, key), await look_up(service, key)
    assert again.json() == first.json()
    assert (await rows(service))["decisions"] == 1


async def test_another_request_under_the_same_key_is_a_conflict(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    await look_up(service, key)
    for response in (await look_up(service, key, k=2), await ask(service, key)):
        assert "'k-1'" in refused(response, 409, "idempotency_conflict", "Idempotency-Key")
    assert (await rows(service))["decisions"] == 1


async def test_two_requests_at_once_under_one_key_are_decided_once(service: Service) -> None:
    released = asyncio.Event()

    async def waiting(query: Query, k: int) -> Retrieval:
        await released.wait()
        return Retrieval()

    service.arms.behaviour["bm25"] = waiting
    key = {"idempotency-key": "k-1"}
    tasks = [asyncio.create_task(look_up(service, key, model="arm/bm25")) for _ in range(2)]
    while len(service.arms.calls) < 2:
        await asyncio.sleep(0)
    released.set()
    statuses = sorted([(await task).status_code for task in tasks])
    assert statuses == [200, 409]
    assert (await rows(service))["executions"] == 1


@pytest.mark.parametrize("arm", [failing, None])
async def test_what_failed_is_not_repeated_as_if_it_were_an_answer(service: Service, arm: Any) -> None:
    assert isinstance(service.generator, ScriptedGenerator)
    if arm:
        service.arms.behaviour["bm25"] = arm
    else:
        service.generator.error, service.generator.fail_after = GeneratorError("gone"), 1
    key = {"idempotency-key": "k-1"}
    assert (await ask(service, key, model="arm/bm25")).status_code == 502
    service.generator.error = None
    service.arms.behaviour.clear()
    again = await ask(service, key, model="arm/bm25")
    message = refused(again, 409, "idempotency_conflict", "Idempotency-Key")
    assert "ask again under another id" in message


async def test_a_repeated_answer_whose_passages_cannot_be_found_again_is_a_503(tmp_path: Path) -> None:
    async with Service(tmp_path, limits={"arm_timeout_s": 0.05}).running() as service:
        key = {"idempotency-key": "k-1"}
        await look_up(service, key, model="arm/bm25")
        for behaviour in (failing, hanging):
            service.arms.behaviour["bm25"] = behaviour
            refused(await look_up(service, key, model="arm/bm25"), 503, "not_ready")


async def test_a_repeated_answer_of_an_arm_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    key = {"idempotency-key": "k-1"}
    async with Service(tmp_path).running() as service:
        await look_up(service, key, agent={"allowed_arms": ["none"]})
    arms = {"bm25": {"kind": "bm25"}, "none": {"kind": "none"}}
    async with Service(tmp_path, arms={"bm25": arms["bm25"]}).running() as service:
        body = {"query": QUESTION, "agent": {"allowed_arms": ["none"]}}
        response = await service.client.post("/v1/retrieve", json=body, headers=key)
        refused(response, 400, "unknown_arm", "agent.allowed_arms")
    async with Service(tmp_path, arms=arms).running() as service:
        await look_up(service, {"idempotency-key": "k-2"}, agent={"excluded_arms": ["bm25"]})
    arms["other"] = arms.pop("none")
    async with Service(tmp_path, arms=arms).running() as service:
        response = await look_up(service, {"idempotency-key": "k-2"}, agent={"excluded_arms": ["bm25"]})
        assert "'none'" in refused(response, 409, "idempotency_conflict", "Idempotency-Key")


# -- feedback and learning -----------------------------------------------------------------------------


async def test_feedback_is_accepted_once_and_its_position_says_when_it_is_learned(service: Service) -> None:
    response = await look_up(service)
    decision_id = response.json()["agent"]["decision_id"]
    kept = await tell(service, decision_id, 0.5, feedback_id="f-1", tags={"who": "ada"})
    assert kept.status_code == 202
    assert kept.json() == {
        "feedback_id": "f-1",
        "decision_id": decision_id,
        "status": "accepted",
        "log_seq": 1,
    }
    policy = (await service.client.get("/v1/policy")).json()
    assert (policy["log_seq"], policy["applied_seq"], policy["version"]) == (1, 0, 1)
    await service.learn()
    policy = (await service.client.get("/v1/policy")).json()
    assert (policy["log_seq"], policy["applied_seq"], policy["version"]) == (1, 1, 2)
    assert (policy["examples_seq"], policy["parent"]) == (1, 1)
    again = await tell(service, decision_id, 0.5, feedback_id="f-1")
    assert (again.json()["status"], again.json()["log_seq"]) == ("duplicate", 1)
    late = await tell(service, decision_id, 1)
    assert late.json()["status"] == "late_not_learned"
    assert (await look_up(service)).json()["agent"]["policy_version"] == 2


async def test_the_same_feedback_id_with_another_value_is_a_conflict(service: Service) -> None:
    await tell(service, "d-1", 1, feedback_id="f-1")
    message = refused(await tell(service, "d-1", -1, feedback_id="f-1"), 409, "idempotency_conflict")
    assert "'f-1' was used for thumb=1 on d-1" in message


async def test_an_idempotency_key_names_feedback_that_names_itself_not(service: Service) -> None:
    body = {"decision_id": "d-1", "metric_name": "thumb", "value": 1}
    for status in ("pending_decision", "duplicate"):
        response = await service.client.post("/v1/feedback", json=body, headers={"idempotency-key": "k-1"})
        assert (response.json()["feedback_id"], response.json()["status"]) == ("k-1", status)


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
    response = await service.client.post("/v1/feedback", content=json.dumps({"items": items}))
    assert response.status_code == 202
    told = response.json()["items"]
    assert [row.get("status") or row["error"]["code"] for row in told] == [
        "accepted",
        "duplicate",
        "idempotency_conflict",
        "accepted",
        "pending_decision",
        "unknown_metric",
        "invalid_value",
        "invalid_request",
        "invalid_value",
    ]
    assert told[0]["log_seq"] == told[1]["log_seq"]
    assert told[6]["error"]["param"] == "value"
    assert (await rows(service))["feedback"] == 3


async def test_feedback_changes_what_is_drawn(service: Service) -> None:
    before = (await look_up(service)).json()["agent"]["pmf"]
    for number in range(60):
        ours = (await look_up(service, agent={"context": {"n": number % 3}})).json()["agent"]
        await tell(service, ours["decision_id"], 1.0 if ours["arm_drawn"] == "dense" else -1.0)
    await service.learn()
    after = (await look_up(service)).json()["agent"]["pmf"]
    assert after["dense"] > 0.9 > before["dense"]
    counts = await rows(service)
    assert counts["examples"] == counts["feedback"] == 60


async def test_a_decision_can_be_read_back_whole(service: Service) -> None:
    response = await ask(service, agent={"context": {"tier": "free", "n": 3}, "episode_id": "e-1"})
    ours = response.json()["agent"]
    decision_id = ours["decision_id"]
    path = f"/v1/decisions/{decision_id}"
    found = (await service.client.get(path)).json()
    assert found.items() >= {**ours, "state": "open", "status": "ok", "answer": "The Danube does."}.items()
    assert found["features"].items() >= {"tier=free": 1.0, "n": 3.0, "w=river": 1.0}.items()
    assert found["arm_features"]["dense"]["backbone=tiny"] == 1.0
    assert (found["feedback"], found["metrics"], found["reward"]) == ([], {}, None)
    time = "2026-01-02T03:04:05+01:00"
    await tell(service, decision_id, 0.5, feedback_id="f-1", tags={"who": "ada"}, event_time=time)
    found = (await service.client.get(path)).json()
    assert found["reward"] == pytest.approx(0.5 - 0.1 * ours["cost"]["steps"])
    await service.learn()
    found = (await service.client.get(path)).json()
    assert (found["state"], found["example_seq"], found["metrics"]) == ("learned", 1, {"thumb": 0.5})
    (item,) = found["feedback"]
    assert (item["feedback_id"], item["value"], item["tags"]) == ("f-1", 0.5, {"who": "ada"})
    assert item["event_time"] == 1767319445.0


async def test_a_version_that_cannot_be_read_leaves_the_one_before_in_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tell(service, "unseen")
    monkeypatch.setattr("agent.replica.checkpoint", lambda store, version: b"damaged")
    await service.learn()
    assert (await look_up(service)).json()["agent"]["policy_version"] == 1
    service.replica.check()
    monkeypatch.undo()
    await service.replica.refresh()
    assert (await look_up(service)).json()["agent"]["policy_version"] == 2


async def test_the_search_for_versions_outlives_a_log_that_is_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(*_: object) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise LogUnavailableError("gone")

    monkeypatch.setattr("agent.replica.disabled", away)
    await asyncio.wait_for(failed.wait(), 10)
    monkeypatch.undo()
    service.replica.check()
    assert service.replica.ready


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
        'armwise_feedback_total{metric="thumb",status="accepted"} 1.0',
        'armwise_failures_total{code="arm_failed"} 1.0',
        "armwise_log_seq 1.0",
        "armwise_policy_version 1.0",
    } <= lines


async def test_feedback_waits_for_the_deadline_where_the_rule_says_so(tmp_path: Path) -> None:
    reward = {"metrics": {"thumb": {}}, "complete": "deadline"}
    async with Service(tmp_path, reward=reward).running() as service:
        decision_id = (await look_up(service)).json()["agent"]["decision_id"]
        assert (await tell(service, decision_id)).json()["status"] == FeedbackStatus.ACCEPTED
        await service.learn()
        policy = (await service.client.get("/v1/policy")).json()
        assert (policy["applied_seq"], policy["examples_seq"]) == (1, 0)


def test_fakes_find_as_many_passages_as_they_are_asked_for() -> None:
    found = asyncio.run(FakeArms().search("bm25", Query("x"), 3))
    assert len(found.passages) == 3
