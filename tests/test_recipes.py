"""The recipes of CONTRIBUTING.md, followed in a copy of the project: what they name suffices.

The recipes of an arm, a policy, a router and an estimator are run by `test_extending.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CARRIED = ("agent", "arms", "feedback", "tests", "docs", "examples", "benchmarks", "deploy")


class Copy:
    """A copy of the project in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        leave_out = shutil.ignore_patterns("__pycache__", "*.png", "assets", "golden")
        for name in CARRIED:
            shutil.copytree(ROOT / name, folder / name, ignore=leave_out, symlinks=True)
        for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yaml"), ROOT / "Makefile"):
            shutil.copy(path, folder)

    def insert(self, file: str, before: str, text: str) -> None:
        """Insert a text before the first line that begins with another."""
        path = self.folder / file
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        place = next(number for number, line in enumerate(lines) if line.startswith(before))
        path.write_text("".join([*lines[:place], text, *lines[place:]]), encoding="utf-8")

    def run(self, *words: str, output: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy; write what it prints to a file of the copy where one is named."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        if output is not None:
            assert done.returncode == 0, done.stderr
            (self.folder / output).write_text(done.stdout, encoding="utf-8")
        return done

    def check(self, *tests: str) -> str:
        """Return the last line that pytest prints of some tests."""
        done = self.run("-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
        return (done.stdout.strip().splitlines() or [done.stderr])[-1]


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.timeout(300)
def test_a_verb_is_a_function_a_line_of_the_list_and_a_row_of_the_page(copied: Copy) -> None:
    (copied.folder / "agent/cli/greet.py").write_text(
        '''"""A verb that greets."""

from typing import Annotated

import typer

from agent.cli.console import console


def greet(name: Annotated[str, typer.Argument(help="Who is greeted.")]) -> None:
    """Greet somebody by name."""
    console.print(f"hello, {name}")
''',
        encoding="utf-8",
    )
    entry = '    "greet": Verb("greet:greet", OPERATE, "Greet somebody by name."),\n'
    copied.insert("agent/cli/main.py", '    "doctor": ', entry)
    assert copied.run("-m", "agent.cli", "greet", "Ada").stdout == "hello, Ada\n"
    checks = (
        "tests/test_docs.py::test_every_verb_is_described",
        "tests/agent/cli/test_cli.py::test_every_verb_is_listed_in_its_panel",
        "tests/agent/cli/test_defaults.py",
    )
    assert " failed" in copied.check(*checks), "it has no row in the page, and its options no line"
    copied.insert("docs/reference/cli.md", "| `doctor", "| `greet NAME` | greet somebody by name | |\n")
    assert copied.run("-m", "tests.agent.cli.test_defaults").returncode == 0
    assert " failed" not in (last := copied.check(*checks)), last


@pytest.mark.timeout(300)
def test_a_setting_is_a_field_and_all_else_is_generated(copied: Copy) -> None:
    field = '    greetings: int = Field(default=3, ge=1, description="Greetings at once.")\n'
    copied.insert("agent/config/sections.py", "    in_flight: int", field)
    checks = ("tests/agent/config/test_reference.py", "tests/agent/config/test_schema.py")
    assert " failed" in copied.check(*checks), "the reference and the schema lack it"
    assert copied.run("-m", "agent.config.reference").returncode == 0
    copied.run("-m", "agent.config.schema", output="agent/config/schema.json")
    page = (copied.folder / "docs/reference/configuration/service.md").read_text(encoding="utf-8")
    assert "| `greetings` | `3` | Greetings at once. |" in page
    assert " failed" not in (last := copied.check(*checks)), last
    script = (
        "import os; os.environ['ARMWISE_LIMITS__GREETINGS'] = '7'\n"
        "from agent.config import configured\n"
        "from tests.agent.fakes import CONFIG\n"
        "print(configured(CONFIG).limits.greetings)\n"
    )
    assert copied.run("-c", script).stdout == "7\n"
