"""Exports of LiteLLM, Langfuse, TensorZero and OpenTelemetry: how their records become rows and scores.

Each system has a `Layout` for `armwise.feedback.exchange.table`. A `Reader` goes through all files once for
what is joined with a decision (scores, tokens of its model calls), then yields the decisions as rows.

Sources, of each the columns that are read:

- LiteLLM: `LiteLLM_SpendLogs` in BerriAI/litellm, schema.prisma, which `/spend/logs` returns as it is.
- Langfuse: traces, observations and scores of langfuse/langfuse, fern/apis/server/definition/commons.yml
  (camelCase); the same in the blob storage export (snake_case), langfuse.com/docs.
- TensorZero: `ChatInference`, `JsonInference`, `ModelInference`, `BooleanMetricFeedback` and
  `FloatMetricFeedback` in tensorzero/tensorzero, docs/gateway/data-model.mdx.
- OpenTelemetry: attributes of spans in open-telemetry/semantic-conventions, page gen-ai-spans; the
  event `gen_ai.evaluation.result` in open-telemetry/semantic-conventions-genai, model/gen-ai/events.yaml;
  the files are those of the collector's file exporter: OTLP as JSON, one export request a line.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from armwise.feedback.exchange.feedback_files import Score, Scores, TableScores, time_of
from armwise.feedback.exchange.records import Record, opened_up
from armwise.feedback.exchange.table import Layout, is_missing, number, seconds


def _first(values: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is there."""
    return next((value for name in names if not is_missing(value := values.get(name))), None)


@dataclass(slots=True)
class Calls:
    """What the model calls of a decision cost, together.

    Attributes:
        model: Model of the first call; None without one.
        usd: Dollars.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
    """

    model: str | None = None
    usd: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0

    def add(self, values: Mapping[str, Any]) -> None:
        """Add an observation."""
        usage = opened_up(values.get("usage_details")) or opened_up(values.get("usage")) or {}
        usage = usage if isinstance(usage, Mapping) else {}
        self.model = self.model or _first(values, "model")
        self.usd += _amount(_first(values, "total_cost"))
        self.prompt_tokens += _amount(_first(usage, "input"))
        self.completion_tokens += _amount(_first(usage, "output"))

    def fill(self, row: dict[str, Any]) -> None:
        """Write what a row does not have itself."""
        for name, value in (
            ("model", self.model),
            ("total_cost", self.usd or None),
            ("prompt_tokens", self.prompt_tokens or None),
            ("completion_tokens", self.completion_tokens or None),
        ):
            if is_missing(row.get(name)) and value is not None:
                row[name] = value


def _amount(value: Any) -> float:
    try:
        return 0.0 if is_missing(value) else number(value)
    except (ValueError, TypeError):
        return 0.0


class Reader:
    """Reads the records of a system: in a first pass what is joined, in later ones the decisions.

    Args:
        layout: The format.
        target: Column of ids in a table of feedback; None for the usual ones.
        reward: Column or metric of the reward; None for the only one.

    Attributes:
        scores: Scores that were found.
    """

    def __init__(self, layout: Layout, target: str | None = None, reward: str | None = None) -> None:
        self.layout = layout
        self.scores = Scores()
        self._table = TableScores(target, reward)
        self._calls: defaultdict[str, Calls] = defaultdict(
            Calls
        )  # model calls by the decision that made them

    def survey(self, record: Record) -> None:
        """Note what is joined with decisions of a record between them."""

    def feedback(self, record: Record) -> None:
        """Note a record of a file of feedback. Raises ExchangeError."""
        self.scores.add(self._table(record))

    def rows(self, record: Record) -> Iterable[Record]:
        """Yield the decisions in a record."""
        return self.layout.rows(record)


def _span_s(values: Mapping[str, Any], start: str, end: str) -> float | None:
    """Return the seconds between two times of a record; None where one cannot be read."""
    try:
        return max(0.0, seconds(values[end]) - seconds(values[start]))
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


# -- LiteLLM ---------------------------------------------------------------------------------------


def _litellm_rows(record: Record) -> Iterator[Record]:
    values = dict(record.values)
    if not record.fault:
        took_ms = values.get("request_duration_ms")
        span_s = _span_s(values, "startTime", "endTime")
        values["duration_s"] = span_s if is_missing(took_ms) else _amount(took_ms) / 1e3
        if opened_up(values.get("messages")) in (
            None,
            "",
            {},
            [],
        ):  # prompts are stored only where that is set
            request = opened_up(values.get("proxy_server_request"))
            values["messages"] = request.get("messages") if isinstance(request, Mapping) else None
    yield Record(record.where, values, record.fault)


