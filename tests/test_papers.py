"""The pages of the four papers, as an outsider goes through them: each command, and the form of each table.

    python -m pytest tests/test_papers.py -m nightly -o log_cli=true --log-cli-level=INFO

shows the seconds of each part. The pages run one after the other in folders like a clone of the repository,
with one home and one small question set. The sample is too small for the figures on the pages, so the rows
and columns of a page's table are looked for in what its command prints, and their figures are only checked to
be possible.
"""

import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.live.conftest import free_port
from tests.pages import ROOT, Reader, blocks_of

logger = logging.getLogger(__name__)

LIMIT_S = 3600.0
"""Most seconds of a page: the first one embeds the corpus and makes the question set."""

FEWER = {"--limit 20": "--limit 8 --block 4", "limit: 20, metrics": "limit: 8, metrics"}
"""Fewer questions than on the pages for the steps in which a language model answers, which take longest."""


@dataclass(frozen=True)
class Paper:
    """How the table of results on a page is found in what the command above it prints.

    Attributes:
        benchmark: The script that prints the table.
        columns: Headings that are printed, by those on the page.
        rows: Beginnings of lines that are printed, by the names of rows on the page, if they differ.
        most: The largest possible figure of the first column.
    """

    benchmark: str
    columns: Mapping[str, str]
    rows: Mapping[str, str] = field(default_factory=dict)
    most: float = 1.0


PAPERS = {
    "retriever-portfolios": Paper(
        "portfolio_answers.py",
        {"EM": "EM", "members run": "run", "tokens": "tokens"},
        {
            "best single arm (`graph`)": "best single arm",
            "fixed order, vote": "fixed order",
            "fixed order, trained selector": "fixed order, trees",
            "router with our loss, vote": "router, loss any",
            "router with the paper's loss, vote": "router, loss mean",
        },
    ),
    "ltrr": Paper(
        "ltrr.py",
        {"F1": "F1", "gap closed here (95 % interval)": "gap"},
        {
            "best single retriever": "always bm25",
            "MaxSim, the best rule": "max_sim",
            "VarSim, the worst rule": "var_sim",
            "SVM, pairwise": "pairwise_svm",
            "XGBoost, pairwise": "pairwise_xgboost",
        },
    ),
    "r3ag": Paper("r3ag.py", {"EM": "EM", "gain": "gain"}),
    "mba-rag": Paper(
        "mba_rag.py",
        {"EM": "EM", "steps": "steps", "accuracy": "accuracy"},
        {"`adaptive`, 0.02 per step": "adaptive, 0.02 per step"},
        most=100.0,
    ),
}


def table_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table on a page that has a column of this name, the headings first."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        if heading in rows[0]:
            return [rows[0], *rows[2:]]
    raise AssertionError(f"{page} has no table with a column {heading!r}")


@dataclass(frozen=True)
class Clone:
    """Where pages run.

    Attributes:
        folder: Holds a folder for each page.
        environ: Variables of the shell.
        port: A free port, which the services take instead of 8000.
    """

    folder: Path
    environ: Mapping[str, str]
    port: str

    def open(self, page: str) -> Reader:
        """Return a reader of a page, in a folder that has what the page uses of the repository."""
        place = self.folder / Path(page).stem
        place.mkdir()
        for name in ("benchmarks", "examples"):
            shutil.copytree(ROOT / name, place / name)
        for name in ("mba_rag.yaml", "r3ag.yaml"):
            example = place / "examples" / name
            text = example.read_text(encoding="utf-8")
            for shown, used in {"port: 8000": f"port: {self.port}", **FEWER}.items():
                text = text.replace(shown, used)
            example.write_text(text)
        (place / "data").symlink_to(self.folder / "data")
        listening = f"http_options: {{host: 127.0.0.1, port: {self.port}}}\napplications:\n"
        instead = {"8000": self.port, "applications:\n": listening, **FEWER}
        return Reader(page, place, instead, self.environ)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    folder, port = tmp_path_factory.mktemp("papers"), str(free_port())
    (folder / "data").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = {"ARMWISE_HOME": str(folder / "home"), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    yield Clone(
        folder,
        {**kept, **places, "PATH": path, "ARMWISE_URL": f"http://127.0.0.1:{port}", "COLUMNS": "200"},
        port,
    )
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S + 120.0)
@pytest.mark.parametrize("name", PAPERS)
def test_an_outsider_runs_the_page_and_gets_its_table(name: str, clone: Clone) -> None:
    page, paper = f"docs/papers/{name}.md", PAPERS[name]
    reader = clone.open(page)
    status = reader.run(LIMIT_S)
    for part, seconds in reader.seconds().items():
        logger.info("%s: %.0f s of %s", page, seconds, part)
    assert status == 0, reader.errors()
    (at,) = [number for number, block in enumerate(reader.blocks) if paper.benchmark in block.text]
    assert_has_form(table_of(page, next(iter(paper.columns))), reader.printed(at), paper)


