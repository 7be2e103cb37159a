"""The recipes of CONTRIBUTING.md, followed in a copy of the project: what they name suffices.

All recipes are followed in one copy. Then the checks that they name are run, in one process before and one
after the generated pages are written: some fail at first, which shows that they notice what is missing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(600),  # one process follows all recipes, for the first test
]

ROOT = Path(__file__).parents[1]

CARRIED = ("armwise", "agent", "arms", "feedback", "tests", "docs")

LINKED = ("benchmarks", "deploy", "examples")
"""Folders that no recipe writes to."""


class Copy:
    """A copy of the project in which recipes are followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        leave_out = shutil.ignore_patterns("*.png", "assets", "golden")
        for name in CARRIED:  # with compiled modules, which hold as the sources keep their times
            shutil.copytree(ROOT / name, folder / name, ignore=leave_out, symlinks=True)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name, target_is_directory=True)
        for path in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.yaml"), ROOT / "Makefile"):
            shutil.copy2(path, folder)

    def write(self, file: str, text: str) -> None:
        """Write a new file."""
        path = self.folder / file
        assert not path.exists()
        path.write_text(text, encoding="utf-8")

    def insert(self, file: str, before: str, text: str) -> None:
        """Insert a text before the first line that begins with another."""
        path = self.folder / file
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        place = next(number for number, line in enumerate(lines) if line.startswith(before))
        path.write_text("".join([*lines[:place], text, *lines[place:]]), encoding="utf-8")

    def replace(self, file: str, old: str, new: str) -> None:
        """Replace a text that stands once in a file."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def append(self, file: str, text: str) -> None:
        """Append a text to a file."""
        with (self.folder / file).open("a", encoding="utf-8") as page:
            page.write(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        environment.pop("PYTEST_XDIST_WORKER", None)
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )

    def check(self, checks: Mapping[str, str]) -> dict[str, bool]:
        """Run tests; return whether each passed, by its name with its file.

        Args:
            checks: A word in the names of the tests that are run, by file; an empty one for all of them.
        """
        words = " or ".join(
            f"({Path(file).stem} and {word})" if word else Path(file).stem for file, word in checks.items()
        )
        options = ("-q", "-rA", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", words)
        done = self.run("-m", "pytest", *checks, *options)
        found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        assert found, done.stdout + done.stderr
        self.output = done.stdout
        return {name: outcome == "PASSED" for outcome, name in found}


def code_of(page: str) -> str:
    """Return the first block of Python of a page on extending."""
    text = (ROOT / "docs" / "guide" / "extending" / page).read_text(encoding="utf-8")
    return text.split("```python\n", 1)[1].split("```\n", 1)[0]


# -- the recipes -------------------------------------------------------------------------------------------

ARM = '''"""The first passages of the corpus, whatever is asked."""

from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.retrievers.kind import Kind, Members, Resources


class FirstParams(BaseModel):
    """Parameters of an arm that returns the first passages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    most: int = Field(ge=1, le=100, description="Passages that are returned at most.")


