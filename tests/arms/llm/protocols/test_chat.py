"""Chat completions as documents: what is sent of them, and what is read of their events and answers."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Chunk, Native, Refusal
from armwise.arms.llm.protocols.answer import HIDDEN_TOKENS, AnswerLimits, FailedAnswerError, digest_state
from armwise.arms.llm.protocols.chat import (
    Reader,
    read_limit,
    read_marks,
    read_messages,
    read_options,
    shorten_ids,
    without_state,
    write,
)
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.upstream import UpstreamError
from tests.arms.llm.translate.test_messages import JSON, like
from tests.odd_endpoint import odd_fields

LIMITS = AnswerLimits(choices=2, tokens=10, request_bytes=100)


def answer(*events: dict[str, Any], limits: AnswerLimits = LIMITS) -> list[Chunk]:
    """Return the pieces of an answer, and its last chunk."""
    reader = Reader(limits, ["Which river?"])
    pieces = [piece for event in events for piece in reader.pieces(json.dumps(event).encode())]
    return [*pieces, reader.last()]


def read(*events: dict[str, Any]) -> tuple[str, str, Chunk]:
    """Return the text of an answer, its reasoning, and the last chunk."""
    *pieces, last = answer(*events)
    return "".join(piece.text for piece in pieces), "".join(piece.reasoning for piece in pieces), last


def of(index: int = 0, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


def calling(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all pieces of the calls of an answer that sends each of these by itself."""
    *pieces, last = answer(*(of(tool_calls=[call]) for call in calls), of(finish_reason="stop"))
    assert last.finish_reason == "tool_calls", "whatever the endpoint says"
    return [dict(call) for piece in pieces for call in piece.tool_calls]


def function(name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("index", [{"index": 0}, {}])
@pytest.mark.parametrize("ids", [("a", "b"), ("", ""), (None, None)])
def test_parallel_calls_of_the_same_index_are_several_calls(
    index: dict[str, int], ids: Sequence[str | None]
) -> None:
    first, second = calling(*(index | {"id": name} | function("now", "{}") for name in ids))
    assert (first["index"], second["index"]) == (0, 1)
    assert first["id"] != second["id"]
    assert first["function"] == second["function"] == {"name": "now", "arguments": "{}"}


def test_pieces_of_calls_go_on_by_their_index() -> None:
    pieces = calling(
        {"index": 0, "id": "a"} | function("now"),
        {"index": 1, "id": "b"} | function("later", "{"),
        {"index": 0, "id": "a"} | function("now", "{}"),
        {"index": 1} | function(None, "}"),
        function(None, " "),
    )
    assert [piece["index"] for piece in pieces] == [0, 1, 0, 1, 1]
    assert [piece["function"].get("name") for piece in pieces] == ["now", "later", None, None, None]
    assert [piece["function"]["arguments"] for piece in pieces] == ["", "{", "{}", "}", " "]


def test_a_choice_has_at_most_128_calls() -> None:
    calls = [{"index": number, "id": f"c{number}"} | function("f") for number in range(129)]
    limits = AnswerLimits(1, 1000, 1000)
    assert (
        len(answer(of(tool_calls=calls[:128]), of(finish_reason="stop"), limits=limits)[0].tool_calls) == 128
    )
    with pytest.raises(UpstreamError, match="more than 128 function calls"):
        answer(of(tool_calls=calls[:128]), of(tool_calls=calls[128:]), limits=limits)


def test_probabilities_without_a_text_are_kept() -> None:
    event = of()
    event["choices"][0]["logprobs"] = {"content": [{"token": "", "logprob": -0.5, "bytes": None}]}
    piece, *_ = answer(event, of(finish_reason="stop"))
    assert piece.logprobs == ({"token": "", "logprob": -0.5, "bytes": None},), "as they came"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "content_filter"),
        ("refusal", "refusal"),
        ("tool_calls", "stop"),
        ("?" * 10_000, "stop"),
    ],
)
def test_finish_reasons_are_read_in_our_words(sent: str, reason: str) -> None:
    assert answer(of(content="x", finish_reason=sent))[-1].finish_reason == reason


