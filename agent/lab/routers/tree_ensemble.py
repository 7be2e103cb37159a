"""Boosted trees as arrays, which decide without the library that grew them.

XGBoost takes most of a second and 95 MiB to import. The sums are those of XGBoost to the last bit: single
precision, tree after tree.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xgboost

Rows = NDArray[np.float32]
Nodes = NDArray[np.int32]


@dataclass(frozen=True)
class TreeEnsemble:
    """The nodes of all trees, one after the other.

    Attributes:
        base: Start of every sum, shape (1,).
        roots: First node of each tree, shape (n_trees,).
        columns: Column of a row that a node looks at, shape (n_nodes,).
        thresholds: Smaller values go to the left child; of a leaf, what it adds to the sum. Shape (n_nodes,).
        left: Left child of a node; of a leaf, itself. Shape (n_nodes,).
        right: Right child likewise.
        missing_left: Whether a missing value goes to the left child, shape (n_nodes,).

    Raises:
        ValueError: The arrays are not those of trees.
    """

    base: Rows
    roots: Nodes
    columns: Nodes
    thresholds: Rows
    left: Nodes
    right: Nodes
    missing_left: NDArray[np.bool_]

    def __post_init__(self) -> None:
        of_nodes = (self.thresholds, self.left, self.right, self.missing_left)
        n_nodes = len(self.columns)
        if not n_nodes or len(self.base) != 1 or any(len(array) != n_nodes for array in of_nodes):
            raise ValueError("the arrays of the trees have different lengths")
        nodes, children = np.arange(n_nodes), np.stack([self.left, self.right])
        is_leaf, is_above = (children == nodes).all(axis=0), (children > nodes).all(axis=0)
        named = np.concatenate([self.left, self.right, self.roots])
        if not np.all(is_leaf | is_above) or named.min() < 0 or named.max() >= n_nodes:
            raise ValueError("a child of the trees is no later node")
        if self.columns.min() < 0:
            raise ValueError("a column of the trees is negative")

    @classmethod
    def from_booster(cls, booster: "xgboost.Booster") -> Self:
        """Return the trees that XGBoost has grown."""
        document = json.loads(booster.save_raw("json"))
        parts: dict[str, list[NDArray[np.generic]]] = {one.name: [] for one in fields(cls)}
        at = 0
        for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
            children = {
                side: np.array(tree[f"{side}_children"], dtype=np.int32) for side in ("left", "right")
            }
            nodes = np.arange(len(children["left"]), dtype=np.int32)
            for side, named in children.items():
                parts[side].append(at + np.where(named < 0, nodes, named))
            parts["roots"].append(np.array([at]))
            parts["columns"].append(np.array(tree["split_indices"]))
            parts["thresholds"].append(np.array(tree["split_conditions"], dtype=np.float32))
            parts["missing_left"].append(np.array(tree["default_left"], dtype=np.bool_))
            at += len(nodes)
        parts["base"].append(_find_base(document))
        return cls.restore({f"trees.{name}": np.concatenate(several) for name, several in parts.items()})

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays by name."""
        return {f"trees.{one.name}": getattr(self, one.name) for one in fields(self)}

    @classmethod
    def restore(cls, state: Mapping[str, NDArray[np.generic]]) -> Self:
        """Return the trees with these arrays. Raises KeyError, ValueError."""
        kinds = {"base": np.float32, "thresholds": np.float32, "missing_left": np.bool_}
        return cls(
            **{
                one.name: state[f"trees.{one.name}"].astype(kinds.get(one.name, np.int32))
                for one in fields(cls)
            }
        )

    @cached_property
    def depth(self) -> int:
        """Most nodes between a root and a leaf, the leaf included."""
        at, depth = np.unique(self.roots), 0
        while (below := np.unique([*self.left[at], *self.right[at]])).tolist() != at.tolist():
            at, depth = below, depth + 1
        return depth

    def sums(self, rows: Rows) -> Rows:
        """Return the sum of all trees on each row.

        Args:
            rows: Shape (n_rows, n_columns); NaN where a value is missing.

        Returns:
            Shape (n_rows,).
        """
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        for _ in range(self.depth):
            values = np.take_along_axis(rows, self.columns[at], axis=1)
            goes_left = np.where(np.isnan(values), self.missing_left[at], values < self.thresholds[at])
            at = np.where(goes_left, self.left[at], self.right[at])
        terms = np.concatenate([np.tile(self.base, (len(rows), 1)), self.thresholds[at]], axis=1)
        sums: Rows = terms.cumsum(axis=1, dtype=np.float32)[:, -1]
        return sums


def _find_base(document: dict[str, Any]) -> Rows:
    """Return the start of the sums, shape (1,): what XGBoost adds to a tree whose leaves are 0."""
    import xgboost

    learner = document["learner"]
    model = learner["gradient_booster"]["model"]
    tree = model["trees"][0]
    zero = {**tree, "split_conditions": [0.0] * len(tree["split_conditions"])}
    counts = {**model["gbtree_model_param"], "num_trees": "1"}
    one = {"trees": [zero], "tree_info": [0], "iteration_indptr": [0, 1], "gbtree_model_param": counts}
    boosters = {**learner["gradient_booster"], "model": {**model, **one}}
    bare = {**document, "learner": {**learner, "gradient_booster": boosters}}
    booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(json.dumps(bare).encode()))
    row = np.zeros((1, booster.num_features()), dtype=np.float32)
    return np.asarray(booster.inplace_predict(row, predict_type="margin"), dtype=np.float32)
