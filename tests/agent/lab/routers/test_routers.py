"""Every router of the catalogue keeps every promise of `tests/router_contracts.py`."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from armwise.agent.lab.routers.heuristic import Similarity
from armwise.agent.routers import Router
from armwise.agent.routers.catalog import ROUTERS, RouterSpec, build_router
from armwise.agent.routers.dataset import Stage
from tests.router_contracts import (
    APART_CHECKS,
    CHECKS,
    LEARNING_CHECKS,
    RETRIEVED_CHECKS,
    Build,
    make_routers_small,
    world,
)

CLASSES = cast(Mapping[str, type[Router]], ROUTERS.own)

EXAMPLES: dict[str, dict[str, object]] = {kind: dict(made.example) for kind, made in CLASSES.items()}
"""Parameters that each kind needs."""

ONE_CLASS = {"overall_sim", "avg_sim", "moran"}
"""They differ from `max_sim` by the name of their column alone; `test_heuristic` checks that of each."""

NEEDS_MODEL = {"transformer"}
"""Those whose example reads a model of a hub: their own tests hold them to the contract."""

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "pointwise_xgboost, question": ("pointwise_xgboost", {"stage": "question", "centre": False}),
    "pairwise_xgboost, imputed": ("pairwise_xgboost", {"impute": True}),
    "pointwise_xgboost, some columns": ("pointwise_xgboost", {"columns": ["words", "*_sim"]}),
    "pairwise_xgboost, answered": ("pairwise_xgboost", {"stage": "answered"}),
    "ridge on the embedding": ("ridge", {"sees": "embedding"}),
    "ridge on features": ("ridge", {"sees": "features"}),
    "pointwise_svm, question": ("pointwise_svm", {"stage": "question"}),
    "pairwise_svm, answered": ("pairwise_svm", {"stage": "answered"}),
    "pointwise_ffn, question": ("pointwise_ffn", {"stage": "question"}),
    "listnet, answered": ("listnet", {"stage": "answered"}),
    "capability without attention": ("capability", {"without": "attention"}),
    "capability without quality": ("capability", {"without": "quality"}),
}
"""Others: a name for the test, the kind, and what differs from its example."""

FITTED = {kind: (kind, params) for kind, params in EXAMPLES.items()} | {
    name: (kind, EXAMPLES[kind] | changed) for name, (kind, changed) in VARIANTS.items()
}
ALL = {
    name: partial(build_router, RouterSpec(kind=kind, params=dict(params)))
    for name, (kind, params) in FITTED.items()
    if kind not in ONE_CLASS | NEEDS_MODEL
}
LEARNING = {
    name: build
    for name, build in ALL.items()
    if not isinstance(build(), Similarity) and build().reads_question
}
LATE = {name: build for name, build in ALL.items() if build().stage >= Stage.RETRIEVED}
COMPARING = {
    "pairwise_xgboost",
    "pairwise_xgboost, imputed",
    "pairwise_xgboost, answered",
    "pairwise_ffn",
}
"""Their score of an arm is how it does against the others that are asked."""
APART = {name: build for name, build in ALL.items() if name not in COMPARING}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_routers_small(patch)
        yield


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("build", ALL.values(), ids=ALL.keys())
@pytest.mark.slow
def test_router_keeps_its_promise(build: Build, check: Callable[[Build], None]) -> None:
    check(build)


@pytest.mark.parametrize("check", APART_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("build", APART.values(), ids=APART.keys())
def test_router_scores_each_arm_by_itself(build: Build, check: Callable[[Build], None]) -> None:
    check(build)


@pytest.mark.parametrize("check", LEARNING_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("build", LEARNING.values(), ids=LEARNING.keys())
def test_learning_router_learns(build: Build, check: Callable[[Build], None]) -> None:
    check(build)


@pytest.mark.parametrize("check", RETRIEVED_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("build", LATE.values(), ids=LATE.keys())
@pytest.mark.slow
def test_router_of_a_later_stage_looks(build: Build, check: Callable[[Build], None]) -> None:
    check(build)


def test_the_routers_that_compare_arms_are_checked_otherwise() -> None:
    assert set(ALL) > COMPARING
    for name in COMPARING:
        with pytest.raises(AssertionError):
            APART_CHECKS[0](ALL[name])


def test_a_router_can_be_made_as_its_example_says() -> None:
    for kind, params in EXAMPLES.items():
        assert build_router(RouterSpec(kind=kind, params=params)).kind == kind
    learning = {build().kind for build in LEARNING.values()}
    assert learning >= {"ridge", "pairwise_svm", "listnet", "lambdamart", "calibrated", "capability"}


OF_ARMS = {"stage": "retrieved", "dims": 32, "columns": None}
ROWS = {**OF_ARMS, "identity": True}
TREES = {**ROWS, "impute": False, "rounds": 100}


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("ridge", {"sees": "words"}),
        ("knn", {}),
        ("pointwise_svm", ROWS),
        ("pairwise_svm", OF_ARMS),
        ("pointwise_xgboost", {**TREES, "rounds": 300, "centre": True}),
        ("pairwise_xgboost", TREES),
        ("lambdamart", TREES),
        ("pointwise_ffn", {**ROWS, "centre": True}),
        ("pairwise_ffn", ROWS),
        ("listnet", {**ROWS, "temperature": 1.0}),
        ("contrastive", {"encoder": None, "backbones": (), "loss": "any"}),
        (
            "capability",
            {
                "encoder": None,
                "without": None,
                "positives": "earned",
                "best": 2,
                "temperature": 0.2,
                "regularization": 0.1,
                "heads": 8,
                "width": 128,
                "learning_rate": None,
            },
        ),
    ],
)
def test_a_router_without_parameters_has_the_documented_ones(kind: str, defaults: dict[str, Any]) -> None:
    assert build_router(RouterSpec(kind=kind)).params == defaults


@pytest.mark.parametrize("kind", ["contrastive", "capability", "pointwise_ffn", "pairwise_ffn", "listnet"])
@pytest.mark.slow
def test_asking_a_loaded_router_imports_no_torch(kind: str, tmp_path: Path) -> None:
    router = build_router(RouterSpec(kind=kind)).fit(world(40, seed=1))
    (tmp_path / "router").write_bytes(router.save())
    script = (
        "import sys, pathlib; from armwise.agent.routers.catalog import load_router;"
        "from tests.router_contracts import asked;"
        f"router = load_router(pathlib.Path({str(tmp_path / 'router')!r}).read_bytes());"
        "router.scores(asked()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
