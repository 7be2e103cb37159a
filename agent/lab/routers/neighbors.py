"""Features of a question: its similarity to the training questions that each arm answers best.

A regression on the embedding is linear in it. If each arm searches its own source, whose questions form many
small separate groups, the nearest questions predict better than a linear direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import State
from armwise.agent.routers.dataset import Floats

AT_ONCE = 1024
"""Questions that are compared with all training questions at a time."""

WEIGHT = 3.0
"""Scale of the similarities, relative to the embedding of length 1, since both share a penalty."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """Training questions with the best arms of each, and sampled passages of the arms' sources.

    Attributes:
        examples: Unit vectors of the training questions, shape (n, dim).
        best: Whether an arm had the highest utility, on questions where arms differ; shape (n, n_arms).
        k: Number of nearest neighbours per arm, at least 1.
        passages: Unit vectors of sampled passages, shape (m, dim); m = 0: no source has a profile.
        sources: Whether a passage is from the source of an arm, shape (m, n_arms).
    """

    examples: NDArray[np.float32]
    best: NDArray[np.bool_]
    k: int
    passages: NDArray[np.float32]
    sources: NDArray[np.bool_]

    @classmethod
    def fit(
        cls,
        embedding: NDArray[np.float32],
        utility: Floats,
        k: int,
        passages: Sequence[NDArray[np.float32] | None] = (),
    ) -> Self:
        """Store training questions and passages.

        Args:
            embedding: Unit vectors of the questions, shape (n, dim).
            utility: Utility of each arm, NaN where unknown, shape (n, n_arms).
            k: Number of nearest neighbours per arm.
            passages: For each arm, unit vectors of passages of its source, shape (m, dim); None: no profile.
                Arms over the same source share the array.
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
        return cls(
            _round_to_half(embedding), best, k, _round_to_half(np.concatenate([empty, *sampled])), sources
        )

    def similarities(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return the mean similarity of questions to each arm's nearest neighbours, shape (n, n_arms).

        Args:
            embedding: Unit vectors of the questions, shape (n, dim).
            training: Whether these are the training questions; each is then excluded as its own neighbour.

        Returns:
            Cosines in [-1, 1]; 0 for an arm without training questions in `best`.
        """
        return _nearest(embedding, self.examples, self.best, self.k, training=training)

    def inputs(self, embedding: NDArray[np.floating], *, training: bool = False) -> Floats:
        """Return the inputs of a regression: embedding and scaled similarities.

        Returns:
            Shape (n, dim + n_arms), or (n, dim + 2 n_arms) if there are passages.
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
        """Restore from the arrays of `state`. Raises KeyError if an array is missing."""
        examples, passages = (state[f"neighbors.{name}"] for name in ("examples", "passages"))
        of_arms = state["neighbors.best"], k
        return cls(examples.astype("f4"), *of_arms, passages.astype("f4"), state["neighbors.sources"])


def _round_to_half(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """Round vectors to float16, in which they are saved; cosines change by at most about .001."""
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
        examples: Unit vectors of the examples, shape (m, dim).
        of_arms: Whether an example belongs to an arm, shape (m, n_arms).
        k: Number of nearest examples.
        training: Whether the questions are the examples; each is then excluded as its own neighbour.
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
    """Return the mean of the k highest finite values of each row, shape (n,)."""
    if not cosines.shape[1]:
        return np.zeros(len(cosines))
    k = min(k, cosines.shape[1])
    highest = np.partition(cosines, -k, axis=1)[:, -k:].astype(np.float64)
    is_known = np.isfinite(highest)
    total = np.where(is_known, highest, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(is_known.sum(axis=1), 1))
