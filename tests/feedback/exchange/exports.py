"""Small exports of other systems, as they lie on a disk, each with what an import of it must return."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

N = 10

SHORT = ("small", "large")
"""The arms, which take turns."""


@dataclass(frozen=True)
class Files:
    """An export.

    Attributes:
        form: Name of the format.
        files: Rows by name of the file; of a CSV file cells, of others objects.
        rewards: The reward of each decision.
        options: Options of the import by name.
        usd: Dollars of a decision.
        tokens: Tokens read and written by a decision.
        arms: The arms, which take turns.
        questions: Beginning of the questions; None where each row asks its own.
        left_out: How many are left out, by reason.
    """

    form: str
    files: Mapping[str, Sequence[Mapping[str, Any]]]
    rewards: Sequence[float | None]
    options: Mapping[str, Any] = field(default_factory=dict)
    usd: float = 0.0
    tokens: tuple[int, int] = (0, 0)
    arms: tuple[str, ...] = SHORT
    questions: str | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the files; return the file, or the folder of several."""
        for name, rows in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(name, rows), encoding="utf-8")
        return folder / next(iter(self.files)) if len(self.files) == 1 else folder


def text(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a file."""
    if name.endswith(".csv"):
        lines = io.StringIO()
        writer = csv.DictWriter(lines, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    key: json.dumps(cell) if isinstance(cell, dict | list) else cell
                    for key, cell in row.items()
                }
            )
        return lines.getvalue()
    if name.endswith(".json"):
        return json.dumps(list(rows))
    return "".join(json.dumps(row) + "\n" for row in rows)


def arm(at: int) -> str:
    return SHORT[at % 2]


STEPS = [round(at / N, 2) for at in range(N)]
"""Rewards 0, 0.1, .. 0.9."""

# -- LiteLLM ---------------------------------------------------------------------------------------


def spend(at: int, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": f"req-{at:03}",
        "call_type": "acompletion",
        "spend": 0.002,
        "total_tokens": 150,
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "startTime": f"2026-03-01T10:{at:02}:00.000Z",
        "endTime": f"2026-03-01T10:{at:02}:02.000Z",
        "model": "gpt-4o-mini-2024",
        "model_group": arm(at),
        "session_id": f"s{at}",
        "end_user": "",
        "metadata": {"requester_metadata": {"propensity": 0.5}},
        "cache_hit": "False",
        "status": "success",
        "messages": [{"role": "user", "content": f"question {at}"}],
        "response": {},
    } | changes


SPENT = [spend(at) for at in range(N)]

OTHER_CALLS = (
    *("aget_responses", "adelete_responses", "aembedding", "arerank", "aimage_generation", "atranscription"),
    *("aspeech", "acreate_batch", "aretrieve_batch", "afile_content", "call_mcp_tool", "amoderation"),
)

TEXT_CALLS = (
    *("completion", "acompletion", "text_completion", "atext_completion", "responses", "aresponses"),
    *("anthropic_messages", "agenerate_content", "agenerate_content_stream", ""),
)


def litellm(rows: Sequence[Mapping[str, Any]], name: str = "spend.json", **changes: Any) -> Files:
    known: dict[str, Any] = {
        "usd": 0.002,
        "tokens": (100, 50),
        "questions": "question ",
        "rewards": [None] * N,
    }
    return Files("litellm", {name: rows}, **(known | changes))


# -- Langfuse --------------------------------------------------------------------------------------


def trace(at: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"t{at}",
        "timestamp": f"2026-03-01T10:{at:02}:00.000Z",
        "name": "chat",
        "input": {"messages": [{"role": "user", "content": f"q{at}"}]},
        "sessionId": None,
        "metadata": {"route": arm(at), "propensity": 0.5},
        "latency": 1.5,
        "totalCost": 0.002,
        "observations": [],
        "scores": [],
    } | changes


def score(at: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"s{at}",
        "traceId": f"t{at}",
        "name": "quality",
        "observationId": None,
        "timestamp": "2026-03-01T11:00:00Z",
        "updatedAt": "2026-03-01T11:00:00Z",
        "dataType": "NUMERIC",
        "value": STEPS[at],
        "stringValue": None,
    } | changes


def category(at: int, label: str, **changes: Any) -> dict[str, Any]:
    return score(at, dataType="CATEGORICAL", value=0, stringValue=label, **changes)


def observations(at: int) -> list[dict[str, Any]]:
    """An agent that retrieves, embeds and generates, as the blob storage export has it."""
    shared = {
        "trace_id": f"t{at}",
        "start_time": f"2026-03-01 10:{at:02}:00.000000",
        "end_time": f"2026-03-01 10:{at:02}:02.500000",
        "level": "DEFAULT",
        "input": None,
        "metadata": {"route": arm(at), "propensity": "0.5"},
        "provided_model_name": None,
        "usage_details": {},
        "total_cost": 0,
        "latency": 2.5,
    }
    asked = json.dumps([{"role": "user", "content": f"q{at}"}])
    inside = shared | {"parent_observation_id": f"o{at}-0"}
    return [
        shared | {"id": f"o{at}-0", "parent_observation_id": None, "type": "AGENT", "input": asked},
        inside | {"id": f"o{at}-1", "type": "RETRIEVER"},
        inside
        | {
            "id": f"o{at}-2",
            "type": "EMBEDDING",
            "provided_model_name": "text-embedding-3-small",
            "usage_details": {"input": 10},
            "total_cost": 0.0001,
        },
        inside
        | {
            "id": f"o{at}-3",
            "type": "GENERATION",
            "provided_model_name": f"gpt-{arm(at)}",
            "input": asked,
            "usage_details": {"input": 100, "output": 50, "total": 150},
            "total_cost": 0.002,
        },
    ]


TRACES = [trace(at) for at in range(N)]
SCORES = [score(at) for at in range(N)]
OBSERVED = [row for at in range(N) for row in observations(at)]
BARE = [
    {key: row[key] for key in ("id", "timestamp", "name", "metadata")} | {"input": f"q{at}"}
    for at, row in enumerate(TRACES)
]
"""Traces as the blob storage export has them, without costs."""


def langfuse(files: Mapping[str, Sequence[Mapping[str, Any]]], **changes: Any) -> Files:
    known: dict[str, Any] = {"usd": 0.002, "questions": "q", "rewards": STEPS}
    return Files("langfuse", files, **(known | changes))


# -- OpenTelemetry ---------------------------------------------------------------------------------


def attribute(key: str, value: Any) -> dict[str, Any]:
    """Return an attribute of OTLP as JSON."""
    kind = {str: "stringValue", float: "doubleValue", int: "intValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if isinstance(value, int) else value}}


def span(at: int, letter: str, parent: str = "", **attributes: Any) -> dict[str, Any]:
    start = 1_772_359_200 + 60 * at
    return {
        "traceId": f"{at:032x}",
        "spanId": f"{at:015x}{letter}",
        "parentSpanId": f"{at:015x}{parent}" if parent else "",
        "name": "chat",
        "startTimeUnixNano": str(start * 10**9),
        "endTimeUnixNano": str((start + 2) * 10**9),
        "attributes": [attribute(name, value) for name, value in attributes.items()],
        "events": [],
        "status": {},
    }


def judged(at: int, row: dict[str, Any]) -> dict[str, Any]:
    """A span with its evaluation."""
    told = [
        attribute("gen_ai.evaluation.name", "rel"),
        attribute("gen_ai.evaluation.score.value", STEPS[at]),
    ]
    event = {"timeUnixNano": "1772362800000000000", "name": "gen_ai.evaluation.result", "attributes": told}
    return row | {"events": [event]}


def chat(at: int, letter: str = "a", parent: str = "", **changes: Any) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": arm(at),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 50,
        "p": 0.5,
    } | changes
    return span(
        at, letter, parent, **{name: value for name, value in attributes.items() if value is not None}
    )


def request(*spans: Mapping[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}


def snake(document: Any) -> Any:
    """Return a document with its keys as the schema of OTLP writes them."""
    if isinstance(document, dict):
        return {
            "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key): snake(value)
            for key, value in document.items()
        }
    return [snake(item) for item in document] if isinstance(document, list) else document


def openinference(at: int) -> dict[str, Any]:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.model_name": arm(at),
        "llm.token_count.prompt": 100,
        "llm.token_count.completion": 50,
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": f"q{at}",
        "p": 0.5,
    }
    return judged(at, span(at, "a", **attributes))


def aisdk(at: int) -> list[dict[str, Any]]:
    outer = {"operation.name": "ai.generateText", "ai.operationId": "ai.generateText", "ai.model.id": arm(at)}
    inner = chat(
        at, "b", "a", **{"gen_ai.operation.name": None, "ai.operationId": "ai.generateText.doGenerate"}
    )
    return [span(at, "a", **outer), judged(at, inner)]


def otel(lines: Sequence[Mapping[str, Any]], **changes: Any) -> Files:
    known: dict[str, Any] = {"tokens": (100, 50), "rewards": STEPS, "options": {"propensity": "p"}}
    return Files("otel", {"spans.jsonl": lines}, **(known | changes))


CHATS = [request(judged(at, chat(at))) for at in range(N)]

# -- TensorZero ------------------------------------------------------------------------------------

INFERENCES = [
    {
        "id": f"01955-{at}",
        "function_name": "answer",
        "variant_name": arm(at),
        "episode_id": f"e{at}",
        "input": json.dumps(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": f"q{at}"}]}]}
        ),
        "processing_time_ms": 1200,
        "tags": {"propensity": "0.5"},
    }
    for at in range(N)
]
MODEL_INFERENCES = [
    {
        "id": f"m{at}",
        "inference_id": f"01955-{at}",
        "model_name": "m",
        "input_tokens": 100,
        "output_tokens": 50,
    }
    for at in range(N)
]
SOLVED = [
    {"id": f"f{at}", "target_id": f"01955-{at}", "metric_name": "solved", "value": at % 2 == 0}
    for at in range(N)
]

EXPORTS: Mapping[str, Files] = {
    "litellm": litellm(SPENT),
    "litellm with other calls": litellm(
        [*SPENT, *(spend(20 + at, call_type=kind) for at, kind in enumerate(OTHER_CALLS))],
        left_out={f"no model call: {kind}": 1 for kind in OTHER_CALLS},
    ),
    "litellm of all calls for a text": litellm(
        [spend(at, call_type=kind) for at, kind in enumerate(TEXT_CALLS)]
    ),
    "litellm without ids": litellm([spend(at, request_id="") for at in range(N)]),
    "litellm twice": litellm([*SPENT, *SPENT[:3]], left_out={"duplicate": 3}),
    "litellm whose spend is in a breakdown": litellm(
        [spend(at, spend=0, metadata={"cost_breakdown": {"total_cost": 0.002}}) for at in range(N)]
    ),
    "litellm as CSV": litellm(SPENT, "spend.csv"),
    "langfuse": langfuse({"traces.jsonl": TRACES, "scores.jsonl": SCORES}),
    "langfuse with booleans": langfuse(
        {
            "traces.jsonl": TRACES,
            "scores.jsonl": [
                score(at, dataType="BOOLEAN", value=at % 2, stringValue=("False", "True")[at % 2])
                for at in range(N)
            ],
        },
        rewards=[float(at % 2) for at in range(N)],
    ),
    "langfuse with categories": langfuse(
        {
            "traces.jsonl": TRACES,
            "scores.jsonl": [
                category(at, label)
                for at, label in enumerate(
                    ("PASS", "FAIL", "true", "False", "Yes", "no", "pass", "good", "bad", "no")
                )
            ],
        },
        rewards=[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, None, None, 0.0],
        left_out={"score is not a number": 2},
    ),
    "langfuse with categories that have numbers": langfuse(
        {
            "traces.jsonl": TRACES,
            "scores.jsonl": [category(at, "good", configId="c") | {"value": STEPS[at]} for at in range(N)],
        }
    ),
    "langfuse with corrected answers": langfuse(
        {
            "traces.jsonl": TRACES,
            "scores.jsonl": [
                *SCORES,
                *(score(at, id=f"c{at}", dataType="CORRECTION", value=0, stringValue="x") for at in range(5)),
                score(0, id="x", dataType="TEXT", value=0, stringValue="pass"),
            ],
        },
        left_out={"score is no reward": 6},
    ),
    "langfuse with corrected scores": langfuse(
        {
            "traces.jsonl": TRACES,
            "scores.jsonl": [
                score(0, value=0.5, updatedAt="2026-03-01T12:00:00Z"),
                *SCORES,
                score(9, value=0.25, timestamp="2026-03-01T12:00:00Z"),
            ],
        },
        rewards=[0.5, *STEPS[1:9], 0.25],
        left_out={"score repeated": 2},
    ),
    "langfuse with traces and both kinds of observations": langfuse(
        {"o/a.jsonl": OBSERVED, "o2/a.jsonl": OBSERVED, "scores/a.jsonl": SCORES, "traces/a.jsonl": BARE},
        usd=0.0021,
        tokens=(110, 50),
        left_out={"call repeated": 4 * N},
    ),
    "langfuse with observations inside and beside": langfuse(
        {
            "o.jsonl": OBSERVED[:20],
            "traces.jsonl": [
                trace(at, totalCost=None, observations=observations(at), scores=[score(at)])
                for at in range(N)
            ],
        },
        usd=0.0021,
        tokens=(110, 50),
        left_out={"call repeated": 20},
    ),
    "langfuse with observations alone": langfuse(
        {"observations/a.jsonl": OBSERVED, "scores/a.jsonl": SCORES},
        tokens=(100, 50),
        left_out={f"no model call: {kind}": N for kind in ("AGENT", "RETRIEVER", "EMBEDDING")},
    ),
    "langfuse in overlapping exports": langfuse(
        {
            "scores.jsonl": SCORES,
            "traces_1.jsonl": [trace(at, latency=0, totalCost=0.0) for at in range(5)],
            "traces_2.jsonl": TRACES,
        },
        left_out={"duplicate": 5},
    ),
    "otel": otel(CHATS),
    "otel with agents": otel(
        [
            request(
                span(
                    at,
                    "a",
                    **{
                        "gen_ai.operation.name": "invoke_agent",
                        "gen_ai.request.model": arm(at),
                        "gen_ai.usage.input_tokens": 300,
                    },
                ),
                judged(at, chat(at, "b", "a")),
            )
            for at in range(N)
        ],
        left_out={"no model call: invoke_agent": N},
    ),
    "otel of two libraries": otel(
        [request(judged(at, chat(at)), chat(at, "b", "a")) for at in range(N)], left_out={"part of a call": N}
    ),
    "otel of two libraries, the inner one with tokens and scores, first": otel(
        [
            request(
                judged(at, chat(at, "c", "b")),
                span(at, "b", "a", **{"http.method": "POST"}),
                chat(at, **{"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None}),
            )
            for at in range(N)
        ],
        left_out={"part of a call": N},
    ),
    "otel of OpenInference": otel([request(openinference(at)) for at in range(N)], questions="q"),
    "otel of AI SDK": otel([request(*aisdk(at)) for at in range(N)]),
    "otel as in the schema": otel([snake(line) for line in CHATS]),
    "otel sent twice": otel([*CHATS, *CHATS[:3]], left_out={"duplicate": 3, "score repeated": 3}),
    "otel with equal spans of traces": otel(
        [request(judged(at, chat(at) | {"spanId": "aa"})) for at in range(N)]
    ),
    "tensorzero": Files(
        "tensorzero",
        {"chat.jsonl": INFERENCES, "model.jsonl": MODEL_INFERENCES, "bool.jsonl": SOLVED},
        [1.0, 0.0] * 5,
        tokens=(100, 50),
        questions="q",
    ),
    "tensorzero in overlapping exports": Files(
        "tensorzero",
        {
            "1/chat.jsonl": [*INFERENCES, INFERENCES[0]],
            "1/model.jsonl": MODEL_INFERENCES,
            "1/bool.jsonl": SOLVED,
            "2/model.jsonl": MODEL_INFERENCES,
            "2/bool.jsonl": SOLVED,
        },
        [1.0, 0.0] * 5,
        tokens=(100, 50),
        questions="q",
        left_out={"call repeated": N, "score repeated": N, "duplicate": 1},
    ),
}
