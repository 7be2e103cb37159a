"""The benchmarks start: each command that a page or a script prints parses, and each runs at a small size."""

import ast
import csv
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if "\nif __name__ ==" in path.read_text(encoding="utf-8")
)
OURS = {"benchmarks", "tests", *(path.stem for path in BENCHMARKS.glob("*.py"))}
"""Top-level names that a benchmark may import beside the package and what is installed."""

WITHOUT_ARGUMENTS = {
    "obp_golden": "it has no arguments, and takes a Python that has obp",
    "obp_peer": "estimators.py starts it, by a Python that has obp",
}
"""Scripts that parse no arguments, and why."""

ARMS = (
    *("none", "bm25", "minilm", "mpnet", "rrf", "bm25_regularize"),
    *("mpnet_regularize", "ds", "vendi", "graph", "multi"),
)
"""The arms of the question set."""

NIGHTLY_S = 900.0

SMALLEST: dict[str, str] = {
    "quick": """
budget qa --questions 50 --orders 1
checked_cascade --data . --seeds 1 --passes 1
cluster_coverage --worlds 1
estimators --rows 1000 --arms 2
guard --runs 3 --weeks 2 --decisions 2000
languages
late_feedback learning --decisions 100 --seeds 1
log --database sqlite --pairs 10 --rounds 1
""",
    "nightly": """
adaptive_picture --orders 2 --plot picture.png
audit --logs 1 --faulty 1 --services 1 --rows 500 --true-rows 200 --workers 1
bm25 --corpus qa/corpus.jsonl.gz --queries qa/queries.jsonl.gz
canary --runs 1 --power-runs 1 --length 50
console --decisions 1000 --folder console --repeats 1
decision --decisions 50 --rounds 1
gate --runs 1 --power-runs 1 --range-runs 1
growth --sizes 10000
interval_coverage --worlds 1
late_feedback looks --seeds 1
learner --examples 1000 --rounds 0
learners --outcomes table.csv --seeds 1 --turns 9 --only template
million qa --sizes 120 --engines bm25 --output million
one_rater --honest 1 --runs 1
pool --passages 1000 --questions 1
portfolio_answers qa --seeds 2
propensities --turns 20000
receipt --runs 1 --decisions 1000 --power-runs 1
receipt --worlds --runs 1 --decisions 1000
relevance .
replay_memory . --rows 1000
replay_qa qa --logs 2 --size 200 --workers 1
restarts --rewards 1 --alone 1 --runs 1
routers --decisions 50 --rounds 1
sticky --conversations 10 --seeds 2
two_models --table table.csv --orders 2 --jobs 1
verdict . --runs 1 --pairs 143
""",
}
"""Scripts, each with arguments that make it small, by how long that takes: see pyproject.toml."""

QA = "the question set"
OTHERS = "tables of other projects"
PAPERS = "nothing: tests/test_papers.py runs it"
SERVICE = "a service that it starts, loads or kills for minutes"

ELSEWHERE = {
    "budget_peer": "a package that is not installed, and a table of its project",
    "cascade": QA,
    "chat": SERVICE,
    "constants": QA,
    "console_pictures": "a browser; `make pictures` runs it",
    "exchanges": SERVICE,
    "first_hour": QA,
    "goals": QA,
    "listeners": SERVICE,
    "load": SERVICE,
    "ltrr": PAPERS,
    "made_questions": QA,
    "mba_rag": PAPERS,
    "memory": SERVICE,
    "model_routing": OTHERS,
    "obp_golden": "obp, and a Python of its time",
    "obp_peer": "obp, and a Python of its time",
    "outages": SERVICE,
    "outcome_tables": OTHERS,
    "pipelines": "the file of a language model",
    "portfolio": "minutes, whatever its arguments",
    "question_set": PAPERS,
    "r3ag": PAPERS,
    "replay_obd": OTHERS,
    "routing": QA,
    "second_backbone": "packages of 404 MB",
    "service": SERVICE,
    "soak": SERVICE,
    "sources": QA,
    "sources_live": QA,
    "sources_rivals": "packages that are not installed",
    "warm_start": SERVICE,
}
"""Scripts that are not run here, and what they need."""


def ordered() -> Iterator[Any]:
    """Yield the lines of the table, with their marks."""
    nightly = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(NIGHTLY_S)]
    marks: dict[str, list[Any]] = {"quick": [], "nightly": nightly}
    for size, lines in SMALLEST.items():
        yield from (pytest.param(line, marks=marks[size], id=line) for line in lines.split("\n") if line)


NUMBERS = {"N": "1", "PID": "1"}
"""Words that stand for a number."""

_COMMAND = re.compile(
    r"python[\d.]* (?P<way>-m benchmarks\.|benchmarks/)(?P<script>\w+)(?:\.py)?(?P<words>[^\n`;&#>]*)"
)


@dataclass(frozen=True)
class Command:
    """A command that a page or a script prints.

    Attributes:
        page: Where it stands.
        script: Name of the benchmark.
        as_module: Whether it begins with `python -m` in the root of the project.
        words: What follows the name.
    """

    page: str
    script: str
    as_module: bool
    words: tuple[str, ...]


def find_commands() -> Iterator[Command]:
    """Yield the commands of the pages, and those in the docstrings of the scripts."""
    pages = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "docs").rglob("*.md"), *BENCHMARKS.glob("*.py")]
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8")
        if page.suffix == ".py":
            text = text.split('"""')[1]
        for found in _COMMAND.finditer(re.sub(r"\n {8,}(?=\[?--)", " ", text)):
            every = re.sub(r"[\[\]]|\.\.\.", " ", found["words"])  # what may be left out is given, too
            first = re.sub(r"(\w)\|[\w|]+", r"\1", every)
            words = tuple(NUMBERS.get(word, word) for word in shlex.split(first))
            yield Command(str(page.relative_to(ROOT)), found["script"], found["way"].startswith("-m"), words)


