"""OpenAI's responses to and from chat completions."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.arms.llm.translate.responses import ToolName, call_item, find_tools, from_chat, to_chat

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(
    [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "shell_call",
        "shell_call_output",
        "reasoning",
        "mcp_call",
        "computer_call",
        "tool_search_output",
        "namespace",
        "function",
        "custom",
        "shell",
        "allowed_tools",
        "input_image",
        "input_file",
        "json_schema",
        "image_url",
        "file",
        "error",
        "response.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.output_text.delta",
    ]
)
FIELDS = [
    "input",
    "tools",
    "tool_choice",
    "messages",
    "content",
    "output",
    "role",
    "name",
    "id",
    "item",
    "format",
]
FIELDS += [
    "response",
    "call_id",
    "arguments",
    "text",
    "reasoning",
    "action",
    "function",
    "custom",
    "tool_calls",
]
SHAPED = st.recursive(
    VALUES | KINDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", *FIELDS]), inner | KINDS, max_size=5)
    ),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.sampled_from(["type", *FIELDS]), SHAPED, max_size=8)


REASONING: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
}
REASONING |= {"encrypted_content": "secret"}
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi!"}],
}
CUSTOM: dict[str, Any] = {
    "type": "custom_tool_call",
    "id": "ct_1",
    "call_id": "call_2",
    "name": "run",
    "input": "ls -l",
}
SHELL: dict[str, Any] = {
    "type": "local_shell_call",
    "id": "ls_1",
    "call_id": "call_3",
    "action": {"type": "exec", "command": ["ls"]},
}


def chat_of(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    """Return the messages of a translation."""
    messages: list[dict[str, Any]] = to_chat({"input": [*items], **fields})["messages"]
    return messages


def function_call(call_id: str, name: str = "f", **fields: Any) -> dict[str, Any]:
    """Return the call of a function."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def chat_call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    """Return the call of a function, as a chat has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@given(body=OBJECTS)
@settings(max_examples=300, deadline=None)
def test_any_object_is_translated(body: dict[str, Any]) -> None:
    to_chat(body), from_chat(body), find_tools(body)


TEXT = st.text(min_size=1, max_size=20)


@given(texts=st.lists(st.tuples(st.sampled_from(["user", "assistant", "developer"]), TEXT), max_size=6))
def test_texts_of_a_conversation_go_both_ways(texts: list[tuple[str, str]]) -> None:
    messages = [
        {"role": "user", "content": "first"},
        *({"role": role, "content": text} for role, text in texts),
    ]
    assert to_chat(from_chat({"messages": messages}))["messages"] == messages


