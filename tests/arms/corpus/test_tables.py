"""Rows of CSV files become passages, with every separator, and are never public by mistake."""

import csv
import io
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus.readers import open_source
from armwise.arms.corpus.records import CorpusRecord


def read(path: Path, content: str | bytes, name: str = "prices.csv") -> list[CorpusRecord]:
    table = path / name
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(open_source(table).records())


def passages(path: Path, content: str | bytes) -> list[Passage]:
    return [one for record in read(path, content) for one in record.passages]


def test_a_row_without_text_is_all_of_its_columns(tmp_path: Path) -> None:
    found = passages(tmp_path, 'name,price,zip,\r\n"Bolt, M8",2.5,01234,x\r\n\r\nNut,1,,\r\n')
    about = {"path": "prices.csv"}
    assert found == [
        Passage(
            "prices.csv#2",
            "prices",
            "name: Bolt, M8\nprice: 2.5\nzip: 01234\ncolumn 4: x",
            metadata={"name": "Bolt, M8", "price": 2.5, "zip": "01234", "column 4": "x", **about, "row": 2},
        ),
        Passage(
            "prices.csv#4",
            "prices",
            "name: Nut\nprice: 1",
            metadata={"name": "Nut", "price": 1, **about, "row": 4},
        ),
    ]


def test_columns_of_a_passage_are_those_of_json_lines(tmp_path: Path) -> None:
    (found,) = passages(tmp_path, "ID;Title;Text;year\na-1;The plan;Grow;2025\n")
    assert found == Passage(
        "prices.csv#a-1", "The plan", "Grow", metadata={"year": 2025, "path": "prices.csv", "row": 2}
    )


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    ("encoding", "begin"),
    [("utf-8", b""), ("utf-8-sig", b""), ("utf-16-le", BOM_UTF16_LE), ("utf-16-be", BOM_UTF16_BE)],
)
def test_a_separator_and_an_encoding_are_recognised(
    tmp_path: Path, mark: str, encoding: str, begin: bytes
) -> None:
    content = f"name{mark}place\nCaf\xe9\x85\u2028{mark}Z\xfcrich\n".encode(encoding)
    (found,) = passages(tmp_path, begin + content)
    assert found.text == "name: Caf\xe9\nplace: Z\xfcrich"


def test_a_row_of_several_lines_has_the_number_of_the_first(tmp_path: Path) -> None:
    found = passages(tmp_path, 'name,place\n"Tea\nand milk",Oslo\nRum,Rome\n')
    assert [(one.id, one.metadata["row"]) for one in found] == [("prices.csv#2", 2), ("prices.csv#4", 4)]


@pytest.mark.parametrize("name", ["id", "_id", "_ID"])
def test_a_row_has_the_id_that_it_names(tmp_path: Path, name: str) -> None:
    assert [one.id for one in passages(tmp_path, f"{name},text\na-1,Grow.\n,Shrink.\n")] == [
        "prices.csv#a-1",
        "prices.csv#3",
    ]


def test_a_row_of_blanks_has_no_passage_and_no_problem(tmp_path: Path) -> None:
    blank, row = read(tmp_path, "id,text\n , \n2,Grow.\n")
    assert (blank.passages, blank.problem) == ((), "")
    assert [one.id for one in row.passages] == ["prices.csv#2"]


def test_progress_goes_on_from_the_files_before_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Six...")
    (tmp_path / "b.csv").write_text("text\nGrow.\n")
    (tmp_path / "c.csv").write_bytes(b"text\n\xff\n")
    assert [one.done for one in open_source(tmp_path).records()] == [6, 17, 24]


def test_a_cell_with_a_nul_is_named_and_the_next_row_is_read(tmp_path: Path) -> None:
    bad, good = read(tmp_path, "name,place\nTea,O\0slo\nRum,Rome\n")
    assert (bad.where, bad.problem) == ("prices.csv:2", "place has a NUL at character 2")
    assert [each.text for each in good.passages] == ["name: Rum\nplace: Rome"]


