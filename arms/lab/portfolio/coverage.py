"""The coverage of a set of arms: by question, the largest score of any arm in it.

    take_best   coverage by question
    totals      summed coverage after adding each candidate arm
    values      mean coverage as arms are added one by one

Scores of shape (n_arms, n_questions) are read in place, with a row of extra memory, and summed in float64.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

Floats = NDArray[np.float64]


def check_scores(scores: Scores) -> Scores:
    """Return the scores as float32; float32 input is returned as it is.

    Raises:
        ValueError: The array is empty or not two-dimensional, or a score is outside [0, 1].
    """
    scores = np.asarray(scores, dtype=np.float32)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores must be of shape (n_arms, n_questions), neither 0; got {scores.shape}")
    for arm, row in enumerate(scores):
        for at in np.flatnonzero(~((row >= 0.0) & (row <= 1.0))):
            raise ValueError(f"arm {arm} scores {row[at]:g} on question {at}; scores must be in [0, 1]")
    return scores


def take_best(scores: Scores, arms: Iterable[int]) -> Scores:
    """Return the largest score of any of the arms by question, shape (n_questions,); 0 without arms."""
    best = np.zeros(scores.shape[1], dtype=np.float32)
    for arm in arms:
        np.maximum(best, scores[arm], out=best)
    return best


def values(scores: Scores, arms: Iterable[int]) -> tuple[float, ...]:
    """Return the mean coverage of the first arm, of the first two, and so on.

    >>> values(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), arms=[0, 1])
    (0.5, 0.75)
    """
    best, means = take_best(scores, ()), []
    for arm in arms:
        np.maximum(best, scores[arm], out=best)
        means.append(total(best) / len(best))
    return tuple(means)


def totals(scores: Scores, best: Scores, arms: Iterable[int]) -> Floats:
    """Return the sum over the questions of the larger of an arm's score and `best`, shape (len(arms),).

    Args:
        scores: Shape (n_arms, n_questions).
        best: Shape (n_questions,).
        arms: Rows of the scores.
    """
    larger = np.empty_like(best)
    return np.array([total(np.maximum(scores[arm], best, out=larger)) for arm in arms])


def total(best: Scores) -> float:
    """Return the sum of `best`, with the rounding of `totals`."""
    return float(best.sum(dtype=np.float64))
