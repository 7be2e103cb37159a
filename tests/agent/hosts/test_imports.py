"""What a worker of the service imports: a deployment's module alone, and no library that it does not use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fakes import CONFIG
from tests.neighbours import write_corpus

HEAVY = ("torch", "transformers", "sentence_transformers", "sklearn", "river", "scipy", "faiss", "matplotlib")


def loaded_by(module: str) -> frozenset[str]:
    """Return the modules that a fresh interpreter has loaded after it has imported one."""
    script = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return frozenset(ran.stdout.split())


OPEN = """
import json, sys
from armwise.agent.config import parse
from armwise.agent.hosts import ingress
from armwise.agent.hosts.arms import open_here
from armwise.arms.deployments import Embedders
from armwise.arms.llm.base import ScriptedGenerator
config = parse(json.loads(sys.argv[1])).resolve_places()
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


HOSTS = {name: f"armwise.agent.hosts.{name}" for name in ("ingress", "jobs", "arms")}
AGENT = {"armwise.agent.app", "armwise.agent.api.routes", HOSTS["ingress"], "sqlalchemy"}


@pytest.mark.parametrize(
    ("module", "others"),
    [
        (HOSTS["ingress"], {HOSTS["jobs"], "armwise.agent.lab.warmstart.run", *HEAVY}),
        (HOSTS["jobs"], {HOSTS["ingress"], "fastapi", "ray", *HEAVY}),
        (HOSTS["arms"], {HOSTS["ingress"], HOSTS["jobs"], "fastapi", *HEAVY}),
        *((f"armwise.agent.lab.{name}", {*HEAVY}) for name in ("warmstart.run", "routers.trees")),
        ("armwise.agent.lab.routers.calibrated", {*HEAVY}),
        *((f"armwise.arms.deployments.{name}", AGENT) for name in ("handles", "embedders", "generator_host")),
    ],
)
@pytest.mark.slow
def test_a_module_of_a_worker_loads_nothing_of_others(module: str, others: set[str]) -> None:
    loaded = loaded_by(module)
    assert module in loaded
    assert loaded & others == set()