def test_a_table_of_tabs_has_a_suffix_of_its_own(tmp_path: Path) -> None:
    (row,) = read(tmp_path, "name\tplace\nTea\tOslo\n", "prices.TSV")
    assert [(one.id, one.text) for one in row.passages] == [("prices.TSV#2", "name: Tea\nplace: Oslo")]


def test_a_table_that_is_not_unicode_is_named_with_its_line(tmp_path: Path) -> None:
    good, bad, next_one = read(tmp_path, "name\nTea\nCaf\xe9\nMilk\n".encode("latin-1"))
    assert (good.problem, bad.where, next_one.problem) == ("", "prices.csv:3", "")
    assert bad.problem == "name has bytes that are neither UTF-8 nor UTF-16 at character 4"
    header = read(tmp_path, "Caf\xe9\nTea\n".encode("latin-1"))
    assert [record.problem for record in header] == [
        "column 1 has bytes that are neither UTF-8 nor UTF-16 at character 4; the rest is not read"
    ]
    (cut,) = read(tmp_path, "a\nTea".encode("utf-16")[:-1])
    assert cut.problem.startswith("not UTF-16 ")


@pytest.mark.parametrize(
    ("cell", "groups"), [("staff", ["staff"]), ("staff, board", ["staff", "board"]), ("", []), (" , ", [])]
)
def test_groups_are_a_list_and_an_empty_cell_is_for_nobody(
    tmp_path: Path, cell: str, groups: list[str]
) -> None:
    (found,) = passages(tmp_path, f'text,Allowed_Groups\nSecret,"{cell}"\n')
    assert found.metadata["allowed_groups"] == groups
    (found,) = passages(tmp_path, f'name,allowed_groups\nSecret,"{cell}"\n')
    assert (found.text, found.metadata["allowed_groups"]) == ("name: Secret", groups)


def test_a_row_that_is_cut_short_is_for_nobody(tmp_path: Path) -> None:
    (found,) = passages(tmp_path, "text,allowed_groups\nSecret\n")
    assert found.metadata["allowed_groups"] == []


def test_groups_are_kept_among_many_columns(tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(100)]
    (found,) = passages(tmp_path, f"{','.join(names)},allowed_groups\n{','.join('1' for _ in names)},board\n")
    assert found.metadata["allowed_groups"] == ["board"]
    assert len(found.metadata) <= 64


