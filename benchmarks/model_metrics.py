"""Measures of a router between two models, as RouteLLM has them.

Source: Ong et al. 2024, RouteLLM, arXiv:2406.18665, section 3.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gap_recovered(gain: Floats, weak: Floats, strong: Floats) -> Floats:
    """Return the share of the gap between two models that is recovered, by the number of strong calls.

    The strong model is asked where the predicted gain is largest; of equal gains by lot, in expectation.

    Args:
        gain: Predicted, shape (n,).
        weak: Quality of the weak model, shape (n,).
        strong: Quality of the strong model, better in the mean; shape (n,).

    Returns:
        At 0 to n strong calls, shape (n + 1,); the first is 0 and the last 1.

    >>> gap_recovered(np.array([0.1, 0.9]), np.array([0.5, 0.0]), np.array([0.5, 1.0])).tolist()
    [0.0, 1.0, 1.0]
    """
    difference = strong - weak
    if not difference.sum() > 0.0:
        raise ValueError(f"the strong model is not better: {strong.mean():.4f} against {weak.mean():.4f}")
    _, group = np.unique(-gain, return_inverse=True)
    fair = np.bincount(group, difference) / np.bincount(group)
    total = np.concatenate([[0.0], np.cumsum(fair[np.sort(group)])])
    return np.asarray(total / total[-1])


def average_gap_recovered(recovered: Floats) -> float:
    """Return the mean of the recovered share over all shares of strong calls (APGR).

    >>> average_gap_recovered(np.array([0.0, 0.5, 1.0]))
    0.5
    """
    return float(np.trapezoid(recovered, np.linspace(0.0, 1.0, len(recovered))))


def calls_at(recovered: Floats, share: float) -> float:
    """Return the least share of strong calls that recovers a share of the gap (CPT), in [0, 1].

    >>> calls_at(np.array([0.0, 0.8, 1.0]), 0.4)
    0.25
    """
    at = int(np.argmax(recovered >= share))
    if at == 0:
        return 0.0
    low, high = recovered[at - 1], recovered[at]
    return float((at - 1 + (share - low) / (high - low)) / (len(recovered) - 1))


def calibrated(
    gain: Floats, weak: Floats, strong: Floats, part: NDArray[np.intp], target: float
) -> tuple[float, float]:
    """Return what a threshold gives that was chosen on the other parts of the questions.

    Args:
        gain: Predicted without the question, shape (n,).
        weak: Quality of the weak model, shape (n,).
        strong: Quality of the strong model, shape (n,).
        part: Of each question, shape (n,).
        target: Share of the strong model's quality that is wanted.

    Returns:
        The share of strong calls, and the quality as a share of that of the strong model.
    """
    strong_calls = np.zeros(len(gain), dtype=bool)
    for fold in np.unique(part):
        rest = part != fold
        order = np.flatnonzero(rest)[np.argsort(-gain[rest], kind="stable")]
        quality = weak[order].sum() + np.concatenate([[0.0], np.cumsum(strong[order] - weak[order])])
        calls = int(np.argmax(quality >= target * strong[order].sum()))
        if calls:
            strong_calls |= (part == fold) & (gain >= gain[order[calls - 1]])
    return float(strong_calls.mean()), float(np.where(strong_calls, strong, weak).mean() / strong.mean())
