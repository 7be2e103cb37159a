"""The layout of the packages: names, faces of rooms, and what the heart may import.

Which room may import which is checked by import-linter, from `pyproject.toml`.
"""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from armwise.agent import wings

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "arms", "feedback")
SOURCES = sorted(path for package in ("armwise", *PACKAGES) for path in (ROOT / package).rglob("*.py"))
FACES = (face for package in PACKAGES for face in (ROOT / package).glob("*/__init__.py*"))
ROOMS = sorted({face.parent for face in FACES if "__all__ = [" in face.read_text(encoding="utf-8")})

WINGS = {"console", "demo", "engines", "exchange", "gateways", "integrations", "lab", "more", "proof"}
"""Folders of the packages that extend the core, which does not know them."""

NAMELESS = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "base_utils"}
"""Names that say nothing of what is inside."""

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
]
(HEART,) = (one for one in CONTRACTS if one["name"] == "the heart is plain Python")
"""Modules that a unit test can run without a cluster, a server or a database, and what they do not load."""

LOADED = """
import importlib, pkgutil, sys
for name in {modules}:
    module = importlib.import_module(name)
    below = pkgutil.walk_packages(getattr(module, "__path__", ()), name + ".")
    for one in [name, *(found.name for found in below)]:
        importlib.import_module(one)
        for heavy in {forbidden}:
            if heavy in sys.modules:
                sys.exit(f"{{one}} loads {{heavy}}")
"""


ALONE = """
import importlib, os, sys
import fastapi.openapi.utils, httpx, numpy, orjson, pydantic, sqlalchemy, uvicorn  # take the longest
for name in sys.argv[1:]:
    if not os.fork():
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "armwise").startswith("armwise"):  # no library of an extra
                print(name, error)
        except Exception as error:
            print(name, repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
"""Imports each module in a process that has imported none of ours."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """Return the name by which a folder or a file of the packages is imported."""
    return ".".join(("armwise", *path.relative_to(ROOT).parts))


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert SOURCES
    assert [named(path) for path in SOURCES if {path.stem, path.parent.name} & NAMELESS] == []


@pytest.mark.parametrize("room", ROOMS, ids=named)
def test_every_name_of_the_face_of_a_room_exists(room: Path) -> None:
    face = importlib.import_module(module_of(room))
    assert len([getattr(face, name) for name in face.__all__]) >= 3


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_module_can_be_the_first_that_is_imported() -> None:
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES]
    modules = [module_of(path.parent if path.stem == "__init__" else path.with_suffix("")) for path in files]
    ran = subprocess.run([sys.executable, "-c", ALONE, *modules], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.slow
def test_importing_the_application_loads_no_wing() -> None:
    script = "import sys, armwise.agent.api; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert [module for module in ran.stdout.split() if is_of_a_wing(module)] == []


def is_of_a_wing(module: str) -> bool:
    return bool(WINGS & set(module.split(".")[2:3]))


def test_the_core_imports_no_wing() -> None:
    sources = [path for path in SOURCES if not is_of_a_wing(module_of(path))]
    imported = {
        (named(path), name)
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for name in [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    }
    assert len(imported) > 1000
    assert [pair for pair in imported if is_of_a_wing(pair[1])] == []


def test_what_wings_register_is_there() -> None:
    single = [path for name, path in vars(wings).items() if name.isupper() and isinstance(path, str)]
    paths = [*single, *wings.ROUTE_MODULES]
    assert len(paths) >= 9
    for path in paths:
        assert is_of_a_wing(path.partition(":")[0])
        assert wings.load(path) is not None


def test_code_of_the_core_imports_from_the_face_of_a_room() -> None:
    rooms = set(map(module_of, ROOMS))
    past = []
    for path in (path for path in SOURCES if not is_of_a_wing(module_of(path))):
        own = ".".join(module_of(path).split(".")[:3])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            room = ".".join(node.module.split(".")[:3])
            if room not in rooms or room == own:
                continue
            names = importlib.import_module(room).__all__ if node.module == room else ()
            past += [
                f"{named(path)}: {node.module}.{name.name}" for name in node.names if name.name not in names
            ]
    assert past == []


ON_THE_WIRE = ("agent/api/", "agent/replies.py", "agent/client/")
"""Where classes may have the name of what they show: `Passage` is the shape of an `arms.base.Passage`."""

FRAMEWORKS = {"ArmwiseRetriever"}
"""Classes of which each framework has one."""


@cache
def definitions() -> list[tuple[bool, str, str]]:
    """Return whether each definition of the packages is a class, its name, and its file."""
    return [
        (isinstance(node, ast.ClassDef), node.name, named(path))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_every_http_client_goes_through_the_rule_for_proxies() -> None:
    """Clients that look at the environment themselves do not agree on it, and ask this machine by a proxy."""
    made = re.compile(
        r"httpx2?\.(Async)?Client\(|httpx\.(get|post|put|request|stream)\(|requests\.(get|post|Session)|urlopen\("
    )
    own = ("arms/proxies.py", "tests/")
    found = [
        f"{named(path)}: {line.strip()}"
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if made.search(line) and "transport=" not in line and not named(path).startswith(own)
    ]
    assert found == []


def test_a_name_of_a_class_has_one_owner() -> None:
    owners: dict[str, list[str]] = {}
    for is_class, name, file in definitions():
        if is_class and not file.startswith(ON_THE_WIRE):
            owners.setdefault(name, []).append(file)
    assert len(owners) > 1000
    assert {name: files for name, files in owners.items() if len(files) > 1 and name not in FRAMEWORKS} == {}


def test_a_function_is_named_by_what_it_does_and_not_by_whose_its_result_is() -> None:
    functions = [(name, file) for is_class, name, file in definitions() if not is_class]
    assert len(functions) > 5000
    assert [found for found in functions if found[0].endswith("_of")] == []


def list_imports(path: Path) -> list[str]:
    """Return the modules that a file imports; relative ones begin with their dots."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append("." * node.level + (node.module or ""))
    return modules


