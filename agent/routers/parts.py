"""Many questions are scored some at a time: all together would take memory and save no time."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from agent.labels import Features, Floats

AT_ONCE = 4096
"""Rows that are scored together."""


def scored_in_parts(
    features: Features, rows: int, score: Callable[[Features], NDArray[np.floating]]
) -> Floats:
    """Return the scores of all questions, shape (n_questions, n_arms).

    Args:
        features: The questions.
        rows: That a question takes.
        score: Scores some of them, shape (n, n_arms).
    """
    step = max(1, AT_ONCE // rows)
    if len(features) <= step:
        return np.asarray(score(features), dtype=np.float64)
    starts = range(0, len(features), step)
    parts = [features.rows(range(start, min(start + step, len(features)))) for start in starts]
    return np.concatenate([score(part) for part in parts], dtype=np.float64)


__all__ = ["AT_ONCE", "scored_in_parts"]
