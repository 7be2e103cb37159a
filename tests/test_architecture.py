"""The shape of the house: what files are called, how long they are, and what the heart may know.

Who may import whom is checked by import-linter, from `pyproject.toml`.
"""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for package in ("agent", "arms", "feedback") for path in (ROOT / package).rglob("*.py"))

NAMELESS = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "base_utils"}
"""Names that say nothing of what is inside."""

LONGEST = 300
"""Lines of a source file; one that is longer says in its docstring that, and why, it is."""

HEART = (
    "agent.serving.turn",
    "agent.policies.base",
    "agent.policies.features",
    "arms.base",
    "feedback.events",
    "feedback.reward",
    "feedback.ope.estimators",
    "feedback.ope.doubly_robust",
    "feedback.ope.shrinkage",
    "feedback.ope.diagnostics",
    "feedback.ope.intervals",
    "feedback.ope.exact_intervals",
    "feedback.ope.confidence_sequences",
    "feedback.ope.gate",
    "feedback.dataset.log",
    "feedback.ope.evaluate",
    "feedback.exchange.jsonl",
    "feedback.exchange.dsjson",
)
"""Modules that a unit test can run without a cluster, a server or a database."""

HEAVY = ("ray", "fastapi", "sqlalchemy", "vowpalwabbit", "vllm")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert SOURCES
    assert [named(path) for path in SOURCES if {path.stem, path.parent.name} & NAMELESS] == []


def test_a_long_file_says_why_it_is_long() -> None:
    silent = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > LONGEST and f"{LONGEST} lines" not in (ast.get_docstring(ast.parse(text)) or ""):
            silent.append(f"{named(path)}: {lines} lines")
    assert silent == []


def test_every_module_says_what_it_is_for() -> None:
    without = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert [named(path) for path in without] == []


@pytest.mark.parametrize("module", HEART)
def test_the_heart_is_plain_python(module: str) -> None:
    script = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert found.split() == []


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_takes_from_us_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and module.partition(".")[0] in ("agent", "arms", "feedback"):
            taken = importlib.import_module(module)
            submodules = {name.stem for name in (ROOT / module).glob("*.py")}
            missing = {name.name for name in node.names if not hasattr(taken, name.name)} - submodules
            assert not missing, f"{module} has no {missing}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=named)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
