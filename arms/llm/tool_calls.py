"""Calls of functions by any model that writes JSON of a schema, whatever its chat template knows of them.

The functions are described to the model in words, and a grammar lets it write either a call or an answer, as
`tool_choice` says. One function is called at a time. What the model wrote becomes a call, or text.

    conversation, tools --described--> plain conversation, schema --model--> JSON --read--> call or text
"""

import json
import math
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from armwise.arms.llm.base import Chunk, Message, Prompt, PromptRefusedError
from armwise.arms.llm.translate.documents import object_at

TOOLS = ("tools", "tool_choice", "parallel_tool_calls")

LONGEST_SCHEMA, LONGEST_PATTERN, MOST_REPEATS = 20_000, 256, 100
"""Characters of a schema and of a pattern, and repetitions in a pattern: larger grammars block an engine."""

_REPEATS = re.compile(r"\{(\d*),?(\d*)\}")


def plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    r"""Return a conversation without roles and fields that chat templates may not know.

    Calls and their results are added to the message before them: many templates want the roles in turn.

    >>> call = {"id": "c", "function": {"name": "now", "arguments": "{}"}}
    >>> plain([
    ...     {"role": "user", "content": "How late is it?"},
    ...     {"role": "assistant", "content": "", "tool_calls": [call]},
    ...     {"role": "tool", "content": "12:00", "tool_call_id": "c"},
    ... ])
    [{'role': 'user', 'content': 'How late is it?\n\nnow({}) returned:\n12:00'}]
    """
    turns: list[dict[str, str]] = []
    called: dict[str, str] = {}
    for message in messages:
        role, content = message["role"], message["content"]
        for made in message.get("tool_calls", ()):
            called[made["id"]] = f"{made['function']['name']}({made['function']['arguments']})"
        if role == "tool":
            call = called.get(message["tool_call_id"])  # a client may have left it out
            role, content = "user", content if call is None else f"{call} returned:\n{content}"
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{content}"
                continue
        if content or not message.get("tool_calls"):
            turns.append({"role": role, "content": content})
    return turns


def describe_tools(prompt: Prompt) -> tuple[list[dict[str, str]], dict[str, Any] | None]:
    """Return the conversation with functions and form described in it, and the schema of what is written.

    The schema is that of `response_format` where no function may be called, and None for plain text.

    Raises:
        PromptRefusedError: A schema is too large.
    """
    messages, answer_form = plain(prompt.messages), answer_schema(prompt.options)
    tools = callable_tools(prompt.options)
    form = "" if answer_form is None else f"The answer is JSON of this schema: {json.dumps(answer_form)}"
    form = "The answer is a JSON object." if answer_form == {"type": "object"} else form
    if not tools:
        return _add_instructions(messages, form), answer_form and _check_schema(answer_form)
    names = "\n".join(json.dumps(tool["function"]) for tool in tools)
    text = f"You can call these functions:\n{names}\n"
    text += 'To call one, write {"name": its name, "arguments": an object}.'
    definitions: dict[str, Any] = {}
    forms = []
    for i, tool in enumerate(tools):
        parameters = tool["function"].get("parameters") or {"type": "object"}
        arguments = _lift(parameters, f"tool{i}", definitions)
        forms.append(_object(name={"const": _name(tool)}, arguments=arguments))
    if prompt.options.get("tool_choice", "auto") == "auto":
        text += ' To answer, write {"answer": the answer}.'
        answer = {"type": "string"} if answer_form is None else _lift(answer_form, "answer", definitions)
        forms.append(_object(answer=answer))
    schema = _check_schema({"anyOf": forms, "$defs": definitions})
    return _add_instructions(messages, f"{text} {form}".strip()), schema


def _add_instructions(messages: list[dict[str, str]], text: str) -> list[dict[str, str]]:
    """Return a conversation whose system message ends with a text."""
    if not text:
        return messages
    if messages and messages[0]["role"] == "system":
        text, messages = f"{messages[0]['content']}\n\n{text}", messages[1:]
    return [{"role": "system", "content": text}, *messages]


