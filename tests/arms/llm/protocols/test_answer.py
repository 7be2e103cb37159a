"""What every protocol reads of answers alike: usage, bounds, errors and marks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Chunk, Refusal
from armwise.arms.llm.protocols.answer import (
    HIDDEN_READ_TOKENS,
    HIDDEN_TOKENS,
    MOST_CALLS,
    AnswerLimits,
    AnswerReader,
    digest_state,
    estimate_tokens,
    find_unsupported,
    is_too_long,
    refusal_in,
)
from armwise.arms.llm.protocols.chat import Reader
from armwise.arms.upstream import UpstreamError

LIMITS = AnswerLimits(choices=2, tokens=10, request_bytes=100)
END = {"choices": [{"delta": {"content": "The Danube."}, "finish_reason": "stop"}]}


def read(*events: dict[str, Any]) -> tuple[Chunk, AnswerReader]:
    """Return the last chunk of an answer to a question of 12 characters, and what has read it."""
    reader = Reader(LIMITS, ["Which river?"])
    for event in (*events, END):
        list(reader.pieces(json.dumps(event).encode()))
    return reader.last(), reader


def tokens(usage: Any) -> tuple[int, int, int]:
    last, _ = read({"choices": [], "usage": usage})
    return last.prompt_tokens, last.completion_tokens, last.cached_tokens


ESTIMATED = (3, 3, 0)
"""Tokens of the question and of the answer, four characters each."""


def test_usage_that_cannot_be_true_is_estimated() -> None:
    assert tokens(None) == ESTIMATED
    most = {"prompt_tokens": 100 + HIDDEN_READ_TOKENS, "completion_tokens": 20 + HIDDEN_TOKENS}
    assert tokens(most) == (*most.values(), 0)
    for name in most:
        for wrong in (most[name] + 1, -1, 0.5, None, "5", True):
            assert tokens(most | {name: wrong}) == ESTIMATED


def test_cached_tokens_are_read_in_either_of_their_fields() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 3}
    assert tokens(usage) == (5, 1, 3)
    assert tokens(usage | {"prompt_tokens_details": {}}) == (5, 1, 3)
    assert tokens(usage | {"prompt_tokens_details": {"cached_tokens": 0}}) == (5, 1, 0)
    for wrong in (6, -1, 0.5):
        assert tokens(usage | {"prompt_cache_hit_tokens": wrong}) == (5, 1, 0)


def test_later_usage_counts_unless_it_cannot_be_true() -> None:
    more = HIDDEN_READ_TOKENS + 101
    reports = [{"usage": {"prompt_tokens": n, "completion_tokens": 1}} for n in (more, 5, 6, more, -1)]
    last, reader = read(*reports)
    assert (last.prompt_tokens, last.usage, reader.doubted) == (6, reports[2]["usage"], False)


@pytest.mark.parametrize("usage", ["many", 5, [1], {}, {"prompt_tokens": "5"}])
def test_usage_that_cannot_be_read_is_doubted(usage: Any) -> None:
    last, reader = read({"usage": usage})
    assert (last.usage, reader.doubted) == (None, True)
    assert not read({"usage": None})[1].doubted


def test_fields_of_usage_are_bounded() -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 1}
    last, _ = read({"usage": counts}, *({"usage": {str(number): 0}} for number in range(200)))
    assert last.usage is not None
    assert (last.prompt_tokens, len(last.usage)) == (5, 100)


def test_fields_of_usage_come_in_any_event_and_none_is_lost() -> None:
    last, reader = read({"usage": {"prompt_tokens": 5}}, {"usage": {"completion_tokens": 2}})
    assert (last.prompt_tokens, last.completion_tokens, reader.doubted) == (5, 2, False)
    first = {"prompt_tokens": 5, "completion_tokens": 1, "cost": 0.25}
    last, reader = read({"usage": first}, {"usage": {"completion_tokens": 2, "cost": None, "odd": [1]}})
    assert last.usage == {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25, "odd": [1]}
    assert (last.completion_tokens, reader.doubted) == (2, False)


@given(st.lists(st.text(max_size=9), max_size=4), st.lists(st.text(max_size=9), max_size=4))
def test_an_estimate_is_of_every_text(asked: list[str], written: list[str]) -> None:
    reader = Reader(LIMITS, asked)
    for text in written:
        piece = {"choices": [{"delta": {"content": text, "reasoning": text}}]}
        list(reader.pieces(json.dumps(piece).encode()))
    list(reader.pieces(b'{"choices": [{"finish_reason": "stop"}]}'))
    last = reader.last()
    assert last.prompt_tokens == estimate_tokens(len("".join(asked)))
    assert last.completion_tokens == estimate_tokens(2 * len("".join(written)))
    assert estimate_tokens(0) == estimate_tokens(1) == 1


HALF = "x" * (LIMITS.characters // 2)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": HALF},
        {"refusal": HALF},
        {"reasoning": HALF},
        {"tool_calls": [{"function": {"name": "f", "arguments": HALF[1:]}}]},
    ],
)
def test_all_that_a_choice_writes_has_a_bound(delta: dict[str, Any]) -> None:
    reader = Reader(LIMITS, [])

    def write(index: int, **delta: Any) -> None:
        list(reader.pieces(json.dumps({"choices": [{"index": index, "delta": delta}]}).encode()))

    write(1, content=HALF)
    write(0, **delta)
    write(0, content=HALF)
    with pytest.raises(UpstreamError, match="choice 0 has more than 10,320 characters, for 10 tokens"):
        write(0, content="x")


def test_an_event_has_at_most_128_choices() -> None:
    choices = [{"index": 0, "delta": {"content": "a"}}] * (MOST_CALLS + 1)
    assert len([*Reader(LIMITS, []).pieces(json.dumps({"choices": choices[1:]}).encode())]) == MOST_CALLS
    with pytest.raises(UpstreamError, match="more than 128 choices"):
        list(Reader(LIMITS, []).pieces(json.dumps({"choices": choices}).encode()))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"1", b"null", b'{"a": NaN}', b'{"a": 1e400}'])
def test_an_event_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(UpstreamError, match=r"^an event that is not a JSON object$"):
        list(Reader(LIMITS, []).pieces(data))


def test_halves_of_pairs_are_replaced_in_all_that_is_read() -> None:
    call = {"id": "c\ud83d", "function": {"name": "f\ud83d", "arguments": "\udc00"}}
    delta = {"content": "a\ud83d", "reasoning": "b\ud83d", "tool_calls": [call]}
    event = {"id": "i\ud83d", "choices": [{"delta": delta, "finish_reason": "stop"}]}
    reader = Reader(LIMITS, [])
    (piece,) = reader.pieces(json.dumps(event).encode())
    assert (piece.text, piece.reasoning) == ("a\ufffd", "b\ufffd")
    assert piece.tool_calls[0]["id"] == "c\ufffd"
    assert piece.tool_calls[0]["function"] == {"name": "f\ufffd", "arguments": "\ufffd"}
    assert reader.last().marks == ("", "c\ufffd", digest_state("b\ufffd"))
    assert piece.native is not None
    assert piece.native.document["choices"][0]["delta"]["content"] == "a\ufffd"


def test_the_mark_of_a_state_tells_nothing_of_it() -> None:
    assert digest_state("hm") != digest_state("ha")
    assert {len(digest_state(text)) for text in ("", "hm", "\ud83d", "x" * 10_000)} == {38}


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (
            b'{"error": {"message": "m", "code": "c", "param": "p", "type": "t"}}',
            Refusal("m", "c", "p", "t"),
        ),
        (b'{"error": {"message": 1, "code": null, "param": ["p"]}}', Refusal()),
        (b'{"error": {"code": 404}}', Refusal(code="404")),
        (b'{"error": {"code": true}}', Refusal()),
        (b'{"error": "m"}', Refusal("m")),
        (b'{"error": 5}', Refusal()),
        (b'{"error": [1]}', Refusal()),
        (b'{"message": "m", "code": "c"}', Refusal("m", "c")),
        (b'{"message": "m\\ud83d"}', Refusal("m\ufffd")),
        (b"[]", Refusal()),
        (b"", Refusal()),
        (b'{"error":' * 1800, Refusal()),
    ],
)
def test_the_body_of_an_error_is_read_as_far_as_it_can_be(body: bytes, refusal: Refusal) -> None:
    assert refusal_in(body) == refusal


@pytest.mark.parametrize(
    ("refusal", "too_long"),
    [
        (Refusal("This model's maximum context length is 64 tokens"), True),
        (Refusal(code="context_length_exceeded"), True),
        (Refusal("prompt is too long: 9 tokens"), True),
        (Refusal("the context of your question is forbidden"), False),
        (Refusal(param="context length"), False),
    ],
)
def test_a_conversation_is_too_long_where_the_endpoint_says_so(refusal: Refusal, too_long: bool) -> None:
    assert is_too_long(refusal) is too_long


@pytest.mark.parametrize(
    ("refusal", "param"),
    [
        (Refusal("no", "unsupported_value", "temperature"), "temperature"),
        (Refusal("no", "unknown_parameter", "seed"), "seed"),
        (Refusal("Unsupported parameter: 'temperature'", param="temperature"), ""),
        (Refusal("temperature must be at most 2", "invalid_value", "temperature"), ""),
        (Refusal("Unsupported parameter: 'temperature'"), ""),
    ],
)
def test_a_parameter_is_unsupported_where_the_endpoint_names_it(refusal: Refusal, param: str) -> None:
    assert find_unsupported(refusal) == param
