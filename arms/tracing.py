"""The current turn and span of a task, over OpenTelemetry's API.

Spans are made only in a process that called `switch`; others do not import OpenTelemetry, and `span` yields
None. Turn and span are passed to another process as a string, `carry`, with a call of its handle.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation import tracecontext

Attribute = str | bool | int | float | Sequence[str]

OPENINFERENCE = {
    "gen_ai.conversation.id": "session.id",
    "gen_ai.usage.input_tokens": "llm.token_count.prompt",
    "gen_ai.usage.output_tokens": "llm.token_count.completion",
    "gen_ai.input.messages": "input.value",
    "gen_ai.retrieval.query.text": "input.value",
    "gen_ai.output.messages": "output.value",
}
"""Attributes of OpenTelemetry, with their names in OpenInference."""

CONTENT = "gen_ai.client.inference.operation.details"
"""Name of the event that holds texts."""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """The turn that work is part of.

    Attributes:
        decision_id: Id of the decision; empty outside of a turn.
        episode_id: Id of its conversation; empty without one.
        question: Text of the question; it stays in this process and out of log lines.
    """

    decision_id: str = ""
    episode_id: str = ""
    question: str = field(default="", repr=False)


TURN: ContextVar[TracedTurn] = ContextVar("turn", default=TracedTurn())  # noqa: B039 - it is frozen
"""The turn of the running task."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Settings of tracing in this process.

    Attributes:
        tracer: Makes spans.
        on_spans: Whether questions, passages and answers are attributes of spans.
        on_events: Whether they are in events.
        openinference: Whether spans have OpenInference's attributes too.
    """

    tracer: "trace.Tracer"
    on_spans: bool = False
    on_events: bool = False
    openinference: bool = False


_tracing: Tracing | None = None


def switch(tracing: Tracing | None) -> None:
    """Trace in this process from now on; None: stop."""
    global _tracing, context, trace, tracecontext  # imported once: a turn passes here some dozen times
    if tracing is not None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation import tracecontext
    _tracing = tracing


def is_on() -> bool:
    """Return whether this process traces."""
    return _tracing is not None


class Span:
    """A span of the running trace, until `end`.

    Args:
        tracing: Settings of this process.
        name: Name of the span.
        attributes: Attributes that are known at its start.
        server: Whether it is of a request that this process serves.
        client: Whether it is of a call to another service.
        parent: Context of the parent; None: the running context.
        link: The traceparent of a span that it refers to; empty without one.
    """

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        attributes: Mapping[str, Attribute | None],
        *,
        server: bool = False,
        client: bool = False,
        parent: "context.Context | None" = None,
        link: str = "",
    ) -> None:
        kinds = trace.SpanKind
        kind = kinds.SERVER if server else kinds.CLIENT if client else kinds.INTERNAL
        links = [trace.Link(trace.get_current_span(_parent(link)).get_span_context())] if link else ()
        self._tracing = tracing
        named = self._name_attributes(attributes)
        self.otel = tracing.tracer.start_span(name, parent, kind, named, links)
        self.recording = self.otel.is_recording()

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Set the attributes that have a value."""
        if self.recording:
            self.otel.set_attributes(self._name_attributes(attributes))

    def _name_attributes(self, attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
        """Return the attributes that have a value, also under their names in OpenInference if set."""
        named = {name: value for name, value in attributes.items() if value is not None}
        if self._tracing.openinference:
            named |= {OPENINFERENCE[name]: named[name] for name in OPENINFERENCE.keys() & named}
        return named

    def openinference(self, kind: str, attributes: Mapping[str, Attribute]) -> None:
        """Set attributes that only OpenInference has, if its attributes are switched on."""
        if self.recording and self._tracing.openinference:
            self.otel.set_attributes({"openinference.span.kind": kind, **attributes})

    @property
    def shows_content(self) -> bool:
        """Whether texts are recorded."""
        return self.recording and (self._tracing.on_spans or self._tracing.on_events)

    def content(self, attributes: Mapping[str, Attribute]) -> None:
        """Record texts, if the settings say so."""
        if self._tracing.on_spans:
            self.set(attributes)
        if self._tracing.on_events:
            self.event(CONTENT, attributes)

    def event(self, name: str, attributes: Mapping[str, Attribute | None]) -> None:
        """Record an event with the attributes that have a value."""
        if self.recording:
            self.otel.add_event(
                name, {name: value for name, value in attributes.items() if value is not None}
            )

    def fail(self, error: BaseException | str) -> None:
        """Record a failure; the message of an exception is left out, since it may hold texts."""
        self.set({"error.type": error if isinstance(error, str) else type(error).__name__})
        self.otel.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        """End it."""
        self.otel.end()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the running span; a generator must not yield meanwhile."""
        token = context.attach(trace.set_span_in_context(self.otel))
        try:
            yield
        finally:
            context.detach(token)


def start(
    name: str, attributes: Mapping[str, Attribute | None], *, client: bool = False, link: str = ""
) -> Span | None:
    """Begin a child of the running span, which stays the running one; None: its trace is not recorded."""
    if _tracing is None:
        return None
    running = trace.get_current_span().get_span_context()
    if running.is_valid and not running.trace_flags.sampled:
        return None
    return Span(_tracing, name, attributes, client=client, link=link)


@contextmanager
def span(
    name: str, attributes: Mapping[str, Attribute | None], *, client: bool = False
) -> Iterator[Span | None]:
    """Run a block in a new span; a generator must not yield meanwhile."""
    made = start(name, attributes, client=client)
    if made is None:
        yield None
        return
    with end_span(made), made.current():
        yield made


@contextmanager
def end_span(made: Span) -> Iterator[Span]:
    """End a span with a block, and record the exception that ends both."""
    try:
        yield made
    except Exception as error:
        made.fail(error)
        raise
    finally:
        made.end()


def serving(name: str, headers: Mapping[str, str], attributes: Mapping[str, Attribute]) -> Span:
    """Begin the span of a request, in the trace that its headers name. Tracing must be on.

    Args:
        name: Name of the span.
        headers: Headers of the request, with `traceparent` and `tracestate` if it belongs to a trace.
        attributes: Attributes that are known at its start.
    """
    assert _tracing is not None
    parent = tracecontext.TraceContextTextMapPropagator().extract(headers)
    return Span(_tracing, name, attributes, server=True, parent=parent)


def _parent(traceparent: str) -> "context.Context":
    return tracecontext.TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def traceparent() -> str:
    """Return the running span in the form of W3C's header; empty: there is none, or it is not sampled."""
    if _tracing is None:
        return ""
    ids = ids_of_span()
    return f"00-{ids[0]}-{ids[1]}-01" if ids else ""


def ids_of_span() -> tuple[str, str] | None:
    """Return the ids of the running trace and span, in hexadecimal digits, if it is sampled."""
    if _tracing is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.trace_flags.sampled:
        return None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def carry() -> str:
    """Return the running turn and span for another process; empty: there is neither."""
    turn, header = TURN.get(), ""
    if _tracing is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:  # also one that is not sampled: no other process shall begin a trace of its own
            header = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    if not header and not turn.decision_id:
        return ""
    return orjson.dumps((header, turn.decision_id, turn.episode_id)).decode()


def enter(carried: str, question: str) -> None:
    """Continue a turn and its trace in the running task, which serves one call of a handle.

    Args:
        carried: Result of `carry` in the caller; empty: nothing changes.
        question: The text of the call.
    """
    if not carried:
        return
    header, decision_id, episode_id = orjson.loads(carried)
    TURN.set(TracedTurn(decision_id, episode_id, question))
    if _tracing is not None and header:
        context.attach(_parent(header))
