"""Traffic of production with a known logging policy and known rewards, as each system would export it."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from armwise.feedback.events import Example
from armwise.feedback.exchange import Columns, ImportRequest, ProductionLog
from armwise.feedback.exchange.imported import make_rule
from armwise.feedback.ope import evaluate
from tests.feedback.examples import log_of_examples
from tests.feedback.exchange.exports import attribute, score, spend, text, trace

ARMS = ("small", "medium", "large")

P: Mapping[str, tuple[float, ...]] = {"free": (0.5, 0.3, 0.2), "pro": (0.2, 0.3, 0.5)}
"""What the logging policy draws with, by tier."""

Q: Mapping[str, tuple[float, ...]] = {"free": (0.3, 0.5, 0.7), "pro": (0.6, 0.5, 0.9)}
"""Probability of a reward of 1, by tier."""

TRUTH = {arm: (Q["free"][i] + Q["pro"][i]) / 2 for i, arm in enumerate(ARMS)}
"""Expected reward of always drawing an arm; both tiers are as frequent."""

START = 1_767_225_600
"""The first of January 2026."""


@dataclass(frozen=True)
class Turn:
    """One decision of the traffic; without a reward in one of 50."""

    number: int
    tier: str
    arm: str
    reward: float | None

    @property
    def id(self) -> str:
        return f"0190-{self.number:06d}"

    @property
    def question(self) -> str:
        return f"question {self.number % 40} of {self.tier}"

    @property
    def p(self) -> dict[str, float]:
        return dict(zip(ARMS, P[self.tier], strict=True))

    @property
    def episode(self) -> str:
        return f"e{self.number // 4}"

    @property
    def user(self) -> str:
        return f"u{self.number % 7}"

    @property
    def at(self) -> float:
        return START + self.number

    @property
    def iso(self) -> str:
        return str(np.datetime64(int(self.at), "s")) + "Z"

    @property
    def usd(self) -> float:
        return 0.001 * (1 + ARMS.index(self.arm))

    @property
    def tokens(self) -> tuple[int, int]:
        return 100 + self.number % 3, 20


def traffic(n: int = 3000, seed: int = 0) -> list[Turn]:
    rng = np.random.default_rng(seed)
    turns = []
    for number in range(n):
        tier = ("free", "pro")[int(rng.integers(2))]
        arm = int(rng.choice(3, p=P[tier]))
        reward = float(rng.random() < Q[tier][arm])
        turns.append(Turn(number, tier, ARMS[arm], None if number % 50 == 7 else reward))
    return turns


def read(source: Path, form: str = "table", **options: Any) -> tuple[list[Example], ProductionLog]:
    """Import a file, all of it; columns are given by name, other options as those of a request."""
    names = Columns.__dataclass_fields__
    columns = Columns(**{name: options.pop(name) for name in list(options) if name in names})
    options.setdefault("scale", (0.0, 1.0))
    log = ProductionLog(source, ImportRequest(form=form, columns=columns, **options))
    return list(log.examples()), log


def near_the_truth(examples: Iterable[Example], most: float = 0.05, estimator: str = "ips") -> None:
    """Assert that the value of each fixed arm is near the truth: three standard errors of 3,000 rows."""
    log = log_of_examples(examples, make_rule("reward", (0.0, 1.0)))
    targets = {arm: np.tile(np.eye(len(log.arms))[log.column[arm]], (len(log), 1)) for arm in ARMS}
    found = evaluate(log, targets, np.random.default_rng(0), estimators=(estimator,), reward_model="means")
    for arm, truth in TRUTH.items():
        estimate = found[arm].estimates[0].value
        assert estimate is not None, found[arm].estimates[0].note
        assert abs(estimate.value - truth) < most, (arm, estimate, truth)


def as_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    return write(path, text("rows.jsonl", rows))


def as_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    return write(path, text("rows.csv", rows))


def write(path: Path, content: str) -> Path:
    """Write a file, compressed where its name says so."""
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def table_rows(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    return [
        {
            "request": t.id,
            "asked": t.question,
            "route": t.arm,
            "chance": t.p[t.arm],
            "dist": t.p,
            "score": t.reward,
            "dollars": t.usd,
            "latency": 0.25,
            "tokens_in": t.tokens[0],
            "when": t.at,
            "plan": t.tier,
            "chat": t.episode,
            "who": t.user,
        }
        for t in turns
    ]


NAMES: dict[str, Any] = {
    "id": "request",
    "question": "asked",
    "arm": "route",
    "propensity": "chance",
    "reward": "score",
    "time": "when",
    "episode": "chat",
    "user": "who",
    "costs": {"usd": "dollars", "seconds": "latency", "prompt_tokens": "tokens_in"},
    "features": {"tier": "plan"},
}
"""The columns of `table_rows`."""


def litellm_rows(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Rows of LiteLLM_SpendLogs."""
    return [
        spend(
            t.number,
            request_id=t.id,
            spend=t.usd,
            prompt_tokens=t.tokens[0],
            completion_tokens=t.tokens[1],
            startTime=t.iso,
            endTime=str(np.datetime64(int(t.at) + 2, "s")) + "Z",
            model=f"provider/{t.arm}",
            model_group=t.arm,
            metadata={"requester_metadata": {"propensity": t.p[t.arm], "tier": t.tier}},
            cache_hit="True" if t.number % 10 == 3 else "False",
            end_user=t.user,
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": t.question}],
            session_id=t.episode,
        )
        for t in turns
    ]