COMMANDS = [*find_commands()]


class Starter:
    """Starts scripts as their user does, by `script_starter.py`.

    Args:
        folder: An empty folder, which gets what is installed beside the libraries: the package.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "armwise").symlink_to(ROOT / "armwise")
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/script_starter.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def start(self, script: str, words: Sequence[str], folder: Path, *, as_module: bool, parses: bool) -> str:
        """Run a script in a folder, or let it parse its arguments alone; return what it prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request: dict[str, Any] = {"script": script, "words": words, "folder": str(folder)}
        request |= {"as_module": as_module, "parses": parses}
        self.process.stdin.write(json.dumps(request) + "\n")
        status = self.process.stdout.readline()
        output, errors = ((folder / name).read_text(encoding="utf-8") for name in ("output", "errors"))
        assert status == "0\n", f"{shlex.join([script, *words])}: {status}{output[-1000:]}\n{errors[-3000:]}"
        return output


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    starter = Starter(tmp_path_factory.mktemp("installed"))
    yield starter
    with starter.process as process:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "script", sorted({command.script for command in COMMANDS} - WITHOUT_ARGUMENTS.keys())
)
def test_what_is_printed_of_a_benchmark_parses(script: str, starter: Starter, tmp_path: Path) -> None:
    for command in COMMANDS:
        if command.script == script:
            for word in command.words:  # a file that must be there
                if not word.startswith(("-", "/")):
                    (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / word).touch()
            starter.start(script, command.words, tmp_path, as_module=command.as_module, parses=True)


def test_every_script_says_how_it_is_started() -> None:
    shown = {command.script for command in COMMANDS if command.page == f"benchmarks/{command.script}.py"}
    assert {*SCRIPTS} - shown - WITHOUT_ARGUMENTS.keys() == set()


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_data(folder: Path) -> None:
    """Write the smallest of the data that benchmarks read, as docs/benchmarks/index.md describes it."""
    words = ("river", "engine", "poet", "island", "planet", "comet", "violin", "harbour")
    sets = ["squad" if n % 2 else "musique" for n in range(120)]
    asked = [f"Where is {words[n % 8]} {n} of district {n % 40 + 10}?" for n in range(120)]
    passages = [
        {
            "id": f"{name}/p{n}",
            "title": f"Note {n}",
            "text": f"The {words[n % 8]} of number {n} is in town {n}.",
        }
        for n, name in enumerate(sets)
    ]
    write_lines(folder / "qa/corpus.jsonl.gz", passages)
    write_lines(
        folder / "qa/queries.jsonl.gz",
        [
            {"id": f"{name}/q{n}", "dataset": name, "question": asked[n], "answers": [f"town {n}"]}
            | {"type": "single", "gold_ids": [f"{name}/p{n}"]}
            for n, name in enumerate(sets)
        ],
    )
    write_lines(
        folder / "qa/outcomes.jsonl.gz",
        [
            {"id": f"{name}/q{n}", "dataset": name, "arm": arm, "answer": f"town {n}"}
            | {"passages": [passages[n - (n + column) % 3]["id"]] if column else []}
            | dict.fromkeys(("em", "f1", "acc", "recall"), float((n + column) % 11 < 3))
            | {"prompt_tokens": 50, "completion_tokens": 3, "steps": int(column > 0), "llm_calls": 1}
            for n, name in enumerate(sets)
            for column, arm in enumerate(ARMS)
        ],
    )
    write_lines(
        folder / "firstpass-small.jsonl.gz",
        [
            {"id": f"task {n}"}
            | {"rewards": {"small": n % 2, "large": 1}, "usd": {"small": 0.001, "large": 0.01}}
            | {"check": {"small": n % 2, "large": 1}, "judge": {"small": (n % 5) / 4, "large": 1.0}}
            for n in range(200)
        ],
    )
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "small", "large"])
        rows.writerows([text, n % 2, 0.7] for n, text in enumerate(asked))


@pytest.mark.parametrize("line", [*ordered()])
def test_a_benchmark_runs_at_its_smallest_size(line: str, starter: Starter, tmp_path: Path) -> None:
    script, *words = shlex.split(line)
    write_data(tmp_path)
    as_module = any(command.as_module for command in COMMANDS if command.script == script)
    assert starter.start(script, words, tmp_path, as_module=as_module, parses=False).strip()


def test_every_script_is_run_or_it_is_said_why_not() -> None:
    run = {line.split()[0] for lines in SMALLEST.values() for line in lines.splitlines() if line}
    assert run & ELSEWHERE.keys() == set()
    assert sorted(run | ELSEWHERE.keys()) == SCRIPTS


def test_what_a_benchmark_imports_is_installed_or_its_text_says_how_to_install_it() -> None:
    said, imported = "", set()
    for path in BENCHMARKS.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said += "".join(re.findall(r"pip install ([^\n`]+)", ast.get_docstring(tree) or ""))
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=aliases):
                    imported |= {alias.name.partition(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module), level=0):
                    imported.add(module.partition(".")[0])
    plain = re.sub("[-_]", "", said)
    missing = {name for name in imported - OURS if find_spec(name) is None}
    assert {name for name in missing if name.replace("_", "") not in plain} == set()
