"""Trees as arrays, beside XGBoost."""

from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.agent.lab.routers.tree_ensemble import TreeEnsemble

OBJECTIVES: list[dict[str, Any]] = [
    {"objective": "reg:squarederror"},
    {"objective": "reg:logistic"},
    {"objective": "binary:logistic"},
    {"objective": "rank:ndcg", "ndcg_exp_gain": False},
]


def draw_rows(rng: np.random.Generator, n: int, missing: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return rows with ties, so that values equal thresholds, and with missing values."""
    rows = np.round(rng.normal(size=(n, 6)), 1).astype(np.float32)
    rows[rng.random(rows.shape) < missing] = np.nan
    return rows


def grow(objective: dict[str, Any], rows: Any, rng: np.random.Generator, **more: Any) -> xgboost.Booster:
    target = rng.random(len(rows))
    if objective["objective"] == "binary:logistic":
        target = np.round(target)
    groups = {"qid": np.arange(len(rows)) // 5} if "ndcg" in objective["objective"] else {}
    data = xgboost.QuantileDMatrix(rows, target, nthread=1, **groups)
    return xgboost.train({"nthread": 1, "eta": 0.2, **objective, **more}, data, more.pop("rounds", 20))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: str(one["objective"]))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 6), missing=st.sampled_from([0.0, 0.2]))
def test_the_sums_are_those_of_xgboost_to_the_last_bit(
    objective: dict[str, Any], seed: int, depth: int, missing: float
) -> None:
    rng = np.random.default_rng(seed)
    booster = grow(objective, draw_rows(rng, 100, missing), rng, max_depth=depth)
    rows = draw_rows(rng, 60, 0.3)
    trees = TreeEnsemble.restore(TreeEnsemble.from_booster(booster).state())
    expected = booster.inplace_predict(rows, predict_type="margin")
    np.testing.assert_array_equal(trees.sums(rows), expected)


def test_trees_without_a_split_sum_their_roots() -> None:
    rng = np.random.default_rng(0)
    booster = grow(OBJECTIVES[0], draw_rows(rng, 40, 0.0), rng, gamma=1e9)
    trees, rows = TreeEnsemble.from_booster(booster), draw_rows(rng, 3, 0.5)
    assert trees.depth == 0
    np.testing.assert_array_equal(trees.sums(rows), booster.inplace_predict(rows, predict_type="margin"))


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("left", 0, -1),
        ("right", 0, None),  # just behind the last node
        ("left", 0, 0),
        ("roots", 1, -1),
        ("roots", 1, None),
        ("columns", 0, -1),
    ],
)
def test_damaged_trees_are_refused(name: str, at: int, value: int | None) -> None:
    rng = np.random.default_rng(1)
    state = TreeEnsemble.from_booster(grow(OBJECTIVES[0], draw_rows(rng, 40, 0.1), rng)).state()
    state[f"trees.{name}"] = state[f"trees.{name}"].copy()
    state[f"trees.{name}"][at] = len(state["trees.columns"]) if value is None else value  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="trees"):
        TreeEnsemble.restore(state)


@pytest.mark.parametrize("name", ["thresholds", "missing_left", "base", "columns"])
def test_arrays_of_other_lengths_are_refused(name: str) -> None:
    rng = np.random.default_rng(1)
    state = TreeEnsemble.from_booster(grow(OBJECTIVES[0], draw_rows(rng, 40, 0.1), rng)).state()
    state[f"trees.{name}"] = state[f"trees.{name}"][:-1]
    with pytest.raises(ValueError, match="lengths"):
        TreeEnsemble.restore(state)