def assert_has_form(shown: list[list[str]], printed: str, paper: Paper) -> None:
    """Check that each row and column of a table is printed, with figures that are possible."""
    for heading, column in paper.columns.items():
        assert heading in shown[0], f"the page has no column {heading!r}"
        assert re.search(rf"(?:^|[\s|┃]){re.escape(column)}(?:[\s|┃]|$)", printed), (
            f"no column {column!r} is printed"
        )
    best = first_figure(printed, "oracle") if "oracle" in {row[0] for row in shown} else paper.most
    for name in dict.fromkeys(row[0] for row in shown[1:]):
        figure = first_figure(printed, paper.rows.get(name, name))
        assert 0.0 <= figure <= best, f"{name}: {figure} is not between 0 and {best}"


def first_figure(printed: str, row: str) -> float:
    """Return the first figure with a fraction in the line of a row.

    >>> first_figure("│ our loss │ 3 │ 0.4033 │ 0.1 │", "our loss")
    0.4033
    """
    found = re.search(rf"^[\s|│]*{re.escape(row)}[^.\n]*?[\s|│](\d+\.\d+)", printed, re.MULTILINE)
    assert found is not None, f"no row {row!r} is printed:\n{printed}"
    return float(found[1])


@pytest.mark.parametrize("name", PAPERS)
def test_the_page_prints_the_commands_that_it_needs(name: str) -> None:
    """In order: what is read has been saved, made or copied above, or is in the repository."""
    there: set[str] = {"data"}
    for block in blocks_of(f"docs/papers/{name}.md"):
        if block.title:
            there.add(block.title)
        for line in block.text.replace("\\\n", " ").splitlines() if block.language == "bash" else []:
            read = re.findall(r"(?:-c|--queries|--spec|--pool) (\S+)", line)
            read += re.findall(r"lab (?:train|portfolio|evaluate-router) (\w+)", line)
            missing = {file for file in read if file not in there and not (ROOT / file).exists()}
            assert not missing, f"{line!r}: nothing above makes {sorted(missing)}"
            there |= {*re.findall(r"(?:-o|--output|>) (\S+)", line), *re.findall(r"^cp \S+ (\S+)", line)}


@pytest.mark.parametrize("name", PAPERS)
def test_every_command_of_the_page_is_run(name: str) -> None:
    """No other block shows a command."""
    for block in blocks_of(f"docs/papers/{name}.md"):
        if block.language != "bash":
            assert not re.search(r"^(?:armwise|python|serve) ", block.text, re.MULTILINE), block.text


@pytest.mark.parametrize("name", PAPERS)
def test_a_table_is_found_in_what_its_command_prints(name: str) -> None:
    """The page's own table, with the names that are printed, has its form; without a row or a column, not."""
    paper = PAPERS[name]
    shown = table_of(f"docs/papers/{name}.md", next(iter(paper.columns)))
    assert paper.rows.keys() <= {row[0] for row in shown[1:]}, "the page has no such row"
    names = [paper.columns.get(heading, heading) for heading in shown[0]]
    printed = [names, *([paper.rows.get(row[0], row[0]), *row[1:]] for row in shown[1:])]
    lines = ["│ " + " │ ".join(cells) + " │" for cells in printed]
    assert_has_form(shown, "\n".join(lines), paper)
    with pytest.raises(AssertionError, match="is printed"):
        assert_has_form(shown, "\n".join(lines[1:]), paper)
    with pytest.raises(AssertionError, match="is printed"):
        assert_has_form(shown, "\n".join(lines[:-1]), paper)
    with pytest.raises(AssertionError, match="is not between"):
        assert_has_form(shown, "\n".join(lines).replace(" 0.3", " 7.3").replace(" 33.2", " 733.2"), paper)
