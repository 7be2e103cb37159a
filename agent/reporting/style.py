"""Colours and smoothing that all plots share."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INK, GREY = "#1f2430", "#8a8f98"

PALETTE = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"),
    *("#ee8866", "#332288", "#44aa99", "#882255", "#bbcc33", "#999999"),
)
"""Distinguishable with any colour vision; they repeat after twelve arms."""

LEGEND = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False, "alignment": "left"}


def moving_average(values: Floats, window: int) -> Floats:
    """Return the mean of each value and the `window - 1` before it, or of as many as there are.

    Args:
        values: Shape (n,) or (n, d); averaged along the first axis.
        window: At least 1.

    >>> moving_average(np.array([0.0, 1.0, 1.0, 4.0]), 2).tolist()
    [0.0, 0.5, 1.0, 2.5]
    """
    total = np.cumsum(np.concatenate([np.zeros_like(values[:1]), values]), axis=0)
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - window)
    mean: Floats = ((total[end] - total[start]).T / (end - start)).T
    return mean
