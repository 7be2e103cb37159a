"""Every parameter of a router of the catalogue changes what it scores, by a value that this file sets."""

from typing import Any

import numpy as np
import pytest

from armwise.agent.routers import ROUTERS, RoutingDataset
from armwise.agent.routers.catalog import RouterSpec, build_router
from armwise.agent.routers.dataset import Floats
from armwise.agent.spec import find_params
from tests.router_contracts import asked, make_routers_small, world

OF_ARMS: dict[str, Any] = {"stage": "question", "dims": 1, "columns": ["words"]}

ROWS = {**OF_ARMS, "identity": False}

TREES: dict[str, Any] = {**ROWS, "impute": True, "rounds": 3}

FEW_TREES: dict[str, Any] = {"rounds": 6}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ridge": ({"sees": "features"}, {"sees": "words"}),
    "knn": ({}, {}),
    "pointwise_svm": ({"dims": 4}, ROWS),
    "pairwise_svm": ({}, OF_ARMS),
    "pointwise_xgboost": (FEW_TREES, {**TREES, "centre": False}),
    "pairwise_xgboost": (FEW_TREES, TREES),
    "lambdamart": (FEW_TREES, TREES),
    "pointwise_ffn": ({"dims": 4}, {**ROWS, "centre": False}),
    "listnet": ({"dims": 4}, {**ROWS, "temperature": 0.1}),
    "pairwise_ffn": ({"dims": 4}, ROWS),
    "contrastive": (
        {},
        {"encoder": "hashing:16", "backbones": [{"model": "hashing:16"}, {"model": "hashing:24"}]},
    ),
    "capability": (
        {"width": 32, "heads": 4},
        {
            "without": "attention",
            "best": 1,
            "temperature": 0.5,
            "regularization": 0.0,
            "heads": 2,
            "width": 16,
            "learning_rate": 0.002,
        },
    ),
    "calibrated": (
        {"router": {"kind": "ridge", "params": {"sees": "embedding"}}},
        {"router": {"kind": "ridge"}, "held_out": "kinds"},
    ),
}
"""Parameters of each kind, and another value of each parameter."""

ELSEWHERE = {
    "contrastive": {"loss"},  # of ties: `test_contrastive`
    "capability": {"encoder", "positives"},  # a text model, and a prior: `test_r3ag`
}
"""Parameters that scores of these labels do not show."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_routers_small(monkeypatch)


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
