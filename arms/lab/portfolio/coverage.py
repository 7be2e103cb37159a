"""The coverage of sets of arms, at about the speed of memory.

    best_of   the largest score of any of some arms, by question
    totals    the sum of that with each further arm
    values    the mean of that as arms are added one by one

Scores of shape (n_arms, n_questions) are read in place, with a few rows of extra memory.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]

Floats = NDArray[np.float64]

Indices = NDArray[np.intp]

LANES = 64
"""Partial sums of a row, which are computed side by side."""

CLOSE = LANES * 2.0**-24
"""Relative error bound of a float32 sum of `LANES` non-negative numbers."""

CACHED = 1 << 15
"""Scores that are summed at a time."""

THREADS = min(4, os.cpu_count() or 1)

WORTH_THREADS = 1 << 22
"""Number of scores from which threads pay off."""

Run = Callable[[Callable[[Indices], Floats], Iterable[Indices]], Iterable[Floats]]
"""`map`, or the one of a thread pool."""


@contextmanager
def threads(scores: Scores) -> Iterator[Run]:
    """Yield a `map` that uses several threads for large scores."""
    if scores.size < WORTH_THREADS or THREADS == 1:
        yield map
        return
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool.map


def checked(scores: Scores) -> Scores:
    """Return the scores as float32, without a copy if they are.

    Raises:
        ValueError: They do not have two dimensions, or one is not in [0, 1].
    """
    scores = np.asarray(scores, dtype=np.float32)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores must be of shape (n_arms, n_questions), neither 0; got {scores.shape}")
    # as unsigned integers, floats outside of [0, 1] and NaN are larger than 1.0
    if scores.view(np.uint32).max() > np.float32(1.0).view(np.uint32):
        for arm, row in enumerate(scores):
            for at in np.flatnonzero(~((row >= 0.0) & (row <= 1.0))):
                raise ValueError(f"arm {arm} scores {row[at]:g} on question {at}; scores must be in [0, 1]")
    return scores


def best_of(scores: Scores, arms: Iterable[int]) -> Scores:
    """Return the largest score of any of the arms by question, shape (n_questions,); 0 without arms."""
    best = np.zeros(scores.shape[1], dtype=np.float32)
    for arm in arms:
        np.maximum(best, scores[arm], out=best)
    return best


def values(scores: Scores, arms: Iterable[int]) -> tuple[float, ...]:
    """Return F of the first arm, of the first two, and so on.

    >>> values(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), arms=[0, 1])
    (0.5, 0.75)
    """
    best, means = best_of(scores, ()), []
    for arm in arms:
        np.maximum(best, scores[arm], out=best)
        means.append(total(best) / len(best))
    return tuple(means)


def totals(
    scores: Scores, best: Scores, arms: Indices, run: Run = map, dtype: type[np.floating] = np.float64
) -> Floats:
    """Return the sum of the larger of an arm's score and `best` over the questions.

    Args:
        scores: Shape (n_arms, n_questions).
        best: Shape (n_questions,).
        arms: Rows of the scores, at least one.
        run: Maps over threads.
        dtype: float32 is faster, with a relative error below `CLOSE`.

    Returns:
        Shape (len(arms),).
    """
    chunks = [arms] if run is map else np.array_split(arms, min(THREADS, len(arms)))
    return np.concatenate(list(run(partial(_totals, scores, best, dtype), chunks)))


def total(best: Scores) -> float:
    """Return the sum of `best`, with the rounding of `totals`."""
    return float(totals(best[np.newaxis], best, np.zeros(1, dtype=np.intp))[0])


def _totals(scores: Scores, best: Scores, dtype: type[np.floating], arms: Indices) -> Floats:
    if not best.any():  # nothing to compare with: rows are summed in place
        return np.concatenate([_sums(scores[arm : arm + 1], dtype) for arm in arms])
    rows = max(1, min(CACHED // len(best), len(arms)))
    buffer = np.empty((rows, len(best)), dtype=np.float32)
    totals = np.empty(len(arms))
    for at in range(0, len(arms), rows):
        block = arms[at : at + rows]
        for row, arm in zip(buffer, block, strict=False):
            np.maximum(scores[arm], best, out=row)
        totals[at : at + rows] = _sums(buffer[: len(block)], dtype)
    return totals


def _sums(rows: Scores, dtype: type[np.floating]) -> Floats:
    """Return the sum of each row, shape (n_rows,)."""
    whole = rows.shape[1] // LANES * LANES
    lanes = rows[:, :whole].reshape(len(rows), LANES, -1).sum(axis=1, dtype=dtype)
    sums: Floats = lanes.sum(axis=1, dtype=np.float64) + rows[:, whole:].sum(axis=1, dtype=np.float64)
    return sums
