"""The error of a mean over questions and seeds, where both are drawn."""

import numpy as np
from numpy.typing import NDArray


def errors(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the standard error of a mean over seeds alone, and over seeds and questions.

    The whole error is never too small on average: the variance of a value that neither its seed nor its
    question explains counts with both, and so twice.

    Args:
        values: Shape (seeds, n_questions). Of a single seed, the error over seeds is 0.
    """
    seeds, n = values.shape
    over_seeds = float(values.mean(axis=1).std(ddof=1) / seeds**0.5) if seeds > 1 else 0.0
    return over_seeds, float(np.hypot(over_seeds, values.mean(axis=0).std(ddof=1) / n**0.5))