def test_each_choice_has_its_finish_reason() -> None:
    last = answer(of(1, "length", content="b"), of(0, "stop", content="a"))[-1]
    assert (last.finish_reason, last.finish_reasons) == ("stop", ("length",))
    with pytest.raises(UpstreamError, match="no finish reason of choice 0"):
        answer(of(1, "stop", content="b"))
    with pytest.raises(UpstreamError, match="no finish reason of choice 1"):
        answer(of(0, "stop"), of(1, content="b"))
    with pytest.raises(UpstreamError, match="no finish reason of choice 1"):
        answer(of(0, "stop"), of(2, "stop"), limits=AnswerLimits(3, 10, 10))


def test_a_choice_that_nobody_asked_for_is_refused() -> None:
    assert answer(of(0, "stop"), of(1, "stop"))[-1].finish_reasons == ("stop",)
    with pytest.raises(UpstreamError, match="choice 2, but only 2"):
        answer(of(2, "stop"))


def test_a_refusal_in_words_is_the_answer() -> None:
    assert answer(of(refusal="I may not."), of(finish_reason="stop"))[0].text == "I may not."


def test_odd_fields_are_read_or_refused_without_their_text() -> None:
    limits = AnswerLimits(choices=1, tokens=64, request_bytes=100)
    answered, told = 0, list[str]()
    for name, body in odd_fields():
        reader = Reader(limits, ["?"])
        try:
            datas = [line.removeprefix(b"data: ") for line in body().split(b"\n\n")[:-2]]
            pieces = [piece for data in datas for piece in reader.pieces(data)]
            last = reader.last()
        except UpstreamError as error:
            told.append(str(error))
            continue
        answered += 1
        assert last.finish_reason in ("stop", "length", "tool_calls"), name
        assert 0 <= last.prompt_tokens <= 100 + HIDDEN_TOKENS, name
        assert 0 <= last.completion_tokens <= 64 + HIDDEN_TOKENS, name
        assert sum(len(piece.text) for piece in pieces) <= limits.characters, name
        for piece in pieces:
            said = [piece.text, piece.reasoning, piece.tool_calls, piece.logprobs, last.marks, last.usage]
            json.dumps(
                [said, piece.native and piece.native.document], allow_nan=False, ensure_ascii=False
            ).encode()
    assert answered > 100
    assert max(map(len, told)) < 200
    assert not any("Danube" in message for message in told)


EVENT = {
    "id": "c",
    "choices": [
        {
            "index": 0,
            "delta": {
                "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": [{"text": "b"}]}],
                "reasoning_content": "c",
                "refusal": "d",
                "tool_calls": [{"index": 0, "id": "e", "function": {"name": "f", "arguments": "{}"}}],
            },
            "logprobs": {"content": [{"token": "a"}]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
}


@given(st.lists(like(EVENT), max_size=3))
def test_events_of_wrong_types_raise_no_other_error(events: list[Any]) -> None:
    reader = Reader(LIMITS, [])
    try:
        for event in events:
            pieces = [*reader.pieces(json.dumps(event).encode())]
            assert pieces[0].native == Native("chat", event, pieces[0].native.whole)  # type: ignore[union-attr]
        assert reader.last().prompt_tokens >= 1
    except UpstreamError:
        return


@given(st.binary(max_size=200))
def test_no_bytes_raise_any_other_error(data: bytes) -> None:
    try:
        list(Reader(LIMITS, []).pieces(data))
    except UpstreamError:
        return


MESSAGE = {
    "role": "assistant",
    "content": "The Danube.",
    "reasoning_content": "A river.",
    "tool_calls": [{"id": "call_1", "type": "function"} | function("now", "{}")],
}


def test_an_event_is_passed_on_as_it_came() -> None:
    events = [
        of(role="assistant", content="The", obfuscation="x"),
        of(0, "stop") | {"service_tier": "flex"},
        {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1, "cost": 0.5}},
    ]
    *pieces, last = answer(*events)
    assert [piece.native for piece in pieces] == [Native("chat", event) for event in events]
    assert [piece.ended for piece in pieces] == [False, True, True], "of the usage nothing is awaited"
    assert (last.native, last.usage) == (None, events[2]["usage"])


