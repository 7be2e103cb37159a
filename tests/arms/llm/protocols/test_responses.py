"""The responses protocol: patches, the state of models, and answers."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import AnswerLimits, FailedAnswerError, digest_state
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.protocols.responses import Reader, read_limit, read_marks, without_state, write
from armwise.arms.upstream import UpstreamError
from tests.arms.llm.translate.test_responses import CUSTOM, MESSAGE, OBJECTS, REASONING, SHELL, function_call


def answer(*events: Any, tokens: int = 1000) -> tuple[str, str, dict[int, list[str]], Chunk]:
    """Return the text, the reasoning, the calls (id, name, arguments) and the last chunk of an answer."""
    reader = Reader(AnswerLimits(1, tokens, 1000), ["question"])
    chunks = [chunk for event in events for chunk in reader.pieces(json.dumps(event).encode())]
    calls = dict[int, list[str]]()
    for piece in (piece for chunk in chunks for piece in chunk.tool_calls):
        call = calls.setdefault(piece["index"], ["", "", ""])
        call[0] += piece.get("id", "")
        call[1] += piece["function"].get("name", "")
        call[2] += piece["function"]["arguments"]
    text, reasoning = ("".join(getattr(chunk, name) for chunk in chunks) for name in ("text", "reasoning"))
    return text, reasoning, calls, reader.last()


CALL = function_call("call_1", "read", id="fc_1", namespace="mcp__x", arguments='{"a":1}')
OUTPUT = [REASONING, MESSAGE, CALL, CUSTOM, SHELL]
USAGE: dict[str, Any] = {"input_tokens": 7, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 3}}
WHOLE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": OUTPUT,
    "usage": USAGE,
}
EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**WHOLE, "status": "in_progress", "output": [], "usage": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "Hm."},
    {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
    {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "H"},
    {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "i!"},
    {"type": "response.output_item.done", "output_index": 1, "item": MESSAGE},
    {"type": "response.output_item.added", "output_index": 2, "item": {**CALL, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"a"'},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": ":1}"},
    {"type": "response.output_item.done", "output_index": 2, "item": CALL},
    {"type": "response.output_item.added", "output_index": 3, "item": {**CUSTOM, "input": ""}},
    {"type": "response.custom_tool_call_input.delta", "output_index": 3, "delta": "ls -l"},
    {"type": "response.output_item.done", "output_index": 3, "item": CUSTOM},
    {"type": "response.output_item.done", "output_index": 4, "item": SHELL},
    {"type": "response.completed", "response": WHOLE},
]
READ = (
    "Hi!",
    "Hm.",
    {
        0: ["call_1", "mcp__x__read", '{"a":1}'],
        1: ["call_2", "run", '{"input":"ls -l"}'],
        2: ["call_3", "local_shell", '{"type":"exec","command":["ls"]}'],
    },
)


@pytest.mark.parametrize("events", [EVENTS, [WHOLE], EVENTS[-1:], [EVENTS[0], *EVENTS[3::3], EVENTS[-1]]])
def test_events_and_a_whole_answer_say_the_same(events: list[Any]) -> None:
    *read, last = answer(*events)
    assert tuple(read) == READ
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (
        "tool_calls",
        7,
        5,
        3,
    )
    marks = {"rs_1", "msg_1", "fc_1", "call_1", "ct_1", "call_2", "ls_1", "call_3", digest_state("secret")}
    assert last.marks[0] == "resp_1"
    assert set(last.marks[1:]) == marks


def test_a_text_comes_once_where_ids_of_items_change() -> None:
    added = {"type": "response.output_text.delta", "item_id": "a", "output_index": 0, "delta": "Hi!"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": {**MESSAGE, "id": "b"}}
    assert answer(added, done, {"type": "response.completed", "response": {"output": [MESSAGE]}})[0] == "Hi!"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "completed", "output": [MESSAGE]}, "stop"),
        ({"status": "complete", "output": [MESSAGE]}, "stop"),
        ({"status": "queued", "output": []}, "stop"),
        ({"status": "cancelled", "output": []}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, "stop"),
        ({"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]}, "refusal"),
    ],
)
def test_ends_are_read(response: dict[str, Any], reason: str) -> None:
    assert answer(response)[-1].finish_reason == reason
    assert answer({"type": "response.completed", "response": response})[-1].finish_reason == reason


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "bad", "message": "no"},
        {"type": "response.failed", "response": {"error": {"code": "bad", "message": "no"}}},
        {"status": "failed", "error": {"code": "bad", "message": "no"}},
    ],
)
def test_an_error_in_the_place_of_an_answer_fails(event: dict[str, Any]) -> None:
    with pytest.raises(FailedAnswerError) as caught:
        answer(event)
    assert (caught.value.refusal.code, caught.value.refusal.message) == ("bad", "no")


@pytest.mark.parametrize("events", [EVENTS[:-1], [{}], [{"type": "response.queued", "response": {}}]])
def test_an_answer_without_its_end_is_none(events: list[Any]) -> None:
    with pytest.raises(UpstreamError, match="no finish reason"):
        answer(*events)


def test_an_answer_is_bounded() -> None:
    with pytest.raises(UpstreamError, match="128 function calls"):
        answer({"output": [function_call(f"c{i}") for i in range(129)]})
    begin = {"type": "response.output_item.added", "output_index": 3, "item": CUSTOM}
    delta = {"type": "response.custom_tool_call_input.delta", "output_index": 3, "delta": "x" * 10_100}
    with pytest.raises(UpstreamError, match="inputs of more than"):
        answer(begin, delta, tokens=1)
    with pytest.raises(UpstreamError, match="without a name"):
        answer({"output": [function_call("c", "")]})


@given(body=OBJECTS)
@settings(max_examples=300, deadline=None)
def test_any_object_is_sent_and_read(body: dict[str, Any]) -> None:
    read_marks(body), read_limit(body)
    without_state(body, bool)
    write(body, Patch("m", instructions="x", effort="low"))
    with contextlib.suppress(UpstreamError):
        answer(body)


def test_a_patch_changes_only_what_it_names() -> None:
    body = {"model": "a", "new": [1], "instructions": "A", "reasoning": {"summary": "auto"}, "temperature": 1}
    patched = write(body, Patch("b", instructions="B", max_tokens=5, temperature=0, effort="low"))
    reasoning = {"summary": "auto", "effort": "low"}
    assert patched == {
        **body,
        "model": "b",
        "instructions": "A\n\nB",
        "max_output_tokens": 5,
        "reasoning": reasoning,
    }
    assert write(body, Patch("b")) == {**body, "model": "b"}
    assert write(body, Patch("b", streams=True))["stream"] is True
    assert read_limit(write({"max_output_tokens": 3}, Patch("b", max_tokens=5))) == 3


def test_marks_are_found_in_items() -> None:
    body = {"previous_response_id": "resp_0", "input": [REASONING, CALL, "text"]}
    assert read_marks(body) == ["resp_0", "rs_1", digest_state("secret"), "fc_1", "call_1"]


def test_state_of_another_model_is_left_out() -> None:
    unmarked = {"type": "reasoning", "summary": []}
    own = {"type": "reasoning", "id": "rs_2", "summary": []}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    items = [
        unmarked,
        REASONING,
        CALL,
        result,
        own,
        function_call("call_9"),
        {"role": "user", "content": "q"},
    ]
    body = {"input": items, "previous_response_id": "resp_1"}
    foreign = {"call_1", "resp_1"}.__contains__
    call = {name: value for name, value in CALL.items() if name != "id"}
    assert without_state(body, foreign) == {"input": [call, *items[3:]]}
    assert without_state(body, set[str]().__contains__) is body


@pytest.mark.parametrize(
    "done", [[], [{"type": "response.output_item.done", "output_index": 3, "item": {**CUSTOM, "input": ""}}]]
)
def test_an_input_that_only_came_in_pieces_is_read(done: list[Any]) -> None:
    end = {"type": "response.completed", "response": {}}
    assert answer(*EVENTS[11:13], *done, end)[2] == {0: ["call_2", "run", '{"input":"ls -l"}']}


def test_reasoning_before_a_result_is_not_of_the_next_model() -> None:
    result = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    body = {"input": [REASONING, CALL, result, function_call("call_2")]}
    assert without_state(body, {"call_2"}.__contains__) is body


def test_a_long_mark_is_the_same_in_answers_and_requests() -> None:
    item = function_call("c" * 300)
    assert set(read_marks({"input": [item]})) == {"c" * 256} == set(answer({"output": [item]})[-1].marks[1:])
