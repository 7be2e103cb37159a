"""An endpoint of a language model that answers oddly, in one of many ways, and what a service makes of it."""

import asyncio
import gzip
import json
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

REFUSED = (400, 404, 413, 415, 422)
"""Statuses of an endpoint that are the caller's."""

PIECE = b"x" * (1 << 16)
MOST_PIECES = 4096
"""Pieces of an answer without an end, after which this endpoint gives up: 256 MiB."""

TOKEN = {"token": " Danube", "logprob": -0.5, "bytes": [32], "top_logprobs": []}

EVENTS: tuple[Mapping[str, Any], ...] = (
    {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "odd",
        "service_tier": "default",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "delta": {
                    "role": "assistant",
                    "content": "The Danube.",
                    "refusal": None,
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c-1",
                            "type": "function",
                            "function": {"name": "now", "arguments": "{}"},
                        }
                    ],
                },
                "logprobs": {"content": [TOKEN], "refusal": None},
                "finish_reason": None,
            }
        ],
        "usage": None,
        "error": None,
    },
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    },
)
"""The events of an answer in which every field of the specification occurs."""

ABSENT = object()

VALUES: Mapping[str, Any] = {
    "absent": ABSENT,
    "null": None,
    "true": True,
    "a text": "odd",
    "no text": "",
    "a megabyte": "x" * 1_000_000,
    "a fraction": 0.5,
    "10^30": 10**30,
    "4000000": 4_000_000,
    "-1": -1,
    "no list": [],
    "a list": [1, None, "x"],
    "no object": {},
    "a lone surrogate": "\ud800",
    "not a number": float("nan"),
}
"""What stands in the place of each field."""

Path_ = tuple[str | int, ...]
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n"