def test_what_both_protocols_have_goes_both_ways() -> None:
    chat = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}},
                    {"type": "file", "file": {"file_data": "data:x", "filename": "x.pdf"}},
                    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                ],
            },
            {"role": "assistant", "content": "I look.", "tool_calls": [chat_call("a"), chat_call("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": False}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "max_completion_tokens": 50,
        "reasoning_effort": "low",
        "verbosity": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "store": True,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
    }
    assert to_chat(from_chat(chat)) == chat


def test_calls_in_a_row_are_one_message_with_the_text_before() -> None:
    result = {"type": "function_call_output", "call_id": "a", "output": "done"}
    search = {"type": "web_search_call", "id": "w", "action": {"query": "q"}}
    messages = chat_of("go", MESSAGE, REASONING, function_call("a"), search, function_call("b"), result)
    calls = [chat_call("a"), chat_call("b")]
    parts = [{"type": "text", "text": "Hi!"}, {"type": "text", "text": "q"}]
    assert messages == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": parts, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]


def test_instructions_and_roles_are_kept() -> None:
    messages = chat_of({"role": "developer", "content": "B"}, {"role": "x", "content": "C"}, instructions="A")
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "A"),
        ("developer", "B"),
        ("user", "C"),
    ]


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"type": "input_image", "file_id": "f"}, "[a file of the provider: f]"),
        ({"type": "refusal", "refusal": "no"}, [{"type": "refusal", "refusal": "no"}]),
        ({"type": "new", "text": "t"}, "t"),
        ({"type": "new"}, ""),
        ({"type": "input_file", "file_url": "u"}, [{"type": "file", "file": {"file_url": "u"}}]),
    ],
)
def test_parts_are_translated(part: dict[str, Any], read: Any) -> None:
    assert chat_of({"role": "user", "content": [part]})[0]["content"] == read


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "file_search_call", "queries": ["q"], "results": [{"text": "found"}]}, "q\nfound"),
        (
            {"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
            "1+1\n2",
        ),
        ({"type": "mcp_call", "name": "ask", "arguments": "{}", "output": "yes"}, "ask\n{}\nyes"),
        ({"type": "something_new", "text": "words"}, "words"),
    ],
)
def test_what_a_provider_ran_becomes_a_text(item: dict[str, Any], text: str) -> None:
    assert chat_of(item) == [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "item",
    [
        REASONING,
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "item_reference", "id": "a"},
        {"type": "image_generation_call", "result": "base64"},
        {"type": "mcp_list_tools", "tools": []},
        {"id": "a"},
    ],
)
def test_state_and_items_without_texts_are_left_out(item: dict[str, Any]) -> None:
    assert chat_of(item) == []


def test_tools_of_clients_are_functions() -> None:
    body = {
        "tools": [
            {
                "type": "custom",
                "name": "run",
                "format": {"type": "grammar", "syntax": "lark", "definition": "G"},
            },
            {"type": "local_shell"},
            {"type": "shell", "environment": {"type": "container_auto"}},
            {"type": "apply_patch"},
            {"type": "web_search"},
        ],
        "input": [CUSTOM, SHELL, {"type": "apply_patch_call", "call_id": "p", "operation": {"path": "x"}}],
    }
    chat = to_chat(body)
    functions = [tool["function"] for tool in chat["tools"] if tool["type"] == "function"]
    assert [function["name"] for function in functions] == ["run", "local_shell", "apply_patch"]
    assert functions[0]["description"].endswith("G")
    assert [tool["type"] for tool in chat["tools"] if tool["type"] != "function"] == ["shell", "web_search"]
    assert [call["function"] for call in chat["messages"][0]["tool_calls"]] == [
        {"name": "run", "arguments": '{"input":"ls -l"}'},
        {"name": "local_shell", "arguments": '{"type":"exec","command":["ls"]}'},
        {"name": "apply_patch", "arguments": '{"path":"x"}'},
    ]
    tools = find_tools(body)
    for item, name in zip((CUSTOM, SHELL), ("run", "local_shell"), strict=True):
        call = next(c for c in chat["messages"][0]["tool_calls"] if c["function"]["name"] == name)
        written = call_item(tools[name], item["call_id"], call["function"]["arguments"])
        assert {**written, "id": item["id"]} == (
            {**item, "action": {"env": {}, **item["action"]}} if "action" in item else item
        )


