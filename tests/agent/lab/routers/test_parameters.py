"""Every parameter of a router of the catalogue changes what it scores, by a value that this file sets."""

from typing import Any

import numpy as np
import pytest

from armwise.agent.routers import ROUTERS, RoutingDataset
from armwise.agent.routers.catalog import RouterSpec, build_router
from armwise.agent.routers.dataset import Floats
from armwise.agent.spec import find_params
from tests.router_contracts import asked, world

STEPS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "held_out": 0.0, "dims": 4}

DESCENT: dict[str, Any] = {
    "epochs": 3,
    "weight_decay": 5.0,
    "held_out": 0.5,
    "clip": 0.001,
    "seed": 1,
    "batch_size": 32,
    "learning_rate": 0.03,
}

OF_ARMS: dict[str, Any] = {"stage": "question", "dims": 1, "columns": ["words"]}

NETWORK = {**DESCENT, **OF_ARMS, "identity": False, "hidden": [4], "dropout": 0.5}

TREES: dict[str, Any] = {
    **OF_ARMS,
    "identity": False,
    "impute": True,
    "rounds": 3,
    "depth": 1,
    "learning_rate": 0.9,
    "min_child_weight": 9.0,
    "gamma": 3.0,
    "subsample": 0.3,
    "colsample": 0.3,
    "seed": 1,
}

FEW_TREES: dict[str, Any] = {"rounds": 6, "learning_rate": 0.3, "min_child_weight": 1.0, "subsample": 0.7}

MEMBERS = [
    {"kind": "ridge", "params": {"sees": sees, "strengths": [3.0], "folds": 2}}
    for sees in ("words", "embedding")
]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ridge": (
        {"sees": "features"},
        {"sees": "words", "strengths": [3000.0], "folds": 2, "dims": 1, "seed": 1},
    ),
    "knn": ({"neighbors": [3, 8, 15]}, {"neighbors": [60]}),
    "pointwise_svm": (
        {"landmarks": 40, "dims": 4},
        {**OF_ARMS, "landmarks": 20, "gamma": 1.0, "identity": 0.0, "cost": 0.01, "tube": 0.5, "seed": 1},
    ),
    "pairwise_svm": ({"strengths": [3.0, 300.0], "folds": 2}, {**OF_ARMS, "strengths": [3000.0]}),
    "pointwise_xgboost": (FEW_TREES, {**TREES, "centre": False}),
    "logistic_xgboost": (FEW_TREES, TREES),
    "pairwise_xgboost": (FEW_TREES, TREES),
    "lambdamart": (FEW_TREES, TREES),
    "pointwise_ffn": ({**STEPS, "hidden": [8]}, {**NETWORK, "centre": False}),
    "listnet": ({**STEPS, "hidden": [8]}, {**NETWORK, "temperature": 0.1}),
    "pairwise_ffn": ({**STEPS, "hidden": [8]}, {**NETWORK, "pairs": 1}),
    "contrastive": (
        {"epochs": 2, "width": 8, "batch_size": 16, "learning_rate": 0.01, "held_out": 0.0},
        {
            **DESCENT,
            "encoder": "hashing:16",
            "backbones": [{"model": "hashing:16"}, {"model": "hashing:24"}],
            "width": 4,
            "dropout": 0.5,
            "temperature": 0.1,
        },
    ),
    "capability": (
        {"epochs": 2, "width": 8, "heads": 2, "batch_size": 16, "learning_rate": 0.01, "held_out": 0.0},
        {
            **DESCENT,
            "width": 4,
            "heads": 4,
            "best": 1,
            "temperature": 1.0,
            "regularization": 5.0,
            "fusion_rate": 0.1,
            "without": "attention",
        },
    ),
    "calibrated": (
        {"router": MEMBERS[1]},
        {"router": MEMBERS[0], "folds": 2, "held_out": "kinds", "seed": 1},
    ),
}
"""Parameters that keep a fit short, and another value of each parameter."""

ELSEWHERE = {
    "ridge": {"least", "neighbors"},  # of words, of neighbors: `test_ridge`, `test_neighbors`
    "knn": {"by", "folds", "seed"},  # choose the number of neighbors: `test_knn`
    "pairwise_svm": {"folds", "seed"},  # choose among strengths: `test_ridge`
    "logistic_xgboost": {"centre"},  # has one value
    "contrastive": {"loss", "most_winners"},  # of ties: `test_contrastive`
    "capability": {"encoder", "at_once"},  # needs a text model: `test_r3ag`; changes memory alone
}
"""Parameters that scores of these labels do not show."""


def labels() -> RoutingDataset:
    """Return questions whose best arm the topic tells."""
    return world(60, seed=1)


def scores(kind: str, params: dict[str, Any]) -> Floats:
    """Return the scores of a router that is fitted with these parameters."""
    return build_router(RouterSpec(kind=kind, params=params)).fit(labels()).scores(asked(20))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.slow
def test_every_parameter_changes_the_scores(kind: str) -> None:
    params, others = CASES[kind]
    assert {*others, *ELSEWHERE.get(kind, ())} == set(find_params(ROUTERS[kind]).model_fields)
    before = scores(kind, params)
    np.testing.assert_array_equal(scores(kind, params), before)
    same = [name for name in others if np.array_equal(scores(kind, {**params, name: others[name]}), before)]
    assert not same