def test_an_event_of_two_choices_is_passed_on_once() -> None:
    both = {"choices": [*of(0, "stop", content="a")["choices"], *of(1, content="b")["choices"]]}
    first, second, end, _ = answer(both, of(1, "stop"))
    assert (first.native, second.native) == (Native("chat", both), None)
    assert (first.ended, second.ended, end.ended) == (False, False, True)


def test_a_whole_answer_says_what_its_events_say() -> None:
    call = MESSAGE["tool_calls"][0]
    whole = {"id": "chatcmpl-1", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}]}
    pieces = (
        {"id": "chatcmpl-1", **of(reasoning_content="A ")},
        {"id": "another", **of(reasoning_content="river.", content="The ")},
        of(content="Danube.", tool_calls=[{"index": 0, **call}]),  # type: ignore[dict-item]
        of(0, "tool_calls"),
    )
    assert read(whole) == read(*pieces)
    assert read(whole)[:2] == ("The Danube.", "A river.")
    (piece, _) = answer(whole)
    assert piece.native == Native("chat", whole, whole=True)
    assert piece.ended


def test_marks_are_those_of_calls_and_reasoning() -> None:
    *_, last = answer({"id": "chatcmpl-1", "choices": [{"message": MESSAGE, "finish_reason": "stop"}]})
    assert last.marks == ("", "call_1", digest_state("A river.")), "no later request names the answer"
    assert list(last.marks[1:]) == read_marks({"messages": [{"role": "user"}, MESSAGE]})
    *_, last = answer(of(0, "stop", content="a"))
    assert last.marks == (), "an answer that nothing can continue"
    *_, last = answer(of(0, "stop", reasoning="hm"), of(1, "stop", reasoning="ha"))
    assert last.marks == ("", digest_state("hm"), digest_state("ha")), "one for each choice"


def test_marks_are_bounded() -> None:
    calls = [{"index": number, "id": f"{number}" * 300} | function("f") for number in range(100)]
    events = [{"id": "x" * 999, **of(index, "stop", tool_calls=calls)} for index in range(4)]
    *_, last = answer(*events, limits=AnswerLimits(4, 2000, 10))
    assert len(last.marks) <= 300
    assert max(map(len, last.marks)) == 256


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        ({"error": {"message": "worker died", "code": 503}}, Refusal("worker died", "503")),
        ({"error": "worker died"}, Refusal("worker died")),
        ({"choices": [{"error": {"message": "m", "code": "c", "type": "t"}}]}, Refusal("m", "c", "", "t")),
        (of(0, "error"), Refusal()),
    ],
)
def test_an_error_in_the_place_of_an_answer_fails(event: dict[str, Any], refusal: Refusal) -> None:
    with pytest.raises(FailedAnswerError, match=r"^an error instead of the answer$") as raised:
        answer(of(content="a"), event)
    assert raised.value.refusal == refusal
    assert raised.value.native == Native("chat", event)


def test_an_error_after_the_end_leaves_the_answer() -> None:
    assert read(of(0, "stop", content="a"), {"error": {"message": "late"}})[0] == "a"


def test_contents_in_parts_are_read_as_one_text() -> None:
    parts = [{"type": "text", "text": "The "}, {"type": "reference", "reference_ids": [1]}]
    cited = of(content=[*parts, {"type": "text", "text": "Danube"}])
    assert read(of(content="Hm. "), cited, of(0, "stop"))[0] == "Hm. The Danube"


