"""Write the answer of a turn in the protocol of its client, whole or as server-sent events.

An answer of a model that speaks the protocol of the client is passed on as it came, but for its id, the name
of the model and `agent`. Any other is written anew. From the first event that ends an answer nothing is sent
until the turn is in the log.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response

from armwise.agent.access import Caller
from armwise.agent.api import errors, responses
from armwise.agent.api.errors import ApiError
from armwise.agent.config import AppConfig
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Ask, Choices, Decided, Event, Finished
from armwise.arms.llm import Chunk, Document, ProtocolName

logger = logging.getLogger(__name__)

FIRST_S = 1.0
"""Seconds in which the first piece of an answer decides about the status of a stream."""


class Writer(ABC):
    """Writes one answer in the protocol of a client.

    Args:
        decided: The decision.
        config: Has the prices, and says how much of the passages the model was shown.
        returns: Optional fields of `agent` that the client asked for.

    Attributes:
        protocol: The protocol.
        ping: What is sent where nothing else was for a while.
    """

    protocol: ProtocolName
    ping: bytes

    def __init__(self, decided: Decided, config: AppConfig, returns: Collection[str]) -> None:
        self._decided, self._config, self._returns = decided, config, returns

    @abstractmethod
    def begin(self) -> Iterator[Document]:
        """Yield the events before an answer that is written anew."""

    @abstractmethod
    def add(self, chunk: Chunk) -> Iterator[Document]:
        """Yield the events of a piece of an answer that is written anew."""

    @abstractmethod
    def end(self, finished: Finished) -> Iterator[Document]:
        """Yield the events after an answer that is written anew."""

    @abstractmethod
    def fail(self, failure: ApiError) -> Iterator[Document]:
        """Yield the events of a failure."""

    @abstractmethod
    def patch(self, event: Document) -> Document | None:
        """Return an event of a model of the same protocol as the client gets it; None: it does not."""

    @abstractmethod
    def close(self, held: list[Document], finished: Finished) -> Iterator[Document]:
        """Yield the patched events that end an answer, with what the turn has cost."""

    @abstractmethod
    def whole(self, written: Choices, finished: Finished) -> Any:
        """Return the reply of an answer that is written anew."""

    @abstractmethod
    def patch_whole(self, answer: Document, finished: Finished) -> Document:
        """Return the answer of a model of the same protocol as the client gets it."""

    @abstractmethod
    def frame(self, event: Document) -> bytes:
        """Return an event as it is sent."""

    def _agent(self, finished: Finished | None) -> Any:
        """Return the fields of a reply that its protocol does not have."""
        return responses.agent(self._decided, finished, self._config.reward.cost, self._returns)

    def _describe_choice(self, finished: Finished) -> dict[str, Any]:
        """Return what the turn has cost, which is known only at its end."""
        decided = self._decided
        return responses.describe_choice(decided.decision, decided.served, finished, self._config.reward.cost)


async def answer(
    http: HttpRequest,
    replica: Replica,
    caller: Caller,
    ask: Ask,
    key: str | None,
    timeout_s: float | None,
    make: Callable[[Decided], Writer],
    *,
    headers: Mapping[str, str] | None = None,
    after: bytes = b"",
) -> Response:
    """Run the turn of a question and return its reply.

    Args:
        http: The request of the client.
        replica: Runs the turn.
        caller: Who asks.
        ask: The question.
        key: Idempotency key of the request.
        timeout_s: Most seconds for the turn; None for no limit.
        make: Returns what writes the answer, for the decision.
        headers: Further headers of the reply.
        after: What ends a stream.
    """
    events = admission.stream_turn(replica, caller, ask, key, timeout_s)
    if ask.document.streams:
        opened = await OpenTurn.begin(events)
        writer, decided = make(opened.decided), opened.decided
        named = {**responses.headers(decided.decision, decided.served), **(headers or {})}
        return responses.EventStream(stream(writer, opened, after), opened, named, writer.ping)
    answering = admission.read_to_end(events)  # under a key, it can be asked for again
    decided, written, finished = await (answering if key else responses.unless_left(http, answering))
    writer = make(decided)
    named = {**responses.headers(decided.decision, decided.served, finished), **(headers or {})}
    native = written.native
    if native is not None and native.protocol == writer.protocol:
        return responses.Json(writer.patch_whole(dict(native.document), finished), headers=named)
    return responses.Json(writer.whole(written, finished), headers=named)


class OpenTurn:
    """A turn whose decision is durable, and whose first piece may still be awaited.

    Attributes:
        decided: The decision.
    """

    def __init__(self, decided: Decided, events: AsyncGenerator[Event, None]) -> None:
        self.decided = decided
        self._events = events
        self._first: asyncio.Task[Event] | None = asyncio.ensure_future(anext(events))

    @classmethod
    async def begin(cls, events: AsyncGenerator[Event, None]) -> "OpenTurn":
        """Read a turn up to its decision, and on for a moment: what fails by then has a status of its own.

        Raises:
            UnansweredError: The turn was refused, or failed already.
        """
        opened = cls(await admission.read_decided(events), events)
        try:
            first = opened._first
            assert first is not None
            await asyncio.wait({first}, timeout=FIRST_S)
            if first.done():
                first.result()
        except BaseException:
            await opened.aclose()
            raise
        return opened

    def __aiter__(self) -> "OpenTurn":
        return self

    async def __anext__(self) -> Event:
        """Return the next event after the decision."""
        if (first := self._first) is None:
            return await anext(self._events)
        event = await first
        self._first = None
        return event

    async def aclose(self) -> None:
        """End the turn."""
        if (first := self._first) is not None:
            first.cancel()
            await asyncio.wait({first})
            if not first.cancelled():
                first.exception()  # which was raised already, or nobody waits for
        await self._events.aclose()


class _CallsInTurn:
    """Calls of functions one after the other, as messages and responses have them; chunks may mix them.

    What comes between the pieces of a call, another one or a text, is written at the end.
    """

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._arguments, self._complete = "", False  # of the last one that has begun
        self._calls: dict[int, list[Mapping[str, Any]]] = {}
        self._texts: list[Chunk] = []

    def add(self, chunk: Chunk) -> Chunk:
        """Return what can be written now of a chunk."""
        if chunk.text and self._arguments and not self._is_complete():
            self._texts.append(Chunk(chunk.text, logprobs=chunk.logprobs))
            chunk = replace(chunk, text="", logprobs=())
        return replace(chunk, tool_calls=tuple(self._add(chunk.tool_calls))) if chunk.tool_calls else chunk

    def rest(self) -> Iterator[Chunk]:
        """Yield what was not written."""
        yield from self._texts
        yield from (Chunk(tool_calls=tuple(pieces)) for pieces in self._calls.values())

    def _add(self, pieces: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for piece in pieces:
            index = piece["index"]
            if index not in self._begun:
                if self._calls or (self._begun and not self._is_complete()):
                    self._calls.setdefault(index, []).append(piece)
                    continue
                self._begun.append(index)
                self._arguments, self._complete = "", False
            if index == self._begun[-1]:  # one that is complete gets no more
                self._arguments += piece.get("function", {}).get("arguments", "")
                yield piece

    def _is_complete(self) -> bool:
        """Return whether the arguments are an object, which nothing can follow."""
        if not self._complete and self._arguments.rstrip().endswith("}"):
            with suppress(ValueError):
                self._complete = isinstance(orjson.loads(self._arguments), dict)
        return self._complete


class _Reply:
    """An answer as it is sent: passed on if the model speaks the protocol of the client, else written anew.

    Args:
        writer: Writes the answer.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._calls = _CallsInTurn()
        self._passes: bool | None = None  # until the first piece
        self._held: list[Document] = []
        self._names: list[bytes] = []  # of the events that are held

    def add(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield a piece of the answer."""
        native, writer = chunk.native, self._writer
        if self._passes is None:
            self._passes = native is not None and native.protocol == writer.protocol and not native.whole
            yield from () if self._passes else map(writer.frame, writer.begin())
        if not self._passes:
            chunk = chunk if writer.protocol == "chat" else self._calls.add(chunk)
            yield from map(writer.frame, writer.add(chunk))
        elif native is not None and (event := writer.patch(dict(native.document))) is not None:
            if self._held or chunk.ended:
                self._held.append(event)
                self._names.append(native.name)
            else:
                yield write_event(event, native.name)

    def end(self, finished: Finished) -> Iterator[bytes]:
        """Yield the end of the answer."""
        writer = self._writer
        if self._passes:
            yield from map(write_event, writer.close(self._held, finished), self._names)
            return
        if self._passes is None:
            yield from map(writer.frame, writer.begin())
        for chunk in self._calls.rest():
            yield from map(writer.frame, writer.add(chunk))
        yield from map(writer.frame, writer.end(finished))

    def fail(self, error: Exception) -> Iterator[bytes]:
        """Yield a failure: the event of the model where it said why, in this protocol."""
        failure, native = report_failure(error), errors.find_native(error)
        if self._passes and native is not None and native.protocol == self._writer.protocol:
            yield write_event(dict(native.document), native.name)
        else:
            yield from map(self._writer.frame, self._writer.fail(failure))


async def stream(writer: Writer, turn: OpenTurn, after: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the answer of a turn as it is sent."""
    reply, end = _Reply(writer), b""
    try:
        async for event in turn:
            if isinstance(event, Chunk):
                if part := b"".join(reply.add(event)):
                    yield part
            elif isinstance(event, Finished):
                end = b"".join(reply.end(event))
    except Exception as error:  # noqa: BLE001 - the status was sent already: it is sent as an event
        end += b"".join(reply.fail(error))
    yield end + after  # at once: each part is a packet, which wakes the client


def report_failure(error: Exception) -> ApiError:
    """Return what a stream says of an exception, which is logged where nobody expects it."""
    failure = errors.translate(error)
    if failure.code == "internal_error":
        logger.error("a stream failed", exc_info=error)
    return failure


def write_event(event: Document, name: bytes = b"") -> bytes:
    """Return a server-sent event, with its name if it has one."""
    head = b"event: " + name + b"\n" if name else b""
    return head + b"data: " + responses.write(event) + b"\n\n"


def write_named_event(event: Document) -> bytes:
    """Return a server-sent event under the name of its type."""
    return write_event(event, str(event.get("type", "")).encode())
