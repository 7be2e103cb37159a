"""A forest of boosted trees as arrays: it scores the few rows of one decision in microseconds.

No tree is walked. A node that is answered with "right" rules leaves out, and the leaf where a row ends is
the first that no node ruled out. What all the nodes of a column say together changes only at thresholds, so
it is written down once for each interval between these: a word of bits a tree. A row is then scored by one
binary search a column, the bitwise and of the words that it finds, and a sum of leaves. Columns that rows
share are looked up once for all of them, and columns that are known beforehand not at all.

Source: Lucchese et al. 2015, QuickScorer: a fast algorithm to rank documents with additive ensembles of
regression trees (SIGIR), for leaves as bits. There, nodes are compared one by one; here, intervals are found.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agent.routers.base import State
from agent.routers.dataset import Floats, RouterError

MOST_LEAVES = 64
"""Of a tree: a bit each in the widest word. A tree of depth 6 has no more."""

Leaves = NDArray[Any]
"""Leaves that are still possible: an unsigned word a tree, shape (..., n_trees)."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Binary trees whose values add up.

    Attributes:
        n_columns: Of the rows to score.
        base: Added to the sum.
        leaves: Value of each leaf, from left to right, shape (n_trees, most_leaves).
        tree: Where each inner node stands, in rising order, shape (n_nodes,).
        column: What it looks at, shape (n_nodes,).
        threshold: A smaller value goes left, any other right, shape (n_nodes,).
        missing_left: Whether NaN goes left, shape (n_nodes,).
        right: The leaves that are still possible to the right of it, as bits, shape (n_nodes,).
    """

    n_columns: int
    base: float
    leaves: NDArray[np.float32]
    tree: NDArray[np.int32]
    column: NDArray[np.int32]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    right: NDArray[np.uint64]

    @classmethod
    def of_xgboost(cls, model: bytes | bytearray) -> Self:
        """Take the trees of an xgboost booster with one output and no categorical column.

        Args:
            model: What `Booster.save_raw("json")` returns.

        Raises:
            RouterError: A tree has more than 64 leaves.
        """
        learner = json.loads(model)["learner"]
        nodes: list[tuple[int, int, float, bool, int]] = []
        trees = learner["gradient_booster"]["model"]["trees"]
        leaves = [_leaves(tree, number, nodes) for number, tree in enumerate(trees)]
        values = np.zeros((len(leaves), max(map(len, leaves))), dtype=np.float32)
        for row, of_tree in zip(values, leaves, strict=True):
            row[: len(of_tree)] = of_tree
        tree, column, threshold, missing_left, right = zip(*nodes, strict=True) if nodes else [()] * 5
        return cls(
            int(learner["learner_model_param"]["num_feature"]),
            _base(learner),
            values,
            np.array(tree, dtype=np.int32),
            np.array(column, dtype=np.int32),
            np.array(threshold, dtype=np.float32),
            np.array(missing_left, dtype=np.bool_),
            np.array(right, dtype=np.uint64),
        )

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        return {f"trees.{name}": np.asarray(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def restore(cls, state: State) -> Self:
        """Build it of arrays. Raises KeyError where one is missing."""
        n_columns, base, *arrays = (state[f"trees.{name}"] for name in cls.__slots__)
        return cls(n_columns.item(), base.item(), *arrays)


class Forest:
    """Trees, ready to be asked: equal to walking down each, but for the rounding of a sum.

    Args:
        trees: What to ask.
    """

    def __init__(self, trees: Trees) -> None:
        n_trees, most = trees.leaves.shape
        word = next(np.dtype(f"u{size}") for size in (1, 2, 4, 8) if 8 * size >= most)
        starts, words = [], []
        for column in range(trees.n_columns):
            at = trees.column == column
            starts.append(_starts(trees.threshold[at]))
            words.append(np.full((len(starts[-1]), n_trees), np.iinfo(word).max, dtype=word))
            if at.any():
                value = starts[-1].view(np.float32)[:, None]  # the first of each interval speaks for it
                left = np.where(np.isnan(value), trees.missing_left[at], value < trees.threshold[at])
                said = np.where(left, words[-1][0, 0], trees.right[at].astype(word))
                of_tree, first = np.unique(trees.tree[at], return_index=True)
                words[-1][:, of_tree] = np.bitwise_and.reduceat(said, first, axis=1)
        self._words: Leaves = np.concatenate(words)
        self._columns = np.arange(trees.n_columns, dtype=np.int64) << 32
        # without the first start of all, a search ends at the row of the interval
        self._starts = np.concatenate([s + c for s, c in zip(starts, self._columns, strict=True)])[1:]
        self._leaves = trees.leaves.astype(np.float64).ravel()
        self._before = np.arange(n_trees) * most - 1  # bits are counted from 1
        self._base = trees.base

    def possible(self, values: ArrayLike, first: int = 0) -> Leaves:
        """Return the leaves that are possible as far as some columns tell.

        What other columns tell is added by a bitwise and, in any order.

        Args:
            values: Of neighbouring columns, NaN where missing, shape (..., n_known).
            first: The first of these columns.

        Returns:
            Shape (..., n_trees).
        """
        known = np.ascontiguousarray(values, dtype=np.float32)
        keys = known.view(np.int32) + self._columns[first : first + known.shape[-1]]
        words = self._words.take(self._starts.searchsorted(keys, side="right"), axis=0)
        return np.asarray(np.bitwise_and.reduce(words, axis=-2))

    def sums(self, possible: Leaves) -> Floats:
        """Return what the trees add up to, given what all columns leave possible.

        Args:
            possible: Shape (..., n_trees).

        Returns:
            Shape (...).
        """
        up_to_the_first = np.bitwise_count(possible ^ (possible - 1))
        return np.asarray(self._leaves.take(up_to_the_first + self._before).sum(axis=-1) + self._base)

    def predict(self, rows: ArrayLike) -> Floats:
        """Return what the trees add up to on rows of shape (n, n_columns), as shape (n,)."""
        return self.sums(self.possible(rows))


def _starts(thresholds: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return where the intervals begin in which no answer changes, as the bits of 32-bit numbers.

    Bits read as integers keep the order of positive numbers and reverse that of negative ones; NaN stands
    beyond both infinities. So one search finds the interval of any value, a missing one included.

    >>> _starts(np.array([1.5], dtype=np.float32)).view(np.float32).tolist()
    [-0.0, -1.401298464324817e-45, nan, 0.0, 1.5, nan]
    """
    zeros = np.array([-0.0, 0.0], dtype=np.float32).view(np.int32)
    infinities = np.array([-math.inf, math.inf], dtype=np.float32).view(np.int32)
    bits = thresholds.view(np.int32)
    # what is below a negative threshold begins one further
    return np.unique(np.concatenate([zeros, zeros[:1] + 1, infinities + 1, bits + (bits < 0)]))


