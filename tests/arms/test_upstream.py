"""Limits of what is read from other services: bodies, their lines and their events."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms import upstream
from armwise.arms.upstream import ERROR_BYTES, UpstreamError, limit_size
from tests.endless import PART, EndlessBody
from tests.odd_endpoint import EVENTS, stream_of


def respond(status: int, body: EndlessBody, **headers: str) -> httpx.Client:
    answer = httpx.Response(status, stream=body, headers=headers)
    return httpx.Client(transport=httpx.MockTransport(lambda _: answer))


@pytest.mark.parametrize("status", [302, 404, 503])
def test_only_the_beginning_of_an_error_is_read(status: int) -> None:
    body = EndlessBody()
    with respond(status, body) as http, http.stream("GET", "http://service") as response:
        assert limit_size(response, 1 << 30).read() == PART[:ERROR_BYTES]
    assert (body.parts, body.closed) == (1, True)


async def test_only_the_beginning_of_an_error_is_read_asynchronously() -> None:
    body = EndlessBody()
    transport = httpx.MockTransport(lambda _: httpx.Response(503, stream=body))
    async with httpx.AsyncClient(transport=transport) as http, http.stream("GET", "http://a") as response:
        assert await limit_size(response, 1 << 30).aread() == PART[:ERROR_BYTES]
    assert (body.parts, body.closed) == (1, True)


def test_a_response_that_is_too_large_is_refused() -> None:
    body = EndlessBody()
    with respond(200, body) as http, http.stream("GET", "http://service") as response:
        limit_size(response, 3 * len(PART) - 1)
        with pytest.raises(httpx.DecodingError, match="more than 196,607 bytes"):
            response.read()
    assert (body.parts, body.closed) == (3, True)


async def test_a_response_that_is_too_large_is_refused_asynchronously() -> None:
    body = EndlessBody()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=body))
    async with httpx.AsyncClient(transport=transport) as http, http.stream("GET", "http://a") as response:
        limit_size(response, len(PART))
        with pytest.raises(httpx.DecodingError, match="more than 65,536 bytes"):
            await response.aread()
    assert (body.parts, body.closed) == (2, True)


def test_a_response_of_the_largest_size_is_read() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=iter([PART, PART])))
    with httpx.Client(transport=transport) as http, http.stream("GET", "http://service") as response:
        assert limit_size(response, 2 * len(PART)).read() == PART + PART


@pytest.mark.parametrize("status", [200, 503])
def test_a_compressed_response_is_refused_before_it_is_read(status: int) -> None:
    body = EndlessBody()
    with (
        respond(status, body, **{"content-encoding": "gzip"}) as http,
        http.stream("GET", "http://service") as response,
        pytest.raises(httpx.DecodingError, match="content encoding 'gzip', which was not requested"),
    ):
        limit_size(response, 1 << 30)
    assert body.parts == 0


async def parts(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def data_of(
    body: bytes, size: int = 7, encoding: str | None = None, most: int = 1 << 20
) -> list[bytes]:
    async with aclosing(upstream.decompress(parts(body, size), encoding, most)) as decoded:
        return [event.data async for event in upstream.events_or_object(decoded)]


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


async def test_an_event_has_the_name_before_its_blank_line() -> None:
    body = b"event: a\ndata: 1\n\ndata: 2\n\nevent: b\n\ndata: 3\n\nevent:c\ndata: 4"
    events = [event async for event in upstream.events(parts(body, 7))]
    assert events == [(b"1", b"a"), (b"2", b""), (b"3", b""), (b"4", b"c")]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_body_that_begins_with_a_brace_is_the_only_event(size: int) -> None:
    body = b'\n  {"data": 1,\r\n\n"data: b": 2}\n'
    assert await data_of(body, size) == [body]
    assert await data_of(b"\n\ndata: {\n\n", size) == [b"{"]
    assert await data_of(b"", size) == await data_of(b" \n", size) == []


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_line_and_an_event_end_at_their_bounds(size: int) -> None:
    async def read(body: bytes) -> list[bytes]:
        return [event.data async for event in upstream.events(parts(body, size), most=10)]

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


@pytest.mark.parametrize(
    ("body", "encoding", "told"),
    [
        (b"plain", "gzip", "damaged compressed data"),
        (gzip.compress(b"x" * 1000)[:-1], "gzip", "cut off"),
        (b"", "gzip", "cut off"),
        (b"plain", "br", "content encoding 'br', which was not requested"),
        (b"plain", "gzip, gzip", "content encoding 'gzip, gzip'"),
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
    assert upstream.quote_start(b"two\nlines \xff\x1b[31m") == "'two\\nlines \ufffd\\x1b[31m'"
    assert len(upstream.quote_start("é".encode() * 10_000)) == 202
