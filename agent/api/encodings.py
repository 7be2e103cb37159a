"""Unpack request bodies that clients send compressed, while they arrive.

Agents compress long conversations. A few bytes can unpack to very many, so a body counts by its unpacked
size, and whatever grows beyond the limit is refused where it does.
"""

import sys
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
from typing_extensions import Buffer

from armwise.agent.api.errors import ApiError
from armwise.arms.large import LARGE, SMALL, call_beside

READABLE = ("gzip", "deflate", "zstd")
"""Content codings that requests may have."""

PIECE = 32 * 1024
"""Most bytes that are unpacked in one step."""

FRAMES = 1000
"""Most members (gzip) or frames (zstd) of a body: empty ones take time and add nothing."""

ZSTD_WINDOW = 23
"""Logarithm of the largest window of zstd, 8 MiB, as RFC 9659 has it."""


def read_encoding(headers: Iterable[tuple[bytes, bytes]], readable: Sequence[str]) -> str:
    """Return the coding of a body, one of those that are read; empty if it has none. Raises ApiError."""
    values = (value for name, value in headers if name == b"content-encoding")
    named = (name.strip().lower() for name in b",".join(values).decode("latin-1").split(","))
    coding = ", ".join("gzip" if name == "x-gzip" else name for name in named if name not in ("", "identity"))
    if not coding or coding in readable:
        return coding
    read = f"one of {', '.join(readable[:-1])} and {readable[-1]}" if readable else "none without a key"
    message = f"the body has the content-encoding {coding[:50]!r}; Armwise reads {read}"
    raise ApiError("unsupported_encoding", message, "Content-Encoding")


def list_accepted(readable: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the header of the answer to a request in another coding (RFC 7694)."""
    return b"accept-encoding", ", ".join(readable or ("identity",)).encode()


class Decompressor(Protocol):
    """Unpacks one gzip member, deflate stream or zstd frame."""

    @property
    def eof(self) -> bool:
        """Whether its end was read."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What came after its end."""
        ...

    def decompress(self, data: Buffer, /, max_length: int) -> bytes:
        """Return up to so many bytes of output, and keep the input that makes more."""
        ...


class _Zlib:
    """A `Decompressor` of zlib, which leaves the rest of its input to the caller."""

    def __init__(self, wbits: int) -> None:
        self._stream = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: Buffer, /, max_length: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, max_length)


def _open(coding: str, first: int) -> Decompressor:
    """Return what unpacks a body that begins with this byte."""
    if coding == "zstd":
        return ZstdDecompressor(options={DecompressionParameter.window_log_max: ZSTD_WINDOW})
    if coding == "gzip":
        return _Zlib(16 + zlib.MAX_WBITS)
    # deflate is a zlib stream, but some clients leave out its header, whose first byte ends in 8
    return _Zlib(zlib.MAX_WBITS if first & 15 == 8 else -zlib.MAX_WBITS)


class Unpacker:
    """Unpacks one body.

    Args:
        coding: What the body was packed with.
        most: Bytes that it may have unpacked.
    """

    def __init__(self, coding: str, most: int) -> None:
        self._coding, self._most = coding, most
        self._engine: Decompressor | None = None
        self._frames = self._size = 0

    async def add(self, part: bytes, hold: Callable[[], Awaitable[None]]) -> bytes:
        """Return what the next part of the body unpacks to: little at once, and more in another thread.

        Args:
            part: Bytes as they arrived.
            hold: Awaited before anything is unpacked in another thread.

        Raises:
            ApiError: It is not what its coding promises, or too large.
        """
        pieces, unpacked = self._unpack_all(part), []
        for size in (SMALL, LARGE, sys.maxsize):
            if size > SMALL:
                await hold()
            taken, is_all = await call_beside(size, partial(_take, pieces, size))
            unpacked.append(taken)
            if is_all:
                break
        return b"".join(unpacked)

    def _unpack_all(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), PIECE):
            yield from self._unpack(data[start : start + PIECE])

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        while data or (self._engine is not None and not self._engine.eof):
            if self._engine is None or self._engine.eof:
                self._frames += 1
                if self._frames > FRAMES:
                    raise self._broken(f"more than {FRAMES:,} parts")
                self._engine = _open(self._coding, data[0])
            try:
                piece = self._engine.decompress(data, PIECE)
            except (zlib.error, ZstdError) as error:
                raise self._broken(str(error)) from None
            data = self._engine.unused_data if self._engine.eof else b""
            self._size += len(piece)
            if self._size > self._most:
                raise too_large(self._most, " once it is unpacked")
            if piece:
                yield piece
            if len(piece) < PIECE and not self._engine.eof:  # it needs more input
                return

    def end(self) -> None:
        """Check that the body is whole. Raises ApiError."""
        if self._engine is not None and not self._engine.eof:
            raise self._broken("its end is missing")

    def _broken(self, why: str) -> ApiError:
        message = f"the body cannot be unpacked as {self._coding}, its content-encoding: {why}"
        return ApiError("invalid_request", message, "Content-Encoding")


def _take(pieces: Iterator[bytes], size: int) -> tuple[bytes, bool]:
    """Return pieces that have so many bytes or a little more, and whether these are all."""
    taken, total = list[bytes](), 0
    for piece in pieces:
        taken.append(piece)
        total += len(piece)
        if total >= size:
            return b"".join(taken), False
    return b"".join(taken), True


def too_large(most: int, when: str = "") -> ApiError:
    """Return the error of a body that has more bytes than a caller may send."""
    return ApiError("payload_too_large", f"the body is larger than {most} bytes{when}")