def _leaves(tree: dict[str, Any], number: int, nodes: list[tuple[int, int, float, bool, int]]) -> list[float]:
    """Return the leaves of a tree from left to right, and put its inner nodes behind those of others."""
    left, right, values = tree["left_children"], tree["right_children"], tree["split_conditions"]
    leaves: list[float] = []

    def walk(at: int) -> None:
        if left[at] < 0:
            leaves.append(values[at])
            return
        before = len(leaves)
        walk(left[at])
        ruled_out = (1 << len(leaves)) - (1 << before)
        walk(right[at])
        possible = ~ruled_out & ((1 << MOST_LEAVES) - 1)
        nodes.append((number, tree["split_indices"][at], values[at], tree["default_left"][at], possible))

    walk(0)
    if len(leaves) > MOST_LEAVES:
        raise RouterError(f"tree {number} has {len(leaves)} leaves; there may be {MOST_LEAVES}")
    return leaves


def _base(learner: dict[str, Any]) -> float:
    """Return what xgboost adds to the leaves; where these are log-odds, it writes a probability."""
    written = json.loads(learner["learner_model_param"]["base_score"])
    base = float(written[0] if isinstance(written, list) else written)
    return math.log(base / (1.0 - base)) if learner["objective"]["name"] == "binary:logistic" else base
