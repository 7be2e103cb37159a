"""Clients of three protocols in a loop of tools, before a model that wants its reasoning back.

Each asks for an answer in a shape, calls a tool three times, whole and streamed in turn, and gets a text.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.clients.openai.conftest import armwise
from tests.clients.openai.provider import ASIDE, DONE, ENGINES, PROTOCOLS, Call, Session, provider

NODE = Path(__file__).parent / "node"

SCRIPT = [Call("look", {"path": path}) for path in ("a.py", "b.py", "ö.py")]

PROMPT = "Look at the files."

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


class Titled(BaseModel):
    """The shape that an answer is asked for."""

    title: str


Served = dict[str, tuple[str, Session]]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[str, Session]]]:
    """Start a service before a model of a protocol where it is first asked for; give its address."""
    served: Served = {}
    with ExitStack() as stack:

        def service(protocol: str) -> tuple[str, Session]:
            if protocol not in served:
                session = Session([])
                model = stack.enter_context(provider(session))
                llm = {"engine": ENGINES[protocol], "base_url": f"{model}/v1", "model": "stand-in"}
                folder, args = tmp_path_factory.mktemp(protocol), {"arms": {"none": {"kind": "none"}}}
                url = stack.enter_context(armwise(folder, llm, "--single-process", args=args))
                served[protocol] = url, session
            url, session = served[protocol]
            session.begin(SCRIPT)
            return url, session

        yield service


def finished(session: Session) -> bool:
    """Whether the calls were made and nothing came back changed; raise AssertionError with the fault."""
    assert session.faults == []
    return [turn.arguments for turn in session.said] == [call.arguments for call in SCRIPT]


def chat(url: str) -> tuple[str, str]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    shaped = client.chat.completions.parse(model="auto", messages=messages, response_format=Titled)
    function = {"name": "look", "parameters": PARAMETERS, "strict": True}
    body: dict[str, Any] = {"model": "auto", "tools": [{"type": "function", "function": function}]}
    for turn in range(len(SCRIPT) + 1):
        if turn % 2:
            with client.chat.completions.stream(messages=messages, **body) as stream:
                answer: Any = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(messages=messages, **body)
        message = answer.choices[0].message
        for call in message.tool_calls or ():
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "seen"})
    titled = shaped.choices[0].message.parsed
    assert titled is not None
    return titled.title, message.content


def responses(url: str) -> tuple[str, str]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    shaped = client.responses.parse(model="auto", input=PROMPT, text_format=Titled)
    history: list[Any] = [{"role": "user", "content": PROMPT}]
    body: dict[str, Any] = {
        "model": "auto",
        "tools": [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": True}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    for turn in range(len(SCRIPT) + 1):
        if turn % 2:
            with client.responses.stream(input=history, **body) as stream:
                answer: Any = stream.get_final_response()
        else:
            answer = client.responses.create(input=history, **body)
        for item in answer.output:
            history.append(item.model_dump(exclude={"parsed_arguments"}, exclude_none=True))
            if item.type == "function_call":
                history.append({"type": "function_call_output", "call_id": item.call_id, "output": "seen"})
    assert shaped.output_parsed is not None
    return shaped.output_parsed.title, answer.output_text


def messages(url: str) -> tuple[str, str]:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    history: list[Any] = [{"role": "user", "content": PROMPT}]
    shared: dict[str, Any] = {"model": "auto", "max_tokens": 4096}
    shaped = client.messages.parse(messages=history, output_format=Titled, **shared)
    tools = [{"name": "look", "description": "Look at a file.", "input_schema": PARAMETERS}]
    shared |= {"tools": tools, "thinking": {"type": "adaptive"}}
    for turn in range(len(SCRIPT) + 1):
        if turn % 2:
            with client.messages.stream(messages=history, **shared) as stream:
                answer: Any = stream.get_final_message()
        else:
            answer = client.messages.create(messages=history, **shared)
        uses = [block for block in answer.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "seen"} for use in uses]
        history += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    return shaped.parsed_output.title, answer.content[0].text


PYTHON = {"chat": chat, "messages": messages, "responses": responses}


def of_node(name: str, url: str) -> tuple[str, str]:
    """Run a client of Node; return the title and the text that it got."""
    command = ["node", "loops.mjs", name, url]
    ran = subprocess.run(command, cwd=NODE, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    return got["title"], got["text"]


@pytest.mark.parametrize("protocol", PYTHON)
def test_a_client_of_python_uses_tools(protocol: str, services: Callable[..., tuple[str, Session]]) -> None:
    url, session = services(protocol)
    assert PYTHON[protocol](url) == (ASIDE, DONE)
    assert finished(session)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_of_node_uses_tools(protocol: str, services: Callable[..., tuple[str, Session]]) -> None:
    url, session = services(protocol)
    assert of_node(protocol, url) == (ASIDE, DONE)
    assert finished(session)


@pytest.mark.parametrize("how", ["", "-whole"], ids=["streamed", "whole"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_vercels_sdk_uses_tools(
    protocol: str, how: str, services: Callable[..., tuple[str, Session]]
) -> None:
    url, session = services(protocol)
    assert of_node(f"vercel-{protocol}{how}", url) == (ASIDE, DONE)
    assert finished(session)
