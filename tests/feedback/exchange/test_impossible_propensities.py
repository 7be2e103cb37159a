"""A propensity that no arm can have been drawn with costs its row, whichever format the log has."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from armwise.feedback.events import Example
from armwise.feedback.exchange import Faults, make_rule, read_dsjson, read_obp
from armwise.feedback.jsonl import ExchangeError, Header, read_export, write_export
from tests.feedback.exchange import traffic
from tests.feedback.exchange.test_damaged_lines import as_row, campaign_row, event

N, WRONG = 6, 3
"""Rows of each log, and the place of the one whose propensity is impossible."""

IMPOSSIBLE = ("Infinity", "-Infinity", "1e400", "0", "-0.5", "1.5", "true", "false", '"yes"', '"x"', "[0.5]")
"""Values as they stand in a line of JSON."""

SPOILED = "@@"
"""Stands for the value until the line is written."""

Outcome = tuple[list[Example], Faults]


def as_lines(path: Path, documents: list[Any], value: str) -> Path:
    lines = (json.dumps(document).replace(f'"{SPOILED}"', value) for document in documents)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read_lines(form: str, documents: list[Any], value: str, folder: Path, **options: Any) -> Outcome:
    path = as_lines(folder / "log.jsonl", documents, value)
    examples, log = traffic.read(path, form, **options)
    return examples, log.faults


def table_rows() -> list[dict[str, Any]]:
    rows = traffic.table_rows(traffic.traffic(N))
    for at, row in enumerate(rows):
        del row["dist"]
        row["chance"] = SPOILED if at == WRONG else row["chance"]
    return rows


def read_table(value: str, folder: Path) -> Outcome:
    return read_lines("table", table_rows(), value, folder, **traffic.NAMES)


def read_csv(value: str, folder: Path) -> Outcome:
    path = traffic.as_csv(folder / "log.csv", table_rows())
    text = path.read_text()
    assert SPOILED in text
    path.write_text(text.replace(SPOILED, f'"{value}"' if "," in value else value.strip('"')))
    examples, log = traffic.read(path, **traffic.NAMES)
    return examples, log.faults


def read_whole_distributions(value: str, folder: Path) -> Outcome:
    rows = traffic.table_rows(traffic.traffic(N))
    for row in rows:
        del row["chance"]
    rows[WRONG]["dist"] = {arm: SPOILED if arm == rows[WRONG]["route"] else 0.0 for arm in traffic.ARMS}
    names = {**traffic.NAMES, "propensity": None, "distribution": "dist"}
    return read_lines("table", rows, value, folder, **names)


def read_litellm(value: str, folder: Path) -> Outcome:
    rows = traffic.litellm_rows(traffic.traffic(N))
    rows[WRONG]["metadata"]["requester_metadata"]["propensity"] = SPOILED
    return read_lines("litellm", rows, value, folder)


def read_langfuse(value: str, folder: Path) -> Outcome:
    rows, _ = traffic.langfuse_rows(traffic.traffic(N))
    rows[WRONG]["metadata"]["propensity"] = SPOILED
    return read_lines("langfuse", rows, value, folder)


def read_otel(value: str, folder: Path) -> Outcome:
    lines = traffic.otel_lines(traffic.traffic(N))
    requests = [line["resourceSpans"] for line in lines if "resourceSpans" in line]
    span = requests[WRONG][0]["scopeSpans"][0]["spans"][0]
    kind = {"t": "boolValue", "f": "boolValue", '"': "stringValue"}.get(value[0], "doubleValue")
    for attribute in span["attributes"]:
        if attribute["key"] == "app.propensity":
            attribute["value"] = {kind: SPOILED}
    return read_lines("otel", lines, value, folder, propensity="app.propensity")


def read_events(field: str, value: str, folder: Path) -> Outcome:
    events = [event(at) for at in range(N)]
    events[WRONG][field] = [SPOILED, 0] if field == "p" else SPOILED
    events[WRONG]["_label_probability"] = None if field == "p" else SPOILED
    if field == "_label_probability":
        events[WRONG]["p"] = [1, 0]
    faults = Faults()
    path = as_lines(folder / "log.dsjson", events, value)
    return list(read_dsjson(path, "reward", (-512.0, 512.0), faults)), faults


def read_campaign(value: str, folder: Path) -> Outcome:
    rows = [campaign_row(at) for at in range(N)]
    rows[WRONG]["propensity_score"] = value.strip('"')
    (folder / "item_context.csv").write_text("item_id\nred\nblue\n")
    (folder / f"{folder.name}.csv").write_text("\n".join([",".join(rows[0]), *map(as_row, rows), ""]))
    faults = Faults()
    return list(read_obp(folder, "reward", (-512.0, 512.0), faults)), faults


READERS: dict[str, Callable[[str, Path], Outcome]] = {
    "csv": read_csv,
    "table": read_table,
    "distribution": read_whole_distributions,
    "litellm": read_litellm,
    "langfuse": read_langfuse,
    "otel": read_otel,
    "dsjson p": partial(read_events, "p"),
    "dsjson label": partial(read_events, "_label_probability"),
    "obp": read_campaign,
}


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("reader", READERS)
def test_a_row_of_impossible_propensity_is_left_out(tmp_path: Path, reader: str, value: str) -> None:
    right, none = READERS[reader]("1", tmp_path)
    assert (len(right), none.counts.total()) == (N, 0)
    examples, faults = READERS[reader](value, tmp_path)
    ids = [one.decision.id for one in right]
    assert [one.decision.id for one in examples] == ids[:WRONG] + ids[WRONG + 1 :]
    (named,) = [line for lines in faults.shown.values() for line in lines]
    assert faults.counts.total() == 1
    assert "line" in named
    if value in ("0", "-0.5", "1.5") and reader != "distribution":
        assert [*faults.counts] == ["propensity not in (0, 1]"]


@pytest.mark.parametrize("reader", sorted({*READERS} - {"distribution", "dsjson p", "dsjson label"}))
@pytest.mark.parametrize(("value", "read"), [("1e-9", 1), ("9e-10", 0), ("1.0000001", 0), ('"0.25"', 1)])
def test_propensities_are_read_from_a_billionth_to_one(
    tmp_path: Path, reader: str, value: str, read: int
) -> None:
    examples, faults = READERS[reader](value, tmp_path)
    assert (len(examples), faults.counts.total()) == (N - 1 + read, 1 - read)
    if read:
        assert examples[WRONG].decision.propensity == float(value.strip('"'))


@pytest.mark.parametrize("value", [*IMPOSSIBLE, "NaN", '"0.5"', "null", "9e-10", "1.0000001"])
@pytest.mark.parametrize("whole", [False, True])
def test_an_export_with_such_a_propensity_is_refused(tmp_path: Path, value: str, whole: bool) -> None:
    rows = table_rows()
    examples, _ = read_lines("table", rows, "0.5", tmp_path, **traffic.NAMES)
    path = tmp_path / "export.jsonl"
    with path.open("wb") as file:
        write_export(examples, file, Header(written_at=0.0, reward=make_rule("reward", (0.0, 1.0))))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[WRONG]["decision"]["probabilities"] = [SPOILED, *([0.0, 0.0] if whole else [])]
    assert len(list(read_export(as_lines(tmp_path / "right.jsonl", lines, "1.0")))) == N
    with pytest.raises(ExchangeError, match=f"line {WRONG + 1}: .*probabilit"):
        list(read_export(as_lines(tmp_path / "wrong.jsonl", lines, value)))
