"""Exports of LiteLLM, Langfuse, TensorZero and OpenTelemetry: how their records become rows and scores.

Each system has a `Layout` for `armwise.feedback.exchange.table`. A `Reader` goes through all files once for
the scores and tokens of model calls that are joined with decisions, then yields the decisions as rows.

Sources of the columns that are read:

- LiteLLM: `LiteLLM_SpendLogs` in BerriAI/litellm, schema.prisma, which `/spend/logs` returns as it is.
- Langfuse: traces, observations and scores of langfuse/langfuse, fern/apis/server/definition/commons.yml
  (camelCase); the same in the blob storage export (snake_case), langfuse.com/docs.
- TensorZero: `ChatInference`, `JsonInference`, `ModelInference`, `BooleanMetricFeedback` and
  `FloatMetricFeedback` in tensorzero/tensorzero, docs/gateway/data-model.mdx.
- OpenTelemetry: attributes of spans in open-telemetry/semantic-conventions, page gen-ai-spans; the
  event `gen_ai.evaluation.result` in open-telemetry/semantic-conventions-genai, model/gen-ai/events.yaml;
  the files are those of the collector's file exporter: OTLP as JSON, one export request a line.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from armwise.feedback.exchange.calls import Amounts, Calls, SpanKind, TracedCall, amount, is_nothing
from armwise.feedback.exchange.feedback_files import NO_TARGET, GivenScore, Scores, TableScores, read_time
from armwise.feedback.exchange.identity import DUPLICATE, NewestById
from armwise.feedback.exchange.imported import BadValue, Faults
from armwise.feedback.exchange.records import FileRecord, open_up, value_at
from armwise.feedback.exchange.table import FALSE, TRUE, Layout, is_missing, seconds


def _first(values: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is given."""
    return next((value for name in names if not is_missing(value := values.get(name))), None)


