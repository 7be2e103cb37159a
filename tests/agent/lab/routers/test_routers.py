"""Every router of the catalogue keeps every promise of `tests/router_contracts.py`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest

from armwise.agent.lab.routers.heuristic import Similarity
from armwise.agent.routers import Router
from armwise.agent.routers.catalog import ROUTERS, RouterSpec, build_router
from armwise.agent.routers.dataset import Stage
from tests.router_contracts import APART_CHECKS, CHECKS, LEARNING_CHECKS, RETRIEVED_CHECKS, Build

CLASSES = cast(Mapping[str, type[Router]], ROUTERS.own)

EXAMPLES: dict[str, dict[str, object]] = {kind: dict(made.example) for kind, made in CLASSES.items()}
"""Parameters of a small router of each kind, which keep its fit short."""

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
    "ridge on neighbors": ("ridge", {"sees": "neighbors", "neighbors": 3}),
    "pointwise_svm, question": ("pointwise_svm", {"stage": "question"}),
    "pairwise_svm, answered": ("pairwise_svm", {"stage": "answered"}),
    "pointwise_ffn, question": ("pointwise_ffn", {"stage": "question"}),
    "listnet, answered": ("listnet", {"stage": "answered", "held_out": 0.0}),
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
DESCENT = {"epochs": 10, "weight_decay": 0.01, "held_out": 0.1, "clip": 1.0, "seed": 0}
TREES = {**OF_ARMS, "identity": True, "impute": False, "seed": 0}
POINTS = {
    **TREES,
    "rounds": 300,
    "depth": 4,
    "learning_rate": 0.03,
    "min_child_weight": 20.0,
    "gamma": 0.0,
    "subsample": 0.7,
    "colsample": 0.5,
}
RANKS = {
    **TREES,
    "rounds": 100,
    "depth": 5,
    "learning_rate": 0.05,
    "min_child_weight": 2.0,
    "gamma": 0.1,
    "subsample": 0.8,
    "colsample": 0.8,
}
NETWORK = {
    **OF_ARMS,
    **DESCENT,
    "identity": True,
    "hidden": [256, 128, 64],
    "dropout": 0.2,
    "batch_size": 64,
    "learning_rate": 0.001,
}


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (
            "ridge",
            {
                "sees": "words",
                "neighbors": 5,
                "strengths": [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0],
                "folds": 5,
                "least": 3,
                "dims": 32,
                "seed": 0,
            },
        ),
        (
            "knn",
            {
                "neighbors": [10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300],
                "by": "error",
                "folds": 5,
                "seed": 0,
            },
        ),
        (
            "pointwise_svm",
            {
                **OF_ARMS,
                "landmarks": 256,
                "gamma": 0.01,
                "identity": 3.0,
                "cost": 1.0,
                "tube": 0.1,
                "seed": 0,
            },
        ),
        ("pairwise_svm", {**OF_ARMS, "strengths": [3.0, 30.0, 300.0, 3000.0], "folds": 5, "seed": 0}),
        ("pointwise_xgboost", {**POINTS, "centre": True}),
        ("logistic_xgboost", {**POINTS, "centre": False}),
        ("pairwise_xgboost", RANKS),
        ("lambdamart", RANKS),
        ("pointwise_ffn", {**NETWORK, "centre": True}),
        ("pairwise_ffn", {**NETWORK, "pairs": 16}),
        ("listnet", {**NETWORK, "temperature": 1.0}),
        (
            "contrastive",
            {
                **DESCENT,
                "weight_decay": 0.0,
                "encoder": None,
                "backbones": (),
                "loss": "any",
                "width": 256,
                "dropout": 0.1,
                "temperature": 1.0,
                "most_winners": None,
                "batch_size": 64,
                "learning_rate": 0.0003,
            },
        ),
        (
            "capability",
            {
                **DESCENT,
                "held_out": 0.05,
                "encoder": None,
                "width": 128,
                "heads": 8,
                "best": 2,
                "without": None,
                "temperature": 0.2,
                "regularization": 0.1,
                "batch_size": None,
                "learning_rate": None,
                "fusion_rate": 0.001,
                "at_once": 64,
            },
        ),
    ],
)
def test_a_router_without_parameters_has_the_documented_ones(kind: str, defaults: dict[str, Any]) -> None:
    assert build_router(RouterSpec(kind=kind)).params == defaults
