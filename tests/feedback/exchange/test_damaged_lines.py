"""One bad line costs one line: whatever is cut, dropped or written otherwise, the rest keeps its values."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from armwise.feedback.events import Example
from armwise.feedback.exchange import Faults, read_dsjson, read_obp
from armwise.feedback.jsonl import ExchangeError
from tests.feedback.exchange.traffic import read

N = 8
"""Lines of a file below its first one."""

SCALE = (-512.0, 512.0)

REWARDS = [float(1 << at) for at in range(N)]
"""No two sums of some of them are equal."""

Outcome = tuple[dict[str, float | None], Faults]
"""The rewards that were read, by id, and what was left out."""


def event(at: int) -> dict[str, Any]:
    return {
        "_label_cost": -REWARDS[at],
        "_label_probability": 0.75,
        "_label_Action": 1,
        "_labelIndex": 0,
        "Timestamp": f"2026-03-01T10:0{at}:00Z",
        "EventId": f"id{at}",
        "a": [1, 2],
        "c": {"user": {"plan": "fr\xe9e"}, "_multi": [{"_tag": "red"}, {"_tag": "blue"}]},
        "p": [0.75, 0.25],
        "pdrop": 0.0,
    }


def table_row(at: int) -> dict[str, Any]:
    return {
        "id": f"id{at}",
        "reward": REWARDS[at],
        "arm": "red" if at % 2 else "blue",
        "propensity": 0.5,
        "question": f'Caf\xe9 "{at}", or what?',
        "time": f"2026-03-01 10:0{at}:00 UTC",
    }


def as_row(values: dict[str, Any]) -> str:
    return ",".join(
        '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text
        for text in ("" if value is None else str(value) for value in values.values())
    )


def by_id(examples: list[Example]) -> dict[str, float | None]:
    assert len({each.decision.id for each in examples}) == len(examples)
    return {each.decision.id.rpartition("/")[2]: each.metrics.get("reward") for each in examples}


def read_events(path: Path) -> Outcome:
    faults = Faults()
    return by_id(list(read_dsjson(path, "reward", SCALE, faults))), faults


def read_table(path: Path) -> Outcome:
    examples, log = read(path, arms=("red", "blue"), scale=SCALE)
    return by_id(examples), log.faults


def read_campaign(path: Path) -> Outcome:
    (path.parent / "item_context.csv").write_text("item_id\nred\nblue\n")
    faults = Faults()
    return by_id(list(read_obp(path.parent, "reward", SCALE, faults))), faults


def campaign_row(at: int) -> dict[str, Any]:
    return {
        "": f"id{at}",
        "click": REWARDS[at],
        "item_id": "red" if at % 2 else "blue",
        "propensity_score": 0.5,
        "position": 1,
        "user_feature_0": 'Caf\xe9, "open"',
        "timestamp": f"2026-03-01 10:0{at}:00+00:00",
    }


FORMATS: dict[str, tuple[str, Callable[[int], dict[str, Any]], Callable[[Path], Outcome]]] = {
    "dsjson": ("log.dsjson", event, read_events),
    "csv": ("log.csv", table_row, read_table),
    "jsonl": ("log.jsonl", table_row, read_table),
    "obp": ("men/men.csv", campaign_row, read_campaign),
}

VALUES: list[Any] = [
    "x",
    None,
    [],
    {},
    "",
    "NaN",
    float("nan"),
    "1e999",
    [1],
    {"a": 1},
    "\0",
    "\ud800",
    "1,234",
]
"""No number that is a reward is among them."""


def damaged(values: dict[str, Any], written: Callable[[dict[str, Any]], bytes], rng: Any) -> list[bytes]:
    """Return what stands in place of a line: cut, with a field dropped or replaced, or with odd bytes."""
    names, line = list(values), written(values)
    at = int(rng.integers(1, len(line)))
    name = names[int(rng.integers(len(names)))]
    match int(rng.integers(8)):
        case 0:
            return [line[:at]]
        case 1:
            return [written({key: value for key, value in values.items() if key != name})]
        case 2 | 3:
            return [written({**values, name: VALUES[int(rng.integers(len(VALUES)))]})]
        case 4:
            return [line.decode().encode("latin-1")]
        case 5:
            odd = [b'"', b"\0", b"\xff", b"\r\n", b";", b"\t"][int(rng.integers(6))]
            return [line[:at] + odd + line[at:]]
        case 6:
            return [line, line]
        case _:
            return [[b"", b"  ", b"[CHECKPOINT]", b"{}", b'"', line + line][int(rng.integers(6))]]


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path, form: str) -> None:
    name, row, outcome = FORMATS[form]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    as_json = form in ("dsjson", "jsonl")

    def written(values: dict[str, Any]) -> bytes:
        text = json.dumps(values, ensure_ascii="\ud800" in str(values)) if as_json else as_row(values)
        return text.encode(errors="surrogatepass")

    head = [] if as_json else [as_row(dict.fromkeys(row(0), None) | {key: key for key in row(0)}).encode()]
    named = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        hit = int(rng.integers(N))
        lines = [[written(row(at))] for at in range(N)]
        lines[hit] = damaged(row(hit), written, rng)
        path.write_bytes(b"\n".join(head + [line for several in lines for line in several]) + b"\n")
        rewards, faults = outcome(path)
        for at in set(range(N)) - {hit}:
            assert rewards.pop(f"id{at}") == REWARDS[at], seed
        for reward in rewards.values():
            assert reward in (REWARDS[hit], None), seed
        blank = not b"".join(lines[hit]).strip()
        assert len(rewards) + faults.counts.total() >= (0 if blank else 1), seed
        places = [place for several in faults.shown.values() for place in several]
        at_line = {f"line {len(head) + 1 + hit + more}" for more in range(3)}
        assert all(any(f", {place}:" in told for place in at_line) for told in places), (seed, places)
        named += len(places)
    assert named > 50


COLUMNS: list[Any] = [
    pa.array([2**62] * N, pa.timestamp("ms")),
    pa.array([-(2**62)] * N, pa.timestamp("us", "Mars/Olympus")),
    pa.array([1] * N, pa.timestamp("ns", "+05:45")),
    pa.array([2**40] * N, pa.date64()),
    pa.array([2**30] * N, pa.date32()),
    pa.array([1] * N, pa.time64("ns")),
    pa.array([2**62] * N, pa.duration("s")),
    pa.array([Decimal("1e-30")] * N, pa.decimal256(60, 40)),
    pa.array([b"\xff\0"] * N, pa.binary()),
    pa.array([None] * N, pa.null()),
    pa.array([[{"at": 1}]] * N, pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))]))),
    pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.timestamp("ns"))),
    pa.array(["x"] * N).dictionary_encode(),
    pa.array([[1, 2]] * N, pa.list_(pa.float32(), 2)),
    pa.array([["x"]] * N, pa.large_list(pa.large_string())),
]


def table_of(**changes: Any) -> Any:
    columns = {name: [row[name] for row in map(table_row, range(N))] for name in table_row(0)}
    return pa.table({**columns, **changes})


@pytest.mark.parametrize("column", COLUMNS, ids=[str(column.type) for column in COLUMNS])
def test_a_column_that_nobody_named_does_not_matter_whatever_its_type(tmp_path: Path, column: Any) -> None:
    path = tmp_path / "log.parquet"
    parquet.write_table(table_of(), path)
    right, _ = read_table(path)
    assert list(right.values()) == REWARDS
    parquet.write_table(table_of(other=column), path)
    assert read_table(path) == (right, Faults())


@pytest.mark.parametrize("column", COLUMNS, ids=[str(column.type) for column in COLUMNS])
@pytest.mark.parametrize("name", ["id", "reward", "arm", "propensity", "question", "time"])
def test_a_column_of_another_type_is_read_or_named(tmp_path: Path, name: str, column: Any) -> None:
    path = tmp_path / "log.parquet"
    parquet.write_table(table_of(**{name: column}), path)
    refused = ""
    try:
        rewards, faults = read_table(path)
    except ExchangeError as error:
        refused = str(error)
    if refused:
        assert str(path) in refused
        return
    assert len(rewards) + faults.counts.total() == N
    if name != "reward":
        assert set(rewards.values()) <= set(REWARDS)


def test_nanoseconds_bytes_and_maps_of_parquet_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    at_ns = 1_772_359_200_123_456_789
    changes = {
        "arm": pa.array([b"red", b"blue"] * (N // 2), pa.binary()),
        "id": pa.array([bytes(15) + bytes([at]) for at in range(N)], pa.binary(16)),
        "propensity": pa.array([Decimal("0.5")] * N),
        "distribution": pa.array([[("red", 0.5), ("blue", 0.5)]] * N, pa.map_(pa.string(), pa.float32())),
    }
    for zone in (None, "UTC", "+05:45", "Europe/Vienna"):
        parquet.write_table(table_of(**changes, time=pa.array([at_ns] * N, pa.timestamp("ns", zone))), path)
        examples, log = read(path, scale=SCALE)
        assert log.faults == Faults()
        assert {each.decision.decided_at for each in examples} == {1_772_359_200.123456}
        assert examples[1].decision.id == "00000000-0000-0000-0000-000000000001"
        assert [each.decision.drawn for each in examples] == ["red", "blue"] * (N // 2)
        assert examples[0].decision.probabilities == (0.5, 0.5)
    nested = pa.array(
        [{"at": datetime(2026, 3, 1, 10, tzinfo=UTC)}] * N, pa.struct([("at", pa.timestamp("ns"))])
    )
    parquet.write_table(table_of(time=nested), path)
    examples, _ = read(path, scale=SCALE, time="time.at")
    assert {each.decision.decided_at for each in examples} == {1_772_359_200.0}
