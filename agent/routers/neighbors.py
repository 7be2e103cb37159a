"""How near a question is to those of training that each arm answers best.

A regression on the embedding is linear in it. Where arms search sources of their own, whose questions are
many small groups apart from each other, the nearest questions say more than a direction does.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agent.routers.base import State
from agent.routers.dataset import Floats

AT_ONCE = 1024
"""Questions that are compared with all of training at a time."""

WEIGHT = 3.0
"""Scale of the similarities beside an embedding of length 1, as one penalty is for both."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The training questions, and which arms were the best on each.

    Attributes:
        examples: Their unit vectors, shape (n, dim).
        best: Whether an arm had the highest utility, where another one had a lower; shape (n, n_arms).
        k: The nearest of an arm that count, at least 1.
    """

    examples: NDArray[np.float32]
    best: NDArray[np.bool_]
    k: int

    @classmethod
    def of(cls, embedding: NDArray[np.float32], utility: Floats, k: int) -> Self:
        """Keep training questions.

        Args:
            embedding: Unit vectors, shape (n, dim).
            utility: Utility of each arm, NaN where it is not known, shape (n, n_arms).
            k: The nearest of an arm that count.
        """
        known = np.where(np.isnan(utility), -np.inf, utility)
        most = known.max(axis=1, keepdims=True)
        differ = (np.nan_to_num(utility, nan=np.inf) < most).any(axis=1, keepdims=True)
        kept = embedding.astype(np.float16)  # half the size where it is saved; cosines differ by .001
        return cls(kept.astype(np.float32), (known == most) & differ & np.isfinite(most), k)

    def similarities(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return the mean similarity of questions to the nearest of each arm, shape (n, n_arms).

        Args:
            embedding: Unit vectors of the questions, shape (n, dim).
            training: Whether these are the training questions, each of which is no neighbor of its own.

        Returns:
            Cosines in [-1, 1]; 0 for an arm that was never the best alone.
        """
        found = np.zeros((len(embedding), self.best.shape[1]))
        of_arms = [np.flatnonzero(column) for column in self.best.T]
        for start in range(0, len(embedding), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(embedding)))
            cosines = np.asarray(embedding[rows], dtype=np.float32) @ self.examples.T
            if training:
                cosines[rows - start, rows] = -np.inf
            for arm, own in enumerate(of_arms):
                found[rows, arm] = _mean_of_highest(cosines[:, own], self.k)
        return found

    def inputs(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return embedding and similarities, as a regression sees them, shape (n, dim + n_arms)."""
        near = WEIGHT * self.similarities(embedding, training=training)
        return np.hstack([np.asarray(embedding, dtype=np.float64), near])

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        return {
            "neighbors.examples": self.examples.astype(np.float16),
            "neighbors.best": self.best,
        }

    @classmethod
    def restore(cls, state: State, k: int) -> Self:
        """Build it from arrays. Raises KeyError if one is missing."""
        return cls(state["neighbors.examples"].astype(np.float32), state["neighbors.best"], k)


def _mean_of_highest(cosines: NDArray[np.float32], k: int) -> Floats:
    """Return the mean of the k highest of each row, those of -inf left out, shape (n,)."""
    if not cosines.shape[1]:
        return np.zeros(len(cosines))
    k = min(k, cosines.shape[1])
    highest = np.partition(cosines, -k, axis=1)[:, -k:].astype(np.float64)
    known = np.isfinite(highest)
    total = np.where(known, highest, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1))
