"""Read responses of an untrusted HTTP service, within bounds: bytes, lines, events and pauses.

A response that breaks a bound, or cannot be decoded, is an `UpstreamError`. `limit_size` is for callers of
httpx, which handle its errors.
"""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import NamedTuple, cast

import httpx
from typing_extensions import override

STEP_BYTES = 1 << 16
"""Bytes that are decompressed at a time."""

LINE_BYTES = 1 << 20
"""Largest number of bytes of a line of a stream, and of an event."""

ERROR_BYTES = 1 << 14
"""Bytes of the body of an error that are read."""

OBJECT_BYTES = 64 << 20
"""Largest number of bytes of an answer that is an object, which is held in memory."""

LONGEST_REST_S = 3600.0
"""Longest pause in seconds that a service can request."""

SHOWN_CHARS = 200
"""Characters of a response that are shown to operators."""

_EITHER_HEADER = 32 + zlib.MAX_WBITS
"""Has zlib take data of gzip and of zlib."""

_ENDS = re.compile(rb"\r\n|\r|\n")


class UpstreamError(Exception):
    """A response breaks a bound, or cannot be decoded; the message is free of its text."""


async def decompress(
    parts: AsyncIterable[bytes], encoding: str | None, most: int
) -> AsyncGenerator[bytes, None]:
    """Yield a body without its compression, in parts of bounded size.

    Args:
        parts: The body as it arrives.
        encoding: Content-Encoding of it, if any.
        most: Largest number of bytes, compressed or not.

    Raises:
        UpstreamError: It has more, its encoding is unknown, or it is damaged or truncated.
    """
    inflater, received, read = _inflater(encoding), 0, 0
    async for part in parts:
        received += len(part)
        for piece in (part,) if inflater is None else inflater.pieces(part):
            read += len(piece)
            if max(received, read) > most:
                raise UpstreamError(f"more than {most:,} bytes")
            yield piece
            await asyncio.sleep(0)  # other answers go on, however fast this one arrives
    if inflater is not None:
        yield inflater.end()


def _inflater(encoding: str | None) -> "_Inflater | None":
    name = (encoding or "identity").strip().lower()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflater()
    if name != "identity":
        raise UpstreamError(f"content encoding {name[:20]!r}, which was not requested")
    return None


class _Inflater:
    """Decompresses gzip, of any number of members, or zlib."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_EITHER_HEADER)

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield the content of a part of the data, a step at a time. Raises UpstreamError."""
        while part:
            if self._member.eof:
                self._member = zlib.decompressobj(_EITHER_HEADER)
            try:
                yield self._member.decompress(part, STEP_BYTES)
            except zlib.error:
                raise UpstreamError("damaged compressed data") from None
            part = self._member.unconsumed_tail or self._member.unused_data

    def end(self) -> bytes:
        """Return the rest at the end of the data. Raises UpstreamError."""
        left = self._member.flush()
        if not self._member.eof:
            raise UpstreamError("compressed data that was cut off")
        return left


async def read_body(parts: AsyncIterable[bytes], encoding: str | None, most: int) -> bytes:
    """Return a complete body. Raises UpstreamError, see `decompress`."""
    body = bytearray()
    async with aclosing(decompress(parts, encoding, most)) as pieces:
        async for piece in pieces:
            body += piece
    return bytes(body)


