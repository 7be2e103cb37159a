"""Requests in the structure of a coding agent: marked blocks, many tools, reminders, rounds of tools."""

import json
from typing import Any

import httpx

MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}

PERSON = "why does the test of the parser fail?"

REMINDER = (
    "<system-reminder>\nAs you answer, you can use the following context:\n# claudeMd\nUse tabs.\n"
    "</system-reminder>"
)

NAMES = (
    *("Task", "Bash", "Glob", "Grep", "LS", "ExitPlanMode", "Read", "Edit", "MultiEdit", "Write"),
    *("NotebookEdit", "WebFetch", "TodoWrite", "WebSearch", "mcp__a_server_of_a_team__" + "x" * 60),
)

SESSION = "0a1b2c3d-1111-4222-8333-444455556666"


def tool(name: str) -> dict[str, Any]:
    """Return a tool as an agent describes it."""
    path = {"type": "string", "description": "The absolute path."}
    return {
        "name": name,
        "description": f"{name}: use it when it helps.\n" + "It has rules. " * 20,
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"file_path": path, "limit": {"type": "number"}},
            "required": ["file_path"],
            "additionalProperties": False,
        },
    }


TOOLS = [*map(tool, NAMES[:-1]), tool(NAMES[-1]) | MARK]

SYSTEM = [
    {"type": "text", "text": "You are a coding agent, the command line of a company.", **MARK},
    {"type": "text", "text": "# Tone\nBe concise.\n" + "Here is a rule of the agent. " * 50, **MARK},
]


def ask(question: str) -> dict[str, Any]:
    """Return the message in which a person asks a question."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": REMINDER}, {"type": "text", "text": question, **MARK}],
    }


ASKED = ask(PERSON)


def request(
    *later: dict[str, Any], asked: dict[str, Any] = ASKED, session: str = SESSION, **fields: Any
) -> dict[str, Any]:
    """Return the body of a request.

    Args:
        later: The messages after the question.
        asked: The message with the question.
        session: The session that the agent names.
        fields: Other fields of the body.
    """
    return {
        "model": "claude-opus-5[1m]",
        "max_tokens": 32_000,
        "temperature": 1,
        "system": SYSTEM,
        "messages": [asked, *later],
        "tools": TOOLS,
        "metadata": {"user_id": f"user_{'ab' * 32}_account__session_{session}"},
        "stream": True,
    } | fields


def results(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that follow an answer: what it said, and the results of the tools it used."""
    done = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "1\timport parser", "is_error": False}
        for block in content
        if block["type"] == "tool_use"
    ]
    done[-1] |= MARK
    reminder = {"type": "text", "text": "<system-reminder>\nThe todo list is empty.\n</system-reminder>"}
    return [{"role": "assistant", "content": content}, {"role": "user", "content": [*done, reminder]}]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names are those of their data."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, rest = response.text.split("\n\n")
    assert rest == ""
    read = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        read.append(event)
    return read


def put_together(read: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of a stream, checked to be opened, written and closed one after the other."""
    blocks: list[dict[str, Any]] = []
    written, is_open = "", False
    for event in read:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open, written = True, ""
                blocks.append(event["content_block"])
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                written += delta["text"] if delta["type"] == "text_delta" else delta["partial_json"]
            case "content_block_stop":
                assert is_open
                is_open = False
                last = blocks[-1]
                blocks[-1] = last | (
                    {"text": written} if last["type"] == "text" else {"input": json.loads(written)}
                )
    assert not is_open
    return blocks
