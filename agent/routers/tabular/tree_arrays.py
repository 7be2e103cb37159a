"""Read the trees of routers that were saved as arrays, before a saved router held xgboost's own model.

A leaf is a bit of a 64-bit mask, counted from the left of its tree. An inner node has the mask of the leaves
that remain when a row goes right, so the cleared bits are the leaves below its left child. The nodes of a
tree are in post-order: left subtree, right subtree, node.
"""

import json
from typing import Any

from agent.routers.base import State

MASK_BITS = 64

NO_PARENT = 2**31 - 1
"""The parent of a root, in a model of xgboost."""


def to_xgboost(state: State) -> bytearray:
    """Return the trees as a JSON model for `xgboost.Booster`, whose margins are those of the original.

    Args:
        state: `trees.n_columns` and `trees.base`, scalars; `trees.leaves`, shape (n_trees, most_leaves);
            `trees.tree`, `.column`, `.threshold`, `.missing_left` and `.right`, shape (n_nodes,).

    Raises:
        KeyError: An array is missing.
    """
    n_columns = str(int(state["trees.n_columns"]))
    trees = [_tree(number, n_columns, state) for number in range(len(state["trees.leaves"]))]
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [*range(len(trees) + 1)],
        "tree_info": [0] * len(trees),
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": repr(float(state["trees.base"])),
            "boost_from_average": "1",
            "num_class": "0",
            "num_feature": n_columns,
            "num_target": "1",
        },
        # the margin is then the plain sum, whichever objective the trees were grown for
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return bytearray(json.dumps({"learner": learner, "version": [3, 0, 0]}).encode())


def _tree(number: int, n_columns: str, state: State) -> dict[str, Any]:
    """Return one tree in the layout of xgboost, its root first."""
    leaves, mine = state["trees.leaves"][number], state["trees.tree"] == number
    column, threshold, missing_left, right = (
        state[f"trees.{name}"][mine].tolist() for name in ("column", "threshold", "missing_left", "right")
    )
    inner = iter(range(len(column))[::-1])  # backwards: node, right subtree, left subtree
    found: list[dict[str, Any]] = []

    def grow(first: int, end: int, parent: int) -> int:
        """Append the subtree over the leaves `first` to `end`, and return the number of its root."""
        at = len(found)
        row: dict[str, Any] = {"parents": parent, "left_children": -1, "right_children": -1}
        row |= {"split_indices": 0, "split_conditions": float(leaves[first]), "default_left": 0}
        found.append(row)
        if end - first > 1:
            node = next(inner)
            middle = first + MASK_BITS - right[node].bit_count()
            row |= {"split_indices": column[node], "split_conditions": threshold[node]}
            row |= {"default_left": int(missing_left[node]), "right_children": grow(middle, end, at)}
            row |= {"left_children": grow(first, middle, at)}
        return at

    grow(0, len(column) + 1, NO_PARENT)
    fields = {name: [row[name] for row in found] for name in found[0]}
    statistics = ("base_weights", "loss_changes", "sum_hessian")  # of training: no prediction depends on them
    return {
        **fields,
        **{name: [0.0] * len(found) for name in statistics},
        **{
            name: [] for name in ("categories", "categories_nodes", "categories_segments", "categories_sizes")
        },
        "split_type": [0] * len(found),
        "id": number,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": n_columns,
            "num_nodes": str(len(found)),
            "size_leaf_vector": "1",
        },
    }