def callable_tools(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the functions that the model may call."""
    choice = options.get("tool_choice", "auto")
    tools = [] if choice == "none" else options.get("tools", [])
    if isinstance(choice, str):
        return list(tools)
    return [tool for tool in tools if _name(tool) == choice["function"]["name"]]


def answer_schema(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema of `response_format`; None for text."""
    response_format = options.get("response_format", {"type": "text"})
    if response_format["type"] == "json_schema":
        return dict(response_format["json_schema"].get("schema") or {"type": "object"})
    return {"type": "object"} if response_format["type"] == "json_object" else None


def read(text: str) -> Chunk:
    """Return the call, or the answer, in what a model wrote under the schema; the text itself if it was cut.

    >>> read('{"answer": "Noon."}').text
    'Noon.'
    >>> read('{"name": "now", "arguments": {"zone": "UTC"}}').tool_calls[0]["function"]
    {'name': 'now', 'arguments': '{"zone": "UTC"}'}
    """
    try:
        call = json.loads(text)
    except ValueError:
        call = None
    if not isinstance(call, dict) or not ("answer" in call or {"name", "arguments"} <= call.keys()):
        return Chunk(text)
    if "answer" in call:
        answer = call["answer"]
        return Chunk(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
    return Chunk(tool_calls=({"index": 0, "id": "call-0", "type": "function", "function": function},))


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that is small enough. Raises PromptRefusedError."""
    if (length := len(json.dumps(schema))) > LONGEST_SCHEMA:
        raise PromptRefusedError(
            f"the JSON schema has {length} characters; at most {LONGEST_SCHEMA} are allowed"
        )
    for pattern in _patterns(schema):
        counts = (int(number) for bounds in _REPEATS.findall(pattern) for number in bounds if number)
        if len(pattern) > LONGEST_PATTERN or math.prod(max(1, count) for count in counts) > MOST_REPEATS:
            limit = f"at most {LONGEST_PATTERN} characters and {MOST_REPEATS} repetitions were expected"
            raise PromptRefusedError(f"the pattern {pattern[:40]!r} of the JSON schema is too large: {limit}")
    return schema


def _patterns(value: Any) -> Iterator[str]:
    """Yield every text that may be a pattern of a schema."""
    if isinstance(value, dict):
        if isinstance(pattern := value.get("pattern"), str):
            yield pattern
        keys = object_at(value, "patternProperties")
        parts = [*value.values(), *({"pattern": key} for key in keys)]
    else:
        parts = value if isinstance(value, list) else []
    for part in parts:
        yield from _patterns(part)


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _lift(schema: Mapping[str, Any], name: str, definitions: dict[str, Any]) -> Any:
    """Return a schema that can be a part of another one; its definitions are added to those of that one."""
    text = json.dumps(schema)
    for key in ("$defs", "definitions"):
        text = text.replace(f'"#/{key}/', f'"#/$defs/{name}.')
    document = json.loads(text)
    for key in ("$defs", "definitions"):
        for definition_name, definition in object_at(document, key).items():
            definitions[f"{name}.{definition_name}"] = definition
        document.pop(key, None)
    return document


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def hold_calls(
    options: Mapping[str, Any], chunks: AsyncGenerator[Chunk, None]
) -> AsyncGenerator[Chunk, None]:
    """Return what a model writes: where it may call functions, once it is whole; else piece by piece."""
    return whole_calls(chunks) if callable_tools(options) else chunks


async def whole_calls(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """Yield what a model writes under the schema as a call or as text, once it is whole."""
    text, last = "", Chunk()
    async with aclosing(chunks):
        async for last in chunks:
            text += last.text
    calls = read(text)
    yield calls
    ended = "tool_calls" if calls.tool_calls else last.finish_reason
    yield replace(last, text="", finish_reason=ended, logprobs=())
