"""`/v1/responses` with the official client: texts, events in order, functions, forms of answers."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError
from pydantic import BaseModel

from armwise.arms.llm import Chunk, Prompt, base
from tests.agent.api.conftest import client_of, prompt_of
from tests.agent.asking import refused, rows
from tests.agent.fakes import Service

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
VIENNA = '{"city": "Vienna"}'


def by_tools(prompt: Prompt) -> str | list[tuple[str, str]]:
    """Call the function once for each of two cities, and then answer from the results."""
    last = prompt.messages[-1]
    if last["role"] == "tool":
        return f"It says {last['content']}."
    return [("weather", VIENNA), ("weather", "{}")]


@pytest.fixture
async def calling(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, base.ScriptedGenerator(by_tools)).running() as service:
        yield service


async def test_a_text_is_answered_with_a_text(service: Service) -> None:
    found = await client_of(service).responses.create(
        model="auto", input="which river?", instructions="be brief", metadata={"a": "b"}, store=True
    )
    assert (found.output_text, found.status, found.object) == ("The Danube does.", "completed", "response")
    assert (found.metadata, found.instructions) == ({"a": "b"}, "be brief")
    assert found.usage is not None
    assert found.usage.output_tokens == 3
    assert found.usage.total_tokens == found.usage.input_tokens + 3
    ours: Any = found.model_extra
    assert found.id == f"resp_{ours['agent']['decision_id']}"
    assert prompt_of(service).messages[0]["content"].startswith("be brief\n\n")


async def test_the_events_of_a_text_are_in_the_order_of_openai(service: Service) -> None:
    stream = await client_of(service).responses.create(model="arm/bm25", input="which river?", stream=True)
    seen = [event async for event in stream]
    assert [event.type.removeprefix("response.") for event in seen] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    first, last = seen[0], seen[-1]
    assert first.type == "response.created"
    assert (first.response.status, first.response.output) == ("in_progress", [])
    assert last.type == "response.completed"
    assert (last.response.output_text, last.response.id) == ("The Danube does.", first.response.id)


async def test_a_stream_ends_with_the_reply_that_a_request_without_one_gets(calling: Service) -> None:
    body = {"model": "arm/bm25", "input": "how warm?", "tools": [WEATHER]}
    whole = (await calling.client.post("/v1/responses", json=body)).json()
    streamed = await calling.client.post("/v1/responses", json={**body, "stream": True})
    assert streamed.headers["x-arm"] == "bm25"
    *_, last = (line for line in streamed.text.splitlines() if line.startswith("data: "))
    ended = json.loads(last.removeprefix("data: "))["response"]
    own = {"id", "created_at", "agent", "output"}
    assert {name: whole[name] for name in whole.keys() - own} == {
        name: ended[name] for name in ended.keys() - own
    }
    names = ("type", "name", "arguments", "status")
    for one, other in zip(whole["output"], ended["output"], strict=True):
        assert [one[name] for name in names] == [other[name] for name in names]


@pytest.mark.slow
async def test_the_streaming_helper_and_a_round_of_functions(calling: Service) -> None:
    client = client_of(calling)
    async with client.responses.stream(
        model="auto",
        input="how warm?",
        tools=[WEATHER],  # type: ignore[list-item]
    ) as stream:
        seen = [event.type async for event in stream]
        first = await stream.get_final_response()
    assert seen.count("response.function_call_arguments.done") == 2
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] == [("weather", VIENNA), ("weather", "{}")]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "7 C"} for call in calls]
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "how warm?"}]},
        *(call.model_dump(exclude={"parsed_arguments"}) for call in calls),
        *results,
    ]
    second = await client.responses.create(model="auto", input=items, tools=[WEATHER])  # type: ignore[list-item]
    assert second.output_text == "It says 7 C."
    roles = [message["role"] for message in prompt_of(calling).messages]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    ours: Any = second.model_extra
    assert (ours["agent"]["mode"], f"resp_{ours['agent']['episode_id']}") == ("forced", first.id)


async def test_each_round_of_calls_is_a_message_of_its_own(calling: Service) -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": "weather", "arguments": VIENNA}

    def result(name: str, text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": name, "output": text}

    items = [
        {"role": "user", "content": "how warm?"},
        *(call("a"), call("b"), result("a", "7 C"), result("b", "8 C")),
        *(call("c"), result("c", "9 C")),
        *({"role": "assistant", "content": "Once more."}, call("d"), result("d", "10 C")),
    ]
    body = {"model": "arm/none", "input": items, "tools": [WEATHER]}
    answer = await calling.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    messages = prompt_of(calling).messages[1:]
    assert [(one["role"], len(one.get("tool_calls", ()))) for one in messages] == [
        *(("user", 0), ("assistant", 2), ("tool", 0), ("tool", 0)),
        *(("assistant", 1), ("tool", 0)),
        *(("assistant", 1), ("tool", 0)),
    ]
    assert [one["content"] for one in messages] == [
        *("how warm?", "", "7 C", "8 C"),
        *("", "9 C"),
        *("Once more.", "10 C"),
    ]
    ids = [call["id"] for one in messages for call in one.get("tool_calls", ())]
    assert [one["tool_call_id"] for one in messages if one["role"] == "tool"] == ids
    assert len(set(ids)) == 4


class Sure(base.ScriptedGenerator):
    """Says of each token how probable it was."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(prompt):
            token = {"token": chunk.text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
            yield replace(chunk, logprobs=(token,) if chunk.text else ())


async def test_a_response_has_the_probability_of_each_token(tmp_path: Path) -> None:
    async with Service(tmp_path, Sure({}, default="The Danube does.")).running() as service:
        whole = await client_of(service).responses.create(model="auto", input="which?")
        stream = await client_of(service).responses.create(model="auto", input="which?", stream=True)
        pieces = [event async for event in stream if event.type == "response.output_text.delta"]
    (item,) = whole.output
    assert item.type == "message"
    assert item.content[0].type == "output_text"
    tokens = ["The", " Danube", " does."]
    assert [one.token for one in item.content[0].logprobs or ()] == tokens
    assert [[one.token for one in piece.logprobs] for piece in pieces] == [[token] for token in tokens]


class River(BaseModel):
    """What is asked for."""

    name: str


async def test_an_answer_is_parsed_by_its_schema(tmp_path: Path) -> None:
    async with Service(
        tmp_path, base.ScriptedGenerator({}, default='{"name": "Danube"}')
    ).running() as service:
        found = await client_of(service).responses.parse(model="auto", input="which?", text_format=River)
        assert found.output_parsed == River(name="Danube")
        wanted = prompt_of(service).options["response_format"]
        assert wanted["json_schema"]["schema"]["required"] == ["name"]


async def test_an_answer_that_was_cut_is_incomplete(service: Service) -> None:
    found = await client_of(service).responses.create(model="auto", input="which?", max_output_tokens=2)
    assert (found.status, found.output_text) == ("incomplete", "The Danube")
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"


async def test_a_citation_is_an_annotation_of_its_text(tmp_path: Path) -> None:
    async with Service(tmp_path, base.ScriptedGenerator({}, default="The Danube [1].")).running() as service:
        stream = await client_of(service).responses.create(model="arm/bm25", input="which?", stream=True)
        *_, last = [event async for event in stream]
        assert last.type == "response.completed"
        item = last.response.output[0]
        assert item.type == "message"
        assert item.content[0].type == "output_text"
        (note,) = item.content[0].annotations
        assert note.type == "url_citation"
        assert item.content[0].text[note.start_index : note.end_index] == "[1]"
        assert (note.title, note.url) == ("title 1", "urn:armwise:stdlib:bm25-1")


@pytest.mark.parametrize(
    ("code", "param", "fields"),
    [
        ("unsupported_parameter", "previous_response_id", {"previous_response_id": "resp_1"}),
        ("unsupported_parameter", "conversation", {"conversation": "conv_1"}),
        ("unsupported_parameter", "prompt", {"prompt": {"id": "pmpt_1"}}),
        ("unsupported_parameter", "logprobs", {"include": ["message.output_text.logprobs"]}),
        ("unsupported_parameter", "tools", {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}),
        ("invalid_value", "tool_choice", {"tool_choice": "required"}),
        ("invalid_value", "input.0", {"input": ["x"]}),
        ("unsupported_parameter", "input", {"input": [{"type": "item_reference", "id": "x"}]}),
        (
            "unsupported_parameter",
            "input",
            {"instructions": "i", "input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        ),
        (
            "unsupported_parameter",
            "input",
            {
                "instructions": "i",
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}],
            },
        ),
        ("invalid_value", "max_output_tokens", {"max_output_tokens": 200_000}),
        ("invalid_value", "agent.context", {"agent": {"context": {str(i): i for i in range(40)}}}),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_own_name(
    service: Service, code: str, param: str, fields: dict[str, Any]
) -> None:
    before = await rows(service)
    response = await service.client.post("/v1/responses", json={"input": "which?", **fields})
    refused(response, 400, code, param)
    assert await rows(service) == before
    with pytest.raises(BadRequestError):
        await client_of(service).responses.create(model="auto", input="x", extra_body=fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "assistant", "content": "x"}]},
        {"input": [{"role": "user", "content": "x"}, {"content": "x"}, {"type": "of next year"}]},
        {"include": ["reasoning.encrypted_content"], "store": False, "of_next_year": [{}]},
    ],
)
async def test_what_the_service_does_not_read_is_no_error(service: Service, fields: dict[str, Any]) -> None:
    response = await service.client.post("/v1/responses", json={"input": "which?", **fields})
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "completed"
