"""The k largest scores, in a deterministic order."""

import numpy as np
from numpy.typing import NDArray


def best(scores: NDArray[np.floating], k: int) -> NDArray[np.intp]:
    """Return the indices of the `k` largest scores, best first, ties broken by index.

    Args:
        scores: Shape (n,), finite.
        k: How many; all of them when there are fewer.

    Returns:
        Shape (min(k, n),).

    >>> best(np.array([1.0, 3.0, 2.0, 3.0]), 3).tolist()
    [1, 3, 2]
    """
    if k < len(scores):
        worst_kept = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= worst_kept)
    else:
        kept = np.arange(len(scores))
    return kept[np.argsort(-scores[kept], kind="stable")[:k]]
