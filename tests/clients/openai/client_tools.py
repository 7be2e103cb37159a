"""Tools through the libraries that people use, and through a LiteLLM proxy before and behind Armwise.

The language model is scripted: it calls the tool that it is offered, and repeats what the tool returned.
"""

import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import litellm
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.openai.conftest import armwise, free_port, started

KEY = f"sk-{secrets.token_hex(24)}"
"""Of the LiteLLM proxy."""

QUESTION = "How warm is it in Oslo?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCRIPTED = {
    "engine": "scripted",
    "default": "It is 7 degrees.",
    "tool_calls": {QUESTION: [{"name": "weather", "arguments": {"city": "Oslo"}}]},
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose model calls a tool."""
    with armwise(tmp_path_factory.mktemp("scripted"), SCRIPTED) as url:
        yield url


@pytest.fixture(scope="module")
def litellm_proxy(scripted: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A LiteLLM proxy in front of that service."""
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    entry = {"model": "openai/auto", "api_base": f"{scripted}/v1", "api_key": "none"}
    document = {"model_list": [{"model_name": "behind", "litellm_params": entry}]}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps(document))  # JSON is YAML
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with started(command, f"http://127.0.0.1:{port}/health/liveliness", folder, **environment):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def behind_litellm(litellm_proxy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose language model is that proxy."""
    llm = {
        "engine": "openai",
        "base_url": f"{litellm_proxy}/v1",
        "model": "behind",
        "api_key_env": "PROXY_KEY",
    }
    with armwise(tmp_path_factory.mktemp("behind"), llm, PROXY_KEY=KEY) as url:
        yield url


def test_openai_calls_a_tool_and_the_round_keeps_its_arm(scripted: str) -> None:
    converse(openai.OpenAI(base_url=f"{scripted}/v1", api_key="none", max_retries=0), "auto")


def test_a_litellm_proxy_in_front_passes_chat_tools_and_streams(litellm_proxy: str) -> None:
    converse(openai.OpenAI(base_url=f"{litellm_proxy}/v1", api_key=KEY, max_retries=0), "behind")


def test_a_litellm_proxy_behind_passes_chat_tools_and_streams(behind_litellm: str) -> None:
    converse(openai.OpenAI(base_url=f"{behind_litellm}/v1", api_key="none", max_retries=0), "auto")


def converse(client: openai.OpenAI, model: str) -> None:
    """Chat, call a tool, return its result, and do the same in a stream."""
    plain = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
    assert plain.choices[0].message.content == "It is 7 degrees."
    messages: list = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
    (call,) = first.choices[0].message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    messages += [first.choices[0].message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "It is 7 degrees."
    assert second.model == first.model
    stream = client.chat.completions.create(model=model, messages=messages[:1], tools=[WEATHER], stream=True)
    name, arguments, reasons = "", "", []
    for chunk in stream:
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for part in choice.delta.tool_calls or ():
                name += part.function.name or ""
                arguments += part.function.arguments or ""
    assert (name, json.loads(arguments)) == ("weather", {"city": "Oslo"})
    assert "tool_calls" in reasons
    told = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], stream=True)
    words = [choice.delta.content or "" for chunk in told for choice in chunk.choices]
    assert "".join(words) == "It is 7 degrees."


def test_litellm_calls_a_tool(scripted: str) -> None:
    answer = litellm.completion(
        model="openai/auto",
        api_base=f"{scripted}/v1",
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        tools=[WEATHER],
        tool_choice="auto",
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


def test_langchain_calls_a_tool(scripted: str) -> None:
    @tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"7 degrees in {city}"

    model = ChatOpenAI(model="auto", base_url=f"{scripted}/v1", api_key="none").bind_tools([weather])
    asked = model.invoke(QUESTION)
    (call,) = asked.tool_calls
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([HumanMessage(QUESTION), asked, result]).content == "It is 7 degrees."


def test_pydantic_ai_runs_a_tool(scripted: str) -> None:
    model = OpenAIChatModel("auto", provider=OpenAIProvider(base_url=f"{scripted}/v1", api_key="none"))
    agent, asked = Agent(model), []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "7 degrees"

    assert agent.run_sync(QUESTION).output == "It is 7 degrees."
    assert asked == ["Oslo"]
