"""The provider of the agents' sessions is strict: it refuses what comes back changed, and says what."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.clients.openai.provider import DONE, PATHS, PROTOCOLS, Call, Session, fill, offered, provider

SCRIPT = [Call("look", {"path": "a"}), Call("look", {"path": "b"})]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
PATH = {protocol: path for path, protocol in PATHS.items()}

Messages = list[dict[str, Any]]


def request(protocol: str, history: Messages) -> dict[str, Any]:
    """Return a request with a history of the protocol."""
    asked = {"role": "user", "content": "Look"}
    match protocol:
        case "chat":
            function = {"name": "look", "parameters": SCHEMA}
            return {"messages": [asked, *history], "tools": [{"type": "function", "function": function}]}
        case "messages":
            tool = {"name": "look", "input_schema": SCHEMA}
            return {"system": "Work.", "messages": [asked, *history], "tools": [tool]}
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    return {"instructions": "Work.", "input": [asked, *history], "tools": [tool]}


def returned(protocol: str, answer: dict[str, Any]) -> Messages:
    """Return what goes into the history after an answer: the call and its result."""
    match protocol:
        case "chat":
            message = answer["choices"][0]["message"]
            made = message["tool_calls"][0]["id"]
            return [message, {"role": "tool", "tool_call_id": made, "content": "seen"}]
        case "messages":
            result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "seen"}
            return [
                {"role": "assistant", "content": answer["content"]},
                {"role": "user", "content": [result]},
            ]
    made = answer["output"][-1]["call_id"]
    return [*answer["output"], {"type": "function_call_output", "call_id": made, "output": "seen"}]


def without_reasoning(body: dict[str, Any]) -> None:
    for message in body.get("messages", ()):
        message.pop("reasoning_content", None)
        if message["role"] == "assistant" and isinstance(message["content"], list):
            del message["content"][0]
    if "input" in body:
        body["input"] = [item for item in body["input"] if item.get("type") != "reasoning"]


def with_another_signature(body: dict[str, Any]) -> None:
    changed = json.dumps(body)
    for name in ("reasoning_content", "signature", "encrypted_content"):
        changed = changed.replace(f'"{name}": "', f'"{name}": "x')
    body.update(json.loads(changed))


def with_another_id(body: dict[str, Any]) -> None:
    changed = json.dumps(body)
    for name in ("id", "call_id", "tool_call_id", "tool_use_id"):
        changed = changed.replace(f'"{name}": "', f'"{name}": "x')
    body.update(json.loads(changed))


def with_other_arguments(body: dict[str, Any]) -> None:
    text = json.dumps(body)
    body.update(json.loads(text.replace(r"\"a\"", r"\"z\"").replace('"path": "a"', '"path": "z"')))


def without_a_result(body: dict[str, Any]) -> None:
    (body["messages"] if "messages" in body else body["input"]).pop()


def with_another_tool(body: dict[str, Any]) -> None:
    body["tools"] *= 2


CHANGES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (without_reasoning, "the reasoning of call"),
    (with_another_signature, "the reasoning of call"),
    (with_another_id, "was never made"),
    (with_other_arguments, r"was look .*, not look"),
    (without_a_result, "do not answer calls"),
    (with_another_tool, "changed within the session"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_session_that_comes_back_whole_ends_with_its_text(protocol: str) -> None:
    session = Session(list(SCRIPT))
    history: Messages = []
    with provider(session) as url:
        for _ in SCRIPT:
            answer = httpx.post(url + PATH[protocol], json=request(protocol, history)).json()
            history += returned(protocol, answer)
        assert DONE in httpx.post(url + PATH[protocol], json=request(protocol, history)).text
    assert session.faults == []
    assert [turn.arguments for turn in session.said] == [call.arguments for call in SCRIPT]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("change", "fault"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_conversation_that_comes_back_changed_is_refused(
    protocol: str, change: Callable[[dict[str, Any]], None], fault: str
) -> None:
    session = Session(list(SCRIPT))
    with provider(session) as url:
        answer = httpx.post(url + PATH[protocol], json=request(protocol, [])).json()
        body = request(protocol, returned(protocol, answer))
        change(body)
        refused = httpx.post(url + PATH[protocol], json=body)
    assert refused.status_code == 400
    assert re.search(fault, session.faults[0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_reasoning_need_not_come_back_it_may_be_left_out(protocol: str) -> None:
    session = Session(list(SCRIPT), keeps_reasoning=False)
    with provider(session) as url:
        answer = httpx.post(url + PATH[protocol], json=request(protocol, [])).json()
        body = request(protocol, returned(protocol, answer))
        without_reasoning(body)
        assert httpx.post(url + PATH[protocol], json=body).status_code == 200


def test_a_tool_may_be_offered_with_its_namespace() -> None:
    call = Call("exec", "text(1)")
    assert offered(call, {"look": None, "functions__exec": None}) == "functions__exec"
    assert offered(call, {"exec": None}) == "exec"
    assert offered(call, {"exec_command": None}) is None


def test_instructions_may_follow_later_but_not_change() -> None:
    later = {"role": "system", "content": "Be brief."}
    for protocol in ("chat", "responses"):
        read = PROTOCOLS[protocol][0]
        first, added = read(request(protocol, [])), read(request(protocol, [later]))
        assert first.fixed == added.fixed
        changed = request(protocol, [])
        (changed["messages"] if protocol == "chat" else changed["input"]).insert(0, later)
        assert read(changed).fixed != first.fixed


def test_a_text_for_a_function_is_its_only_argument() -> None:
    call = Call("apply_patch", "*** Begin Patch")
    assert fill(call, {"properties": {"input": {}}}) == {"input": "*** Begin Patch"}
    assert fill(call, None) == "*** Begin Patch"