PATCH = Patch("m", streams=True)
QUESTION = {"role": "user", "content": "Why?"}
NOW = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NOON = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=6), st.booleans())
def test_a_document_changes_by_its_patch_alone(body: dict[str, Any], streams: bool) -> None:
    before = json.dumps(body)
    options = body.get("stream_options")
    changed = {"model": "m", "stream": streams}
    if streams:
        changed["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    written = write(body, Patch("m", streams=streams))
    for name, value in changed.items():
        if streams or name in body or name == "model":
            assert written.pop(name) == value
    assert written == {
        name: value for name, value in body.items() if name not in {*changed, "stream_options"}
    }
    assert json.dumps(body) == before, "it is not changed in place"


def test_a_stream_asks_for_its_usage_beside_other_options() -> None:
    asked = {"stream_options": {"include_obfuscation": False, "include_usage": False}, "stream": False}
    sent = {"include_obfuscation": False, "include_usage": True}
    assert write(asked, PATCH) == {"stream_options": sent, "stream": True, "model": "m"}
    assert write(asked, Patch("m")) == {"stream": False, "model": "m"}, "a whole answer has its usage"
    assert write({}, Patch("m")) == {"model": "m"}
    assert write({"stream_options": None}, PATCH)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("nothing", [{}, dict.fromkeys(("max_tokens", "temperature", "reasoning_effort"))])
def test_defaults_fill_what_is_absent(nothing: dict[str, None]) -> None:
    patch = Patch("m", max_tokens=7, temperature=0.0, effort="low")
    filled = {"max_tokens": 7, "temperature": 0.0, "reasoning_effort": "low", "model": "m"}
    assert write(nothing, patch) == filled
    for named in (
        {"max_tokens": 9, "temperature": 0, "reasoning_effort": "none"},
        {"max_completion_tokens": 9, "temperature": 1.5, "reasoning_effort": "high"},
    ):
        assert write(named, patch) == named | {"model": "m"}
    assert write(nothing, Patch("m")) == nothing | {"model": "m"}


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 9}, 9),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9),
        *(({"max_tokens": odd}, None) for odd in (0, -1, True, 1.0, "5", None, [5])),
    ],
)
def test_a_limit_is_a_positive_integer(body: dict[str, Any], limit: int | None) -> None:
    assert read_limit(body) == limit


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([QUESTION], [{"role": "system", "content": "T"}, QUESTION]),
        ([], [{"role": "system", "content": "T"}]),
        (None, [{"role": "system", "content": "T"}]),
        (["odd"], [{"role": "system", "content": "T"}, "odd"]),
        ([{"role": "system", "content": "S"}, QUESTION], [{"role": "system", "content": "S\n\nT"}, QUESTION]),
        (
            [{"role": "developer", "content": "S", "name": "n"}],
            [{"role": "developer", "content": "S\n\nT", "name": "n"}],
        ),
        ([{"role": "system", "content": ""}], [{"role": "system", "content": "T"}]),
        ([{"role": "system"}], [{"role": "system", "content": "T"}]),
        (
            [{"role": "system", "content": [{"type": "text", "text": "S"}, "odd"]}],
            [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "S"}, "odd", {"type": "text", "text": "T"}],
                }
            ],
        ),
        (
            [QUESTION, {"role": "system", "content": "later"}],
            [{"role": "system", "content": "T"}, QUESTION, {"role": "system", "content": "later"}],
        ),
    ],
)
def test_instructions_follow_those_of_the_client(given: Any, sent: list[Any]) -> None:
    before = json.dumps(given)
    body = {} if given is None else {"messages": given}
    assert write(body, Patch("m", instructions="T"))["messages"] == sent
    assert json.dumps(given) == before, "it is not changed in place"


THOUGHT: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "reasoning": "one",
    "reasoning_content": "two",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "e"}],
    "thinking_blocks": [{"type": "thinking"}],
    "extra_content": {"google": 1},
    "tool_calls": [NOW | {"extra_content": {"google": {"thought_signature": "s"}}}],
}


