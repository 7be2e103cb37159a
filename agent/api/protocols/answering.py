"""Answer a question at any door: read what is asked, run its turn, and pass the answer on.

    document --read_ask--> Ask --stream_turn--> events --Writer--> reply

An answer of a model that speaks the protocol of the client is passed on as it came, but for its id, the name
of the model and `agent`. Any other is written anew. From the first event that ends an answer nothing is sent
until the turn is in the log.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response

from armwise.agent.access import Caller, ForeignIdError
from armwise.agent.api import ask_checks, errors, question, responses, sessions
from armwise.agent.api.errors import ApiError
from armwise.agent.api.protocols.schemas import Sent
from armwise.agent.api.schemas import AgentOptions
from armwise.agent.config import AppConfig
from armwise.agent.serving import Replica
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Ask, Choices, Decided, Event, Finished, RequestDocument
from armwise.arms.large import call_beside
from armwise.arms.llm import (
    PROTOCOLS,
    Chunk,
    Document,
    Message,
    Needs,
    ProtocolName,
    Request,
    object_at,
    objects,
    protocols,
    read_needs,
    storable,
    text_at,
    write_document,
)
from armwise.feedback.errors import LOG_UNUSABLE
from armwise.feedback.log import conversations

logger = logging.getLogger(__name__)

NONE: Mapping[str, str] = MappingProxyType({})

FIRST_S = 1.0
"""Seconds in which the first piece of an answer decides about the status of a stream."""


@dataclass(frozen=True, slots=True)
class Previous:
    """An earlier answer, which its provider keeps.

    Attributes:
        question: The question that was answered.
        llm: The language model that answered.
        tokens: Tokens that it read and wrote for that.
    """

    question: str
    llm: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The fields of a request that every door has.

    Attributes:
        request: The request.
        model: The model that it names.
        agent: Fields beyond those of the protocol.
        streams: Whether the answer is read as it is written.
        headers: Headers that a model of the same protocol is sent.
        previous: The answer that it continues, which its provider keeps.
        sent_headers: Headers of the request, which may name its session and a cost weight.
    """

    request: Request
    model: str
    agent: AgentOptions
    streams: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    previous: Previous | None = None
    sent_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def user(self) -> str | None:
        """The end user."""
        return text_at(self.request.chat, "user") or None


def describe(
    protocol: ProtocolName,
    document: Document,
    sent: Sent,
    size: int = 0,
    sent_headers: Mapping[str, str] = NONE,
    headers: Mapping[str, str] = NONE,
) -> Asked:
    """Return what every door reads of a request, whose body has `size` bytes."""
    passed = {name: value for name, value in document.items() if name != "agent"}
    return Asked(
        request=Request(protocol, passed, size),
        model=getattr(sent, "model", "auto"),
        agent=getattr(sent, "agent", AgentOptions()),
        streams=bool(getattr(sent, "stream", False)),
        headers=headers,
        sent_headers=sent_headers,
    )


async def read_ask(
    replica: Replica,
    caller: Caller,
    asked: Asked,
    key: str | None,
    *,
    param: str = "messages",
) -> Ask:
    """Return the turn that a request asks for. Raises ApiError, AskError.

    Args:
        replica: Answers it.
        caller: Who asks.
        asked: The request.
        key: Idempotency key of the request.
        param: The field that holds the conversation.
    """
    read = partial(_read_ask, replica, caller, asked, key, param)
    ask, since, marks = await call_beside(asked.request.size, read)
    return await _continue_conversation(replica, caller, ask, since, marks, asked)