@pytest.mark.parametrize(
    ("content", "where", "problem"),
    [
        ("a,b\n1,2,3\n4,5\n", "prices.csv:2", "has 3 cells, but the first row names 2 columns"),
        ("id,ID\n1,2\n", "prices.csv:1", "two columns are named 'id'; the rest is not read"),
        ("text,text\n1,2\n", "prices.csv:1", "two columns are named 'text'"),
        ("a,allowed_groups,Allowed_Groups\n1,2,3\n", "prices.csv:1", "two columns are named 'allowed_g"),
        ("id,text\n1,One\n2\n", "prices.csv:3", "needs a non-empty 'text'"),
        ('a,b\n1,2\n3,"x"y\n4,5\n', "prices.csv:3", "',' expected after"),
        (
            f"{'x' * 2_000_000}\na\n",
            "prices.csv:1",
            "has more than 1,048,576 characters; the rest is not read",
        ),
        (f"text,allowed_groups\nx,{'g' * 600}\n", "prices.csv:2", "more than 512 characters"),
        (f"a\n{'x' * 10_000_000}\n", "prices.csv:2", "a line has more than 1,048,576 characters"),
        (f"a\n{'x' * 200_000}\n", "prices.csv:2", "a has more than 131,072 characters"),
        ('a\nfine\n"never closed\n' + "more\n" * 9, "prices.csv:3", "unexpected end of data"),
        (",".join(f"c{n}" for n in range(2_000)), "prices.csv:1", "has 2,000 columns; at most 1,000"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: str, where: str, problem: str) -> None:
    (bad,) = [record for record in read(tmp_path, content) if record.problem]
    assert bad.where == where
    assert problem in bad.problem


@pytest.mark.slow
def test_the_longest_line_and_the_most_columns_are_read(tmp_path: Path) -> None:
    names = ["text", *(f"c{n}" for n in range(999))]
    assert [piece.text for piece in passages(tmp_path, f"{','.join(names)}\nBody{',' * 999}\n")] == ["Body"]
    pieces = passages(tmp_path, f"text\n{'x' * 131_072}\n")
    assert sum(len(piece.text) for piece in pieces) >= 131_072, "pieces overlap"
    line = ",".join(["x" * 131_071] * 8)  # of 2**20 characters, with its line break
    pieces = passages(tmp_path, f"a,b,c,d,e,f,g,h\n{line}\n")
    assert sum(piece.text.count("x") for piece in pieces) >= 8 * 131_071
    assert [one.problem for one in read(tmp_path, f"a,b,c,d,e,f,g,h\n{line}x\n")] == [
        "a line has more than 1,048,576 characters"
    ]


def test_a_row_behind_a_long_line_has_its_own_number(tmp_path: Path) -> None:
    records = read(tmp_path, f"text\n{'x' * 2_000_000}\nfine\n")
    assert [(record.where, bool(record.problem)) for record in records] == [
        ("prices.csv:2", True),
        ("prices.csv:3", False),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "name,place\rTea,Oslo\rRum,Rome\r",
        "\n\nname,place\nTea,Oslo\nRum,Rome\n",
        "sep=|\nname|place\nTea|Oslo\nRum|Rome\n",
        "name,place\nTea,Oslo\nRum,Rome\n".encode("utf-16-le"),
        'name,place\nTea,Oslo\nMilk,"swallows\nRum,Rome\n',
        'name,place\nMilk,"swallows\nTea,Oslo\nRum,Rome\n',
        'name,place\nTea,Oslo\nMilk,"swallows\nRum,"Rome"\n',
        f"name,place\nTea,Oslo\n{'x' * 2_000_000}\nRum,Rome\n",
    ],
)
def test_every_row_that_can_be_read_is_read(tmp_path: Path, content: str | bytes) -> None:
    assert [each.text for each in passages(tmp_path, content)] == [
        "name: Tea\nplace: Oslo",
        "name: Rum\nplace: Rome",
    ]


def test_no_line_of_a_cell_with_groups_becomes_a_row_of_others(tmp_path: Path) -> None:
    """A line of a secret may look like a row for all, so quotes that do not fit end such a table."""
    content = 'text,allowed_groups\nOpen,all\n"Our "plan"\nSecret,all\nMore",board\nLast,all\n'
    good, bad = read(tmp_path, content)
    assert [each.text for each in good.passages] == ["Open"]
    assert (bad.where, bad.problem[-22:]) == ("prices.csv:3", "; the rest is not read")
    whole, problem = read(tmp_path, f'text,allowed_groups\nOpen,all\n"{"Secret,all" * 20_000}\n",board\n')
    assert (len(whole.passages), problem.problem) == (1, "text has more than 131,072 characters")
    long = f'text,allowed_groups\nOpen,all\n"{"x" * 2_000_000}\nSecret,all\n",board\n'
    assert [len(record.passages) for record in read(tmp_path, long)] == [1, 0]


def test_a_name_that_occurs_twice_is_that_of_two_columns(tmp_path: Path) -> None:
    (row,) = passages(tmp_path, "id,name,name\n1,a,b\n")
    assert row.text == "id: 1\nname: a\nname (column 3): b"
    assert {name: row.metadata[name] for name in ("name", "name (column 3)")} == {
        "name": "a",
        "name (column 3)": "b",
    }


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=5))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    written = io.StringIO()
    csv.writer(written).writerows([["left", "right"], *rows])
    found = passages(tmp_path_factory.mktemp("table"), written.getvalue())
    shown = [
        "\n".join(f"{n}: {c.strip()}" for n, c in zip(("left", "right"), row, strict=True) if c.strip())
        for row in rows
    ]
    assert [one.text for one in found] == [text for text in shown if text]