class Reader:
    """Reads the records of a system: in a first pass scores and calls, in later ones the decisions.

    Args:
        layout: The format.
        faults: Records the scores and calls that cannot be read, or were read before.
        target: Column of ids in a table of feedback; None: the usual columns.
        reward: Column or metric of the reward; None: the only one.

    Attributes:
        scores: Scores that were read.
        calls: Model calls by the decision that made them.
    """

    def __init__(
        self, layout: Layout, faults: Faults, target: str | None = None, reward: str | None = None
    ) -> None:
        self.layout, self._faults = layout, faults
        self.scores, self.calls = Scores(), Calls()
        self._table = TableScores(target, reward)

    def survey(self, record: FileRecord) -> None:
        """Record the scores and calls in a record between the decisions."""

    def feedback(self, record: FileRecord) -> None:
        """Read a record of a file of feedback. Raises ExchangeError."""
        self._note_scores(record.where, lambda: self._table(record))

    def rows(self, record: FileRecord) -> Iterable[FileRecord]:
        """Yield the decisions in a record."""
        return self.layout.rows(record)

    def _note_scores(self, where: str, read: Callable[[], Iterable[GivenScore]]) -> None:
        """Note scores, each once."""
        try:
            for score in read():
                if self.scores.add(score):
                    shown = f"score {score.ident or score.value!r} on {score.targets[0]} occurred above"
                    self._faults.note(where, BadValue("score repeated", f"{shown}; the newest counts"))
        except BadValue as bad:
            self._faults.add(where, bad)

    def _note_call(self, call: TracedCall, at: float = 0.0) -> None:
        """Note a call, once."""
        if self.calls.add(call, at):
            detail = f"id {call.ident!r} occurred above; the newest counts"
            self._faults.note(call.where, BadValue("call repeated", detail))

    def _objects(self, where: str, values: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
        """Yield the objects of a list inside a record; other items are recorded as faults."""
        items = open_up(values.get(name))
        for item in items if isinstance(items, list) else () if is_missing(items) else (items,):
            if isinstance(item, Mapping) and isinstance(items, list):
                yield item
            else:
                detail = f"{name} is {items!r:.40}; a list of objects was expected"
                self._faults.add(where, BadValue("row cannot be read", detail))

    def _details(self, where: str, values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
        """Return the amounts in an object of a record; anything else is recorded as a fault."""
        details = open_up(_first(values, *names))
        if isinstance(details, Mapping):
            return details
        if not is_missing(details):
            detail = f"{names[0]} is {details!r:.40}; an object of amounts was expected"
            self._faults.add(where, BadValue("no amount of a call", detail))
        return {}

    def _amounts(self, where: str, *read: tuple[Mapping[str, Any], tuple[str, ...]]) -> Amounts:
        """Return dollars, tokens read and tokens written; an unreadable amount counts 0, as a fault."""
        spent = []
        for values, names in read:
            try:
                spent.append(amount(values, *names))
            except BadValue as bad:
                spent.append(0.0)
                self._faults.add(where, bad)
        return Amounts(*spent)


WITHOUT_ID = BadValue("call without an id", "id is empty; expected the call's id, so that it counts once")


def _no_decision(where: str, kind: object, detail: str) -> FileRecord:
    """Return the record for a row of another kind, which is counted by its kind."""
    shown = str(kind)
    named = f": {shown}" if re.fullmatch(r"[\w./-]{1,40}", shown) else ""
    return FileRecord(where, fault=detail, reason=f"no model call{named}", wrong=False)


def _span_s(values: Mapping[str, Any], start: str, end: str) -> Any:
    """Return the seconds between two times of a record; a text with both if they cannot be read."""
    first, last = _first(values, start), _first(values, end)
    if first is None or last is None:
        return None
    try:
        return max(0.0, seconds(last) - seconds(first))
    except (ValueError, TypeError, OverflowError):
        return f"{last!r:.40} less {first!r:.40}"


# -- LiteLLM ---------------------------------------------------------------------------------------

TEXT_CALLS = frozenset(
    (
        *("completion", "text_completion", "responses", "generate_content", "generate_content_stream"),
        "anthropic_messages",
    )
)
"""Types of calls that chose a model for a text, without the `a` of asynchronous ones."""


def _litellm_rows(record: FileRecord) -> Iterator[FileRecord]:
    values = dict(record.values)
    call_type = "" if is_missing(values.get("call_type")) else str(values["call_type"]).strip()
    if call_type and call_type not in TEXT_CALLS and call_type.removeprefix("a") not in TEXT_CALLS:
        detail = (
            f"call_type is {call_type!r:.80}; one of {', '.join(sorted(TEXT_CALLS))} chose a model for a text"
        )
        yield _no_decision(record.where, call_type, detail)
        return
    if not record.fault:
        took_ms = _first(values, "request_duration_ms")
        span_s = _span_s(values, "startTime", "endTime")
        try:
            values["duration_s"] = span_s if took_ms is None else amount({"ms": took_ms}, "ms") / 1e3
        except BadValue:
            values["duration_s"] = took_ms
        cost_breakdown = value_at(values, "metadata.cost_breakdown.total_cost")
        if is_nothing(values.get("spend")) and not is_missing(cost_breakdown) and not _is_cached(values):
            values["spend"] = cost_breakdown
        if open_up(values.get("messages")) in (
            None,
            "",
            {},
            [],
        ):  # prompts are stored only where that is set
            request = open_up(values.get("proxy_server_request"))
            values["messages"] = request if isinstance(request, Mapping) and request else None
    yield FileRecord(record.where, values, record.fault)


def _is_cached(row: Mapping[str, Any]) -> bool:
    return str(row.get("cache_hit")).lower() == "true"


def _has_failed(row: Mapping[str, Any]) -> bool:
    return "failure" in (row.get("status"), value_at(row, "metadata.status"))


LITELLM = Layout(
    "litellm",
    fields={
        "question": ("messages",),
        "arm": ("model_group", "model"),
        "propensity": ("metadata.requester_metadata.propensity", "metadata.spend_logs_metadata.propensity"),
        "time": ("startTime",),
        "id": ("request_id",),
        "episode": ("session_id",),
        "user": ("end_user",),
    },
    costs={
        "usd": ("spend",),
        "seconds": ("duration_s",),
        "prompt_tokens": ("prompt_tokens",),
        "completion_tokens": ("completion_tokens",),
    },
    rows=_litellm_rows,
    joins=("request_id",),
    failed=_has_failed,
    cached=_is_cached,
)


# -- Langfuse --------------------------------------------------------------------------------------

_CAMEL = {
    "traceId": "trace_id",
    "observationId": "observation_id",
    "sessionId": "session_id",
    "userId": "user_id",
    "totalCost": "total_cost",
    "calculatedTotalCost": "total_cost",
    "stringValue": "string_value",
    "dataType": "data_type",
    "startTime": "start_time",
    "endTime": "end_time",
    "providedModelName": "model",
    "provided_model_name": "model",
    "parentObservationId": "parent_observation_id",
    "configId": "config_id",
    "usageDetails": "usage_details",
    "costDetails": "cost_details",
}
"""Names in the HTTP API, with those in the blob storage export."""


SPAN_KINDS: Mapping[str, SpanKind] = {
    "GENERATION": SpanKind.MODEL,
    **dict.fromkeys(("SPAN", "CHAIN", "EVENT"), SpanKind.STEP),
}
"""Types of observations that are model calls, or steps of the program; others are tools and agents."""

TRUSTED = ("NUMERIC", "BOOLEAN")
"""Types of scores whose `value` is the score; for a category it may be a placeholder."""


def _snake(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns by their names in the blob storage export; of duplicates the one with a value."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        column = _CAMEL.get(name, name)
        if column not in row or not is_missing(value):
            row[column] = value
    return row


def _is_score(values: Mapping[str, Any]) -> bool:
    return "data_type" in values or (
        "name" in values and "trace_id" in values and not values.keys().isdisjoint(("value", "string_value"))
    )


def _is_observation(values: Mapping[str, Any]) -> bool:
    columns = ("trace_id", "parent_observation_id", "start_time", "usage_details", "cost_details")
    return not _is_score(values) and not values.keys().isdisjoint(columns)


class Langfuse(Reader):
    """Decisions are the traces; without traces, the observations of the type GENERATION."""

    _traces = False

    def __init__(
        self, layout: Layout, faults: Faults, target: str | None = None, reward: str | None = None
    ) -> None:
        super().__init__(layout, faults, target, reward)
        self._places: NewestById[tuple[bool, str], str] = NewestById()
        self.calls.by_group = False

    def survey(self, record: FileRecord) -> None:
        """Record a score, the cost of an observation, or the place of the newest version of a trace."""
        values = _snake(record.values)
        if record.fault:
            return
        if _is_score(values):
            self._note_scores(record.where, lambda: self._read_scores(record.where, values))
            return
        is_observation = _is_observation(values)
        ident = _first(values, "id")
        if ident is not None:
            self._places.add((is_observation, str(ident)), read_time(values), record.where)
        if is_observation:
            self._observe(record.where, str(_first(values, "trace_id") or ""), values)
            return
        self._traces, group = True, str(ident or "")
        self.calls.by_group = True
        for score in self._objects(record.where, values, "scores"):
            on = {"trace_id": group, **_snake(score)}
            self._note_scores(record.where, partial(self._read_scores, record.where, on))
        for at, observation in enumerate(self._objects(record.where, values, "observations")):
            self._observe(f"{record.where}, observation {at}", group, _snake(observation))

    def _observe(self, where: str, trace: str, values: Mapping[str, Any]) -> None:
        """Note an observation of a trace."""
        if is_missing(values.get("id")):
            self._faults.add(where, WITHOUT_ID)
            return
        older = {name: values.get(name) for name in ("promptTokens", "completionTokens")}
        usage = {**older, **self._details(where, values, "usage_details", "usage")}
        cost = {**self._details(where, values, "cost_details"), **values}
        call = TracedCall(
            where,
            str(values["id"]),
            str(_first(values, "parent_observation_id") or ""),
            trace,
            SPAN_KINDS.get(str(values.get("type")).upper(), SpanKind.OTHER),
            _first(values, "model"),
            _moment(values.get("start_time")),
            self._amounts(
                where,
                (cost, ("total_cost", "total")),
                (usage, ("input", "input_tokens", "prompt_tokens", "promptTokens")),
                (usage, ("output", "output_tokens", "completion_tokens", "completionTokens")),
            ),
        )
        self._note_call(call, read_time(values))

    def feedback(self, record: FileRecord) -> None:
        """Note a record of a file of feedback: a score of Langfuse, or a row of a table."""
        if not record.fault and _is_score(values := _snake(record.values)):
            self._note_scores(record.where, lambda: self._read_scores(record.where, values))
        else:
            super().feedback(record)

    def _read_scores(self, where: str, values: Mapping[str, Any]) -> Iterator[GivenScore]:
        """Yield a score. Raises BadValue if it lacks a name or a target, or is not a reward."""
        kind = str(values.get("data_type") or "").upper()
        if kind not in ("", "CATEGORICAL", *TRUSTED):
            detail = f"dataType is {kind!r:.40}; NUMERIC, BOOLEAN or CATEGORICAL was expected"
            self._faults.note(where, BadValue("score is no reward", detail))
            return
        observation, trace = _first(values, "observation_id"), _first(values, "trace_id")
        session = None if trace else _first(values, "session_id")
        named = [
            ("observation", observation),
            ("trace_of" if observation else "trace", trace),
            ("session", session),
        ]
        targets = tuple(f"{what} {target}" for what, target in named if target is not None)
        if not targets:
            raise BadValue(NO_TARGET, "expected traceId, observationId or sessionId")
        if is_missing(values.get("name")):
            raise BadValue("score without a name", "name is empty; expected the name of the metric")
        value = _value_of_score(kind, values)
        if value is None:
            self._faults.note(where, BadValue("score without a value", "value and stringValue are empty"))
            return
        ident = str(_first(values, "id") or "")
        yield GivenScore(where, targets, str(values["name"]), value, read_time(values), ident)

    def rows(self, record: FileRecord) -> Iterator[FileRecord]:
        """Yield a trace, or without traces a generation."""
        if record.fault:
            yield record
            return
        row = _snake(record.values)
        is_observation = _is_observation(row)
        if _is_score(row) or (is_observation and self._traces):
            return
        session, ident = row.get("session_id"), str(_first(row, "id") or record.where)
        kind = str(row.get("type"))
        if is_observation and SPAN_KINDS.get(kind.upper()) is not SpanKind.MODEL:
            detail = f"type is {row.get('type')!r:.40}; of observations a GENERATION chose a model"
            yield _no_decision(record.where, kind, detail)
            return
        if self._places.get((is_observation, ident)) not in (None, record.where):
            detail = f"id {ident!r} occurs in a newer version, which counts"
            yield FileRecord(record.where, fault=detail, reason=DUPLICATE)
            return
        if around := self.calls.around(ident) if is_observation else []:
            yield _report_nested(record.where, around[-1])
            return
        if session is not None:
            row["_session"] = f"session {session}"
        self.calls.fill(ident, row)
        if is_observation:
            inner = [f"observation {call.ident}" for call in self.calls.join_calls(ident)]
            row["_observation"], row["_trace"] = (
                [f"observation {ident}", *inner],
                f"trace {row.get('trace_id')}",
            )
            if is_missing(row.get("latency")):
                row["latency"] = _span_s(row, "start_time", "end_time")
        else:
            row["_trace"], row["_trace_of"] = f"trace {ident}", f"trace_of {ident}"
        yield FileRecord(record.where, row)


def _value_of_score(kind: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a score: for a category its text, or the number that a configuration gives it.

    >>> _value_of_score("CATEGORICAL", {"value": 0, "string_value": "PASS"})
    'PASS'
    """
    value, text = _first(values, "value"), _first(values, "string_value")
    if kind == "CATEGORICAL" and text is None and not isinstance(value, str):
        return None if is_missing(values.get("config_id")) else value
    if kind in TRUSTED or text is None:
        return text if value is None else value
    if text.strip().lower() not in TRUE | FALSE if isinstance(text, str) else False:
        return text if is_missing(values.get("config_id")) or value is None else value
    return text


def _moment(value: Any) -> float:
    try:
        return seconds(value)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _report_nested(where: str, outer: TracedCall) -> FileRecord:
    detail = f"it is part of the call {outer.ident!r}, which is the decision"
    return FileRecord(where, fault=detail, reason="part of a call", wrong=False)


LANGFUSE = Layout(
    "langfuse",
    fields={
        "question": ("input",),
        "arm": ("metadata.arm", "metadata.route", "metadata.variant", "metadata.model", "model"),
        "propensity": ("metadata.propensity",),
        "distribution": ("metadata.probabilities",),
        "time": ("timestamp", "start_time"),
        "id": ("id",),
        "episode": ("session_id",),
        "user": ("user_id",),
    },
    costs={
        "usd": ("total_cost",),
        "seconds": ("latency",),
        "prompt_tokens": ("prompt_tokens",),
        "completion_tokens": ("completion_tokens",),
    },
    joins=("_observation", "_trace", "_trace_of", "_session"),
    failed=lambda row: row.get("level") == "ERROR",
)


# -- TensorZero ------------------------------------------------------------------------------------


class TensorZero(Reader):
    """Decisions are rows of ChatInference and JsonInference; feedback is on these or on their episodes."""

    def survey(self, record: FileRecord) -> None:
        """Note feedback, or the tokens of a model call."""
        values = record.values
        if record.fault:
            return
        if _is_feedback(values):
            self.feedback(record)
        elif _is_model_inference(values):
            if is_missing(values.get("id")):
                self._faults.add(record.where, WITHOUT_ID)
                return
            amounts = self._amounts(
                record.where, (values, ("cost",)), (values, ("input_tokens",)), (values, ("output_tokens",))
            )
            ident, group = str(values["id"]), str(values["inference_id"])
            self._note_call(TracedCall(record.where, ident, group=group, amounts=amounts))

    def rows(self, record: FileRecord) -> Iterator[FileRecord]:
        """Yield an inference."""
        values = record.values
        if record.fault:
            yield record
        elif "variant_name" in values:
            row = dict(values)
            row["id"] = _first(row, "id", "inference_id")
            self.calls.fill(str(row["id"]), row)
            yield FileRecord(record.where, row)
        elif not _is_feedback(values) and not _is_model_inference(values):
            detail = "a row of ChatInference, JsonInference, ModelInference or of feedback was expected"
            yield FileRecord(record.where, fault=detail, reason="no inference", wrong=False)


def _is_feedback(values: Mapping[str, Any]) -> bool:
    return "target_id" in values and "metric_name" in values


def _is_model_inference(values: Mapping[str, Any]) -> bool:
    return "inference_id" in values and "model_name" in values


TENSORZERO = Layout(
    "tensorzero",
    fields={
        "question": ("input",),
        "arm": ("variant_name",),
        "propensity": ("tags.propensity",),
        "distribution": ("tags.probabilities",),
        "time": ("timestamp",),
        "id": ("id",),
        "episode": ("episode_id",),
        "user": ("tags.user_id",),
    },
    costs={
        "usd": ("total_cost",),
        "milliseconds": ("processing_time_ms",),
        "prompt_tokens": ("prompt_tokens",),
        "completion_tokens": ("completion_tokens",),
    },
    joins=("id", "episode_id"),
)


# -- OpenTelemetry ---------------------------------------------------------------------------------

EVALUATION = "gen_ai.evaluation.result"

MODEL_CALLS = frozenset(("chat", "generate_content", "text_completion", "completion", "llm"))
"""Operations and kinds of spans that are decisions; embeddings, tools and agents are not."""

KINDS = ("gen_ai.operation.name", "openinference.span.kind", "llm.request.type", "ai.operationId")
"""Attributes with the kind of a span; the first that is given counts."""

SAME: Mapping[str, tuple[str, ...]] = {
    "gen_ai.request.model": ("llm.model_name", "gen_ai.response.model"),
    "gen_ai.usage.input_tokens": ("llm.token_count.prompt", "gen_ai.usage.prompt_tokens"),
    "gen_ai.usage.output_tokens": ("llm.token_count.completion", "gen_ai.usage.completion_tokens"),
    "gen_ai.input.messages": ("gen_ai.prompt", "llm.input_messages", "input.value", "ai.prompt.messages"),
    "gen_ai.conversation.id": ("session.id",),
}
"""Attributes of the conventions, with their names in OpenInference, OpenLLMetry and AI SDK."""

OTHER_NAMES = frozenset(name for others in SAME.values() for name in others)

LISTS = ("gen_ai.prompt", "llm.input_messages")
"""Prefixes of attributes for each field of each message, such as `gen_ai.prompt.0.content`."""

STATUS_ERROR = (2, "STATUS_CODE_ERROR")


class OpenTelemetry(Reader):
    """Decisions are the spans of model calls; scores are evaluation events on a span or on its response.

    A span inside that of another model call is part of the same call.
    """

    def __init__(
        self, layout: Layout, faults: Faults, target: str | None = None, reward: str | None = None
    ) -> None:
        super().__init__(layout, faults, target, reward)
        self.calls.by_group = False

    def survey(self, record: FileRecord) -> None:
        """Note the evaluations in a record, and which spans are inside of which."""
        if record.fault:
            return
        for where, span in _inside(record, "resourceSpans", "scopeSpans", "spans"):
            if isinstance(span, str):
                continue  # the rows name it
            self._nest(where, span)
            for event in self._objects(where, span, "events"):
                if event.get("name") == EVALUATION:
                    self._evaluate(where, event, _ident(span, "spanId"))
            if span.get("name") == EVALUATION:
                self._evaluate(where, span, _ident(span, "parentSpanId"))
        for where, entry in _inside(record, "resourceLogs", "scopeLogs", "logRecords"):
            if isinstance(entry, str):
                self._faults.add(where, BadValue("row cannot be read", entry))
            elif EVALUATION in (entry.get("eventName"), _attributes(entry).get("event.name")):
                self._evaluate(where, entry, _ident(entry, "spanId"))

    def _nest(self, where: str, span: Mapping[str, Any]) -> None:
        """Note a span and the one around it."""
        attributes = _attributes(span)
        kind = _kind_of_span(attributes)
        is_call = kind in MODEL_CALLS
        call = TracedCall(
            where,
            _ident(span, "spanId") or where,
            _ident(span, "parentSpanId"),
            kind=SpanKind.MODEL if is_call else SpanKind.STEP if kind in STEPS else SpanKind.OTHER,
            amounts=self._amounts(
                where,
                ({}, ()),
                (attributes, ("gen_ai.usage.input_tokens",)),
                (attributes, ("gen_ai.usage.output_tokens",)),
            )
            if is_call
            else Amounts(),
        )
        self.calls.add(call)  # a span that was sent twice is named as a decision

    def _evaluate(self, where: str, event: Mapping[str, Any], span: str) -> None:
        self._note_scores(where, lambda: _evaluation(where, event, span))

    def feedback(self, record: FileRecord) -> None:
        """Note a record of a file of feedback: OTLP, or a row of a table."""
        if "resourceSpans" in (document := _camel_case(record).values) or "resourceLogs" in document:
            self.survey(record)
        else:
            super().feedback(record)

    def rows(self, record: FileRecord) -> Iterator[FileRecord]:
        """Yield the spans of model calls."""
        if record.fault:
            yield record
            return
        if not any(name in _camel_case(record).values for name in SIGNALS):
            detail = f"none of {', '.join(SIGNALS)} is in it; an export request of OTLP as JSON was expected"
            yield FileRecord(record.where, fault=detail)
            return
        for where, span in _inside(record, "resourceSpans", "scopeSpans", "spans"):
            if isinstance(span, str):
                yield FileRecord(where, fault=span)
                continue
            if not _has_attributes(span):
                detail = f"attributes is {span['attributes']!r:.40}; a list of keys and values was expected"
                yield FileRecord(where, fault=detail)
                continue
            row = _attributes(span)
            kind, ident = _kind_of_span(row), _ident(span, "spanId")
            if kind in MODEL_CALLS and not (_first(span, "traceId") and _first(span, "spanId")):
                yield FileRecord(where, fault="traceId or spanId is empty; the ids of a span were expected")
            elif kind in MODEL_CALLS:
                around = self.calls.around(ident)
                yield _report_nested(where, around[-1]) if around else self._row(where, span, row, ident)
            elif kind not in STEPS:
                names = ", ".join(sorted(MODEL_CALLS))
                yield _no_decision(where, kind, f"the operation is {kind!r:.40}; {names} chose a model")

    def _row(self, where: str, span: Mapping[str, Any], row: dict[str, Any], ident: str) -> FileRecord:
        status = span.get("status")
        status = status if isinstance(status, Mapping) else {}
        row |= {
            "id": ident,
            "span_id": _first(span, "spanId"),
            "trace_id": _first(span, "traceId"),
            "time": _nanoseconds(span.get("startTimeUnixNano")),
            "failed": status.get("code") in STATUS_ERROR or "error.type" in row,
            "duration_s": _between(span.get("startTimeUnixNano"), span.get("endTimeUnixNano")),
            "nested": [call.ident for call in self.calls.join_calls(ident)],
        }
        spent: dict[str, Any] = {
            "model": "-",
            "prompt_tokens": row.get("gen_ai.usage.input_tokens"),
            "completion_tokens": row.get("gen_ai.usage.output_tokens"),
        }
        self.calls.fill(ident, spent)
        row["gen_ai.usage.input_tokens"] = spent["prompt_tokens"]
        row["gen_ai.usage.output_tokens"] = spent["completion_tokens"]
        return FileRecord(where, row)


SIGNALS = ("resourceSpans", "resourceLogs", "resourceMetrics")
"""Keys of the export requests of OTLP."""

STEPS = ("", "chain")
"""Kinds of spans that are steps of the program; calls inside of other kinds are separate calls."""


def _kind_of_span(attributes: Mapping[str, Any]) -> str:
    """Return the operation of a span in lower case; empty: it is not of a model.

    >>> _kind_of_span({"gen_ai.request.model": "m"}), _kind_of_span({"ai.operationId": "ai.embed.doEmbed"})
    ('chat', 'ai.embed.doembed')
    """
    kind = str(_first(attributes, *KINDS) or "").lower()
    has_model = not is_missing(attributes.get("gen_ai.request.model"))
    if kind.startswith("ai."):  # of AI SDK the inner span has the model
        return "chat" if kind.endswith((".dogenerate", ".dostream")) else kind if "embed" in kind else ""
    return kind or ("chat" if has_model else "")


def _ident(span: Mapping[str, Any], name: str) -> str:
    """Return the id of a span, which is unique in its trace; empty without one."""
    trace, span_id = _first(span, "traceId"), _first(span, name)
    if span_id is None:
        return ""
    return str(span_id) if trace is None else f"{trace}-{span_id}"


def _evaluation(where: str, event: Mapping[str, Any], span: str) -> Iterator[GivenScore]:
    """Yield the score of an evaluation. Raises BadValue if it lacks a value or a target."""
    attributes = _attributes(event)
    value = _first(attributes, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label")
    target = span or str(_first(attributes, "gen_ai.response.id") or "")
    if not _has_attributes(event):
        detail = f"attributes is {event['attributes']!r:.40}; a list of keys and values was expected"
        raise BadValue("row cannot be read", detail)
    if value is None:
        return
    if not target:
        raise BadValue(NO_TARGET, "expected the id of a span, or gen_ai.response.id")
    at = _nanoseconds(_first(event, "timeUnixNano", "startTimeUnixNano", "observedTimeUnixNano"))
    name = str(attributes.get("gen_ai.evaluation.name", ""))
    yield GivenScore(where, (target,), name, value, at if isinstance(at, float) else 0.0)


def _camel_case(record: FileRecord) -> FileRecord:
    """Return a record with the keys of OTLP's JSON, converted from those of its schema if needed."""
    if not any(name in record.values for name in ("resource_spans", "resource_logs", "resource_metrics")):
        return record
    return replace(record, values=_camel(record.values))


def _camel(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {
            re.sub(r"_(\w)", lambda letter: letter[1].upper(), str(key)): _camel(value)
            for key, value in document.items()
        }
    return [_camel(item) for item in document] if isinstance(document, list) else document


def _inside(record: FileRecord, *keys: str) -> Iterator[tuple[str, Mapping[str, Any] | str]]:
    """Yield the place of each item of nested lists, and the object, or a text on what is wrong."""
    items = _find_items(_camel_case(record).values, keys)
    for number, item in enumerate(items, start=1):
        yield f"{record.where}, {'span' if keys[-1] == 'spans' else 'entry'} {number}", item


def _find_items(document: Any, keys: tuple[str, ...]) -> Iterator[Mapping[str, Any] | str]:
    if not isinstance(document, Mapping):
        yield f"{document!r:.40} is in a list of {keys[0]}; an object was expected"
        return
    if not keys:
        yield document
        return
    items = document.get(keys[0])
    if isinstance(items, list):
        for item in items:
            yield from _find_items(item, keys[1:])
    elif items is not None:
        yield f"{keys[0]} is {items!r:.40}; a list was expected"


def _nanoseconds(value: Any) -> Any:
    """Return seconds since the epoch of a time in OTLP; another value as it is."""
    try:
        return None if is_missing(value) else int(value) / 1e9
    except (ValueError, TypeError, OverflowError):
        return value


def _between(start: Any, end: Any) -> Any:
    """Return the seconds between two times in OTLP; None: one is missing. An unreadable end is returned."""
    if is_missing(start) or is_missing(end):
        return None
    try:
        return max(0, int(end) - int(start)) / 1e9
    except (ValueError, TypeError, OverflowError):
        return str(end)


def _attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or of an event, also under the names of the conventions.

    >>> _attributes({"attributes": [{"key": "a.b", "value": {"intValue": "3"}}]})
    {'a.b': 3}
    """
    pairs = entry.get("attributes")
    if isinstance(pairs, Mapping):
        attributes = dict(pairs)
    else:
        attributes = {
            str(pair.get("key")): _any_value(pair.get("value"))
            for pair in (pairs if isinstance(pairs, list) else ())
            if isinstance(pair, Mapping)
        }
    if any(name.startswith(LISTS) for name in attributes):
        for name in LISTS:
            if messages := _unflatten(attributes, f"{name}."):
                attributes.setdefault(name, messages)
    if not OTHER_NAMES.isdisjoint(attributes):
        for name, others in SAME.items():
            if is_missing(attributes.get(name)) and (same := _first(attributes, *others)) is not None:
                attributes[name] = same
    return attributes


def _has_attributes(entry: Mapping[str, Any]) -> bool:
    """Return whether the attributes of a span or of an event are readable or missing."""
    pairs = entry.get("attributes")
    if isinstance(pairs, list):
        return all(isinstance(pair, Mapping) and isinstance(pair.get("key"), str) for pair in pairs)
    return pairs is None or isinstance(pairs, Mapping)


def _unflatten(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the messages whose fields are attributes, in the order of their numbers.

    >>> _unflatten({"p.0.role": "user", "p.0.message.content": "Who?"}, "p.")
    [{'role': 'user', 'content': 'Who?'}]
    """
    messages: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        number, _, path = (
            name.removeprefix(prefix).partition(".") if name.startswith(prefix) else ("", "", "")
        )
        if number.isdecimal() and path:
            messages.setdefault(int(number), {})[path.removeprefix("message.")] = value
    return [message for _, message in sorted(messages.items())]


def _any_value(value: Any) -> Any:
    """Return a value of OTLP, where 64-bit integers are texts; another value as it is."""
    match value:
        case {"intValue": str() | int() as whole}:
            try:
                return int(whole)
            except ValueError:
                return whole
        case {"stringValue": text} | {"doubleValue": text} | {"boolValue": text}:
            return text
        case {"arrayValue": {"values": [*items]}}:
            return [_any_value(item) for item in items]
        case {"kvlistValue": {"values": [*pairs]}}:
            return _attributes({"attributes": pairs})
    return value or None


OTEL = Layout(
    "otel",
    fields={
        "question": ("gen_ai.input.messages",),
        "arm": ("gen_ai.request.model",),
        "time": ("time",),
        "id": ("id",),
        "episode": ("gen_ai.conversation.id",),
        "user": ("user.id", "enduser.id"),
    },
    costs={
        "seconds": ("duration_s",),
        "prompt_tokens": ("gen_ai.usage.input_tokens",),
        "completion_tokens": ("gen_ai.usage.output_tokens",),
    },
    joins=("id", "span_id", "nested", "gen_ai.response.id", "trace_id"),
    failed=lambda row: bool(row.get("failed")),
)

READERS: Mapping[str, tuple[type[Reader], Layout]] = {
    "litellm": (Reader, LITELLM),
    "langfuse": (Langfuse, LANGFUSE),
    "tensorzero": (TensorZero, TENSORZERO),
    "otel": (OpenTelemetry, OTEL),
}
"""Readers and layouts by name of the format."""
