"""Anthropic's messages as documents: what is sent, and what is read of answers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import AnswerLimits, FailedAnswerError, digest_state
from armwise.arms.llm.protocols.messages import Reader, read_limit, read_marks, without_state, write
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.translate.messages import from_chat
from armwise.arms.upstream import UpstreamError
from tests.arms.llm.translate.test_messages import FUNCTION, MARK, REQUEST, USER, call, like, text, use


@given(like(REQUEST).filter(lambda value: isinstance(value, dict)))
def test_no_request_is_too_odd_to_send(body: dict[str, Any]) -> None:
    assert write(body, Patch("m", instructions="x", effort="low"))["model"] == "m"
    read_marks(body)
    without_state(body, lambda _: True)


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
