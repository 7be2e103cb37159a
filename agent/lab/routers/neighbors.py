"""How near a question is to those of training that each arm answers best.

A regression on the embedding is linear in it. Where arms search sources of their own, whose questions are
many small groups apart from each other, the nearest questions say more than a direction does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import State
from armwise.agent.routers.dataset import Floats

AT_ONCE = 1024
"""Questions that are compared with all of training at a time."""

WEIGHT = 3.0
"""Scale of the similarities beside an embedding of length 1, as one penalty is for both."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The training questions and which arms were the best on each, and passages of their sources.

    Attributes:
        examples: Their unit vectors, shape (n, dim).
        best: Whether an arm had the highest utility, where another one had a lower; shape (n, n_arms).
        k: The nearest of an arm that count, at least 1.
        passages: Unit vectors of sampled passages, shape (m, dim); m is 0 where sources have no profile.
        sources: Whether a passage is of the source of an arm, shape (m, n_arms).
    """

    examples: NDArray[np.float32]
    best: NDArray[np.bool_]
    k: int
    passages: NDArray[np.float32]
    sources: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        embedding: NDArray[np.float32],
        utility: Floats,
        k: int,
        passages: Sequence[NDArray[np.float32] | None] = (),
    ) -> Self:
        """Keep training questions and passages.

        Args:
            embedding: Unit vectors, shape (n, dim).
            utility: Utility of each arm, NaN where it is not known, shape (n, n_arms).
            k: The nearest of an arm that count.
            passages: Those of the source of each arm, shape (m, dim), None where it has no profile; one array
                for arms over the same source.
        """
        filled_utility = np.where(np.isnan(utility), -np.inf, utility)
        most = filled_utility.max(axis=1, keepdims=True)
        differ = (np.nan_to_num(utility, nan=np.inf) < most).any(axis=1, keepdims=True)
        sampled = list({id(vectors): vectors for vectors in passages if vectors is not None}.values())
        of_arms = np.array(
            [[source is vectors for source in passages] for vectors in sampled], dtype=np.bool_
        )
        sizes = np.array([len(vectors) for vectors in sampled], dtype=np.intp)
        sources = np.repeat(of_arms.reshape(-1, utility.shape[1]), sizes, axis=0)
        empty = np.empty((0, embedding.shape[1]))
        best = (filled_utility == most) & differ & np.isfinite(most)
        return cls(_halved(embedding), best, k, _halved(np.concatenate([empty, *sampled])), sources)

    def similarities(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return the mean similarity of questions to the nearest of each arm, shape (n, n_arms).

        Args:
            embedding: Unit vectors of the questions, shape (n, dim).
            training: Whether these are the training questions, each of which is no neighbor of its own.

        Returns:
            Cosines in [-1, 1]; 0 for an arm that was never the best alone.
        """
        return _nearest(embedding, self.examples, self.best, self.k, training=training)

    def inputs(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return embedding and similarities, as a regression sees them.

        Returns:
            Shape (n, dim + n_arms), or (n, dim + 2 n_arms) where there are passages.
        """
        near = [WEIGHT * self.similarities(embedding, training=training)]
        if len(self.passages):
            near.append(WEIGHT * _nearest(embedding, self.passages, self.sources, self.k))
        return np.hstack([np.asarray(embedding, dtype=np.float64), *near])

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        return {
            "neighbors.examples": self.examples.astype(np.float16),
            "neighbors.best": self.best,
            "neighbors.passages": self.passages.astype(np.float16),
            "neighbors.sources": self.sources,
        }

    @classmethod
    def restore(cls, state: State, k: int) -> Self:
        """Build it from arrays. Raises KeyError if one is missing."""
        examples, passages = (state[f"neighbors.{name}"] for name in ("examples", "passages"))
        of_arms = state["neighbors.best"], k
        return cls(examples.astype("f4"), *of_arms, passages.astype("f4"), state["neighbors.sources"])


def _halved(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return vectors as they are after they were saved in half the size; cosines differ by .001."""
    return vectors.astype(np.float16).astype(np.float32)


def _nearest(
    embedding: NDArray[np.floating],
    examples: NDArray[np.float32],
    of_arms: NDArray[np.bool_],
    k: int,
    *,
    training: bool = False,
) -> Floats:
    """Return the mean similarity of questions to the nearest examples of each arm, shape (n, n_arms).

    Args:
        embedding: Unit vectors of the questions, shape (n, dim).
        examples: Shape (m, dim).
        of_arms: Which examples are those of an arm, shape (m, n_arms).
        k: The nearest that count.
        training: Whether the questions are the examples, each of which is no neighbor of its own.
    """
    similarity = np.zeros((len(embedding), of_arms.shape[1]))
    indices = [np.flatnonzero(column) for column in of_arms.T]
    for start in range(0, len(embedding), AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, len(embedding)))
        cosines = np.asarray(embedding[rows], dtype=np.float32) @ examples.T
        if training:
            cosines[rows - start, rows] = -np.inf
        for arm, at in enumerate(indices):
            similarity[rows, arm] = _mean_of_highest(cosines[:, at], k)
    return similarity


def _mean_of_highest(cosines: NDArray[np.float32], k: int) -> Floats:
    """Return the mean of the k highest of each row, those of -inf left out, shape (n,)."""
    if not cosines.shape[1]:
        return np.zeros(len(cosines))
    k = min(k, cosines.shape[1])
    highest = np.partition(cosines, -k, axis=1)[:, -k:].astype(np.float64)
    is_known = np.isfinite(highest)
    total = np.where(is_known, highest, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(is_known.sum(axis=1), 1))