def test_marks_are_those_of_answers_in_turn() -> None:
    second = {"role": "assistant", "reasoning": "three", "tool_calls": [{"id": "call_2"}, {"id": 5}, "odd"]}
    body = {"messages": [QUESTION, THOUGHT, "odd", NOON, second]}
    assert read_marks(body) == ["call_1", digest_state("two"), "call_2", digest_state("three")]
    assert read_marks({}) == read_marks({"messages": "odd"}) == []


@pytest.mark.parametrize("mark", ["call_1", digest_state("two")])
def test_state_of_another_model_is_left_out(mark: str) -> None:
    own = THOUGHT | {"tool_calls": [NOW | {"id": "call_2"}], "reasoning_content": "own"}
    body = {"messages": [QUESTION, THOUGHT, NOON, own], "odd": 1}
    before = json.dumps(body)
    left = without_state(body, lambda name: name == mark)
    said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [NOW]}
    assert left == {"messages": [QUESTION, said, NOON, own], "odd": 1}
    assert json.dumps(body) == before, "it is not changed in place"
    assert without_state(body, lambda _: False) is body
    assert without_state({"messages": "odd"}, lambda _: True) == {"messages": "odd"}


def ids(body: dict[str, Any]) -> list[str]:
    """Return the ids of calls and of results, in turn."""
    return [
        name
        for message in body["messages"]
        for name in (*(call["id"] for call in message.get("tool_calls", ())), message.get("tool_call_id"))
        if name is not None
    ]


@given(
    st.lists(st.text(max_size=12) | st.from_regex("[A-Za-z0-9]{9}", fullmatch=True), min_size=1, max_size=6)
)
def test_short_ids_are_the_same_for_a_call_and_its_result(names: list[str]) -> None:
    calls = [NOW | {"id": name, "odd": 1} for name in names]
    results = [NOON | {"tool_call_id": name} for name in names]
    body = {"messages": [QUESTION, {"role": "assistant", "tool_calls": calls}, *results], "odd": 1}
    short = shorten_ids(body)
    called, answered = ids(short)[: len(names)], ids(short)[len(names) :]
    assert called == answered
    assert len({*called}) == len({*names})
    assert all(len(name) == 9 and name.isascii() and name.isalnum() for name in called)
    kept = [name for name in names if len(name) == 9 and name.isascii() and name.isalnum()]
    assert {*kept} <= {*called}
    assert shorten_ids(short) == short
    assert (short["messages"][0], short["odd"], calls[0]["id"]) == (QUESTION, 1, names[0])


def test_the_thoughts_of_mistrals_models_are_their_state() -> None:
    def thinking(*texts: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text} for text in texts]}

    said = {"type": "text", "text": "Noon."}
    pieces = of(content=[thinking("Hm", ".")]), of(content=[thinking(" So.")]), of(content="Noon.")
    text, reasoning, last = read(*pieces, of(0, "stop"))
    assert (text, reasoning) == ("Noon.", "Hm. So.")
    message = {"role": "assistant", "content": [thinking("Hm. So."), said, said]}
    assert list(last.marks[1:]) == read_marks({"messages": [message]}) == [digest_state("Hm. So.")]
    assert without_state({"messages": [message]}, lambda _: False) == {"messages": [message]}
    left = without_state({"messages": [message]}, lambda name: name in last.marks)
    assert left == {"messages": [{"role": "assistant", "content": [said, said]}]}
    bare = {"messages": [{"role": "assistant", "content": [thinking("Hm. So.")], "tool_calls": [NOW]}]}
    assert without_state(bare, lambda _: True)["messages"][0]["content"] is None


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: A"}}
CUSTOM = {"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": LARK}}