def langfuse_rows(turns: Iterable[Turn]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Traces and scores, as the HTTP API of Langfuse has them."""
    turns = list(turns)
    traces = [
        trace(
            t.number,
            id=t.id,
            timestamp=t.iso,
            input={"question": t.question},
            sessionId=t.episode,
            userId=t.user,
            metadata={"arm": t.arm, "propensity": t.p[t.arm], "tier": t.tier},
            latency=0.25,
            totalCost=t.usd,
        )
        for t in turns
    ]
    scores = [
        score(0, id=f"s{t.number}", traceId=t.id, name=name, value=value, timestamp=t.iso, updatedAt=t.iso)
        for t in turns
        for name, value in (("helpful", t.reward), ("length", 3.0))
        if value is not None
    ]
    return traces, scores


def tensorzero_rows(turns: Iterable[Turn]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ChatInference and of BooleanMetricFeedback."""
    turns = list(turns)
    inferences = [
        {
            "id": t.id,
            "function_name": "answer",
            "variant_name": t.arm,
            "episode_id": t.episode,
            "input": json.dumps(
                {"messages": [{"role": "user", "content": [{"type": "text", "text": t.question}]}]}
            ),
            "output": "[]",
            "processing_time_ms": 250,
            "timestamp": t.iso,
            "tags": {"user_id": t.user, "propensity": str(t.p[t.arm]), "tier": t.tier},
        }
        for t in turns
    ]
    feedback = [
        {
            "id": f"f{t.number}",
            "target_id": t.id,
            "metric_name": "helpful",
            "value": bool(t.reward),
            "timestamp": t.iso,
            "tags": {},
        }
        for t in turns
        if t.reward is not None
    ]
    return inferences, feedback


def otel_lines(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Export requests of OTLP: spans; the evaluations of half of them are events, the others are logs."""
    lines = []
    for t in turns:
        nano = int(t.at) * 10**9
        evaluation = {
            "timeUnixNano": str(nano),
            "attributes": [
                attribute("gen_ai.evaluation.name", "helpful"),
                attribute("gen_ai.evaluation.score.value", t.reward),
            ]
            if t.reward is not None
            else [],
        }
        beside = t.number % 2 == 0
        span = {
            "traceId": f"t{t.number}",
            "spanId": t.id,
            "name": f"chat {t.arm}",
            "startTimeUnixNano": str(nano),
            "endTimeUnixNano": str(nano + 250_000_000),
            "status": {},
            "events": [] if beside else [{"name": "gen_ai.evaluation.result", **evaluation}],
            "attributes": [
                attribute("gen_ai.operation.name", "chat"),
                attribute("gen_ai.request.model", t.arm),
                attribute("gen_ai.usage.input_tokens", t.tokens[0]),
                attribute("gen_ai.usage.output_tokens", t.tokens[1]),
                attribute("gen_ai.conversation.id", t.episode),
                attribute("user.id", t.user),
                attribute("app.propensity", t.p[t.arm]),
                attribute("app.tier", t.tier),
                attribute(
                    "gen_ai.input.messages",
                    json.dumps([{"role": "user", "parts": [{"type": "text", "content": t.question}]}]),
                ),
            ],
        }
        tool = {"traceId": f"t{t.number}", "spanId": f"x{t.number}", "name": "execute_tool", "attributes": []}
        lines.append({"resourceSpans": [{"scopeSpans": [{"spans": [span, tool]}]}]})
        if beside:
            entry = {"eventName": "gen_ai.evaluation.result", "spanId": t.id, **evaluation}
            lines.append({"resourceLogs": [{"scopeLogs": [{"logRecords": [entry]}]}]})
    return lines
