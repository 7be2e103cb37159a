"""What a worker of the service imports: a deployment's module alone, and no library that it does not use."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fakes import CONFIG
from tests.neighbours import write_corpus

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "river", "scipy", "faiss", "matplotlib")


@cache
def loaded_by(module: str) -> frozenset[str]:
    """Return the modules that a fresh interpreter has loaded after it has imported one."""
    script = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return frozenset(ran.stdout.split())


def imported(module: str, names: tuple[str, ...]) -> set[str]:
    loaded = loaded_by(module)
    assert module in loaded
    return {name for name in names if name in loaded}


OPEN = """
import json, sys
from armwise.agent.config import parse
from armwise.agent.hosts import ingress
from armwise.agent.hosts.arms import open_here
from armwise.arms.deployments import Embedders
from armwise.arms.llm.base import ScriptedGenerator
config = parse(json.loads(sys.argv[1])).settled()
open_here(config, {}, Embedders(config.backbones), ScriptedGenerator({}))
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""
"""A replica of the ingress opens its arms and encoders."""


def opened(folder: Path, arms: dict[str, Any]) -> set[str]:
    source = str(write_corpus(folder / "corpus.jsonl"))
    backbones = {"tiny": {"model": "hashing:8"}, "absent": {"model": "/there/is/none"}}
    config = {**CONFIG, "arms": arms, "backbones": backbones, "corpus": {"name": "a", "source": source}}
    command = [sys.executable, "-c", OPEN, json.dumps({**config, "home": str(folder)}), *HEAVY]
    subprocess.run(command, check=True, capture_output=True)  # builds the indexes, which a replica finds
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(found.stdout.split())


WORDS_ALONE = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}


@pytest.mark.slow
def test_a_replica_without_dense_arms_imports_neither_torch_nor_faiss(tmp_path: Path) -> None:
    assert opened(tmp_path, WORDS_ALONE) == set()


@pytest.mark.slow
def test_a_replica_with_dense_arms_imports_faiss_and_no_more_than_its_encoder_needs(tmp_path: Path) -> None:
    arms = {**WORDS_ALONE, "dense": {"kind": "dense", "params": {"backbone": "tiny"}}}
    assert opened(tmp_path, arms) == {"faiss"}


@pytest.mark.parametrize("module", ["ingress", "learner", "jobs", "arms"])
@pytest.mark.slow
def test_a_host_imports_no_library_that_only_some_settings_need(module: str) -> None:
    assert imported(f"armwise.agent.hosts.{module}", HEAVY) == set()


@pytest.mark.parametrize("module", ["warmstart.run", "routers.trees", "routers.calibrated"])
@pytest.mark.slow
def test_a_router_is_read_without_the_libraries_that_fit_one(module: str) -> None:
    assert imported(f"armwise.agent.lab.{module}", HEAVY) == set()


@pytest.mark.parametrize(
    "module",
    [
        "armwise.arms.deployments.handles",
        "armwise.arms.deployments.embedders",
        "armwise.arms.deployments.generator_host",
    ],
)
@pytest.mark.slow
def test_a_host_of_arms_or_models_knows_no_agent(module: str) -> None:
    assert (
        imported(
            module,
            ("armwise.agent.app", "armwise.agent.api.routes", "armwise.agent.hosts.ingress", "sqlalchemy"),
        )
        == set()
    )


@pytest.mark.parametrize(
    ("module", "others"),
    [
        (
            "armwise.agent.hosts.ingress",
            ("armwise.agent.hosts.learner", "armwise.agent.hosts.jobs", "armwise.agent.lab.warmstart.run"),
        ),
        (
            "armwise.agent.hosts.learner",
            ("armwise.agent.hosts.ingress", "armwise.agent.hosts.jobs", "fastapi", "ray"),
        ),
        (
            "armwise.agent.hosts.jobs",
            ("armwise.agent.hosts.ingress", "armwise.agent.hosts.learner", "fastapi", "ray"),
        ),
        (
            "armwise.agent.hosts.arms",
            (
                "armwise.agent.hosts.ingress",
                "armwise.agent.hosts.learner",
                "armwise.agent.hosts.jobs",
                "fastapi",
            ),
        ),
    ],
)
@pytest.mark.slow
def test_a_host_does_not_import_the_other_hosts(module: str, others: tuple[str, ...]) -> None:
    assert imported(module, others) == set()
