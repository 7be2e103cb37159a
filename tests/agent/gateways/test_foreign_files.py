"""Files as other tools write them, through `armwise import`: decisions, their rewards, what is left out."""

import gzip
import json
from pathlib import Path

import pytest

from armwise.feedback.jsonl import read_export
from tests.agent.cli.test_cli import ran as run


def table(*cells: str, head: str = "id,arm,propensity,reward,time", mark: str = ",") -> str:
    """Return four rows; the cells of the third column and later, by name or all alike."""
    rows = [f"{at},{'large' if at % 2 else 'small'},{','.join(cells)}" for at in range(4)]
    return "\n".join([head, *rows, ""]).replace(",", mark)


AT = 1_772_359_200.0
"""2026-03-01 10:00 UTC."""

TIMES: dict[str, float] = {
    "2026-03-01 10:00:00 UTC": AT,
    "2026-03-01 10:00:00.123456 UTC": AT + 0.123456,
    "2026-03-01 10:00:00+00": AT,
    "2026-03-01 10:00:00.1+00": AT + 0.1,
    "2026-03-01 15:45:00+05:45": AT,
    "2026-03-01 02:00:00 -0800": AT,
    "2026-03-01 10:00:00.000000": AT,
    "2026-03-01T10:00:00Z": AT,
    "2026-03-01 10:00:00 GMT": AT,
    "2026-03-01 10:00:00 Z": AT,
    "1.7723592e9": AT,
    "1772359200123": AT + 0.123,
    "2026-03-01": AT - 36000,
}


@pytest.mark.parametrize("time", TIMES)
def test_times_are_read_as_databases_write_them(tmp_path: Path, time: str) -> None:
    source, output = tmp_path / "log.csv", tmp_path / "log.jsonl"
    source.write_text(table("0.5", "1", time))
    run("import", source, "-o", output)
    assert [each.decision.decided_at for each in read_export(output)] == [
        pytest.approx(TIMES[time], abs=1e-6)
    ] * 4


PLAIN = table("0.5", "1", "2026-03-01")

