"""The documents are complete: every page can be reached, every route, verb and error code is described."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from armwise.agent.cli.main import GROUPS, VERBS
from armwise.agent.config import load
from armwise.agent.config.warm_start import RouterPlan
from armwise.agent.routers import build_router
from armwise.agent.routers.utility import R3AG
from tests.agent.fakes import Service
from tests.pages import blocks_of, commands_of
from tests.test_commands import ELSEWHERE, PAGES, lines_of
from tests.test_tutorials import TUTORIALS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

OF_THE_READER = {
    "docs/guide/extending/policy.md: agent/policies/mean_softmax.py",
    "docs/guide/extending/router.md: agent/routers/tabular/mean_utility.py",
}
"""Files that a page asks its reader to write."""

OF_CLIENTS = ("docs/guide/litellm.md",)
"""Pages that `make test-clients` runs."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def pages_in(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages_in(target)


def test_every_page_stands_once_in_the_navigation() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(pages_in(nav)) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+\.md)")


def test_every_page_is_linked_from_the_index_or_from_a_page_that_lists_its_folder() -> None:
    """Benchmarks are on a list of their own."""
    lists = [DOCS / "index.md", DOCS / "benchmarks/index.md"]
    linked = {
        (page.parent / link).resolve()
        for page in lists
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    assert {*DOCS.rglob("*.md")} - linked <= {DOCS / "index.md"}


def test_the_example_of_r3ag_trains_it_as_published_on_quality_and_utility() -> None:
    warm_start = load(ROOT / "examples/r3ag.yaml").warm_start
    assert warm_start is not None
    assert warm_start.scores == {"em", "f1", "recall"}
    assert warm_start.router is not None
    assert warm_start.router.utility == R3AG
    (shown,) = (block for block in blocks_of("docs/papers/r3ag.md") if block.language == "yaml")
    assert RouterPlan.model_validate(yaml.safe_load(shown.text)["warm_start"]["router"]) == warm_start.router
    assert build_router(warm_start.router).params["positives"] == "published"


def test_every_route_is_described_with_a_request(tmp_path: Path) -> None:
    pages = [
        "reference/http.md",
        *(f"reference/http/{path.name}" for path in DOCS.glob("reference/http/*.md")),
    ]
    sections = [one for page in pages for one in re.split(r"^## ", text_of(page), flags=re.MULTILINE)]
    described = {
        re.sub(r"\{\w+\}", "{}", section.splitlines()[0])
        for section in sections
        if "```bash\ncurl" in section
    }
    paths = Service(tmp_path).app.openapi()["paths"]
    routes = {
        f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}"
        for path, methods in paths.items()
        for method in methods
    }
    assert len(routes) > 20
    assert described == routes


def test_every_verb_is_described() -> None:
    groups = "|".join(GROUPS)
    listed = set(re.findall(rf"^\| `((?:(?:{groups}) )?[a-z-]+)", text_of("reference/cli.md"), re.MULTILINE))
    inner = {f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs}
    assert len(inner) > 15
    assert {*VERBS, *inner} - {*GROUPS} <= listed


def test_every_page_that_shows_commands_is_run() -> None:
    shown = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "README.md", *(DOCS / "guide").rglob("*.md"), *(DOCS / "tutorials").rglob("*.md"))
        if commands_of(str(path.relative_to(ROOT)))
    }
    assert shown == {*PAGES, *TUTORIALS, *OF_CLIENTS}


def test_every_command_that_is_run_elsewhere_is_shown() -> None:
    lines = [line for page in PAGES for block in commands_of(page) for line in lines_of(block)]
    assert [part for part in ELSEWHERE if not any(part in line for line in lines)] == []


def test_every_file_that_is_named_exists() -> None:
    """A path in a page, a docstring or the Makefile leads to a file, so that no rename leaves one behind."""
    named = re.compile(
        r"(?<![\w/.-])((?:agent|arms|feedback|tests|docs|benchmarks|examples)/[\w/.-]+\.(?:pyi?|md|yaml|jsonl))\b"
    )
    pages = [
        *(path for path in (*ROOT.glob("*.md"), ROOT / "Makefile", *DOCS.rglob("*.md"))),
        *(
            path
            for package in ("agent", "arms", "feedback", "benchmarks")
            for path in (ROOT / package).rglob("*.py")
        ),
    ]
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists() and not (page.parent / name).exists()
    }
    assert missing - OF_THE_READER == set()
