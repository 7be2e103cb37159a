"""What to install where a library is missing, and that the small installation needs none of the others."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from armwise.agent.cli import main as cli
from armwise.arms import extras
from armwise.arms.base import ArmBuildError
from armwise.arms.engines import collection
from armwise.arms.models import ModelNotFoundError, require_torch
from tests.test_requirements import PACKAGES, PROJECT, ROOT, imported

BASE = {line.partition(">")[0].replace("_", "-") for line in PROJECT["dependencies"]}

OF_BASE = {"sklearn", "yaml"}
"""Modules of the base under another name than their distribution's."""


def modules() -> set[str]:
    """Return the modules of others that the three packages import anywhere."""
    found = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in imported(path.read_text())
        if name not in sys.stdlib_module_names and name != "armwise"
    }
    return {name for name in found if name.replace("_", "-") not in BASE and name not in OF_BASE}


@pytest.mark.slow
def test_every_library_beyond_the_base_has_its_extra() -> None:
    found = {name: extras.find_extra(name) for name in modules()}
    assert "ray" in found
    assert [name for name, extra in found.items() if extra is None] == []
    assert found["torch"] == "train"
    assert found["vllm"] == "vllm"
    assert found["matplotlib"] == "plots"


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("faiss", "serve"),
        ("pypdfium2", "documents"),
        ("opentelemetry.sdk.trace", "serve"),
        ("ray.serve", "serve"),
        ("river", "serve"),
        ("onnxruntime", "local"),
        ("xllamacpp", "local"),
        ("xgboost", "trees"),
        ("mcp.server", "mcp"),
        ("httpx2", "mcp"),
        *((module, None) for module in ("numpy", "armwise", "no_such_module", "", "ra")),
    ],
)
def test_modules_are_known_by_their_distributions(module: str, extra: str | None) -> None:
    assert extras.find_extra(module) == extra


def test_files_without_an_installation_have_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert extras.find_extra("ray") is None


def test_a_missing_module_says_what_brings_it() -> None:
    advised = pytest.raises(ModuleNotFoundError, match=r"faiss is not installed: .*'armwise\[serve\]'")
    with advised as failed, extras.explain_missing():
        raise ModuleNotFoundError("No module named 'faiss'", name="faiss")
    assert failed.value.name == "faiss"
    with pytest.raises(ModuleNotFoundError, match="No module named 'other'"), extras.explain_missing():
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_missing_modules_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.describe_missing(["xgboost", "numpy"]) == ""
    monkeypatch.setattr(extras, "is_installed", lambda module: module in ("numpy", "tokenizers"))
    assert extras.describe_missing(["tokenizers", "numpy"]) == ""
    assert extras.describe_missing(["xgboost", "numpy"]) == (
        "xgboost is not installed: `pip install 'armwise[trees]'` brings it"
    )
    assert extras.describe_missing(["tokenizers", "onnxruntime", "mcp"]) == (
        "onnxruntime, mcp are not installed: `pip install 'armwise[local,mcp]'` brings them"
    )


def test_a_module_that_hides_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert extras.find_missing(["xgboost", "numpy"]) == ["xgboost"]


def test_a_verb_without_its_library_ends_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monkeypatch.setattr(cli, "app", run)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "psutil is not installed: `pip install 'armwise[serve]'` brings it" in capsys.readouterr().err

    def fault() -> None:
        raise ModuleNotFoundError("No module named 'agent.typo'", name="agent.typo")

    monkeypatch.setattr(cli, "app", fault)
    with pytest.raises(ModuleNotFoundError, match="typo"):
        cli.main()


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def small(code: str, folder: Path) -> str:
    """Run code in a process that has the libraries of the small installation alone."""
    return run_without(modules(), code, folder)


def run_without(modules: Collection[str], code: str, folder: Path) -> str:
    """Return what code prints in a process in which some modules cannot be imported."""
    hidden = f"hidden = {set(modules)!r}\n{HIDE}"
    done = subprocess.run(
        [sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False, cwd=folder
    )
    return done.stdout + done.stderr


IMPORTED = (
    *(
        "armwise.agent.client",
        "armwise.agent.policies",
        "armwise.agent.routers",
        "armwise.feedback.ope",
        "armwise.feedback.exchange",
        "armwise.arms.lab.portfolio",
    ),
    *(
        f"armwise.agent.{name}"
        for name in (
            "cli.main",
            "cli.service",
            "proof.audit_verbs",
            "cli.evaluate",
            "console.report",
            "gateways.import_log",
        )
    ),
)


@pytest.mark.slow
def test_the_small_installation_imports_what_it_is_for(tmp_path: Path) -> None:
    code = "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in IMPORTED)
    assert small(code + "print('done')", tmp_path) == "done\n"


@pytest.mark.slow
def test_the_small_installation_reads_a_log(tmp_path: Path) -> None:
    drawn = np.random.default_rng(5).integers(2, size=(300, 2))
    rows = [f"q{n},{'ab'[arm]},0.5,{reward}" for n, (arm, reward) in enumerate(drawn.tolist())]
    (tmp_path / "log.csv").write_text("\n".join(["question,arm,propensity,reward", *rows]))
    columns = "--question question --arm arm --propensity propensity --reward reward --arms a,b"
    verbs = [
        f"import log.csv {columns} -o log.jsonl",
        "audit log.jsonl",
        "replay log.jsonl -o replay.html",
        "prove log.jsonl -o receipt.json",
    ]
    code = "from armwise.agent.cli.main import main\n"
    for verb in verbs:
        code += f"sys.argv[1:] = {verb.split()!r}\n"
        code += "try: main()\nexcept SystemExit as end: print('exit', end.code)\n"
    printed = small(code, tmp_path)
    ends = [line for line in printed.splitlines() if line.startswith("exit ")]
    assert ends == ["exit 0"] * 4, printed
    page = (tmp_path / "replay.html").read_text()
    assert "configured" in page
    assert "armwise-receipt" in (tmp_path / "receipt.json").read_text()


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        (
            "from armwise.agent.policies import *; build_policy(PolicySpec(kind='vowpal'), ['a'])",
            "serve",
        ),
        ("from armwise.agent.policies.serialization import pack; pack({}, {})", "serve"),
        ("from armwise.agent.lab.routers.optimizer import seed_torch\nwith seed_torch(0): pass", "train"),
    ],
)
@pytest.mark.slow
def test_a_policy_without_its_library_says_what_brings_it(code: str, extra: str, tmp_path: Path) -> None:
    assert f"pip install 'armwise[{extra}]'` brings it" in small(code, tmp_path)


def texts_of(path: Path) -> list[str]:
    """Return the texts of a source file without its docstrings, of f-strings the constant parts."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]


def test_messages_take_the_name_of_an_extra_from_the_metadata() -> None:
    named = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for text in texts_of(path)
        if re.search(r"armwise\[\w", text)
    }
    assert named == set()


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_a_model_that_needs_torch_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "sentence_transformers")
    with pytest.raises(ModelNotFoundError, match=r"'a-model' .*`pip install 'armwise\[train\]'`"):
        require_torch("a-model", "no graph")


def test_a_search_engine_says_what_brings_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "qdrant_client")
    with pytest.raises(ArmBuildError, match=r"client of qdrant .*`pip install 'armwise\[qdrant\]'`"):
        collection.client("qdrant_client", "qdrant")