def paths(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every field and item within a document."""
    items = enumerate(value) if isinstance(value, list) else ()
    for key, part in value.items() if isinstance(value, Mapping) else items:
        yield (*at, key)
        yield from paths(part, (*at, key))


def replaced(document: Mapping[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """Return a document with another value at a path, or without the field."""
    changed: Any = deepcopy(dict(document))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is ABSENT:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return dict(changed)


def stream_of(events: Sequence[Mapping[str, Any]], end: str = "\n") -> bytes:
    """Return events as a server sends them."""
    datas = [*map(json.dumps, events), "[DONE]"]
    return "".join(f"data: {data}{end}{end}" for data in datas).encode()


def odd_fields() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield a name, and what returns the stream, for each field of each event with each value."""
    for number, event in enumerate(EVENTS):
        for path in paths(event):
            for told, value in VALUES.items():
                yield f"{number}.{'.'.join(map(str, path))}: {told}", partial(_with, number, path, value)


def _with(number: int, path: Path_, value: Any) -> bytes:
    """Return the stream in which a field of an event has another value."""
    return stream_of([*EVENTS[:number], replaced(EVENTS[number], path, value), *EVENTS[number + 1 :]])


def bomb(start: bytes, piece: bytes, pieces: int) -> bytes:
    """Return the gzip of a start and of many pieces."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    packed = [packer.compress(start), *(packer.compress(piece) for _ in range(pieces)), packer.flush()]
    return b"".join(packed)


def odd_streams() -> Iterator[tuple[str, bytes]]:
    """Yield a name and the bytes of a response with each oddity of the bytes."""
    whole = stream_of(EVENTS)
    first, last = stream_of(EVENTS[:1]).split(b"\n\n")[0], stream_of(EVENTS[1:])
    yield "nothing odd", HEAD + b"\r\n" + whole
    yield "CR LF", HEAD + b"\r\n" + stream_of(EVENTS, "\r\n")
    yield "CR", HEAD + b"\r\n" + stream_of(EVENTS, "\r")
    yield "comments and other fields", HEAD + b"\r\n: hello\n\nevent: x\nid: 1\nretry: 5\n\n" + whole
    yield "a mark of the order of bytes", HEAD + b"\r\n\xef\xbb\xbf" + whole
    yield "no space after data:", HEAD + b"\r\n" + whole.replace(b"data: ", b"data:")
    yield "data in two lines", HEAD + b"\r\n" + whole.replace(b'"id"', b'\ndata: "id"')
    yield "without [DONE]", HEAD + b"\r\n" + whole.replace(b"data: [DONE]\n\n", b"")
    yield "more after [DONE]", HEAD + b"\r\n" + whole + b"data: not read\n\n"
    yield "cut in an event", HEAD + b"\r\n" + whole[:40]
    yield "cut before its end", HEAD + b"\r\n" + first + b"\n\n"
    yield "cut after its end", HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _chunked(whole)
    yield "no JSON", HEAD + b"\r\ndata: {not\n\n" + last
    yield "JSON 10,000 levels deep", HEAD + b"\r\ndata: " + b"[" * 10_000 + b"\n\n" + last
    yield "bytes that are not UTF-8", HEAD + b"\r\n" + whole.replace(b"Danube", b"D\xff\xfe")
    yield "UTF-16", HEAD + b"\r\n" + whole.decode().encode("utf-16")
    yield "nothing", HEAD + b"\r\n"
    yield "a page of HTML", HEAD.replace(b"event-stream", b"html") + b"\r\n<html>busy</html>"
    yield "the type of JSON", HEAD.replace(b"text/event-stream", b"application/json") + b"\r\n" + whole
    yield "gzip", HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(whole)
    yield "gzip, cut", HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(whole)[:200]
    yield "gzip, twice", HEAD + b"Content-Encoding: gzip, gzip\r\n\r\n" + gzip.compress(gzip.compress(whole))
    yield "gzip that is none", HEAD + b"Content-Encoding: gzip\r\n\r\n" + whole
    yield "an unknown encoding", HEAD + b"Content-Encoding: br\r\n\r\n" + whole
    packed = HEAD + b"Content-Encoding: gzip\r\n\r\n"
    yield "a gzip of a line of 256 MiB", packed + bomb(b"data: ", PIECE, 4096)
    yield "a gzip of 256 MiB of comments", packed + bomb(b"", b": x\n" * (1 << 14), 4096)
    yield "a header of 200 KB", HEAD + b"X-Odd: " + b"x" * 200_000 + b"\r\n\r\n" + whole
    yield "no HTTP", b"hello\r\n\r\n"
    yield "a wrong length", HEAD + b"Content-Length: 5\r\n\r\n" + whole
    yield "a length beyond the end", HEAD + b"Content-Length: 99999999\r\n\r\n" + first + b"\n\n"
    for status in (204, 301, 400, 401, 402, 403, 404, 409, 418, 422, 500, 503, 599):
        head = f"HTTP/1.1 {status} Odd\r\nConnection: close\r\nLocation: http://127.0.0.1:9/\r\n\r\n"
        body = b'{"error": {"message": "secret", "code": "odd"}}' if status > 299 else b""
        yield f"status {status}", head.encode() + body
    deep = b"HTTP/1.1 400 Odd\r\nConnection: close\r\n\r\n" + b'{"error":' * 1800
    yield "an error 1,800 levels deep", deep


def _chunked(body: bytes) -> bytes:
    """Return a body in one chunk, without the chunk that ends it."""
    return b"%x\r\n%b\r\n" % (len(body), body)


async def _endless(piece: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"\r\n")
    for _ in range(MOST_PIECES):
        writer.write(piece)
        await writer.drain()


def _event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


async def _said(response: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(response)
    await writer.drain()


async def _streamed(body: Callable[[], bytes], writer: asyncio.StreamWriter) -> None:
    await _said(HEAD + b"\r\n" + body(), writer)


def oddities() -> dict[str, Write]:
    """Return what writes the response of each oddity, by its name."""
    endless = {
        "a line without an end": PIECE,
        "comments without an end": b": " + PIECE + b"\n\n",
        "an event without an end": b"data: " + PIECE + b"\n",
        "a text without an end": _event("x" * 1000) * 64,
        "empty events without an end": _event("") * 256,
    }
    return {
        **{name: partial(_said, response) for name, response in odd_streams()},
        **{name: partial(_endless, piece) for name, piece in endless.items()},
        **{name: partial(_streamed, body) for name, body in odd_fields()},
    }


class OddEndpoint:
    """An endpoint that answers oddly: the last message of a request has the number of the oddity.

    Args:
        every: Only numbers that this divides are answered oddly, by each oddity in turn; others are not.

    Attributes:
        names: Names of the oddities, by number.
        began: Set once a response has begun.
        left: Set once the other side has ended a response.
    """

    def __init__(self, every: int = 1) -> None:
        self._every = every
        writers = oddities()
        self.names = [*writers]
        self.began, self.left = asyncio.Event(), asyncio.Event()
        self._writers = [*writers.values()]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen; yield the base URL."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"content-length: (\d+)", head)
            body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
            number = int(re.findall(r"\d+", body["messages"][-1]["content"])[-1])
            turn, plain = divmod(number, self._every)
            self.began.set()
            await self._writers[0 if plain else turn % len(self._writers)](writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


@dataclass(frozen=True, slots=True)
class Row:
    """What followed on an oddity.

    Attributes:
        name: The oddity.
        status: HTTP status of the answer.
        recorded: Status of the execution in the log; `running` without one.
        seconds: How long it took.
        shown: The body of the answer.
    """

    name: str
    status: int
    recorded: str
    seconds: float
    shown: str

    @property
    def kept(self) -> bool:
        """Whether it was answered or failed as a language model does, and is recorded so."""
        if self.status == 200:
            return self.recorded == "ok"
        return self.recorded == "llm_failed" and self.status in (502, *REFUSED)


async def asked(client: httpx.AsyncClient, name: str, number: int, arm: str = "none") -> Row:
    """Ask a service a question that its endpoint answers with an oddity."""
    messages = [{"role": "user", "content": f"What happens with oddity {number}?"}]
    body = {"model": f"arm/{arm}", "messages": messages, "max_tokens": 64}
    began = time.perf_counter()
    reply = await client.post("/v1/chat/completions", json=body)
    seconds = time.perf_counter() - began
    decision = reply.headers.get("x-decision-id", "")
    recorded = (await client.get(f"/v1/decisions/{decision}")).json().get("status", "") if decision else ""
    return Row(name, reply.status_code, recorded, seconds, reply.text)
