"""Limits of what is read from other services with httpx."""

import httpx
import pytest

from armwise.arms.upstream import ERROR_BYTES, limit_size
from tests.endless import PART, EndlessBody


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
        pytest.raises(httpx.DecodingError, match="the content encoding 'gzip', which was not asked for"),
    ):
        limit_size(response, 1 << 30)
    assert body.parts == 0