LITELLM = Layout(
    "litellm",
    fields={
        "question": ("messages",),
        "arm": ("model_group", "model"),
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
    failed=lambda row: row.get("status") == "failure",
    cached=lambda row: str(row.get("cache_hit")).lower() == "true",
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
    "usageDetails": "usage_details",
    "costDetails": "cost_details",
}
"""Names of the HTTP API, and what the blob storage export calls the same."""


def _snake(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_CAMEL.get(name, name): value for name, value in values.items()}


def _is_score(values: Mapping[str, Any]) -> bool:
    return "data_type" in values or ("name" in values and "value" in values and "trace_id" in values)


def _is_observation(values: Mapping[str, Any]) -> bool:
    return "trace_id" in values and not _is_score(values)


class Langfuse(Reader):
    """Decisions are the traces; where no file has traces, the observations of the type GENERATION."""

    _traces = False

    def survey(self, record: Record) -> None:
        """Note a score, or what an observation cost."""
        values = _snake(record.values)
        if record.fault:
            return
        if _is_score(values):
            self.scores.add(self._scores(values))
        elif _is_observation(values):
            self._calls[str(values["trace_id"])].add(values)
        else:
            self._traces = True
            for score in opened_up(values.get("scores")) or ():
                if isinstance(score, Mapping):
                    self.scores.add(self._scores({"trace_id": values.get("id"), **_snake(score)}))
            for observation in opened_up(values.get("observations")) or ():
                if isinstance(observation, Mapping):
                    self._calls[str(values.get("id"))].add(_snake(observation))

    def feedback(self, record: Record) -> None:
        """Note a record of a file of feedback: a score of Langfuse, or a row of a table."""
        if not record.fault and _is_score(values := _snake(record.values)):
            self.scores.add(self._scores(values))
        else:
            super().feedback(record)

    def _scores(self, values: Mapping[str, Any]) -> Iterator[Score]:
        value = _first(values, "value", "string_value")
        if value is None:
            return
        observation, trace = _first(values, "observation_id"), _first(values, "trace_id")
        session = None if trace else _first(values, "session_id")
        targets = [
            ("observation", observation),
            ("trace_of" if observation else "trace", trace),
            ("session", session),
        ]
        for kind, target in targets:
            if target is not None:
                yield Score(f"{kind} {target}", str(values.get("name", "")), value, time_of(values))

    def rows(self, record: Record) -> Iterator[Record]:
        """Yield a trace, or a generation where there are no traces."""
        if record.fault:
            yield record
            return
        row = _snake(record.values)
        if _is_score(row) or _is_observation(row) == self._traces:
            return
        session, ident = row.get("session_id"), str(row.get("id"))
        if session is not None:
            row["_session"] = f"session {session}"
        if self._traces:
            if ident in self._calls:
                self._calls[ident].fill(row)
            row["_trace"], row["_trace_of"] = f"trace {ident}", f"trace_of {ident}"
        elif str(row.get("type", "GENERATION")).upper() == "GENERATION":
            calls = Calls()
            calls.add(row)
            calls.fill(row)
            row["_observation"], row["_trace"] = f"observation {ident}", f"trace {row['trace_id']}"
            if is_missing(row.get("latency")):
                row["latency"] = _span_s(row, "start_time", "end_time")
        else:
            return
        yield Record(record.where, row)


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

    def survey(self, record: Record) -> None:
        """Note feedback, or the tokens of a model call."""
        values = record.values
        if record.fault:
            return
        if "target_id" in values and "metric_name" in values:
            self.feedback(record)
        elif "inference_id" in values and "model_name" in values:
            tokens = {"input": values.get("input_tokens"), "output": values.get("output_tokens")}
            usd = _first(values, "cost")
            self._calls[str(values["inference_id"])].add({"usage": tokens, "total_cost": usd})

    def rows(self, record: Record) -> Iterator[Record]:
        """Yield an inference."""
        if record.fault:
            yield record
            return
        if "variant_name" not in record.values:
            return
        row = dict(record.values)
        ident = str(row.get("id", row.get("inference_id")))
        row["id"] = ident
        if ident in self._calls:
            self._calls[ident].fill(row)
        yield Record(record.where, row)


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

MODEL_CALLS = ("chat", "generate_content", "text_completion")
"""Operations that are decisions; embeddings, tools and agents are not."""

STATUS_ERROR = (2, "STATUS_CODE_ERROR")


class OpenTelemetry(Reader):
    """Decisions are the spans of model calls; scores are evaluation events on a span or on its response."""

    def survey(self, record: Record) -> None:
        """Note the evaluations in a record."""
        if record.fault:
            return
        for span in _inside(record.values, "resourceSpans", "scopeSpans", "spans"):
            for event in span.get("events") or ():
                if event.get("name") == EVALUATION:
                    self.scores.add(_evaluation(event, span.get("spanId")))
            if span.get("name") == EVALUATION:
                self.scores.add(_evaluation(span, span.get("parentSpanId")))
        for entry in _inside(record.values, "resourceLogs", "scopeLogs", "logRecords"):
            attributes = _attributes(entry)
            if EVALUATION in (entry.get("eventName"), attributes.get("event.name")):
                self.scores.add(_evaluation(entry, entry.get("spanId")))

    def feedback(self, record: Record) -> None:
        """Note a record of a file of feedback: OTLP, or a row of a table."""
        if "resourceSpans" in record.values or "resourceLogs" in record.values:
            self.survey(record)
        else:
            super().feedback(record)

    def rows(self, record: Record) -> Iterator[Record]:
        """Yield the spans of model calls."""
        if record.fault:
            yield record
            return
        for at, span in enumerate(_inside(record.values, "resourceSpans", "scopeSpans", "spans"), start=1):
            row = _attributes(span)
            if (
                "gen_ai.request.model" not in row
                or row.get("gen_ai.operation.name", "chat") not in MODEL_CALLS
            ):
                continue
            status = span.get("status") or {}
            row |= {
                "span_id": span.get("spanId"),
                "trace_id": span.get("traceId"),
                "time": _nanoseconds(span.get("startTimeUnixNano")),
                "failed": status.get("code") in STATUS_ERROR or "error.type" in row,
            }
            row["duration_s"] = _between(span.get("startTimeUnixNano"), span.get("endTimeUnixNano"))
            yield Record(f"{record.where}, span {at}", row)


def _evaluation(event: Mapping[str, Any], span: Any) -> Iterator[Score]:
    attributes = _attributes(event)
    value = _first(attributes, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label")
    target = span or attributes.get("gen_ai.response.id")
    if value is not None and target:
        at = _nanoseconds(_first(event, "timeUnixNano", "startTimeUnixNano", "observedTimeUnixNano")) or 0.0
        yield Score(str(target), str(attributes.get("gen_ai.evaluation.name", "")), value, at)


def _inside(document: Mapping[str, Any], *keys: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of nested lists, by the keys of the lists."""
    items = document.get(keys[0])
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping):
            if len(keys) == 1:
                yield item
            else:
                yield from _inside(item, *keys[1:])


def _nanoseconds(value: Any) -> float | None:
    """Return seconds since the epoch of a time in OTLP; None without one."""
    try:
        return None if is_missing(value) else int(value) / 1e9
    except (ValueError, TypeError):
        return None


def _between(start: Any, end: Any) -> float | None:
    """Return the seconds between two times in OTLP; None where one is missing."""
    try:
        return max(0, int(end) - int(start)) / 1e9
    except (ValueError, TypeError):
        return None


def _attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or of an event by name.

    >>> _attributes({"attributes": [{"key": "a.b", "value": {"intValue": "3"}}]})
    {'a.b': 3}
    """
    pairs = entry.get("attributes")
    return {
        str(pair.get("key")): _any_value(pair.get("value"))
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, Mapping)
    }


def _any_value(value: Any) -> Any:
    """Return a value of OTLP: 64-bit integers are texts there."""
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
    return None


OTEL = Layout(
    "otel",
    fields={
        "question": ("gen_ai.input.messages", "gen_ai.prompt"),
        "arm": ("gen_ai.request.model",),
        "time": ("time",),
        "id": ("span_id",),
        "episode": ("gen_ai.conversation.id", "session.id"),
        "user": ("user.id", "enduser.id"),
    },
    costs={
        "seconds": ("duration_s",),
        "prompt_tokens": ("gen_ai.usage.input_tokens",),
        "completion_tokens": ("gen_ai.usage.output_tokens",),
    },
    joins=("span_id", "gen_ai.response.id"),
    failed=lambda row: bool(row.get("failed")),
)

READERS: Mapping[str, tuple[type[Reader], Layout]] = {
    "litellm": (Reader, LITELLM),
    "langfuse": (Langfuse, LANGFUSE),
    "tensorzero": (TensorZero, TENSORZERO),
    "otel": (OpenTelemetry, OTEL),
}
"""Readers and layouts by name of the format."""
