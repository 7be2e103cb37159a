"""Anthropic's clients, OpenAI's client and a coding agent's requests, before models of both protocols.

    scripted   the model is scripted: it calls the tool that it is offered, and answers from its result
    behind     the model is that service, asked by Anthropic's protocol

Each client asks both, so that a request of either protocol reaches a model of the other one.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.agent.coding_agent import PERSON, REMINDER, request, results
from tests.clients.openai.conftest import armwise

NODE = Path(__file__).parent / "node"

QUESTION = "How warm is it in Oslo?"
ANSWER = "It is 7 degrees."
CITY = {"city": "Oslo"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": SCHEMA,
    "cache_control": {"type": "ephemeral"},
}
SCRIPTED = {
    "engine": "scripted",
    "default": ANSWER,
    "tool_calls": {
        QUESTION: [{"name": "weather", "arguments": CITY}],
        f"{REMINDER}\n{PERSON}": [{"name": "Read", "arguments": {"file_path": "/a.py"}}],
    },
}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose model calls a tool."""
    with armwise(tmp_path_factory.mktemp("scripted"), SCRIPTED, "--single-process") as url:
        yield url


@pytest.fixture(scope="module")
def behind(scripted: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose model is that one, by Anthropic's protocol."""
    llm = {"engine": "anthropic", "base_url": f"{scripted}/v1", "model": "arm/none", "inputs": []}
    with armwise(tmp_path_factory.mktemp("behind"), llm, "--single-process") as url:
        yield url


@pytest.fixture(params=["scripted", "behind"])
def url(request: pytest.FixtureRequest) -> str:
    """Each of them."""
    return str(request.getfixturevalue(request.param))


def client_at(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def test_the_client_of_python_chats_streams_and_uses_a_tool(url: str) -> None:
    client = client_at(url)
    model, messages = "claude-opus-5", [{"role": "user", "content": QUESTION}]
    plain = client.messages.create(
        model=model, max_tokens=64, messages=[{"role": "user", "content": "Hello"}]
    )
    assert plain.content[0].text == ANSWER
    assert plain.stop_reason == "end_turn"
    assert plain.usage.output_tokens > 0
    with client.messages.stream(model=model, max_tokens=64, messages=messages, tools=[WEATHER]) as stream:
        called = stream.get_final_message()
    (use,) = called.content
    assert (use.type, use.name, use.input, called.stop_reason) == ("tool_use", "weather", CITY, "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7 degrees"}
    later = [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(
        model=model, max_tokens=64, messages=[*messages, *later], tools=[WEATHER]
    ) as stream:
        assert "".join(stream.text_stream) == ANSWER
        told = stream.get_final_message()
    assert told.model == called.model  # the round keeps its arm
    assert told.usage.input_tokens > 0


def test_the_client_of_python_reads_headers_counts_and_errors(url: str) -> None:
    client = client_at(url)
    body: dict[str, Any] = {"model": "claude-opus-5", "messages": [{"role": "user", "content": "Hello"}]}
    raw = client.messages.with_raw_response.create(max_tokens=64, **body)
    message = raw.parse()
    assert message.id == f"msg_{raw.headers['x-decision-id']}"
    assert message.agent["decision_id"] == raw.headers["x-decision-id"]
    assert message._request_id == raw.headers["x-request-id"]  # noqa: SLF001
    assert client.messages.count_tokens(**body).input_tokens > 0
    with pytest.raises(anthropic.NotFoundError, match="'auto' or 'arm/<name>' was expected"):
        client.messages.create(max_tokens=64, **body | {"model": "gpt-5"})
    picture = [{"type": "image", "source": PIXEL}, {"type": "text", "text": "What is it?"}]
    with pytest.raises(anthropic.BadRequestError, match="reads no images"):
        client.messages.create(max_tokens=64, **body | {"messages": [{"role": "user", "content": picture}]})


def test_a_coding_agent_works_through_its_tools(url: str) -> None:
    client = client_at(url)
    first = read(client, request())
    (use,) = first.content
    assert (use.name, use.input, first.stop_reason) == ("Read", {"file_path": "/a.py"}, "tool_use")
    later = results([block.model_dump(include={"type", "id", "name", "input"}) for block in first.content])
    second = read(client, request(*later))
    assert second.content[0].text == ANSWER
    assert second.model == first.model
    assert client.beta.messages.count_tokens(**counted(request(*later))).input_tokens > 1000


def read(client: anthropic.Anthropic, body: dict[str, Any]) -> Any:
    """Return the message of a stream that is asked for as an agent does, with the client's beta methods."""
    named = {name: value for name, value in body.items() if name not in ("stream", "temperature")}
    sampled = {"temperature": body["temperature"]}
    with client.beta.messages.stream(**named, extra_body=sampled) as stream:
        return stream.get_final_message()


def counted(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("model", "messages", "system", "tools")}


def test_openais_client_uses_a_tool_of_either_model(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    function = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
    tools: list[Any] = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model="auto", messages=messages, tools=tools)
    (call,) = first.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == CITY  # type: ignore[union-attr]
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    messages += [first.choices[0].message.model_dump(exclude_none=True), result]
    stream = client.chat.completions.create(model="auto", messages=messages, tools=tools, stream=True)
    words = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(words) == ANSWER


def test_the_client_of_node_streams_and_uses_a_tool(url: str) -> None:
    ran = subprocess.run(
        ["node", "anthropic.mjs", url], cwd=NODE, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    assert got["input"] == got["same"] == CITY
    assert got["stop"] == ["tool_use", "end_turn"]
    assert got["deltas"] == got["text"] == ANSWER
    assert got["kept"][0] == got["kept"][1]
    assert got["id"] == f"msg_{got['decision']}"
    assert got["request"]
    assert got["counted"] > 0
    assert got["missing"] == [True, "not_found_error", 404]
