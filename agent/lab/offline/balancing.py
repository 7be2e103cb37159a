"""Balance made questions, so that they favour neither lexical nor dense arms.

Questions made by rules take their words from their passages, which favours lexical arms. `balance` weights
the questions so that the lexical and the dense arms of a score matrix score the same on average, as they do
over public collections, and `on_par` draws a sample by such weights.

Source: Thakur et al. 2021, BEIR, arXiv:2104.08663.
"""

import numpy as np
from numpy.typing import NDArray

from armwise.arms.lab.portfolio import ScoreMatrix

Floats = NDArray[np.float64]

FEWEST = 30
"""Fewest questions that are worth learning from."""

FAMILIES = ("bm25", "dense")
"""Kinds of lexical and of dense arms."""


def balance(weights: Floats, lexical: Floats, dense: Floats) -> Floats:
    """Return the weights nearest to the given weights under which two families score the same on average.

    Exponential tilting `w exp(-t d)` by the difference d has the least Kullback-Leibler divergence from w of
    all weights with that property. If one family is never better, w is returned.

    Args:
        weights: At least 0, shape (n,).
        lexical: Scores of the lexical family in [0, 1], shape (n,).
        dense: Scores of the dense family in [0, 1], shape (n,).

    >>> balance(np.ones(3), np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])).round(3).tolist()
    [0.75, 0.75, 1.5]
    """
    difference = lexical - dense
    compared = ~np.isnan(difference) & (weights > 0)
    if not ((difference[compared] > 0).any() and (difference[compared] < 0).any()):
        return weights
    d = np.where(compared, difference, 0.0)
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (weights * np.exp(-middle * d) * d).sum() > 0 else (low, middle)
    tilted: Floats = weights * np.exp(-low * d)
    tilted /= tilted.mean()
    return tilted


def on_par(matrix: ScoreMatrix, seed: int = 0) -> NDArray[np.intp]:
    """Return a sample of a matrix's questions on which lexical and dense arms score the same on average.

    If no corpus has arms of both families, all questions are returned.
    """
    weights = np.ones(len(matrix.questions))
    if not (families := _families(matrix)):
        return np.arange(len(matrix.questions))
    for lexical, dense in families.values():
        weights = balance(weights, lexical, dense)
    return sample(weights, int(weights.sum() / weights.max()), seed)  # a larger sample would cap weights


def sample(weights: Floats, n: int, seed: int) -> NDArray[np.intp]:
    """Draw at most `n` distinct rows in proportion to their weights, by systematic sampling; in order.

    A row whose weight exceeds 1 / n of the sum is drawn once.

    >>> sample(np.array([0.0, 1.0, 1.0, 0.0]), 2, 0).tolist()
    [1, 2]
    """
    points = (np.arange(n) + np.random.default_rng(seed).random()) / n * weights.sum()
    return np.unique(np.searchsorted(np.cumsum(weights), points, side="right"))


def _families(matrix: ScoreMatrix) -> dict[str | None, tuple[Floats, Floats]]:
    """Return the mean scores of lexical and of dense arms, for each corpus that has both.

    Arms of different corpora would differ by their passages, and not by lexical or dense search alone.
    """
    rows: dict[str | None, dict[str, list[int]]] = {}
    for row, spec in enumerate(matrix.table.specs.values()):
        if spec.kind in FAMILIES:
            rows.setdefault(spec.corpus, {}).setdefault(spec.kind, []).append(row)
    scores = matrix.scores.astype(np.float64)
    return {
        corpus: (scores[of[FAMILIES[0]]].mean(axis=0), scores[of[FAMILIES[1]]].mean(axis=0))
        for corpus, of in rows.items()
        if len(of) == len(FAMILIES)
    }
