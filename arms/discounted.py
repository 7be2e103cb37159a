"""Discounted similarity: each pick makes the passages that resemble it worth less."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from arms.candidates import Candidates
from arms.diversity import Cosines, DiverseParams, Picks, diverse_kind


class DiscountedParams(DiverseParams):
    """Parameters of a discounted similarity arm."""

    gamma: float = Field(
        ge=0.0, le=100.0, description="How much a pick takes from what resembles it; 0 is a dense arm."
    )
    threshold: float = Field(ge=0.0, le=1.0, description="Cosines below this count as no resemblance.")


def discounted_picks(
    relevance: NDArray[np.floating],
    vectors: NDArray[np.floating],
    gammas: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    n: int,
) -> Picks:
    """Pick `n` candidates for each configuration, best first, ties by index.

    A candidate d starts at its relevance; each time a passage p is picked, its score is
    multiplied by exp(-gamma c), where c = cos(d, p), or 0 below the threshold.

    Args:
        relevance: Cosines between question and candidate, shape (m,).
        vectors: Of the candidates, shape (m, dim).
        gammas: In [0, 100], shape (c,).
        thresholds: In [0, 1], shape (c,).
        n: At most m.

    Returns:
        Indices of candidates, and the score of each when it was picked, both of shape (c, n).

    >>> relevance, vectors = np.array([0.9, 0.8, 0.5]), np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> discounted_picks(relevance, vectors, np.array([0.1, 2.0]), np.zeros(2), 2)[0].tolist()
    [[0, 1], [0, 2]]

    Source: Retriever Portfolios, 2026, arXiv:2605.31176 (DiscountedSimilarity).
    """
    cosines = Cosines(vectors)
    current = np.tile(relevance.astype(np.float64), (len(gammas), 1))
    picks = np.empty((len(gammas), n), dtype=np.intp)
    scores = np.empty((len(gammas), n))
    for step in range(n):
        if step:
            # in place: new arrays of this size take longer to come by than to compute
            factors = cosines.rows(picks[:, step - 1])
            factors *= factors >= thresholds[:, np.newaxis]
            factors *= -gammas[:, np.newaxis]
            current *= np.exp(factors, out=factors)
            np.put_along_axis(current, picks[:, step - 1 : step], -np.inf, axis=1)
        picks[:, step] = current.argmax(axis=1)
        scores[:, step] = current.max(axis=1)
    return picks, scores


def pick(configurations: Sequence[DiscountedParams], candidates: Candidates, n: int) -> Picks:
    """Pick `n` candidates for each configuration."""
    gammas = np.array([params.gamma for params in configurations])
    thresholds = np.array([params.threshold for params in configurations])
    return discounted_picks(candidates.relevance, candidates.vectors, gammas, thresholds, n)


KIND = diverse_kind(DiscountedParams, pick, told=("gamma", "threshold"))