async def read_beginning(parts: AsyncIterable[bytes], encoding: str | None) -> bytes:
    """Return the beginning of the body of an error, as far as it can be read."""
    body = bytearray()
    with suppress(UpstreamError):
        async with aclosing(decompress(parts, encoding, LINE_BYTES)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= ERROR_BYTES:
                    break
    return bytes(body[:ERROR_BYTES])


UNCOMPRESSED = {"accept-encoding": "identity"}
"""Headers for a request whose response `limit_size` reads: a few compressed bytes may become gigabytes."""


def limit_size(response: httpx.Response, most: int) -> httpx.Response:
    """Limit what will be read from a response, and return it.

    A response that reports an error ends after `ERROR_BYTES`. Reading any other response that has more than
    `most` bytes raises httpx.DecodingError.

    Args:
        response: A streamed response of httpx, before anything was read from it.
        most: Largest number of bytes.

    Raises:
        httpx.DecodingError: It is compressed.
    """
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        message = f"content encoding {encoding[:20]!r}, which was not requested"
        raise httpx.DecodingError(message, request=response.request)
    cut = not response.is_success
    response.stream = _LimitedStream(response.stream, ERROR_BYTES if cut else most, cut=cut)
    return response


class _LimitedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a response, which ends after so many bytes, or fails there unless it is to be cut."""

    def __init__(self, stream: httpx.SyncByteStream | httpx.AsyncByteStream, most: int, *, cut: bool) -> None:
        self._stream, self._most, self._left, self._cut = stream, most, most, cut

    def _take(self, part: bytes) -> bytes:
        if len(part) > self._left and not self._cut:
            raise httpx.DecodingError(f"more than {self._most:,} bytes")
        taken = part[: self._left]
        self._left -= len(taken)
        return taken

    @override
    def __iter__(self) -> Iterator[bytes]:
        for part in cast("httpx.SyncByteStream", self._stream):
            yield self._take(part)
            if self._cut and not self._left:
                break

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in cast("httpx.AsyncByteStream", self._stream):
            yield self._take(part)
            if self._cut and not self._left:
                break

    @override
    def close(self) -> None:
        cast("httpx.SyncByteStream", self._stream).close()

    @override
    async def aclose(self) -> None:
        await cast("httpx.AsyncByteStream", self._stream).aclose()


async def lines(parts: AsyncIterable[bytes], most: int = LINE_BYTES) -> AsyncGenerator[bytes, None]:
    r"""Yield the lines of a stream, which end in LF, CR LF or CR, without their ends.

    Raises:
        UpstreamError: A line has more than `most` bytes.
    """
    begun, after_cr = bytearray(), False
    async for part in parts:
        head, *later = _ENDS.split(part[1:] if after_cr and part.startswith(b"\n") else part)
        after_cr = part.endswith(b"\r") or (after_cr and not part)
        begun += head
        for line in later:
            if len(begun) > most:
                break
            yield bytes(begun)
            begun = bytearray(line)
        if len(begun) > most:
            raise UpstreamError(f"a line of more than {most:,} bytes")
    if begun:
        yield bytes(begun)


class SentEvent(NamedTuple):
    """An event that a server has sent.

    Attributes:
        data: The text of the event.
        name: Name of the event; empty where it has none.
    """

    data: bytes
    name: bytes = b""


async def events(parts: AsyncIterable[bytes], most: int = LINE_BYTES) -> AsyncGenerator[SentEvent, None]:
    """Yield server-sent events that have data; comments and other fields are left out.

    The last event counts without the blank line after it.

    Raises:
        UpstreamError: A line, or the data of an event, has more than `most` bytes.
    """
    data, named, size, first = list[bytes](), b"", 0, True
    async with aclosing(lines(parts, most)) as each:
        async for line in each:
            field, _, value = (line.removeprefix(b"\xef\xbb\xbf") if first else line).partition(b":")
            first = False
            if field == b"data":
                data.append(value.removeprefix(b" "))
                size += 1 + len(data[-1])
                if size > most + 1:
                    raise UpstreamError(f"an event of more than {most:,} bytes")
            elif field == b"event":
                named = value.removeprefix(b" ")
            elif not line:
                if data:
                    yield SentEvent(b"\n".join(data), named)
                data, named, size = [], b"", 0
    if data:
        yield SentEvent(b"\n".join(data), named)


async def events_or_object(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[SentEvent, None]:
    """Yield server-sent events; a body that begins with a brace is the data of the only one.

    Args:
        parts: A body, whose size is bounded.

    Raises:
        UpstreamError: See `events`.
    """
    begun = bytearray()
    async for part in parts:
        begun += part
        if begun.strip():
            break
    if not begun.lstrip().startswith(b"{"):
        async with aclosing(events(_with_first(bytes(begun), parts))) as each:
            async for event in each:
                yield event
        return
    async for part in _with_first(b"", parts):
        begun += part
        if len(begun) > OBJECT_BYTES:
            raise UpstreamError(f"an object of more than {OBJECT_BYTES:,} bytes")
    yield SentEvent(bytes(begun))


async def _with_first(first: bytes, parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for part in parts:
        yield part


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After` or of `retry-after-ms`, at most an hour, if one is readable.

    >>> retry_after_s({"retry-after": "2"}), retry_after_s({"retry-after-ms": "40"}), retry_after_s({})
    (2.0, 0.04, None)
    >>> retry_after_s({"retry-after": "inf"}), retry_after_s({"retry-after": "nan"})
    (3600.0, None)
    >>> retry_after_s({"retry-after": "Fri, 02 Jan 1970 00:00:00 GMT"})
    0.0
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (seconds := _seconds(headers.get(name, ""))) is not None:
            return min(seconds * unit, LONGEST_REST_S)
    return None


def _seconds(text: str) -> float | None:
    """Return a number, or the seconds until an HTTP date; None: it is neither."""
    with suppress(ValueError):
        return number if (number := float(text)) >= 0.0 else None  # what is not a number is neither
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None


def quote_start(content: bytes) -> str:
    """Return the beginning of a response on a line, for operators only."""
    return repr(content[: 4 * SHOWN_CHARS].decode(errors="replace")[:SHOWN_CHARS])


def no_cookies() -> CookieJar:
    """Return a jar that refuses all cookies, so that a service cannot track calls."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
