"""A forest of arrays says what xgboost says of the same trees."""

import json
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from agent.routers.dataset import RouterError
from agent.routers.tabular.tree_inference import Forest, Trees

N_COLUMNS = 6


def grown(
    rounds: int = 30, seed: int = 0, *, objective: str = "reg:squarederror", **params: Any
) -> xgboost.Booster:
    """Return a booster of rows some of whose columns are missing, small integers or of both signs."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(500, N_COLUMNS)).astype(np.float32)
    rows[:, 2] = rng.integers(-2, 3, size=500)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    target = np.nan_to_num(rows[:, 0] * rows[:, 1]) + np.isnan(rows[:, 2]) + rng.normal(size=500) * 0.1
    if objective == "binary:logistic":
        target = (target > 0.2).astype(float)
    params = {"objective": objective, "nthread": 1, "seed": seed, "max_depth": 4, "subsample": 0.8} | params
    return xgboost.train(params, xgboost.DMatrix(rows, target), rounds)


def forest_of(booster: xgboost.Booster) -> Forest:
    return Forest(Trees.of_xgboost(booster.save_raw("json")))


def margins(booster: xgboost.Booster, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    booster.set_param({"nthread": 1})
    margin: NDArray[np.float32] = booster.predict(xgboost.DMatrix(rows), output_margin=True)
    return margin


def tricky(seed: int, n: int = 300) -> NDArray[np.float32]:
    """Return rows with numbers of both signs, zeros of both signs, infinities and gaps."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, N_COLUMNS)).astype(np.float32)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0, 1e-40, -1e-40], dtype=np.float32)
    at = rng.random(rows.shape) < 0.4
    rows[at] = rng.choice(odd, size=int(at.sum()))
    return rows


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6])
def test_a_forest_equals_xgboost(objective: str, depth: int) -> None:
    booster = grown(40, depth, objective=objective, max_depth=depth)
    rows = tricky(depth)
    finite = np.where(np.isinf(rows), 0.5, rows).astype(np.float32)  # xgboost refuses infinities
    np.testing.assert_allclose(
        forest_of(booster).predict(finite), margins(booster, finite), rtol=1e-6, atol=1e-6
    )


def test_a_value_at_a_threshold_goes_right_on_either_side_of_zero() -> None:
    booster = grown(60, max_bin=16)
    forest = forest_of(booster)
    trees = Trees.of_xgboost(booster.save_raw("json"))
    rows = np.zeros((len(trees.threshold), N_COLUMNS), dtype=np.float32)
    rows[np.arange(len(rows)), trees.column] = trees.threshold
    for at in (rows, np.nextafter(rows, np.float32(-9.0)), np.nextafter(rows, np.float32(9.0)), -rows):
        np.testing.assert_allclose(forest.predict(at), margins(booster, at), rtol=1e-6, atol=1e-6)
    assert (trees.threshold < 0.0).any()
    assert (trees.threshold > 0.0).any()


def walked(model: dict[str, Any], row: NDArray[np.float32]) -> float:
    """Walk down every tree, as its definition says."""
    total = 0.0
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        at = 0
        while tree["left_children"][at] >= 0:
            value, threshold = row[tree["split_indices"][at]], np.float32(tree["split_conditions"][at])
            left = bool(tree["default_left"][at]) if np.isnan(value) else bool(value < threshold)
            at = tree["left_children" if left else "right_children"][at]
        total += float(np.float32(tree["split_conditions"][at]))
    return total


MODEL = json.loads(grown(12, seed=3, base_score=0.0).save_raw("json"))
WALKED = forest_of(grown(12, seed=3, base_score=0.0))


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, N_COLUMNS, elements=st.floats(width=32)))
def test_any_numbers_at_all_end_in_the_leaf_that_walking_finds(row: NDArray[np.float32]) -> None:
    assert WALKED.predict(row[None])[0] == pytest.approx(walked(MODEL, row), abs=1e-12)


def test_what_is_known_of_columns_adds_up_in_any_order() -> None:
    forest, rows = forest_of(grown()), tricky(7)
    parts = [forest.possible(rows[:, at : at + 2], at) for at in (4, 0, 2)]
    np.testing.assert_array_equal(parts[0] & parts[1] & parts[2], forest.possible(rows))
    np.testing.assert_array_equal(forest.possible(rows[:, :0], 3) & parts[0], parts[0])
    shared = forest.possible(rows[0, :3]) & forest.possible(rows[:, 3:], 3)
    same = np.hstack([np.tile(rows[0, :3], (len(rows), 1)), rows[:, 3:]])
    np.testing.assert_array_equal(forest.sums(shared), forest.predict(same))


def test_rows_may_have_any_number_of_axes() -> None:
    forest, rows = forest_of(grown()), tricky(8, 24)
    np.testing.assert_array_equal(
        forest.sums(forest.possible(rows.reshape(2, 3, 4, N_COLUMNS))), forest.predict(rows).reshape(2, 3, 4)
    )


def test_trees_that_never_split_are_their_leaves() -> None:
    booster = grown(5, gamma=1e9)
    trees = Trees.of_xgboost(booster.save_raw("json"))
    assert trees.leaves.shape == (5, 1)
    assert len(trees.tree) == 0
    np.testing.assert_allclose(
        Forest(trees).predict(tricky(1, 3)), margins(booster, tricky(1, 1))[0], atol=1e-6
    )


def test_a_forest_comes_back_from_its_arrays() -> None:
    trees, rows = Trees.of_xgboost(grown().save_raw("json")), tricky(9)
    back = Trees.restore({name: np.ascontiguousarray(array) for name, array in trees.state().items()})
    np.testing.assert_array_equal(Forest(back).predict(rows), Forest(trees).predict(rows))
    state = dict(trees.state())
    del state["trees.right"]
    with pytest.raises(KeyError, match=r"trees\.right"):
        Trees.restore(state)


def test_a_tree_of_too_many_leaves_is_refused() -> None:
    with pytest.raises(RouterError, match=r"tree 0 has \d+ leaves; there may be 64"):
        Trees.of_xgboost(grown(1, max_depth=9, min_child_weight=0, reg_lambda=0).save_raw("json"))