def _read_ask(
    replica: Replica, caller: Caller, asked: Asked, key: str | None, param: str
) -> tuple[Ask, Sequence[Message], list[str]]:
    """Return the turn of a request, the messages after its question, and its marks of earlier answers."""
    request, form = asked.request, asked.request.chat
    protocol = PROTOCOLS[request.protocol]
    messages = protocols.chat.read_messages(form)
    turns = [(message["role"], message["content"]) for message in messages]
    most = replica.config.limits.question_chars
    found = question.read_question(turns, most, quotes=not caller.groups)
    options = protocols.chat.read_options(form)
    text = found.text
    if not text.strip():
        text = asked.previous.question if asked.previous else _unwritten(form, quotes=not caller.groups)
    most_read = 0
    if caller.limits.counts_tokens:
        most_read = len(write_document(request.body)) + (asked.previous.tokens if asked.previous else 0)
    needs = read_needs(request, options)
    arms = _arms_asked(replica, asked.model)
    check_needs(replica, needs, arms, param)
    if not any(needs.protocol in replica.turns.arms[arm].protocols for arm in arms):
        _check_options(form, options)
    ask = ask_checks.check_ask(
        replica,
        caller,
        storable(text)[:most],
        asked.model,
        asked.agent,
        key,
        param,
        sent=b"" if key is None else _identify(asked),
        user=asked.user,
        session=sessions.read_session(request, asked.sent_headers),
        has_tools=bool(options.get("tools")),
        cost_weight=asked.sent_headers.get(ask_checks.COST_WEIGHT),
        messages=messages or (Message(role="user", content=text),),  # its provider has what was said
        document=RequestDocument(
            max_tokens=protocol.read_limit(request.body),
            temperature=_number(form.get("temperature")),
            top_p=_number(form.get("top_p")),
            seed=form["seed"] if type(form.get("seed")) is int else None,
            stop=_stops(form.get("stop")),
            options=options,
            request=request,
            most_read=most_read,
            needs=needs,
            streams=asked.streams,
            limited=caller.limits.counts_tokens,
            headers=asked.headers,
        ),
    )
    if asked.previous is not None:  # another model does not have what it refers to
        infos = replica.turns.arms.items()
        same = {name for name, info in infos if info.answering.llm == asked.previous.llm}
        ask = replace(ask, allowed=frozenset(same if ask.allowed is None else same & ask.allowed))
    return ask, messages[found.at + 1 :], protocol.read_marks(request.body)


