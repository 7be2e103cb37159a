"""Anthropic's messages to and from chat completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.translate.messages import from_chat, to_chat

MARK = {"cache_control": {"type": "ephemeral"}}
USER = {"role": "user", "content": "hi"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def like(example: Any) -> st.SearchStrategy[Any]:
    """Return values with the shape of an example, in any place of which another value may stand."""
    if isinstance(example, dict):
        shaped: Any = st.fixed_dictionaries({}, optional={name: like(example[name]) for name in example})
    elif isinstance(example, list):
        shaped = st.lists(st.one_of(*map(like, example)), max_size=4)
    else:
        shaped = st.just(example)
    either: st.SearchStrategy[Any] = shaped | JSON
    return either


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": arguments}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def source(kind: str, **fields: str) -> dict[str, Any]:
    return {"type": kind, **fields}


REQUEST: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 100,
    "system": [text("Be brief.", **MARK), text("And kind.")],
    "messages": [
        {
            "role": "user",
            "content": [
                text("look"),
                {"type": "image", "source": source("base64", media_type="image/png", data="aGk=")},
                {"type": "image", "source": source("url", url="https://a/b.png"), **MARK},
                {
                    "type": "document",
                    "source": source("base64", media_type="application/pdf", data="aGk="),
                    "title": "a.pdf",
                },
            ],
        },
        {
            "role": "assistant",
            "content": [text("I call."), use("toolu_1", city="Paris") | MARK, use("toolu_2")],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "warm", "is_error": True},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [
                        text("seen"),
                        {"type": "image", "source": source("base64", media_type="image/png", data="aGk=")},
                    ],
                    **MARK,
                },
                text("and now?"),
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "", "input_schema": {"type": "object"}, "strict": True, **MARK},
        SEARCH | {"max_uses": 2},
    ],
    "mcp_servers": [
        {
            "type": "url",
            "url": "https://m",
            "name": "m",
            "authorization_token": "t",
            "tool_configuration": {"allowed_tools": ["ask"]},
        }
    ],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "temperature": 0.5,
    "top_p": 0.9,
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u"},
    "stream": True,
}

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": [text("s", **MARK)]},
        {
            "role": "user",
            "content": [
                text("a"),
                {"type": "image_url", "image_url": {"url": "https://a"}},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "a.txt"}},
                {"type": "input_audio", "input_audio": {"data": "x"}},
            ],
        },
        {"role": "assistant", "content": None, "refusal": "no", "tool_calls": [call("a b"), call("1")]},
        {"role": "tool", "tool_call_id": "a b", "content": "r", "is_error": True},
    ],
    "tools": [
        FUNCTION,
        {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {}}}},
        {"type": "mcp", "server_label": "m", "server_url": "https://m"},
        SEARCH,
    ],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    "stop": "x",
    "temperature": 2,
    "user": "u",
    "web_search_options": {},
}


@given(like(REQUEST).filter(lambda value: isinstance(value, dict)))
def test_no_request_is_too_odd_to_translate(body: dict[str, Any]) -> None:
    written = from_chat(to_chat(body))
    assert written["messages"]
    assert all(message["content"] for message in written["messages"])


@given(like(CHAT).filter(lambda value: isinstance(value, dict)))
def test_no_chat_is_too_odd_to_translate(chat: dict[str, Any]) -> None:
    turns = from_chat(chat)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"] * (
        len(turns) % 2
    )
    assert all(turn["content"] for turn in turns)


ROLES = st.sampled_from(["user", "assistant", "system", "developer"])
KINDS = st.sampled_from(["text", "x_tool_result", "search_result", "container"])


@given(st.lists(st.tuples(ROLES, st.lists(KINDS)), max_size=6))
def test_every_text_of_a_conversation_is_translated(shape: list[tuple[str, list[str]]]) -> None:
    texts = [[f"<{i}.{j}>" for j in range(len(kinds))] for i, (_, kinds) in enumerate(shape)]
    messages = [
        {
            "role": role,
            "content": [
                text(said) if kind == "text" else {"type": kind, "content": [text(said)]}
                for kind, said in zip(kinds, said_here, strict=True)
            ],
        }
        for (role, kinds), said_here in zip(shape, texts, strict=True)
    ]
    chat = to_chat({"messages": messages})
    for document in (chat, from_chat(chat)):
        assert all(json.dumps(document).count(said) == 1 for said_here in texts for said in said_here)


def test_what_both_protocols_have_survives_a_round_trip() -> None:
    assert from_chat(to_chat(REQUEST)) == REQUEST


def test_a_request_becomes_a_chat() -> None:
    body = {
        "system": "Be brief.",
        "max_tokens": 10,
        "top_k": 3,
        "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 5000},
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "stop_sequences": ["END"],
        "metadata": {"user_id": '{"account_uuid": "a", "session_id": "s"}'},
        "output_format": {"type": "json_schema", "schema": {"type": "object"}},
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, use("t", a=1)]},
            {"role": "user", "content": [text("so?"), {"type": "tool_result", "tool_use_id": "t"}]},
        ],
    }
    assert to_chat(body) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call("t", '{"a":1}')]},
            {"role": "tool", "tool_call_id": "t", "content": ""},
            {"role": "user", "content": "so?"},
        ],
        "max_completion_tokens": 10,
        "reasoning_effort": "medium",
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "stop": ["END"],
        "user": "a",
        "metadata": {"session_id": "s"},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}},
        },
    }


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "image", "source": source("file", file_id="f1")}, "[a file of the provider: f1]"),
        ({"type": "container_upload", "file_id": "f2"}, "[a file of the provider: f2]"),
        (
            {"type": "document", "title": "T", "context": "C", "source": source("text", data="D")},
            "T\nC\nD",
        ),
        ({"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}, "a\nb"),
        (
            {"type": "bash_code_execution_tool_result", "content": {"stdout": "1", "stderr": "2"}},
            "1\n2",
        ),
        ({"type": "web_search_tool_result", "content": [{"title": "T", "url": "https://u"}]}, "T\nhttps://u"),
        ({"type": "x", "content": {"type": "base64", "data": "aGk="}}, "(empty)"),
        ({"type": "redacted_thinking", "data": "x"}, "(empty)"),
    ],
)
def test_blocks_that_no_chat_has_become_their_texts(block: dict[str, Any], said: str) -> None:
    assert to_chat({"messages": [{"role": "user", "content": [block]}]})["messages"] == [
        {"role": "user", "content": said}
    ]


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_a_message_of_which_nothing_can_be_read_is_left_out(role: str) -> None:
    blocks = [{"type": "thinking", "thinking": "h"}, {"type": "tool_addition", "tool": {"name": "f"}}]
    assert to_chat({"messages": [USER, {"role": role, "content": blocks}]})["messages"] == [USER]


def test_a_file_keeps_its_context_and_gets_a_name() -> None:
    block = {
        "type": "document",
        "source": source("base64", media_type="application/pdf", data="aGk="),
        "context": "C",
    }
    assert to_chat({"messages": [{"role": "user", "content": [block | MARK]}]})["messages"][0]["content"] == [
        text("C"),
        {
            "type": "file",
            "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="},
            **MARK,
        },
    ]


@pytest.mark.parametrize(
    ("message", "marked"),
    [
        (USER, {"role": "user", "content": [text("hi", **MARK)]}),
        (
            {"role": "assistant", "content": [use("t")]},
            {"role": "assistant", "content": None, "tool_calls": [call("t") | MARK]},
        ),
    ],
)
def test_a_mark_of_the_request_is_at_its_end(message: dict[str, Any], marked: dict[str, Any]) -> None:
    assert to_chat({"messages": [USER, message], **MARK})["messages"] == [USER, marked]


@pytest.mark.parametrize("kind", ["bash", "text_editor", "memory", "computer"])
def test_tools_that_the_client_runs_become_functions(kind: str) -> None:
    (tool,) = to_chat({"messages": [USER], "tools": [{"type": f"{kind}_20250124", "name": "n"}]})["tools"]
    assert tool["function"]["name"] == "n"
    assert tool["function"]["parameters"] == {"type": "object"}
    assert tool["function"]["description"]


def test_tools_of_the_provider_stay_as_they_came() -> None:
    tools = [SEARCH, {"type": "advisor_20260301", "name": "advisor"}, {"type": "mcp_toolset"}]
    assert to_chat({"messages": [USER], "tools": tools})["tools"] == tools


def test_a_chat_becomes_a_request() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "late"}
    chat = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": "hello"},
            USER,
            {"role": "assistant", "content": " ", "tool_calls": [call("1", "no JSON")]},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "wait"},
            {"role": "tool", "tool_call_id": "1", "content": "late"},
            {"role": "tool", "tool_call_id": "1", "content": "again"},
        ],
        "max_tokens": 7,
        "temperature": 1.5,
        "top_p": 1.0,
        "stop": [" ", "END"],
        "n": 2,
        "seed": 1,
        "user": "u" * 257,
        "response_format": {"type": "json_object"},
    }
    assert from_chat(chat) == {
        "max_tokens": 7,
        "system": [text("s"), text("d"), text("Answer with a JSON object.")],
        "messages": [
            {"role": "user", "content": "(empty)"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [use("1", arguments="no JSON")]},
            {"role": "user", "content": [result, text("wait"), text("again")]},
        ],
        "temperature": 1.0,
        "stop_sequences": ["END"],
    }


def test_a_result_of_an_earlier_turn_is_a_text() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call("1")]},
        USER,
        {"role": "assistant", "tool_calls": [call("2")]},
        {"role": "tool", "tool_call_id": "1", "content": "old"},
    ]
    assert from_chat({"messages": messages})["messages"][-1] == {"role": "user", "content": "old"}


def test_ids_become_plain_and_unique_for_call_and_result() -> None:
    turn = [
        {"role": "assistant", "tool_calls": [call("a:1"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "rb"},
        {"role": "tool", "tool_call_id": "a:1", "content": "ra"},
    ]
    written = from_chat({"messages": [USER, *turn, *turn]})["messages"]
    uses = [[block["id"] for block in message["content"]] for message in written[1::2]]
    results = [[block["tool_use_id"] for block in message["content"]] for message in written[2::2]]
    assert [sorted(ids) for ids in uses] == [sorted(ids) for ids in results]
    assert len({*uses[0], *uses[1]}) == 4
    assert uses[0][1] == "b"
    assert all(len(call_id) <= 64 and call_id.replace("_", "").isalnum() for ids in uses for call_id in ids)
    assert written == from_chat({"messages": [USER, *turn, *turn]})["messages"]


def test_custom_tools_become_functions_of_one_text() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}}
    custom = {"id": "1", "type": "custom", "custom": {"name": "c", "input": "ls"}}
    body = from_chat(
        {
            "messages": [USER, {"role": "assistant", "tool_calls": [custom]}],
            "tools": [{"type": "custom", "custom": {"name": "c", "description": "C.", "format": grammar}}],
            "tool_choice": {"type": "custom", "custom": {"name": "c"}},
        }
    )
    (tool,) = body["tools"]
    assert tool["input_schema"]["required"] == ["input"]
    assert tool["description"].startswith("C.")
    assert tool["description"].endswith("start: X")
    assert body["tool_choice"] == {"type": "tool", "name": "c"}
    assert body["messages"][1]["content"][0]["input"] == {"input": "ls"}


@pytest.mark.parametrize(
    ("tool", "written"),
    [
        ({"type": "web_search"}, SEARCH),
        ({"type": "openrouter:web_search", "parameters": {}}, SEARCH),
        (
            {"type": "code_interpreter"},
            {"type": "code_execution_20250825", "name": "code_execution"},
        ),
        ({"type": "tool_search"}, None),
        ({"type": "tool_search_tool_bm25_20251119", "name": "t"}, None),
        ({"type": "image_generation"}, None),
    ],
)
def test_tools_of_providers_have_counterparts_or_go(
    tool: dict[str, Any], written: dict[str, Any] | None
) -> None:
    body = from_chat({"messages": [USER], "tools": [tool], "tool_choice": "auto"})
    assert body.get("tools") == ([written] if written else None)
    assert ("tool_choice" in body) == (written is not None)


def test_a_search_is_asked_for_once() -> None:
    chat = {"messages": [USER], "tools": [{"type": "web_search"}], "web_search_options": {}}
    assert from_chat(chat)["tools"] == [SEARCH]
    assert from_chat(chat | {"tools": []})["tools"] == [SEARCH]


def test_allowed_tools_narrow_the_tools() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    body = from_chat(
        {
            "messages": [USER],
            "tools": [FUNCTION, other],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
        }
    )
    assert [tool["name"] for tool in body["tools"]] == ["g"]
    assert body["tool_choice"] == {"type": "any"}


def test_a_text_file_is_sent_as_text() -> None:
    part = {"type": "file", "file": {"file_data": "data:text/csv;base64,YSxi", "filename": "a.csv"}}
    assert from_chat({"messages": [{"role": "user", "content": [part]}]})["messages"][0]["content"] == [
        {"type": "document", "source": source("text", media_type="text/plain", data="a,b"), "title": "a.csv"}
    ]
