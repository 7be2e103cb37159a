"""Events of endpoints, one by one: what is read of them, and what is not."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms import upstream
from armwise.arms.llm.base import Chunk
from armwise.arms.llm.completion_stream import (
    HIDDEN_TOKENS,
    AnswerLimits,
    CompletionStream,
    Refusal,
    refusal_in,
)
from armwise.arms.upstream import UpstreamError
from benchmarks.odd_endpoints import EVENTS, odd_fields, stream_of

LIMITS = AnswerLimits(choices=2, tokens=10, request_bytes=100)


def answer(*events: dict[str, Any], limits: AnswerLimits = LIMITS) -> list[Chunk]:
    stream = CompletionStream(limits, ["Which river?"])
    pieces = [piece for event in events for piece in stream.pieces(json.dumps(event).encode())]
    return [*pieces, stream.last()]


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


@pytest.mark.parametrize("call", [{"index": 0}, {"index": 0, "id": "a"}, function(None, "{}"), function("")])
def test_a_call_without_a_name_is_none(call: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError, match="without its name"):
        calling(call)


def test_a_choice_has_at_most_128_calls() -> None:
    calls = [{"index": number, "id": f"c{number}"} | function("f") for number in range(129)]
    limits = AnswerLimits(1, 1000, 1000)
    assert (
        len(answer(of(tool_calls=calls[:128]), of(finish_reason="stop"), limits=limits)[0].tool_calls) == 128
    )
    with pytest.raises(UpstreamError, match="more than 128 calls"):
        answer(of(tool_calls=calls[:128]), of(tool_calls=calls[128:]), limits=limits)


def test_probabilities_without_a_text_are_kept() -> None:
    event = of()
    event["choices"][0]["logprobs"] = {"content": [{"token": "", "logprob": -0.5, "bytes": None}]}
    piece, _ = answer(event, of(finish_reason="stop"))
    assert piece.logprobs == ({"token": "", "bytes": None, "logprob": -0.5, "top_logprobs": []},)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "stop"),
        ("tool_calls", "stop"),
        ("?" * 10_000, "stop"),
    ],
)
def test_finish_reasons_are_those_of_the_page(sent: str, reason: str) -> None:
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
    with pytest.raises(UpstreamError, match="choice 2 of 2"):
        answer(of(2, "stop"))


def test_a_choice_has_a_bound_of_characters() -> None:
    half = "x" * (LIMITS.characters // 2)
    answer(of(content=half), of(1, "stop", content=half), of(content=half, finish_reason="stop"))
    with pytest.raises(UpstreamError, match=r"choice 0 has more than 10,320 characters, for 10 tokens"):
        answer(of(content=half), of(content=half), of(content="x"))
    arguments = {"index": 0, "id": "a"} | function("f", half)
    with pytest.raises(UpstreamError, match="characters"):
        answer(of(content=half), of(tool_calls=[arguments]))


def test_a_refusal_in_words_is_the_answer() -> None:
    assert answer(of(refusal="I may not."), of(finish_reason="stop"))[0].text == "I may not."


def tokens(usage: Any) -> tuple[int, int, int]:
    last = answer(of(content="The Danube.", finish_reason="stop"), {"choices": [], "usage": usage})[-1]
    return last.prompt_tokens, last.completion_tokens, last.cached_tokens


def test_usage_that_cannot_be_true_is_estimated() -> None:
    estimated = (3, 3, 0)
    assert tokens(None) == estimated
    most = {"prompt_tokens": 100 + HIDDEN_TOKENS, "completion_tokens": 20 + HIDDEN_TOKENS}
    assert tokens(most) == (*most.values(), 0)
    for name in most:
        for wrong in (most[name] + 1, -1, 0.5, None, "5", True):
            assert tokens(most | {name: wrong}) == estimated
    cached = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}
    assert tokens(cached) == (5, 1, 5)
    assert tokens(cached | {"prompt_tokens": 4}) == estimated


def test_cached_tokens_are_read_in_either_of_their_fields() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 3}
    assert tokens(usage) == (5, 1, 3)
    assert tokens(usage | {"prompt_tokens_details": {}}) == (5, 1, 3)
    assert tokens(usage | {"prompt_tokens_details": {"cached_tokens": 0}}) == (5, 1, 0)
    for wrong in (6, -1, 0.5):
        assert tokens(usage | {"prompt_cache_hit_tokens": wrong}) == (3, 3, 0)


def test_later_usage_counts_unless_it_cannot_be_true() -> None:
    events = [{"usage": {"prompt_tokens": n, "completion_tokens": 1}} for n in (5, 6, -1)]
    stream = CompletionStream(LIMITS, [""])
    for event in (*events, of(finish_reason="stop")):
        assert not list(stream.pieces(json.dumps(event).encode()))
    assert (stream.last().prompt_tokens, stream.doubted) == (6, True)


def test_odd_fields_are_read_or_refused_without_their_text() -> None:
    limits = AnswerLimits(choices=1, tokens=64, request_bytes=100)
    answered, told = 0, list[str]()
    for name, body in odd_fields():
        stream = CompletionStream(limits, ["?"])
        try:
            datas = [line.removeprefix(b"data: ") for line in body().split(b"\n\n")[:-2]]
            pieces = [piece for data in datas for piece in stream.pieces(data)]
            last = stream.last()
        except UpstreamError as error:
            told.append(str(error))
            continue
        answered += 1
        assert last.finish_reason in ("stop", "length", "tool_calls"), name
        assert 0 <= last.prompt_tokens <= 100 + HIDDEN_TOKENS, name
        assert 0 <= last.completion_tokens <= 64 + HIDDEN_TOKENS, name
        assert sum(len(piece.text) for piece in pieces) <= limits.characters, name
        for piece in pieces:
            json.dumps([piece.text, piece.tool_calls, piece.logprobs], allow_nan=False).encode()
            assert piece.text.encode().decode() == piece.text, name
    assert answered > 100
    assert max(map(len, told)) < 200
    assert not any("Danube" in message for message in told)


DOCUMENTS = st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)


@given(st.binary(max_size=200) | DOCUMENTS)
@pytest.mark.slow
def test_no_data_raises_anything_but_its_own_error(data: bytes | str) -> None:
    stream = CompletionStream(LIMITS, [])
    try:
        list(stream.pieces(data if isinstance(data, bytes) else data.encode(errors="surrogatepass")))
    except UpstreamError:
        return


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b'{"error": {"message": "m", "code": "c", "param": "p"}}', Refusal("m", "c", "p")),
        (b'{"error": {"message": 1, "code": null, "param": ["p"]}}', Refusal()),
        (b'{"error": "m"}', Refusal("m")),
        (b'{"error": 5}', Refusal()),
        (b'{"error": [1]}', Refusal()),
        (b'{"message": "m", "code": "c"}', Refusal("m", "c")),
        (b"[]", Refusal()),
        (b"", Refusal()),
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
    assert refusal.is_too_long is too_long


# -- bytes --------------------------------------------------------------------------------------------


async def parts(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def data_of(
    body: bytes, size: int = 7, encoding: str | None = None, most: int = 1 << 20
) -> list[bytes]:
    async with aclosing(upstream.decoded(parts(body, size), encoding, most)) as decoded:
        return [data async for data in upstream.events_or_object(decoded)]


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 99), st.sampled_from([None, "gzip", " GZIP "]))
def test_events_do_not_depend_on_how_bytes_arrive(end: str, size: int, encoding: str | None) -> None:
    body = stream_of(EVENTS, end)
    packed = body if encoding is None else gzip.compress(body[:50]) + gzip.compress(body[50:])
    whole = asyncio.run(data_of(packed, size, encoding))
    assert whole == [*(json.dumps(event).encode() for event in EVENTS), b"[DONE]"]


async def test_an_event_may_have_several_lines() -> None:
    body = b": hello\nevent: x\ndata: a\ndata:  b\n\n\n\ndata\n\ndata:c"
    assert await data_of(body) == [b"a\n b", b"", b"c"]
    assert await data_of(b"data: a\r\ndata: b\r\n\r\n", size=1) == [b"a\nb"], (
        "a line ends once, however it comes"
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_body_that_begins_with_a_brace_is_the_only_event(size: int) -> None:
    body = b'\n  {"data": 1,\r\n\n"data: b": 2}\n'
    assert await data_of(body, size) == [body]
    assert await data_of(b"\n\ndata: {\n\n", size) == [b"{"]
    assert await data_of(b"", size) == await data_of(b" \n", size) == []


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_line_and_an_event_end_at_their_bounds(size: int) -> None:
    async def read(body: bytes) -> list[bytes]:
        return [data async for data in upstream.events(parts(body, size), most=10)]

    assert await read(b"data: 4567\n\n") == [b"4567"]
    with pytest.raises(UpstreamError, match="a line of more than 10 bytes"):
        await read(b"data: 45678\n\n")
    assert await read(b"data:45678\ndata:1234\n\n") == [b"45678\n1234"]
    with pytest.raises(UpstreamError, match="an event of more than 10 bytes"):
        await read(b"data:45678\ndata:12345\n\n")


@pytest.mark.parametrize("encoding", [None, "gzip", "deflate"])
async def test_a_body_ends_at_its_bound_packed_or_not(encoding: str | None) -> None:
    body = bytes(200_000)
    packed = {None: body, "gzip": gzip.compress(body), "deflate": zlib.compress(body)}[encoding]
    assert await upstream.read_body(parts(packed, 50_000), encoding, 200_000) == body
    with pytest.raises(UpstreamError, match="more than 199,999 bytes"):
        await upstream.read_body(parts(packed, 50_000), encoding, 199_999)


async def test_packed_bytes_count_where_they_unpack_to_nothing() -> None:
    with pytest.raises(UpstreamError, match="more than 1,000 bytes"):
        await upstream.read_body(parts(gzip.compress(b"") * 100, 50), "gzip", 1000)


@pytest.mark.parametrize(
    ("body", "encoding", "told"),
    [
        (b"plain", "gzip", "damaged compressed data"),
        (gzip.compress(b"x" * 1000)[:-1], "gzip", "without its end"),
        (b"", "gzip", "without its end"),
        (b"plain", "br", "the content encoding 'br', which was not asked for"),
        (b"plain", "gzip, gzip", "the content encoding 'gzip, gzip'"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_an_error(body: bytes, encoding: str, told: str) -> None:
    with pytest.raises(UpstreamError, match=told):
        await upstream.read_body(parts(body, 10), encoding, 1000)


async def test_of_a_long_error_the_beginning_is_read() -> None:
    for size in (1000, 99_000):
        assert await upstream.read_beginning(parts(bytes(100_000), size), None) == bytes(upstream.ERROR_BYTES)
    assert await upstream.read_beginning(parts(b"x", 1), "br") == b""


def test_what_operators_are_shown_is_one_short_line() -> None:
    assert upstream.shown(b"two\nlines \xff\x1b[31m") == "'two\\nlines \ufffd\\x1b[31m'"
    assert len(upstream.shown("é".encode() * 10_000)) == 202
