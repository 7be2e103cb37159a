"""Files as records: the same rows from every kind of file; what cannot be read is named."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from armwise.feedback.exchange.records import names_in, read_records, value_at
from armwise.feedback.jsonl import ExchangeError
from tests.agent.attacks import Command

ROWS = [{"id": "a", "text": 'Who, "exactly"?\nAnd when?'}, {"id": "b", "text": "Ä é"}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
        return path
    if kind in ("csv", "tsv"):
        apart = "," if kind == "csv" else "\t"
        cells = [
            list(rows[0]),
            *(['"' + value.replace('"', '""') + '"' for value in row.values()] for row in rows),
        ]
        text = "".join(apart.join(row) + "\r\n" for row in cells)
    elif kind == "json":
        text = json.dumps(rows, indent=1)
    else:
        text = "\n".join(json.dumps(row) for row in rows)
    data = text.encode("utf-8-sig" if kind == "csv" else "utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    "name", ["x.csv", "x.csv.gz", "x.tsv", "x.jsonl", "x.ndjson.gz", "x.json", "x.parquet"]
)
def test_every_kind_of_file_has_the_same_records(tmp_path: Path, name: str) -> None:
    assert [dict(record.values) for record in read_records(write(tmp_path / name, ROWS))] == ROWS


def test_a_record_is_known_by_the_line_where_it_begins(tmp_path: Path) -> None:
    first, second = read_records(write(tmp_path / "x.csv", ROWS))
    assert (first.where, second.where) == (f"{tmp_path}/x.csv, line 2", f"{tmp_path}/x.csv, line 4")


def test_a_page_of_an_api_and_a_document_of_otlp_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.json"
    page.write_text(json.dumps({"data": ROWS, "meta": {"page": 1}}))
    assert [dict(record.values) for record in read_records(page)] == ROWS
    page.write_text(json.dumps({"resourceSpans": []}, indent=2))
    assert [dict(record.values) for record in read_records(page)] == [{"resourceSpans": []}]


def test_more_rows_than_a_batch_are_numbered_through(tmp_path: Path) -> None:
    rows = [{"n": number} for number in range(2500)]
    records = list(read_records(write(tmp_path / "x.parquet", rows)))
    assert [record.values["n"] for record in records] == list(range(2500))
    assert records[-1].where.endswith("row 2500")


def test_a_folder_is_all_its_files_in_order_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "x.jsonl", ROWS[:1])
    write(tmp_path / "c.csv", ROWS[1:])
    (tmp_path / "a.txt").write_text("no")
    assert [record.values["id"] for record in read_records(tmp_path)] == ["a", "b"]


def test_a_line_that_cannot_be_read_has_a_fault_and_the_next_is_read(tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    table.write_text("a,b\n1\n2,3\n4,5,6\n")
    assert [record.fault for record in read_records(table)] == [
        "it has 1 cells, and the first line has 2",
        "",
        "it has 3 cells, and the first line has 2",
    ]
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"a": 1}\n{"a": \n[1]\n"text"\n{"a": 2}\n')
    records = list(read_records(lines))
    assert [bool(record.fault) for record in records] == [False, True, True, True, False]
    assert "not JSON" in records[1].fault
    assert records[2].fault == records[3].fault == "a JSON object was expected"


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "routerbench_0shot.pkl"
    path.write_bytes(pickle.dumps(Command(f"touch {tmp_path / 'exploded'}")))
    with pytest.raises(ExchangeError, match=r"never read; .*to_parquet"):
        list(read_records(path))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "is empty: the first line"),
        ("x.csv", b" \n\r\n", "is empty: the first line"),
        ("x.csv", b'"a"b,c\n1,2\n', "cannot be read at line 1: ',' expected"),
        ("x.csv", "a,b\n1,2\n".encode("utf-16")[:-1], "cannot be read at line"),
        ("x.csv.gz", b"no gzip", "cannot be read"),
        ("x.jsonl", b"", "is empty: expected one JSON object per line"),
        ("x.json", b"[1, 2", "not JSON"),
        ("x.parquet", b"PAR1", "cannot be read"),
        ("x.xlsx", b"", "a file .csv, .tsv"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ExchangeError, match=message):
        list(read_records(path))
    with pytest.raises(ExchangeError, match="does not exist"):
        list(read_records(tmp_path / "nothing.csv"))


NAMES = st.text("abc.", min_size=1, max_size=4).filter(
    lambda name: not {name[0], name[-1]} & {"."} and ".." not in name
)


@given(st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8))
def test_what_is_named_is_found(document: Any) -> None:
    """A column that is listed has a value, whatever dots names have, unless a shorter name hides it."""
    values = document if isinstance(document, dict) else {"x": document}
    for name in names_in(values):
        if name in values:
            assert value_at(values, name) == values[name]
    assert value_at(values, "missing.a.b") is None


def test_a_path_enters_texts_that_are_json_and_lists() -> None:
    values = {"metadata": '{"routes": [{"name": "a"}, {"name": "b"}]}', "a.b": {"c.d": 4}}
    assert value_at(values, "metadata.routes.1.name") == "b"
    assert value_at(values, "metadata.routes.2.name") is None
    assert value_at(values, "a.b.c.d") == 4
