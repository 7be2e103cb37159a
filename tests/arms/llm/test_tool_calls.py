"""The grammar that lets any model call functions: what may be written, and what it is read as."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given

from armwise.arms.llm.base import Chunk, Message, Prompt, PromptRefusedError
from armwise.arms.llm.protocols.chat import read_messages, read_options
from armwise.arms.llm.tool_calls import describe_tools, plain, read, whole_calls
from tests.arms.llm.translate.test_messages import like

METRES = {"$ref": "#/$defs/Metres"}


def tool(name: str, kind: str) -> dict[str, Any]:
    """Return a function of one argument, whose type has the same name in every function."""
    parameters = {"type": "object", "properties": {"of": METRES}, "$defs": {"Metres": {"type": kind}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("measure", "integer"), tool("ask", "string")]
QUESTION: Message = {"role": "user", "content": "How tall?"}


def forms(**options: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return what the model is told, the names that it may write, and the definitions of the schema."""
    messages, schema = describe_tools(Prompt((QUESTION,), options={"tools": TOOLS, **options}))
    assert schema is not None
    properties = [form["properties"] for form in schema["anyOf"]]
    names = [found["name"]["const"] if "name" in found else "answer" for found in properties]
    return messages[0]["content"], names, schema["$defs"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["measure", "ask", "answer"]),
        ("required", ["measure", "ask"]),
        ({"type": "function", "function": {"name": "ask"}}, ["ask"]),
    ],
)
def test_a_model_may_write_what_the_choice_lets_it(choice: Any, names: list[str]) -> None:
    told, found, _ = forms(tool_choice=choice)
    assert found == names
    assert ('"answer"' in told) == ("answer" in names)
    assert ('"name": "measure"' in told) == ("measure" in names)


def test_without_a_function_the_conversation_is_left_as_it_is() -> None:
    assert describe_tools(Prompt((QUESTION,), options={"tools": TOOLS, "tool_choice": "none"})) == (
        [QUESTION],
        None,
    )
    assert describe_tools(Prompt((QUESTION,))) == ([QUESTION], None)


def test_definitions_of_the_same_name_do_not_meet() -> None:
    wanted = {
        "json_schema": {"schema": {**METRES, "$defs": {"Metres": {"type": "boolean"}}}},
        "type": "json_schema",
    }
    _, _, definitions = forms(response_format=wanted)
    assert sorted(one["type"] for one in definitions.values()) == ["boolean", "integer", "string"]
    _, schema = describe_tools(Prompt((QUESTION,), options={"tools": TOOLS, "response_format": wanted}))
    assert schema is not None
    first, second, answer = (form["properties"] for form in schema["anyOf"])
    for part, kind in (
        (first["arguments"]["properties"]["of"], "integer"),
        (second["arguments"]["properties"]["of"], "string"),
        (answer["answer"], "boolean"),
    ):
        assert definitions[part["$ref"].removeprefix("#/$defs/")] == {"type": kind}


def test_definitions_under_the_older_name_are_lifted_too() -> None:
    parameters = {"type": "object", "properties": {"of": {"$ref": "#/definitions/Metres"}}}
    function = {
        "name": "measure",
        "parameters": {
            **parameters,
            "definitions": {"Metres": {"type": "number"}, "Feet": {"type": "integer"}},
        },
    }
    prompt = Prompt((QUESTION,), options={"tools": [{"type": "function", "function": function}]})
    _, schema = describe_tools(prompt)
    assert schema is not None
    arguments = schema["anyOf"][0]["properties"]["arguments"]
    assert arguments == {"type": "object", "properties": {"of": {"$ref": "#/$defs/tool0.Metres"}}}
    assert schema["$defs"] == {"tool0.Metres": {"type": "number"}, "tool0.Feet": {"type": "integer"}}


def test_a_model_is_told_the_schema_of_its_answer() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for wanted, told, kept in (
        ({"type": "json_schema", "json_schema": {"schema": schema}}, json.dumps(schema), schema),
        ({"type": "json_schema", "json_schema": {"name": "any"}}, "JSON object", {"type": "object"}),
    ):
        messages, found = describe_tools(Prompt((QUESTION,), options={"response_format": wanted}))
        assert told in messages[0]["content"]
        assert found == kept


