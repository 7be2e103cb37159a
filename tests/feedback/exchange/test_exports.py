"""Exports of other systems: each gives the right sums, and a damaged one names what is left out of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.feedback.events import Example
from armwise.feedback.jsonl import ExchangeError
from tests.feedback.exchange.exports import EXPORTS, Files, N, text
from tests.feedback.exchange.traffic import read


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_counts_what_was_decided_once(tmp_path: Path, name: str) -> None:
    export = EXPORTS[name]
    examples, log = read(export.write(tmp_path), export.form, **export.options)
    assert log.faults.counts == export.left_out
    assert [one.decision.drawn for one in examples] == [export.arms[at % len(export.arms)] for at in range(N)]
    assert [one.metrics.get("reward") for one in examples] == list(export.rewards)
    assert [one.cost.usd for one in examples] == pytest.approx([export.usd] * N)
    assert {(one.cost.prompt_tokens, one.cost.completion_tokens) for one in examples} == {export.tokens}
    if export.questions is not None:
        assert [one.decision.context.question for one in examples] == [
            f"{export.questions}{at}" for at in range(N)
        ]
    assert len({one.decision.id for one in examples}) == N


DAMAGED = (
    *(
        "litellm",
        "litellm as CSV",
        "langfuse",
        "langfuse with categories",
        "langfuse with observations alone",
    ),
    *("langfuse with traces and both kinds of observations", "langfuse with observations inside and beside"),
    *("otel", "otel of two libraries", "otel as in the schema", "otel of OpenInference", "tensorzero"),
)

STRUCTURE = frozenset(
    (
        *("parentSpanId", "parent_span_id", "parent_observation_id"),
        *("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans"),
    )
)
"""Keys that say what is inside of what: without one, a span is a call of its own, or not in the file."""

IDS = frozenset(("id", "request_id", "traceId", "trace_id", "spanId", "span_id"))
"""Keys of ids, which are removed: another id is another thing."""

OTHER_VALUES: tuple[Any, ...] = (None, "", [], {}, "x", -1, [1], {"a": "b"})

MUTANTS = 600


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in a row, outer ones too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for key, item in items for leaf in leaves(item, (*path, key))]
    return [*([path] if path and STRUCTURE.isdisjoint(path[-2:]) else []), *inner]


def damage(export: Files, folder: Path, rng: np.random.Generator) -> tuple[Path, str]:
    """Write an export with one damage; return its path, and what was done."""
    name = list(export.files)[int(rng.integers(len(export.files)))]
    rows = json.loads(json.dumps(list(export.files[name])))
    at = int(rng.integers(len(rows)))
    kind = ("drop", "change", "cut", "encode", "repeat")[int(rng.choice(5, p=(0.3, 0.4, 0.1, 0.1, 0.1)))]
    if kind in ("drop", "change"):
        paths = leaves(rows[at])
        *outer, key = paths[int(rng.integers(len(paths)))]
        place = rows[at]
        for step in outer:
            place = place[step]
        if (kind == "drop" or key in IDS) and not name.endswith(".csv"):
            del place[key]
            kind = "drop"
        else:
            place[key] = None if kind == "drop" else OTHER_VALUES[int(rng.integers(len(OTHER_VALUES)))]
            kind = "drop" if place[key] in (None, "", [], {}) or "events" in outer or key == "key" else kind
    if kind == "repeat":
        rows.insert(int(rng.integers(len(rows))), rows[at])
    source = export.write(folder)
    content = text(name, rows)
    if kind == "cut":
        lines = content.splitlines(keepends=True)
        line = min(at, len(lines) - 1)
        lines[line] = lines[line][: int(rng.integers(1, len(lines[line]) - 1))] + "\n"
        content = "".join(lines)
    encodings = ("utf-8-sig", "utf-16", "latin-1", "crlf")
    encoding = encodings[int(rng.integers(4))] if kind == "encode" else "utf-8"
    content = content.replace("question ", "Frage f\u00fcr ") if kind == "encode" else content
    damaged = content.replace("\n", "\r\n").encode() if encoding == "crlf" else content.encode(encoding)
    (folder / name).write_bytes(damaged)
    return source, kind


def sums(examples: list[Example]) -> dict[str, float]:
    earned = [one.metrics["reward"] for one in examples if "reward" in one.metrics]
    return {
        "decisions": len(examples),
        "usd": round(sum(one.cost.usd for one in examples), 9),
        "prompt tokens": sum(one.cost.prompt_tokens for one in examples),
        "completion tokens": sum(one.cost.completion_tokens for one in examples),
        "rewards": len(earned),
        "reward": round(sum(earned), 9),
    }


@pytest.mark.slow
def test_a_damaged_export_loses_nothing_in_silence(tmp_path: Path) -> None:
    """Of one in three mutants a sum differs; then the line is named, or a value was taken from the file."""
    expected = {}
    for name in DAMAGED:
        source = EXPORTS[name].write(tmp_path / name)
        expected[name] = sums(read(source, EXPORTS[name].form, **EXPORTS[name].options)[0])
    outcomes, refusals = {"same": 0, "named": 0, "missing": 0}, []
    for seed in range(MUTANTS):
        rng = np.random.default_rng(seed)
        name = DAMAGED[seed % len(DAMAGED)]
        export, right = EXPORTS[name], expected[name]
        source, kind = damage(export, tmp_path / f"{seed}", rng)
        try:
            examples, log = read(source, export.form, **export.options)
        except ExchangeError as error:
            refusals.append(str(error))
            continue
        got = sums(examples)
        assert all(log.faults.shown[reason] for reason in log.faults.counts), (seed, name, kind)
        if got == right:
            outcomes["same"] += 1
        elif any(n > export.left_out.get(reason, 0) for reason, n in log.faults.counts.items()):
            assert all(str(source.parent) in line for lines in log.faults.shown.values() for line in lines)
            outcomes["named"] += 1
        else:
            least = {
                "decisions": 0,
                "usd": 0.0021,
                "prompt tokens": 110,
                "completion tokens": 50,
                "reward": 1,
            }
            for what, amount in right.items():
                assert kind == "drop", (seed, name, kind, got, right)
                assert 0 <= amount - got[what] <= least.get(what, 1) + 1e-9, (seed, name, kind, got, right)
            outcomes["missing"] += 1
    assert min(*outcomes.values(), len(refusals)) > MUTANTS / 50, (outcomes, len(refusals))
    assert all(str(tmp_path) in refusal for refusal in refusals)