@pytest.mark.parametrize("folder", ["armwise", *PACKAGES, "tests", "benchmarks", "examples"])
def test_nothing_is_imported_by_a_name_that_others_have(folder: str) -> None:
    """`agent` is a folder of every team's: ours is `armwise.agent`."""
    short = []
    for path in (ROOT / folder).rglob("*.py"):
        modules = list_imports(path)
        short += [f"{named(path)}: {name}" for name in modules if name.partition(".")[0] in PACKAGES]
    assert short == []


def test_translations_between_protocols_import_nothing_else_of_ours() -> None:
    room = "armwise.arms.llm.translate"
    imported = {name for path in (ROOT / "arms/llm/translate").glob("*.py") for name in list_imports(path)}
    ours = {name for name in imported if name.startswith(("armwise", "."))}
    assert f"{room}.documents" in ours
    assert [name for name in ours if name != room and not name.startswith(f"{room}.")] == []


def test_the_heart_is_plain_python() -> None:
    script = LOADED.format(modules=HEART["source_modules"], forbidden=HEART["forbidden_modules"])
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert run.stderr == ""


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_takes_from_us_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module and module.partition(".")[0] == "armwise":
            taken = importlib.import_module(module)
            below = {found.name for found in pkgutil.iter_modules(getattr(taken, "__path__", ()))}
            missing = {name.name for name in node.names if not hasattr(taken, name.name)} - below
            assert not missing, f"{module} has no {missing}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=named)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


IRREGULAR = frozenset(
    [
        "begun",
        "bought",
        "bound",
        "built",
        "caught",
        "chosen",
        "dealt",
        "done",
        "drawn",
        "fed",
        "found",
        "given",
        "gone",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "said",
        "seen",
        "sent",
        "shown",
        "sold",
        "sought",
        "spent",
        "spoken",
        "struck",
        "sunk",
        "taken",
        "taught",
        "thought",
        "thrown",
        "told",
        "torn",
        "understood",
        "won",
        "written",
    ]
)
"""Participles that do not end in `ed`."""

NO_PARTICIPLES = {
    "bound",
    "bound_answer",
    "bound_cost",
    "bound_lead",
    "bound_score",
    "bound_search",
    "bound_turn",
}
"""Names of functions that begin like a participle: to bound is a verb, and clipped IPS is an estimator."""


def list_functions(path: Path) -> set[str]:
    """Return the names of functions and methods that we chose, without properties."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(
            word in ast.unparse(each)
            for each in node.decorator_list
            for word in ("property", "setter", "override")
        )
    }


def test_functions_are_verbs() -> None:
    """A function does something: none is a participle, as `shown`, or `of`."""
    found = dict[str, Path]()
    for path in SOURCES:
        for name in list_functions(path):
            word = name.strip("_").split("_")[0]
            participle = word in IRREGULAR or (
                word.endswith("ed") and word not in {"need", "embed", "feed", "seed"}
            )
            if participle or word == "of":
                found[name.strip("_")] = path.relative_to(ROOT)
    assert found.keys() == NO_PARTICIPLES, found