class FirstArm(Kind[FirstParams]):
    """Returns the first passages of the corpus."""

    kind = "first"
    params = FirstParams
    example: ClassVar = {"most": 3}
    light = filters = searches_corpus = True

    def __init__(self, name: str, params: FirstParams, corpus: Corpus) -> None:
        self.name, self._params, self._corpus = name, params, corpus

    @classmethod
    @override
    def build(cls, name: str, params: FirstParams, have: Resources, member: Members) -> Self:
        return cls(name, params, have.corpus)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return at most `k` passages that the caller may see, by id."""
        mask = self._corpus.find_permitted(query)
        positions = [at for at in range(len(self._corpus)) if mask is None or mask[at]]
        passages = self._corpus.passages(positions[: min(k, self._params.most)])
        found = (passage.replace_score(1.0) for passage in passages)
        return Retrieval(tuple(sorted(found, key=lambda one: one.id)))
'''

ESTIMATOR = """@estimator(
    value="`sum(min(w, c) r) / sum(min(w, c))`",
    use="as `snips`, where a few weights are huge",
    source="",
    rank=7,
    covers=False,
)
"""

ROUTE = '''"""`/v1/motto`: a sentence of the service."""

from fastapi import APIRouter, Response

from armwise.agent.api.documented import document_route
from armwise.agent.api.responses import Json
from armwise.agent.replies import Reply, construct

router = APIRouter(tags=["service"])


class Motto(Reply):
    """A sentence."""

    motto: str


@router.get("/v1/motto", **document_route("getMotto", Motto, scopes=("read",)))
async def motto() -> Response:
    """The motto of the service."""
    return Json(construct(Motto, motto="measure"))
'''

VERB = '''"""A verb that greets."""

from typing import Annotated

import typer

from armwise.agent.cli.console import console


def greet(name: Annotated[str, typer.Argument(help="Who is greeted.")]) -> None:
    """Greet somebody by name."""
    console.print(f"hello, {name}")
'''


def add_arm(copy: Copy) -> None:
    copy.write("arms/retrievers/first.py", ARM)


def add_policy(copy: Copy) -> None:
    copy.write("agent/policies/mean_softmax.py", code_of("policy.md"))


def add_router(copy: Copy) -> None:
    copy.write("agent/routers/mean_utility.py", code_of("router.md"))


def add_estimator(copy: Copy) -> None:
    function = code_of("estimator.md").partition("\n\n\n")[2]
    copy.insert("feedback/ope/estimators.py", "@estimator(", f"{ESTIMATOR}{function}\n\n")
    copy.insert(
        "feedback/ope/estimators.py", "    ips  ", "    clipped_snips  `snips` with a largest weight\n"
    )


def add_route(copy: Copy) -> None:
    copy.write("agent/api/operations/motto.py", ROUTE)
    copy.replace("agent/api/routes.py", "import arms, erasures,", "import arms, motto, erasures,")
    copy.replace("agent/api/routes.py", "_OPERATIONS = (arms,", "_OPERATIONS = (arms, motto,")


def describe_route(copy: Copy) -> None:
    section = "\n## GET /v1/motto\n\nA sentence.\n\n```bash\ncurl -s http://127.0.0.1:8000/v1/motto\n```\n"
    copy.append("docs/reference/http/operating.md", section)


def add_verb(copy: Copy) -> None:
    copy.write("agent/cli/greet.py", VERB)
    entry = '    "greet": Verb("cli.greet:greet", OPERATE, "Greet somebody by name."),\n'
    copy.insert("agent/cli/main.py", '    "doctor": ', entry)


def describe_verb(copy: Copy) -> None:
    copy.insert("docs/reference/cli.md", "| `doctor", "| `greet NAME` | greet somebody by name | |\n")


def add_setting(copy: Copy) -> None:
    field = '    greetings: int = Field(default=3, ge=1, description="Greetings at once.")\n'
    copy.insert("agent/config/sections.py", "    in_flight: int", field)


def nothing(_: Copy) -> None:
    """Write nothing."""


REFERENCE = "docs/reference"
DOCS = "tests/test_docs.py"


@dataclass(frozen=True)
class Recipe:
    """A recipe of CONTRIBUTING.md.

    Attributes:
        add: Writes what the recipe says, but pages.
        describe: Writes the pages that are not generated.
        generated: Files that are out of date until they are generated.
        notice: What begins with one of these, by file, fails until the pages are written.
        keep: Tests of the new thing, a word of their names by file.
    """

    add: Callable[[Copy], None]
    describe: Callable[[Copy], None] = nothing
    generated: tuple[str, ...] = ()
    notice: tuple[str, ...] = ()
    keep: tuple[tuple[str, str], ...] = ()


RECIPES = {
    "arm": Recipe(
        add_arm,
        generated=(f"{REFERENCE}/configuration/arm-kinds.md",),
        keep=(("tests/arms/retrievers/test_catalog.py", "first"),),
    ),
    "policy": Recipe(
        add_policy,
        generated=(f"{REFERENCE}/configuration/policy-kinds.md",),
        keep=(("tests/agent/policies/test_contracts.py", "mean_softmax"),),
    ),
    "router": Recipe(
        add_router,
        generated=(f"{REFERENCE}/configuration/router-kinds.md",),
        keep=(("tests/agent/lab/routers/test_routers.py", "mean_utility"),),
    ),
    "estimator": Recipe(
        add_estimator,
        generated=(f"{REFERENCE}/estimators.md",),
        keep=(("tests/feedback/ope/test_estimators.py", ""),),
    ),
    "route": Recipe(
        add_route,
        describe_route,
        generated=(f"{REFERENCE}/http.md",),
        notice=(f"{DOCS}::test_every_route_is_described_with_a_request",),
        keep=(
            ("tests/agent/api/test_documented.py", "motto"),
            ("tests/agent/api/test_routes.py", "its_scope"),
        ),
    ),
    "verb": Recipe(
        add_verb,
        describe_verb,
        generated=("tests/documents/defaults.yaml",),
        notice=(f"{DOCS}::test_every_verb_is_described",),
    ),
    "setting": Recipe(
        add_setting,
        generated=(f"{REFERENCE}/configuration/service.md", "agent/config/schema.json"),
    ),
}


@dataclass(frozen=True)
class Followed:
    """What came of all recipes: what is out of date, and the tests before and after pages are written."""

    copy: Copy
    stale: str
    before: Mapping[str, bool]
    after: Mapping[str, bool]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    copy = Copy(tmp_path_factory.mktemp("recipes"))
    for recipe in RECIPES.values():
        recipe.add(copy)
    pages = {DOCS: "is_described"}
    before = copy.check(pages)
    for recipe in RECIPES.values():
        recipe.describe(copy)
    stale = copy.run("-m", "tests.documents", "--check").stdout
    for words in ([], ["--check"]):
        done = copy.run("-m", "tests.documents", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    kept = {file: word for recipe in RECIPES.values() for file, word in recipe.keep}
    return Followed(copy, stale, before, copy.check({**pages, **kept}))


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_recipe_names_suffices(followed: Followed, name: str) -> None:
    recipe = RECIPES[name]
    assert [file for file in recipe.generated if f"{file} is out of date" not in followed.stale] == []
    for notice in recipe.notice:
        tests = {test: passed for test, passed in followed.before.items() if test.startswith(notice)}
        assert not all(tests.values()), f"{notice} does not notice what is missing"
        assert tests
    for file, word in recipe.keep:
        assert any(test.startswith(file) and word in test for test in followed.after), (
            f"{file} tests no {word}"
        )
    files = tuple(check.split("::")[0] for check in (*recipe.notice, *(file for file, _ in recipe.keep)))
    failed = [test for test, passed in followed.after.items() if not passed and test.startswith(files)]
    assert not failed, followed.copy.output
