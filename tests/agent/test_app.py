"""The deployments of a service, as a configuration becomes them."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray.serve import Application

from armwise.agent.app import build
from armwise.agent.config import ConfigError
from tests.agent.fakes import CONFIG

ARGS = {
    **CONFIG,
    "arms": {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25"},
        "steps": {"kind": "multistep", "params": {"arm": "bm25"}},
        "far": {"kind": "bm25", "host": "Far"},
    },
    "points": {"cheap": {"arms": {"other": {"kind": "bm25", "host": "Else"}}}},
    "backbones": {"tiny": {"model": "hashing:8", "host": "own"}, "here": {"model": "hashing:8"}},
    "llms": {"second": {"engine": "scripted"}},
    "limits": {"in_flight": 5},
}


FEW_NEED = (
    "faiss",
    "mcp",
    "onnxruntime",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
    "xgboost",
)
"""Libraries of which each takes seconds or tens of megabytes, and which a service may never call."""


@pytest.mark.slow
def test_what_is_deployed_loads_no_library_that_few_services_call() -> None:
    code = f"import sys, armwise.agent.app; print([name for name in {FEW_NEED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == "[]"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Application]:
    """Each deployment of a service by its name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = dict[str, Application]()

    def look(value: Any) -> None:
        if isinstance(value, Application):
            deployment = value._bound_deployment  # noqa: SLF001 - Ray Serve has no other way to ask
            found[deployment.name] = value
            for argument in deployment.init_args:
                look(argument)
        elif isinstance(value, dict):
            for inner in value.values():
                look(inner)

    look(build({**ARGS, "home": str(tmp_path / "home")}))
    return found


def test_every_part_of_a_service_is_a_deployment_of_its_own(built: dict[str, Application]) -> None:
    assert sorted(built) == [
        *("Arms", "Else", "Embedder-tiny", "Far", "Generator", "Generator-second"),
        *("Ingress", "Jobs", "Learner"),
    ]
    config, arms, embedders, generators, *_ = built["Ingress"]._bound_deployment.init_args  # noqa: SLF001
    assert Path(config.home_path).is_absolute()
    assert (sorted(arms), sorted(embedders)) == (["Arms", "Else", "Far"], ["tiny"])
    assert generators == {"default": built["Generator"], "second": built["Generator-second"]}
    placed = {host: set(built[host]._bound_deployment.init_args[1]) for host in arms}  # noqa: SLF001
    assert placed == {"Arms": {"steps"}, "Far": {"far"}, "Else": set()}


def test_replicas_take_little_of_a_machine_and_queue_no_more_than_they_answer(
    built: dict[str, Application],
) -> None:
    deployments = {name: one._bound_deployment for name, one in built.items()}  # noqa: SLF001
    assert {name: one.max_ongoing_requests for name, one in deployments.items()} == {
        **dict.fromkeys(("Ingress", "Arms", "Far", "Else", "Generator", "Generator-second"), 20),
        "Embedder-tiny": 128,
        "Learner": 1,
        "Jobs": 1,
    }
    for one in deployments.values():
        assert one.ray_actor_options == {"num_cpus": 0.1}
        settings = one._deployment_config  # noqa: SLF001
        assert (settings.graceful_shutdown_timeout_s, settings.max_surge_percent) == (10, 25)
        expected_s = {"Ingress": 0.25, "Learner": 2}.get(one.name, 10)
        assert settings.health_check_period_s == expected_s, "a replica that is lost is noticed soon"


def test_what_cannot_be_read_is_refused_before_anything_is_deployed() -> None:
    with pytest.raises(ConfigError, match="in_flight"):
        build({**ARGS, "limits": {"in_flight": 0}})
