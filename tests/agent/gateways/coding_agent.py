"""Requests in the structure of a coding agent: marked blocks, many tools, reminders, rounds of tools."""

from typing import Any

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

ASKED = {
    "role": "user",
    "content": [
        {"type": "text", "text": REMINDER},
        {"type": "text", "text": PERSON, **MARK},
    ],
}


def request(*later: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the body of a request; `later` are the messages after the question."""
    return {
        "model": "claude-opus-5[1m]",
        "max_tokens": 32_000,
        "temperature": 1,
        "system": SYSTEM,
        "messages": [ASKED, *later],
        "tools": TOOLS,
        "metadata": {"user_id": f"user_{'ab' * 32}_account__session_{SESSION}"},
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