TABLES: dict[str, tuple[str | bytes, int, float, str]] = {
    "plain": (PLAIN, 4, 4, ""),
    "a stray quote": (
        PLAIN + '9,"say "hi" there",0.5,1,2026-03-01\n',
        4,
        4,
        "left out 1: row cannot be read {}, line 6: ',' exp",
    ),
    "a quote without an end": (
        PLAIN.replace("1,large", '1,"large'),
        3,
        3,
        "left out 1: row cannot be read {}, line 3: unexp",
    ),
    "t and f": (table("0.5", "t", "2026-03-01").replace("3,large,0.5,t", "3,large,0.5,f"), 4, 3, ""),
    "null of MySQL": (PLAIN.replace("3,large,0.5,1", r"3,large,0.5,\N"), 4, 3, "; 1 decisions without one"),
    "ids that are null": (
        PLAIN.replace("0,small", r"\N,small").replace("2,small", r"\N,small"),
        4,
        4,
        "",
    ),
    "a zero date of MySQL": (
        PLAIN + "9,small,0.5,1,0000-00-00 00:00:00\n",
        4,
        4,
        "left out 1: no time {}, line 6: time is '0000",
    ),
    "no time of pandas": (
        PLAIN + "9,small,0.5,1,NaT\n",
        4,
        4,
        "left out 1: no time {}, line 6: time is 'NaT'",
    ),
    "semicolons and decimal commas": (
        table("0.5", "0.25", "2026-03-01", mark=";").replace(".", ","),
        4,
        1,
        "",
    ),
    "tabs": (table("0.5", "1", "2026-03-01", mark="\t"), 4, 4, ""),
    "pipes": (table("0.5", "1", "2026-03-01", mark="|"), 4, 4, ""),
    "a line sep=": ("sep=;\n" + table("0.5", "1", "2026-03-01", mark=";"), 4, 4, ""),
    "spaces behind commas": (table("0.5", "1", "2026-03-01", mark=", "), 4, 4, ""),
    "UTF-16": (PLAIN.encode("utf-16"), 4, 4, ""),
    "UTF-16 without a mark": (PLAIN.encode("utf-16-le"), 4, 4, ""),
    "a mark": (PLAIN.encode("utf-8-sig"), 4, 4, ""),
    "packed": (gzip.compress(PLAIN.encode()), 4, 4, ""),
    "carriage returns alone": (PLAIN.replace("\n", "\r"), 4, 4, ""),
    "Latin-1": (
        (PLAIN + "9,gr\xf6\xdfer,0.5,1,2026-03-01\n").encode("latin-1"),
        4,
        4,
        r"line 6: arm is 'gr\xf6\xdfer', with bytes",
    ),
    "a NUL": (
        PLAIN + "9,sm\0all,0.5,1,2026-03-01\n",
        4,
        4,
        "left out 1: text cannot be read {}, line 6: arm is",
    ),
    "ragged": (
        PLAIN + "8,small\n9,small,0.5,1,2026-03-01,x\n",
        4,
        4,
        "left out 2: row cannot be read {}, line 6: it has 2 cells",
    ),
    "an index of pandas": (
        PLAIN.replace("\n", "\nx,").replace("id,", ",id,", 1).removesuffix("x,"),
        4,
        4,
        "",
    ),
    "a name twice that nobody needs": (
        PLAIN.replace("id,", "x,x,id,", 1).replace("\n", "\n1,2,").removesuffix("1,2,"),
        4,
        4,
        "",
    ),
    "few digits": (
        "arm,distribution,reward\n" + 'a,"{""a"":0.3333,""b"":0.3333,""c"":0.3333}",1\n' * 3,
        3,
        3,
        "",
    ),
    "stars": (
        PLAIN + "9,small,0.5,5,2026-03-01\n",
        4,
        4,
        "line 6: reward is 5; expected a reward in [-1, 1]; to change that, set --range",
    ),
    "percent": (
        PLAIN + "9,small,50%,1,2026-03-01\n",
        4,
        4,
        "line 6: propensity is '50%'; expected a probability in (0, 1]",
    ),
    "thumbs": (
        PLAIN + "9,small,0.5,\U0001f44d,2026-03-01\n",
        4,
        4,
        "left out 1: reward is not a number {}, line 6",
    ),
    "thousands": (
        PLAIN + '9,small,0.5,"1,000",2026-03-01\n',
        4,
        4,
        "line 6: reward is '1,000'; expected a number",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_but_for_the_rows_that_are_named(tmp_path: Path, name: str) -> None:
    content, decisions, total, told = TABLES[name]
    source, output = tmp_path / ("log.csv.gz" if name == "packed" else "log.csv"), tmp_path / "log.jsonl"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    printed = run("import", source, "-o", output)
    examples = list(read_export(output))
    assert len(examples) == decisions
    assert sum(example.metrics.get("reward", 0.0) for example in examples) == total
    if name == "a quote without an end":
        assert [example.decision.id for example in examples] == ["0", "2", "3"], "in the order of the file"
    assert told.format(source) in printed
    assert ("left out" in printed) == (bool(told) and name != "null of MySQL")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty: the first line must have the column names"),
        (
            "id,arm,propensity,reward,reward\n1,a,1,1,1\n",
            "column 'reward' occurs twice in the first line; name",
        ),
        (table("0.5", "1", "3/1/2026 10:00 AM"), "left out: 4 no time (such as "),
        (table("0.5", "1", "Sun, 01 Mar 2026 10:00:00 GMT").replace("Sun,", "Sun"), "left out: 4 no time"),
        ("arm,distribution,reward\na,\"{'a': 0.5, 'b': 0.5}\",1\n", "left out: 1 no distribution (such as "),
    ],
)
def test_a_table_without_a_row_that_can_be_read_is_refused(tmp_path: Path, content: str, told: str) -> None:
    source = tmp_path / "log.csv"
    source.write_text(content)
    assert told in run("import", source, "-o", tmp_path / "log.jsonl", code=2)
    assert not (tmp_path / "log.jsonl").exists()


def test_a_column_that_occurs_twice_is_named_by_its_number(tmp_path: Path) -> None:
    source, output = tmp_path / "log.csv", tmp_path / "log.jsonl"
    source.write_text("id,arm,propensity,reward,reward\n1,a,1,0,1\n")
    run("import", source, "-o", output, "--reward", "reward (column 5)")
    assert [each.metrics for each in read_export(output)] == [{"reward": 1.0}]


def test_a_path_enters_lists_and_objects_of_any_depth(tmp_path: Path) -> None:
    rows = [
        {
            "route": "s" if at % 2 else "l",
            "messages": [{"role": "system", "content": "sys"}, {"role": "user", "content": f"q{at}"}],
            "meta": {"a": {"b": {"c": {"p": [[0.5]]}}}},
            "score": float("nan") if at == 3 else 1,
        }
        for at in range(4)
    ]
    lines, cells = tmp_path / "log.jsonl", tmp_path / "log.csv"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    quoted = [[json.dumps(row[name]).replace('"', '""') for name in row] for row in rows]
    cells.write_text("".join('"' + '","'.join(row) + '"\n' for row in [list(rows[0]), *quoted]))
    options = ["--question", "messages.1.content", "--propensity", "meta.a.b.c.p.0.0"]
    options += ["--only", "messages.0.role=system"]
    for source in (lines, cells):
        run("import", source, "-o", tmp_path / "out.jsonl", *options)
        examples = list(read_export(tmp_path / "out.jsonl"))
        assert [each.decision.context.question for each in examples] == ["q0", "q1", "q2", "q3"]
        assert [each.decision.propensity for each in examples] == [0.5] * 4
        assert sum(each.metrics.get("reward", 0.0) for each in examples) == 3
    told = run("import", lines, "-o", tmp_path / "out.jsonl", "--question", "messages.9.content", code=2)
    assert "no column 'messages.9.content' for the question" in told