def test_a_conversation_is_read_for_engines_of_this_process() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    edit = {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "a\0"}}
    body = {
        "messages": [
            {"role": "developer", "content": "Be\0brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "odd"}, {"type": "text"}]},
            {"role": "user", "content": [{"type": "text", "text": "b", **mark}, image, {"type": "file"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": "https://a/c.png"}]},
            {"role": "assistant", "content": None, "tool_calls": [NOW | {"odd": 1} | mark, edit, "odd"]},
            NOON | {"is_error": True},
            {"role": "function", "name": "now", "content": "noon"},
            {"role": "of tomorrow", "content": 5},
            "odd",
        ]
    }
    called = {"name": "patch", "arguments": json.dumps({"input": "a\0"}, separators=(",", ":"))}
    assert read_messages(body) == (
        {"role": "system", "content": "Be\ufffdbrief."},
        {"role": "user", "content": "a"},
        {
            "role": "user",
            "content": "b",
            "parts": [{"type": "text", "text": "b", **mark}, image, {"type": "file", "file": {}}],
        },
        {"role": "user", "content": "", "parts": [image | {"image_url": {"url": "https://a/c.png"}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [NOW | mark, {"id": "call_2", "type": "function", "function": called}],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "call_1", "is_error": True},
        {"role": "tool", "content": "noon", "tool_call_id": ""},
        {"role": "user", "content": ""},
    )
    assert read_messages({}) == ()


def test_options_that_ask_for_something_are_read() -> None:
    asked = {"n": 2, "logprobs": True, "logit_bias": {"5": 1}, "reasoning_effort": "low"}
    nothing = {"presence_penalty": 0, "frequency_penalty": None, "top_logprobs": 0, "verbosity": ""}
    assert read_options({**asked, **nothing, "seed": 5, "odd": 1}) == asked
    assert read_options({"n": 1, "parallel_tool_calls": False, "tool_choice": "required"}) == {}, "of no tool"
    assert read_options({"tools": [tool("f")], "parallel_tool_calls": True, "tool_choice": "auto"}) == {
        "tools": [tool("f")]
    }


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, True),
        ({"type": "json_schema", "json_schema": "odd"}, False),
        ({"type": "text"}, False),
        ("json_object", False),
    ],
)
def test_a_form_is_read_as_far_as_it_is_one(form: Any, read: bool) -> None:
    assert read_options({"response_format": form}) == ({"response_format": form} if read else {})


def test_tools_are_read_as_functions() -> None:
    odd = [
        {"type": "web_search_20250305"},
        {"type": "function", "function": {"name": ""}},
        "odd",
        tool("g", strict=True),
    ]
    full = tool("f", description="F.", parameters={"type": "object"})
    *kept, custom = read_options({"tools": [full, *odd, tool("h", description=5, parameters="x"), CUSTOM]})[
        "tools"
    ]
    assert kept == [full, tool("g"), tool("h")]
    assert custom["function"]["name"] == "patch"
    assert custom["function"]["description"] == "Edits.\n\nThe input follows this lark grammar:\nstart: A"
    assert custom["function"]["parameters"]["required"] == ["input"]


ALLOWED = {"mode": "required", "tools": [tool("g"), tool("of nobody")]}


@pytest.mark.parametrize(
    ("choice", "names", "read"),
    [
        ("none", ["f", "g", "patch"], "none"),
        ("required", ["f", "g", "patch"], "required"),
        ("auto", ["f", "g", "patch"], None),
        ("of tomorrow", ["f", "g", "patch"], None),
        (tool("g"), ["f", "g", "patch"], tool("g")),
        (tool("of nobody"), ["f", "g", "patch"], None),
        ({"type": "custom", "custom": {"name": "patch"}}, ["f", "g", "patch"], tool("patch")),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, ["g"], "required"),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED | {"mode": "auto"}}, ["g"], None),
        ({"type": "allowed_tools", "allowed_tools": "odd"}, [], None),
    ],
)
def test_a_choice_of_tools_is_read(choice: Any, names: list[str], read: Any) -> None:
    options = read_options({"tools": [tool("f"), tool("g"), CUSTOM], "tool_choice": choice})
    assert [one["function"]["name"] for one in options.get("tools", ())] == names
    assert options.get("tool_choice") == read