def test_functions_of_groups_have_names_of_their_own() -> None:
    inner = {"type": "function", "name": "read"}
    long = {"type": "function", "name": "x" * 60}
    group = {
        "type": "namespace",
        "name": "mcp__x",
        "tools": [inner, long, {"type": "function", "name": "same"}],
    }
    body = {
        "tools": [
            {"type": "function", "name": "mcp__x__same"},
            group,
            {"type": "namespace", "name": "y", "tools": [inner]},
        ],
        "input": [
            function_call("a", "read", namespace="y"),
            function_call("b", "x" * 60, namespace="mcp__x"),
            function_call("c", "same", namespace="mcp__x"),
            {"type": "additional_tools", "tools": [{"type": "function", "name": "later"}]},
        ],
    }
    tools = find_tools(body)
    assert [tools[name] for name in ("mcp__x__read", "y__read", "later")] == [
        ToolName("function", "read", "mcp__x"),
        ToolName("function", "read", "y"),
        ToolName("function", "later"),
    ]
    assert len(tools) == 6
    assert max(map(len, tools)) <= 64
    called = [call["function"]["name"] for call in to_chat(body)["messages"][0]["tool_calls"]]
    assert [(tools[name].namespace, tools[name].name) for name in called] == [
        ("y", "read"),
        ("mcp__x", "x" * 60),
        ("mcp__x", "same"),
    ]
    item = {"type": "function_call", "call_id": "a", "name": "read", "namespace": "y", "arguments": "{}"}
    assert call_item(tools[called[0]], "a", "{}") == item


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("none", "none"),
        ("new", "auto"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "file_search"}, "required"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        ),
    ],
)
def test_choices_of_tools_are_translated(choice: Any, read: Any) -> None:
    assert to_chat({"tool_choice": choice})["tool_choice"] == read


def test_outputs_of_commands_are_texts() -> None:
    run = {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}}
    shell = {"type": "shell_call_output", "call_id": "s", "output": [run]}
    failed = {"type": "apply_patch_call_output", "call_id": "p", "status": "failed", "output": "no such file"}
    shot: dict[str, Any] = {"type": "computer_call_output", "call_id": "c"}
    shot["output"] = {"type": "computer_screenshot", "image_url": "u"}
    assert chat_of(shell, failed, shot) == [
        {"role": "tool", "tool_call_id": "s", "content": "a\nb\nexit code 1"},
        {"role": "tool", "tool_call_id": "p", "content": "no such file", "is_error": True},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    ]


def test_results_of_a_chat_become_outputs() -> None:
    custom = {"id": "b", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    image = {"type": "image_url", "image_url": {"url": "u"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call("a"), custom]},
        {"role": "tool", "tool_call_id": "a", "content": "gone", "is_error": True},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "t"}, image]},
        {"role": "tool", "tool_call_id": "lost", "content": "left"},
    ]
    picture = {"type": "input_image", "image_url": "u", "detail": "auto"}
    assert from_chat({"messages": messages})["input"] == [
        {"type": "message", "role": "user", "content": "go"},
        function_call("a"),
        {"type": "custom_tool_call", "call_id": "b", "name": "run", "input": "ls"},
        {"type": "function_call_output", "call_id": "a", "output": "Error: gone"},
        {
            "type": "custom_tool_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "t"}, picture],
        },
        {"type": "message", "role": "user", "content": "left"},
    ]


def test_tools_of_a_chat_are_flat_and_not_strict() -> None:
    tools: list[dict[str, Any]] = [
        {"type": kind} for kind in ("web_search_20250305", "code_execution_1", "advisor_1")
    ]
    tools += [
        {"function": {"name": "f"}},
        {"type": "custom", "custom": {"name": "run"}},
        {"type": "mcp", "server_label": "x"},
    ]
    assert from_chat({"tools": tools, "n": 2, "stop": "x", "seed": 1}) == {
        "store": False,
        "input": [],
        "tools": [
            {"type": "web_search"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
            {"type": "function", "name": "f", "strict": False},
            {"type": "custom", "name": "run"},
            {"type": "mcp", "server_label": "x"},
        ],
    }


def test_a_second_result_of_a_call_becomes_a_text() -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    call = {"role": "assistant", "tool_calls": [chat_call("a")]}
    items = from_chat({"messages": [{"role": "user", "content": "q"}, call, result, result]})["input"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]


def test_documents_of_mistral_are_files() -> None:
    part = {"type": "document_url", "document_url": "https://a/b.pdf"}
    written = from_chat({"messages": [{"role": "user", "content": [part]}]})["input"][0]["content"]
    assert written == [{"type": "input_file", "file_url": "https://a/b.pdf"}]
