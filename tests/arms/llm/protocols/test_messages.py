"""Anthropic's messages as documents: their translations, what is sent, and what is read of answers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import AnswerLimits, FailedAnswerError, digest_state
from armwise.arms.llm.protocols.messages import (
    Reader,
    from_chat,
    read_limit,
    read_marks,
    to_chat,
    without_state,
    write,
)
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.upstream import UpstreamError

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
    written = write(from_chat(to_chat(body)), Patch("m"))
    assert written["messages"]
    assert all(message["content"] for message in written["messages"])
    read_marks(body)
    without_state(body, lambda _: True)


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


@pytest.mark.parametrize(
    ("model", "effort", "reasoning"),
    [
        ("claude-opus-4-8", "xhigh", {"output_config": {"effort": "xhigh"}}),
        ("claude-opus-4-5", "minimal", {"output_config": {"effort": "low"}}),
        ("claude-opus-4-8", "none", {}),
        ("claude-sonnet-4-5", "medium", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("claude-opus-4-20250514", "high", {"thinking": {"type": "enabled", "budget_tokens": 5000}}),
        ("claude-3-7-sonnet-latest", "low", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("claude-opus-4-1", "low", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ],
)
def test_an_effort_is_asked_for_as_the_model_knows_it(
    model: str, effort: str, reasoning: dict[str, Any]
) -> None:
    chat = {"messages": [USER], "reasoning_effort": effort, "max_tokens": 10_000, "temperature": 0.2}
    temperature = {} if "thinking" in reasoning else {"temperature": 0.2}
    assert write(from_chat(chat), Patch(model)) == {
        "model": model,
        "messages": [USER],
        "max_tokens": 10_000,
        **reasoning,
        **temperature,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 2000},
        {"tools": [FUNCTION], "tool_choice": "required"},
        {"messages": [USER, {"role": "assistant", "content": "I"}]},
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [call("1")]},
                {"role": "tool", "tool_call_id": "1", "content": "r"},
            ]
        },
    ],
)
def test_reasoning_that_would_be_refused_is_not_asked_for(change: dict[str, Any]) -> None:
    chat = {"messages": [USER], "reasoning_effort": "low", "max_tokens": 10_000, "temperature": 0.2} | change
    written = write(from_chat(chat), Patch("claude-sonnet-4-5"))
    assert "thinking" not in written
    assert written["temperature"] == 0.2


def test_a_request_of_the_protocol_changes_by_its_patch_alone() -> None:
    body = {**REQUEST, "thinking": {"type": "adaptive"}, "unknown": {"a": 1}}
    patch = Patch("m", streams=True, max_tokens=5, temperature=0.1, effort="high")
    assert write(body, patch) == {**body, "model": "m"}
    assert [*write(body, patch)] == [*body]


@pytest.mark.parametrize(
    ("system", "written"),
    [
        (None, "Cite."),
        ("Be brief.", "Be brief.\n\nCite."),
        ([text("a", **MARK)], [text("a", **MARK), text("Cite.")]),
    ],
)
def test_defaults_and_instructions_fill_what_is_absent(system: Any, written: Any) -> None:
    body = {"messages": [USER], "system": system}
    patch = Patch("claude-opus-4-8", instructions="Cite.", max_tokens=9, temperature=2.0, effort="high")
    assert write(body, patch) == {
        "messages": [USER],
        "system": written,
        "model": "claude-opus-4-8",
        "max_tokens": 9,
        "output_config": {"effort": "high"},
        "temperature": 1.0,
    }
    assert write(body, Patch("m"))["max_tokens"] == 4096


def test_a_default_effort_keeps_what_the_client_asked_for() -> None:
    body = {"messages": [USER], "max_tokens": 9000, "temperature": 0.3}
    written = write(body, Patch("claude-haiku-4-5", effort="high"))
    assert written == {**body, "model": "claude-haiku-4-5"}


def test_a_limit_is_a_positive_integer() -> None:
    assert [read_limit({"max_tokens": limit}) for limit in (5, 0, True, "5", None)] == [5, *[None] * 4]


STATEFUL: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "h", "signature": "SIG"},
    {"type": "redacted_thinking", "data": "R"},
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srv_1",
        "content": [
            {"type": "web_search_result", "title": "T", "url": "https://u", "encrypted_content": "E"}
        ],
    },
    text("so", citations=[{"encrypted_index": "E"}]),
    {**use("t"), "caller": {"type": "code_execution_20260120", "tool_id": "srv_1"}},
]


def test_marks_are_those_of_answers_in_turn() -> None:
    messages = [USER, {"role": "assistant", "content": STATEFUL}, {"role": "user", "content": STATEFUL}]
    marks = [digest_state("SIG"), digest_state("R"), "srv_1", "t"]
    assert read_marks({"messages": messages}) == marks


def test_state_of_another_model_is_left_out() -> None:
    own = {"role": "assistant", "content": [STATEFUL[0] | {"signature": "OWN"}, text("mine")]}
    body = {"messages": [USER, {"role": "assistant", "content": STATEFUL}, own]}
    left = {"role": "assistant", "content": [text("T\nhttps://u"), text("so"), use("t")]}
    assert without_state(body, lambda mark: mark == "t") == {"messages": [USER, left, own]}
    assert without_state(body, lambda _: False) is body


def test_an_answer_of_state_alone_is_left_out() -> None:
    body = {"messages": [USER, {"role": "assistant", "content": STATEFUL[:2]}, USER]}
    assert without_state(body, lambda _: True) == {"messages": [USER, USER]}


LIMITS = AnswerLimits(choices=1, tokens=10, request_bytes=1000)
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3}


def read(*events: dict[str, Any]) -> tuple[str, str, dict[str, str], Chunk, Reader]:
    """Return the text, the reasoning, the arguments of each call by its id, the last chunk and the reader."""
    reader, said, thought = Reader(LIMITS, ["hi"]), "", ""
    ids, arguments = list[str](), list[str]()
    for event in events:
        for piece in reader.pieces(json.dumps(event).encode()):
            said, thought = said + piece.text, thought + piece.reasoning
            for one in piece.tool_calls:
                if "id" in one:
                    assert one["index"] == len(ids)
                    ids.append(one["id"])
                    arguments.append("")
                arguments[one["index"]] += one["function"]["arguments"]
    return said, thought, dict(zip(ids, arguments, strict=True)), reader.last(), reader


def events_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that a message is streamed as."""
    start = {**message, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        begun, deltas = dict(block), list[dict[str, Any]]()
        match block["type"]:
            case "text":
                begun["text"] = ""
                deltas = [{"type": "text_delta", "text": half} for half in halves(block["text"])]
            case "thinking":
                begun |= {"thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": half} for half in halves(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use" | "server_tool_use":
                begun["input"] = {}
                written = json.dumps(block["input"], separators=(",", ":")) if block["input"] else ""
                deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves(written)]
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"]}
    usage = {"output_tokens": message["usage"]["output_tokens"], "input_tokens": None}
    return [*events, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def halves(value: str) -> tuple[str, str]:
    return value[: len(value) // 2], value[len(value) // 2 :]


def answer(*blocks: dict[str, Any], reason: str | None = "end_turn") -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "content": [*blocks],
        "stop_reason": reason,
        "usage": USAGE,
    }


def test_a_streamed_and_a_whole_answer_say_the_same() -> None:
    server = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
    blocks = [*STATEFUL[:2], server, text("Hello"), use("t1", city="Paris"), use("t2")]
    whole = answer(*blocks, reason="tool_use")
    for events in ([whole], events_of(whole)):
        said, thought, calls, last, reader = read(*events)
        assert (said, thought) == ("Hello", "h")
        assert calls == {"t1": '{"city":"Paris"}', "t2": "{}"}
        assert last.finish_reason == "tool_calls"
        assert (last.prompt_tokens, last.cached_tokens, last.completion_tokens) == (15, 5, 3)
        assert last.usage == USAGE
        assert last.marks == ("", digest_state("SIG"), digest_state("R"), "srv_1", "t1", "t2")
        assert reader.closed


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "context_window"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons_are_read_in_our_words(reason: str, finish_reason: str) -> None:
    assert read(answer(text("a"), reason=reason))[3].finish_reason == finish_reason


def test_an_error_in_place_of_an_answer_says_what_it_is() -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    with pytest.raises(FailedAnswerError) as raised:
        read(event)
    assert raised.value.refusal.message == "busy"
    assert raised.value.refusal.type == "overloaded_error"


def test_an_error_after_the_end_leaves_the_answer() -> None:
    assert read(*events_of(answer(text("a"))), {"type": "error", "error": {}})[0] == "a"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([answer(text(""), reason=None)], "no finish reason"),
        ([answer(text("x" * 20_000))], "more than 10,320 characters"),
        ([answer({"type": "tool_use", "id": "t"})], "without a name"),
        ([answer(*(use(str(i)) for i in range(129)))], "more than 128 function calls"),
        (
            [{"type": "content_block_delta", "index": 4, "delta": {"partial_json": "{"}}],
            "arguments without a function",
        ),
    ],
)
def test_what_breaks_a_bound_is_no_answer(events: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        read(*events)


@given(st.lists(like(answer(*STATEFUL, use("t"))) | like(events_of(answer(*STATEFUL))[4]), max_size=5))
def test_events_of_wrong_types_raise_no_other_error(events: list[Any]) -> None:
    reader = Reader(LIMITS, ["hi"])
    for event in events:
        try:
            assert [*reader.pieces(json.dumps(event).encode())]
        except UpstreamError:
            return
