"""Anthropic's protocol: messages, events, tools, errors and keys, as its clients send and read them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.api import doors
from armwise.arms.base import Query, Retrieval
from armwise.arms.llm import Chunk, Prompt, base
from armwise.arms.llm.protocols import Request
from armwise.arms.llm.translate.documents import read_document
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from tests.agent.api.conftest import prompt_of
from tests.agent.asking import record, rows
from tests.agent.coding_agent import (
    ASKED,
    MARK,
    NAMES,
    PERSON,
    REMINDER,
    SESSION,
    SYSTEM,
    TOOLS,
    events,
    put_together,
    request,
    results,
)
from tests.agent.fakes import CONFIG, Service, failing

ASK: dict[str, Any] = {"max_tokens": 64, "messages": [{"role": "user", "content": "which river?"}]}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
ENDPOINT = {"engine": "anthropic", "model": "m"}


def reply(prompt: Prompt) -> str | Sequence[tuple[str, str]]:
    """Read a file, and then answer from what it has."""
    if prompt.messages[-1]["role"] == "tool" or any("tool_call_id" in m for m in prompt.messages):
        return "The import is wrong."
    path = '{"file_path": "/a.py"}'
    return [("Read", path), ("Grep", path)] if "tools" in prompt.options else "The Danube."


@pytest.fixture
async def coding(tmp_path: Path) -> AsyncIterator[Service]:
    """A service for coding agents, whose model reads images and files."""
    limits = CONFIG["limits"] | {"body_bytes": 1 << 20}
    generator = base.ScriptedGenerator(reply)
    async with Service(tmp_path, generator, llm=ENDPOINT, limits=limits).running() as service:
        yield service


async def nothing(_query: Query, _k: int) -> Retrieval:
    """An arm that finds nothing."""
    return Retrieval(steps=0)


async def send(service: Service, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await service.client.post("/v1/messages", json=body, headers=headers)


def refused(response: httpx.Response, status: int, kind: str, code: str, param: str | None = None) -> str:
    body = response.json()
    assert response.status_code == status, response.text
    error = body["error"]
    assert error["retryable"] == (status in (408, 429, 502, 503, 504))
    assert response.headers["x-should-retry"] == ("true" if error["retryable"] else "false")
    assert (body["type"], error["type"], error["code"], error["param"]) == ("error", kind, code, param)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return str(error["message"])


async def test_an_answer_is_a_message_with_its_decision(service: Service) -> None:
    response = await send(service, ASK)
    message = response.json()
    assert response.status_code == 200, response.text
    decision_id = response.headers["x-decision-id"]
    assert message["id"] == f"msg_{decision_id}"
    assert message["agent"]["decision_id"] == decision_id
    assert message["model"] == f"arm/{response.headers['x-arm']}"
    assert message["content"] == [{"type": "text", "text": "The Danube does."}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    logged = await record(service, decision_id, lambda found: found.execution is not None)
    assert logged.decision.context.question == "which river?"
    assert logged.execution is not None
    cost = logged.execution.cost
    assert message["usage"] == {
        "input_tokens": cost.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": cost.completion_tokens,
    }


async def test_it_is_the_turn_of_chat(service: Service) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9}
    await send(
        service, ASK | fields | {"system": "Be brief.", "stop_sequences": ["x", "y"], "model": "arm/none"}
    )
    mine = prompt_of(service)
    messages = [{"role": "system", "content": "Be brief."}, *ASK["messages"]]
    body = {"max_tokens": 64, "messages": messages, "stop": ["x", "y"], "model": "arm/none", **fields}
    assert (await service.client.post("/v1/chat/completions", json=body)).status_code == 200
    theirs = prompt_of(service)
    assert (mine.messages, mine.max_tokens, mine.temperature, mine.top_p, mine.stop, mine.options) == (
        *(theirs.messages, theirs.max_tokens, theirs.temperature, theirs.top_p),
        *(theirs.stop, theirs.options),
    )


async def test_an_answer_is_streamed_in_the_order_of_the_protocol(service: Service) -> None:
    response = await send(service, ASK | {"stream": True})
    read = events(response)
    deltas = ["content_block_delta"] * 3
    assert [event["type"] for event in read] == [
        *("message_start", "ping", "content_block_start", *deltas, "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    start, end = read[0]["message"], read[-2]
    assert start["content"] == []
    assert start["usage"]["input_tokens"] == 3  # an estimate
    assert start["agent"]["cost"] is None
    ours = read[-1]["agent"]
    assert start["agent"]["decision_id"] == ours["decision_id"] == response.headers["x-decision-id"]
    assert put_together(read) == [{"type": "text", "text": "The Danube does."}]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 3
    assert ours["cost"]["tokens"] == end["usage"]["input_tokens"] + 3


async def test_text_after_a_call_is_a_block_of_its_own(tmp_path: Path) -> None:
    class Commenting(base.ScriptedGenerator):
        async def stream(self, prompt: Prompt) -> AsyncIterator[Chunk]:  # type: ignore[override]
            del prompt
            call = {"index": 0, "id": "c-1", "type": "function"}
            yield Chunk("Look: ")
            yield Chunk(tool_calls=({**call, "function": {"name": "Read", "arguments": "{}"}},))
            yield Chunk("I ")
            yield Chunk("looked.")
            yield Chunk(finish_reason="tool_calls", prompt_tokens=3, completion_tokens=4)

    async with Service(tmp_path, Commenting({})).running() as service:
        told = events(await send(service, ASK | {"stream": True}))
    kinds = [event["content_block"]["type"] for event in told if event["type"] == "content_block_start"]
    texts = [(event["index"], event["delta"].get("text")) for event in told if "block_delta" in event["type"]]
    assert kinds == ["text", "tool_use", "text"]
    assert texts == [(0, "Look: "), (1, None), (2, "I "), (2, "looked.")]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_coding_agent_uses_tools_in_a_round_of_its_question(coding: Service, streamed: bool) -> None:
    first = await send(coding, request(stream=streamed))
    content = put_together(events(first)) if streamed else first.json()["content"]
    end = events(first)[-2]["delta"] if streamed else first.json()
    assert end["stop_reason"] == "tool_use"
    assert [(block["name"], block["input"]) for block in content] == [
        ("Read", {"file_path": "/a.py"}),
        ("Grep", {"file_path": "/a.py"}),
    ]
    second = await send(coding, request(*results(content), stream=False))
    answer = second.json()
    assert answer["content"] == [{"type": "text", "text": "The import is wrong."}]
    assert answer["model"] == f"arm/{first.headers['x-arm']}"
    assert answer["agent"]["episode_id"].startswith("session-"), "of the session that the agent names"
    assert answer["agent"]["mode"] == "forced"
    for response in (first, second):
        logged = await record(coding, response.headers["x-decision-id"], bool)
        assert logged.decision.context.question == PERSON


async def test_a_model_of_the_protocol_gets_what_the_agent_marked(coding: Service) -> None:
    content = [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "/a"}, **MARK}]
    coding.arms.behaviour["none"] = nothing
    response = await send(coding, request(*results(content), stream=False, model="arm/none"))
    assert response.status_code == 200, response.text
    prompt = prompt_of(coding)
    assert prompt.request is not None
    sent = request(*results(content), stream=False, model="arm/none")
    assert prompt.request == Request("messages", sent)
    assert prompt.instructions == ""  # an agent has instructions of its own: none is added
    system, asked, called, result, reminder = prompt.messages
    assert system["parts"] == SYSTEM
    assert asked["parts"] == ASKED["content"]
    (call,) = called["tool_calls"]
    assert (call["function"]["name"], call["cache_control"]) == ("Read", MARK["cache_control"])
    assert result["parts"] == [{"type": "text", "text": "1\timport parser", **MARK}]
    assert result["tool_call_id"] == call["id"]
    assert reminder["content"].startswith("<system-reminder>")
    tools = prompt.options["tools"]
    assert [tool["function"]["name"] for tool in tools] == [*NAMES]
    assert tools[0]["function"]["parameters"] == TOOLS[0]["input_schema"]
    assert prompt.max_tokens == sent["max_tokens"] < coding.config.limits.completion_tokens


@pytest.mark.parametrize("fails", [True, False])
async def test_a_tool_that_failed_is_told_apart(coding: Service, fails: bool) -> None:
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such file", "is_error": fails}
    messages = [*ASK["messages"], used, {"role": "user", "content": [result]}]
    response = await send(coding, ASK | {"messages": messages})
    assert response.status_code == 200, response.text
    assert prompt_of(coding).messages[-1].get("is_error", False) == fails


async def test_a_mark_of_the_request_is_at_its_last_block(coding: Service) -> None:
    parts = [{"type": "text", "text": "which"}, {"type": "text", "text": "river?"}]
    for content in ("river?", parts):
        messages = [{"role": "user", "content": content}]
        response = await send(coding, ASK | {"messages": messages} | MARK)
        assert response.status_code == 200, response.text
        *before, last = prompt_of(coding).messages[-1]["parts"]
        assert last == {"type": "text", "text": "river?", **MARK}
        assert all("cache_control" not in part for part in before)


async def test_passages_are_added_after_the_instructions_of_an_agent(coding: Service) -> None:
    await send(coding, request(model="arm/bm25"))
    prompt = prompt_of(coding)
    assert prompt.request is not None
    assert prompt.request.body["system"] == SYSTEM
    assert "<passages>" in prompt.instructions
    assert "one short sentence" not in prompt.instructions


@pytest.mark.parametrize("prompt", ["short", "ours"])
async def test_an_arm_with_a_prompt_of_its_own_keeps_it(tmp_path: Path, prompt: str) -> None:
    own = {"with_passages": "Ours: {passages}", "without_passages": "Ours."}
    limits = CONFIG["limits"] | {"body_bytes": 1 << 20}
    settings: dict[str, Any] = {"answering": {"prompt": prompt}, "prompts": {"ours": own}, "limits": limits}
    async with Service(tmp_path, llm=ENDPOINT, **settings).running() as service:
        await send(service, request(model="arm/bm25"))
        added = prompt_of(service).instructions
        assert "These passages may help" not in added
        assert "<passages>" in added


async def test_without_tools_or_instructions_the_prompt_of_the_arm_is_kept(service: Service) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    for fields in ({"system": "Be kind."}, {"tools": tools}):
        await send(service, ASK | fields)
        assert "one short sentence" in prompt_of(service).messages[0]["content"]


@pytest.mark.parametrize(
    ("choice", "given"),
    [
        ({"type": "auto"}, {}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False},
        ),
    ],
)
async def test_a_choice_of_tools_is_passed_on(
    coding: Service, choice: dict[str, Any], given: dict[str, Any]
) -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    response = await send(coding, ASK | {"tools": tools, "tool_choice": choice})
    assert response.status_code == 200, response.text
    options = dict(prompt_of(coding).options)
    del options["tools"]
    assert options == given | {"max_completion_tokens": 64}


async def test_the_form_of_an_answer_is_passed_on(coding: Service) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": form, "effort": "max"}}, {"output_format": form}):
        await send(coding, ASK | fields)
        assert prompt_of(coding).options["response_format"]["json_schema"]["schema"] == schema


async def test_images_documents_and_pictures_in_results_are_passed_on(coding: Service) -> None:
    paper = {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}
    note = {"type": "text", "media_type": "text/plain", "data": "Of a note."}
    blocks = [
        {"type": "text", "text": "what is it?"},
        {"type": "image", "source": PIXEL, **MARK},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {"type": "document", "source": paper, "title": "a.pdf"},
        {"type": "document", "source": note, "title": "b.txt"},
    ]
    picture = [{"type": "text", "text": "read"}, {"type": "image", "source": PIXEL}]
    messages = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": picture}]},
    ]
    response = await send(coding, ASK | {"messages": messages})
    assert response.status_code == 200, response.text
    asked, _, result = prompt_of(coding).messages[-3:]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert asked["parts"] == [
        {"type": "text", "text": "what is it?"},
        image | MARK,
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "text", "text": "b.txt\nOf a note."},
    ]
    assert (result["role"], result["content"]) == ("tool", "read")
    assert result["parts"] == [{"type": "text", "text": "read"}, image]


async def test_tokens_of_the_cache_are_told_apart(tmp_path: Path) -> None:
    class Caching(base.ScriptedGenerator):
        async def stream(self, prompt: Prompt) -> AsyncIterator[Chunk]:  # type: ignore[override]
            del prompt
            yield Chunk("Yes.")
            counts = {"prompt_tokens": 700, "completion_tokens": 2, "cached_tokens": 600}
            yield Chunk(finish_reason="stop", cache_written_tokens=90, **counts)  # type: ignore[arg-type]

    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 90,
        "cache_read_input_tokens": 600,
        "output_tokens": 2,
    }
    async with Service(tmp_path, Caching({})).running() as service:
        sent = await send(service, ASK)
        assert sent.json()["usage"] == usage
        told = (await service.client.get(f"/v1/decisions/{sent.headers['x-decision-id']}")).json()
        assert told["tokens_by_model"]["default"] == {
            "prompt": 700,
            "completion": 2,
            "cached": 600,
            "cache_written": 90,
        }
        assert events(await send(service, ASK | {"stream": True}))[-2]["usage"] == usage
        body = {"messages": ASK["messages"]}
        chat = (await service.client.post("/v1/chat/completions", json=body)).json()
        assert chat["usage"]["prompt_tokens"] == 700
        assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 600}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        told = (await service.client.post("/v1/chat/completions", json=body | stream)).text
        assert '"prompt_tokens_details":{"cached_tokens":600}' in told
        responded = (await service.client.post("/v1/responses", json={"input": "which river?"})).json()
        assert responded["usage"]["input_tokens_details"] == {"cached_tokens": 600, "cache_write_tokens": 90}


@pytest.mark.parametrize(
    "model", ["auto", "claude-opus-5", "claude-3-5-haiku-20241022", "anthropic/claude-x", "claude-opus-5[1m]"]
)
async def test_a_model_that_clients_always_name_leaves_the_choice(service: Service, model: str) -> None:
    response = await send(service, ASK | {"model": model})
    assert response.json()["agent"]["pmf"].keys() == {"none", "bm25", "dense"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("model", ["gpt-5", "claudette", "arm/gone", "arm/"])
async def test_another_model_is_not_found(service: Service, model: str, path: str) -> None:
    response = await service.client.post(path, json=ASK | {"model": model})
    refused(response, 404, "not_found_error", "model_not_found", "model")


async def test_tokens_are_counted_without_a_decision(coding: Service) -> None:
    before = await rows(coding)

    async def count(**fields: Any) -> int:
        body = ASK | fields
        response = await coding.client.post("/v1/messages/count_tokens", json=body)
        assert response.status_code == 200, response.text
        return int(response.json()["input_tokens"])

    assert await count() == 3
    assert await count(system="one two") == 3 + 2
    assert await count(messages=[*ASK["messages"], {"role": "assistant", "content": "a b"}]) == 3 + 2
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    called = [
        *ASK["messages"],
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": "b" * 400}}],
        },
    ]
    assert 10 < await count(tools=tools) < 60
    assert await count(messages=called) > 100
    image = {"role": "user", "content": [{"type": "image", "source": PIXEL}]}
    assert await count(messages=[image]) == 2000
    assert await rows(coding) == before


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_tokens": None}, "invalid_request", "max_tokens"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"temperature": 1.5}, "invalid_value", "temperature"),
        ({"top_k": 0}, "invalid_value", "top_k"),
        ({"mcp_servers": [{"name": "s", "url": "https://a.example"}]}, "unsupported_parameter", "tools"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "invalid_value", "tool_choice"),
        ({"messages": [{"role": "user", "content": ""}]}, "invalid_value", "messages"),
        ({"messages": ["q"]}, "invalid_value", "messages.0"),
        ({"agent": {"unknown": 2}}, "invalid_request", "agent.unknown"),
    ],
)
async def test_a_wrong_field_is_named(
    service: Service, fields: dict[str, Any], code: str, param: str
) -> None:
    before = await rows(service)
    refused(await send(service, ASK | fields), 400, "invalid_request_error", code, param)
    assert await rows(service) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 5, "container": "c", "stop_sequences": [""], "of_next_year": {}},
        {"tools": [{"type": "web_search_20250305", "name": "s"}, {"name": "a b"}]},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "user", "content": "q" * 1001}]},
        {"system": [{"type": "hologram"}], "thinking": 3},
    ],
)
async def test_what_the_service_does_not_read_is_no_error(service: Service, fields: dict[str, Any]) -> None:
    response = await send(service, ASK | fields)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(
    "block",
    [
        {"type": "search_result"},
        {"type": "text"},
        {"type": "tool_use", "id": "t", "name": "f"},
        {"type": "server_tool_use", "id": "s", "name": "f"},
        {"type": "tool_result", "tool_use_id": "gone", "content": "x"},
        {"type": "document", "source": {"type": "of next year", "url": 3}},
        {"type": "hologram"},
    ],
)
async def test_a_block_that_is_not_read_is_no_error(
    service: Service, coding: Service, role: str, block: dict[str, Any]
) -> None:
    messages = [*ASK["messages"], {"role": role, "content": [block]}]
    for each in (service, coding):
        response = await send(each, ASK | {"system": "Be brief.", "messages": messages})
        assert response.status_code == 200, response.text
    sent = prompt_of(coding).request
    assert sent is not None
    assert sent.body["messages"] == messages


async def test_blocks_of_reasoning_are_left_out(service: Service) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "Which one?"}]}
    response = await send(service, ASK | {"messages": [*ASK["messages"], said, *ASK["messages"]]})
    assert response.status_code == 200, response.text
    assert prompt_of(service).messages[2] == {"role": "assistant", "content": "Which one?"}


async def test_a_failure_of_a_turn_has_its_decision(service: Service) -> None:
    service.arms.behaviour = dict.fromkeys(service.config.actions, failing)
    response = await send(service, ASK)
    refused(response, 502, "api_error", "arm_failed")
    assert response.json()["error"]["decision_id"] == response.headers["x-decision-id"]
    assert response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("headers", "status", "kind", "code"),
    [
        ({}, 401, "authentication_error", "invalid_api_key"),
        ({"x-api-key": "sk-wrong"}, 401, "authentication_error", "invalid_api_key"),
        (
            {"authorization": "Bearer sk-wrong", "x-api-key": "sk-decides"},
            401,
            "authentication_error",
            "invalid_api_key",
        ),
        ({"x-api-key": "sk-reads"}, 403, "permission_error", "forbidden"),
    ],
)
async def test_a_request_without_its_key_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
    status: int,
    kind: str,
    code: str,
) -> None:
    monkeypatch.setenv("READS", "sk-reads")
    monkeypatch.setenv("DECIDES", "sk-decides")
    configured = [{"env": "READS", "scopes": ["read"]}, {"env": "DECIDES", "scopes": ["decide"]}]
    async with Service(tmp_path, keys=configured).running() as service:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = await service.client.post(path, json=ASK, headers=headers)
            refused(response, status, kind, code)
        for given in ({"x-api-key": "sk-decides"}, {"authorization": "Bearer sk-decides"}):
            assert (await send(service, ASK, **given)).status_code == 200
        elsewhere = await service.client.post(
            "/v1/chat/completions", json={"messages": ASK["messages"]}, headers={"x-api-key": "sk-decides"}
        )
        assert elsewhere.json()["error"]["type"] == "invalid_request_error"  # no door of Anthropic's


async def test_a_request_too_many_says_when_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(tmp_path).running() as service:
        monkeypatch.setattr(service.replica.quota, "_clock", lambda: 0.0)  # one minute
        limits = KeyLimits(rpm_limit=1)
        settings = KeySettings("app", ("decide",), limits=limits)
        _, token = await asyncio.to_thread(keys.create, service.replica.store, settings, 0.0)
        await service.refresh()
        key = {"x-api-key": token}
        assert (await send(service, ASK, **key)).status_code == 200
        response = await send(service, ASK, **key)
        refused(response, 429, "rate_limit_error", "rate_limit_exceeded")
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("version", "status"), [("2023-06-01", 200), ("2030-01-01", 200), ("latest", 400), ("2023-06-01x", 400)]
)
async def test_a_version_is_a_date(service: Service, version: str, status: int) -> None:
    response = await send(service, ASK, **{"anthropic-version": version})
    assert response.status_code == status
    if status == 400:
        refused(response, 400, "invalid_request_error", "invalid_value", "anthropic-version")


async def test_the_same_request_under_a_key_is_answered_once(service: Service) -> None:
    first = await send(service, ASK, **{"idempotency-key": "d-1"})
    again = await send(service, ASK, **{"idempotency-key": "d-1"})
    assert first.json()["content"] == again.json()["content"]
    assert again.headers["x-decision-id"] == "d-1"
    refused(
        await send(service, ASK | {"max_tokens": 63}, **{"idempotency-key": "d-1"}),
        *(409, "invalid_request_error", "idempotency_conflict", "Idempotency-Key"),
    )


@pytest.mark.parametrize(
    ("user_id", "user", "session"),
    [
        ("ada", "ada", None),
        (f"user_1_account__session_{SESSION}", "user_1_account_", SESSION),
        ("a_session_b", "a_session_b", None),
        ('{"device_id": "d", "account_uuid": "", "session_id": "s"}', "d", "s"),
        ('{"session_id": "s"}', None, "s"),
        ('{"session_id": 7}', '{"session_id": 7}', None),
        ("{" * 10, "{" * 10, None),
        ("", None, None),
    ],
)
def test_a_user_id_names_a_user_and_a_session(user_id: str, user: str | None, session: str | None) -> None:
    form = Request("messages", ASK | {"metadata": {"user_id": user_id}}).chat
    assert (form.get("user"), (form.get("metadata") or {}).get("session_id")) == (user, session)


async def test_the_messages_of_an_agent_are_many(coding: Service) -> None:
    turns = [ASKED, {"role": "assistant", "content": "Yes."}] * 1000
    response = await send(coding, request(stream=False) | {"messages": [*turns, ASKED], "tools": TOOLS * 9})
    assert response.status_code == 200, response.text
    logged = await record(coding, response.headers["x-decision-id"], bool)
    assert logged.decision.context.question == PERSON
    assert REMINDER in prompt_of(coding).messages[-1]["content"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_long_conversation_is_read_beside_the_event_loop(
    coding: Service, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in = []

    def noted(body: bytes) -> dict[str, Any]:
        read_in.append(threading.current_thread() is threading.main_thread())
        return read_document(body)

    monkeypatch.setattr(doors, "read_document", noted)
    for length in (100, 40_000):
        body = ASK | {"system": "s" * length}
        assert (await coding.client.post(path, json=body)).status_code == 200
    assert read_in == [True, False]