def refused(schema: dict[str, Any]) -> bool:
    """Return whether a schema of an answer is too large."""
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    try:
        assert describe_tools(Prompt((QUESTION,), options={"response_format": wanted}))[1] == schema
    except PromptRefusedError:
        return True
    return False


def test_a_schema_of_20000_characters_is_the_largest() -> None:
    shell = len(json.dumps({"type": "object", "title": ""}))
    sizes = (20_000 - shell, 20_001 - shell)
    assert [refused({"type": "object", "title": "x" * n}) for n in sizes] == [False, True]


@pytest.mark.parametrize(
    ("fits", "larger"), [("x" * 256, "x" * 257), ("x{100}", "x{101}"), ("(x{5}){20}", "(x{5}){21}")]
)
def test_a_pattern_has_a_bound(fits: str, larger: str) -> None:
    def schemas(pattern: str) -> list[dict[str, Any]]:
        text = {"type": "string", "pattern": pattern}
        return [
            text,
            {"type": "array", "items": [{"type": "string"}, text]},
            {"type": "object", "patternProperties": {"a": {"type": "string"}, pattern: {"type": "string"}}},
        ]

    assert [refused(schema) for schema in schemas(fits)] == [False] * 3
    assert [refused(schema) for schema in schemas(larger)] == [True] * 3


def test_the_roles_of_a_conversation_with_calls_take_turns() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    messages: list[Message] = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "a"},
        {"role": "tool", "content": "2", "tool_call_id": "b"},
        {"role": "assistant", "content": "3"},
    ]
    (asked, answered) = plain(messages)
    assert asked["content"] == "How tall?\n\na({}) returned:\n1\n\nb({}) returned:\n2"
    assert answered == {"role": "assistant", "content": "3"}


@pytest.mark.parametrize("text", ['{"name": "measure", "argu', "[]", "3", "null", '{"other": 1}', ""])
def test_what_was_cut_or_is_no_call_stays_a_text(text: str) -> None:
    assert read(text) == Chunk(text)


async def test_an_answer_of_a_schema_is_written_as_json_again() -> None:
    async def written() -> Any:
        for part in ('{"answer": {"heig', 'ht": 333}}'):
            yield Chunk(part)
        yield Chunk(finish_reason="stop", prompt_tokens=5, completion_tokens=2, logprobs=({"token": "}"},))

    answer, last = [chunk async for chunk in whole_calls(written())]
    assert json.loads(answer.text) == {"height": 333}
    assert last == Chunk(finish_reason="stop", prompt_tokens=5, completion_tokens=2)


def test_a_call_and_an_answer_keep_letters_of_every_language() -> None:
    (call,) = read('{"name": "find", "arguments": {"town": "Z\\u00fcrich"}}').tool_calls
    assert call["function"] == {"name": "find", "arguments": '{"town": "Z\u00fcrich"}'}
    assert read('{"answer": {"town": "Z\\u00fcrich"}}').text == '{"town": "Z\u00fcrich"}'


SCHEMA = {"type": "object", "$defs": {"a": {"pattern": "x{2}"}}, "patternProperties": {"^y": {}}}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "How late is it?"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
    ],
    "tools": [{"type": "function", "function": {"name": "now", "parameters": SCHEMA}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
}


@given(like(CHAT).filter(lambda value: isinstance(value, dict)))
@example(CHAT | {"messages": CHAT["messages"][::2]})
@example(CHAT | {"tools": [], "response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}})
@example({"tools": [{"function": {"name": "f", "parameters": {"$defs": [1], "patternProperties": 1}}}]})
def test_no_request_is_too_odd_to_describe(chat: dict[str, Any]) -> None:
    with suppress(PromptRefusedError):
        describe_tools(Prompt(read_messages(chat), options=read_options(chat)))


def test_a_result_without_its_call_is_a_text_of_the_user() -> None:
    result = Message(role="tool", content="12:00", tool_call_id="c")
    assert plain([Message(role="user", content="Late?"), result]) == [
        {"role": "user", "content": "Late?\n\n12:00"}
    ]