def _identify(asked: Asked) -> bytes:
    """Return what distinguishes a request from another one: a field that is null is the same as none."""
    body = {name: value for name, value in asked.request.body.items() if value is not None}
    options = asked.agent.model_dump_json(exclude_defaults=True, warnings=False)
    weight = asked.sent_headers.get(ask_checks.COST_WEIGHT, "")
    return write_document(body) + options.encode() + weight.encode()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _stops(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    return tuple(text for text in given if isinstance(text, str) and text)


def _unwritten(form: Document, *, quotes: bool) -> str:
    """Return a question for a request in which no person wrote a text: the last text, or what is attached.

    Args:
        form: The request as a chat.
        quotes: Whether texts of the assistant and of tools are read, which may quote passages.
    """
    messages = [*objects(form.get("messages"))]
    texts = [
        read if quotes or text_at(message, "role") in ("system", "developer") else "[answer]"
        for message in messages
        if (read := protocols.chat.read_text(message.get("content"))).strip()
    ]
    kinds = [text_at(part, "type") for message in messages for part in objects(message.get("content"))]
    return texts[-1] if texts else f"[{kinds[-1]}]" if kinds else ""


def _check_options(form: Document, options: Mapping[str, Any]) -> None:
    """Refuse what engines of this process and models of other protocols cannot be asked. Raises ApiError."""
    names = [protocols.chat.name_of_tool(tool) for tool in options.get("tools", ())]
    choice = form.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = protocols.chat.name_of_tool(choice)
        if name not in names:
            text = f"{name!r} is not a function of 'tools': {', '.join(names)}"
            raise ApiError("invalid_value", text, "tool_choice")
    if choice == "required" and not names:
        raise ApiError("invalid_value", "'required' needs 'tools'", "tool_choice")
    name, times = next(iter(Counter(names).most_common(1)), ("", 0))
    if times > 1:
        raise ApiError("invalid_value", f"two functions have the name {name!r}", "tools")
    response_format = object_at(form, "response_format")
    if response_format.get("type") == "json_schema" and "response_format" not in options:
        raise ApiError("invalid_value", "a JSON schema was expected", "response_format.json_schema")
    if options.get("top_logprobs") and not options.get("logprobs"):
        raise ApiError("invalid_value", "'top_logprobs' needs 'logprobs': true", "top_logprobs")


def _arms_asked(replica: Replica, model: str) -> list[str]:
    """Return the live arms of which a request's model may be one."""
    arms = replica.turns.arms
    forced, of_model = ask_checks.find_model(replica, model)
    if forced is not None:
        return [forced] if forced in arms else []
    return [arm for arm in arms if of_model is None or arm in of_model]


def check_needs(replica: Replica, needs: Needs, arms: Sequence[str], param: str) -> None:
    """Raise ApiError for a request that none of some arms can answer; it names what could."""
    infos = replica.turns.arms
    lacking = {arm: infos[arm].missing(needs) for arm in arms}
    if not lacking or not all(lacking.values()):
        return
    what = min(lacking.values(), key=len)
    name = min(what)
    models = replica.config.models
    engines = " and ".join(sorted({repr(models[infos[arm].answering.llm].engine) for arm in arms}))
    if what & needs.inputs:
        kinds = " and ".join(f"{kind}s" for kind in sorted(what & needs.inputs))
        text = f"the language model reads no {kinds}: the engine {engines} has no such `inputs`"
    else:
        name = min(what)
        text = f"the engine {engines} of the language model does not support {name!r}"
        param = _FIELDS.get(name, name)
    able = [arm for arm, info in infos.items() if not info.missing(needs)]
    also = sorted(spec.engine for spec in models.values() if spec.protocol == needs.protocol)
    if able:
        text += f"; these arms could: {', '.join(able)}"
    elif needs.protocol and not also:
        text += f"; an arm with a model of the engine {_ENGINES[needs.protocol]!r} could"
    raise ApiError("unsupported_parameter", text, param)


_FIELDS = {
    "audio_output": "modalities",
    "item_reference": "input",
    **dict.fromkeys(protocols.needs.HARD_TOOLS, "tools"),
}
"""Fields of a request by what it needs; others are called the same."""

_ENGINES = {"chat": "openai", "messages": "anthropic", "responses": "responses"}


async def _continue_conversation(
    replica: Replica,
    caller: Caller,
    ask: Ask,
    since: Sequence[Message],
    marks: Sequence[str],
    asked: Asked,
) -> Ask:
    """Return a question with what the log knows of the answers in its conversation.

    A question whose answer may call functions begins an episode, named after its decision unless it has
    another name. A request with their results is of the same episode, and its arm is the one that answered
    before: it is forced, and not learned, as nothing was drawn. The ids of the calls lead to the decision:
    since a client writes them, it counts only if the same caller asked the same, in the same episode.

    Args:
        replica: Reads the log.
        caller: Who asks.
        ask: The question.
        since: The messages after the question.
        marks: Marks of earlier answers that the request shows.
        asked: The request.
    """
    found: Mapping[str, conversations.MarkedAnswer] = {}
    if marks:
        tolerated = LOG_UNUSABLE if replica.outage.answers else ()
        with suppress(ForeignIdError, *tolerated):
            asked_by = caller.identify(replica.store.draw_secret)
            look_up = partial(asyncio.to_thread, conversations.find_marked, replica.store, marks, asked_by)
            found = await replica.outage.ask(look_up)
    known = replica.turns.known
    served = {mark: known.get(answer.served or "") for mark, answer in found.items()}
    writers = {mark: info.answering.llm for mark, info in served.items() if info is not None}
    ask = replace(ask, document=replace(ask.document, writers=writers))
    results = [message["tool_call_id"] for message in since if message["role"] == "tool"]
    answers = [found[name] for name in results if name in found]
    answer = answers[-1] if answers else None
    if (
        answer is None
        or answer.served is None
        or answer.question != ask.question
        or ask.episode_id not in (None, answer.episode_id)
    ):
        begins = ask.document.has_tools and ask.episode_id is None
        return replace(ask, episode_id=ask.decision_id) if begins else ask
    ask = replace(ask, episode_id=ask.episode_id or answer.episode_id, called=answer.decision_id)
    arm = answer.served
    info = replica.turns.arms.get(arm)
    allowed = ask.allowed is None or arm in ask.allowed
    same = asked.agent.same_arm and not ask.forced
    able = info is not None and info.enabled and not info.missing(ask.document.needs)
    if not (same and able and allowed) or arm in ask.excluded:
        return ask
    said = answer.question, answer.episode_id
    first = next(one for one in answers if (one.question, one.episode_id) == said)
    return replace(ask, forced=arm, continues=first.decision_id)  # each round repeats the first search


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
    events = asking.stream_turn(replica, caller, ask, key, timeout_s)
    if ask.document.streams:
        opened = await OpenTurn.begin(events)
        writer, decided = make(opened.decided), opened.decided
        named = {**responses.headers(decided.decision, decided.served), **(headers or {})}
        return responses.EventStream(stream(writer, opened, after), opened, named, writer.ping)
    answering = asking.read_to_end(events)  # under a key, it can be asked for again
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
        opened = cls(await asking.read_decided(events), events)
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
