"""Cross-validation: splits of questions, out-of-fold scores, and the choice of a candidate by utility."""

import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import Router
from armwise.agent.routers.dataset import Floats, RoutingDataset

Rows = NDArray[np.intp]

FitAndScore = Callable[[Rows, Rows], Iterable[Floats]]
"""Fits each candidate to the training questions, and returns its scores on the held-out questions."""


FOLDS = 5
"""Default number of folds."""


def folds(texts: Sequence[str], n: int = FOLDS, seed: int = 0) -> list[tuple[Rows, Rows]]:
    """Split questions into `n` folds of about equal size.

    Questions with the same text share a fold. There are at most as many folds as texts; a single text gives
    an empty list.

    Returns:
        Indices of the training and the held-out questions of each fold.

    >>> texts = ["Who?", "When?", "Who?", "Why?"]
    >>> [(len(training), len(held_out)) for training, held_out in folds(texts, 3, 0)]
    [(2, 2), (3, 1), (3, 1)]
    """
    _, text = np.unique(np.array(texts), return_inverse=True)
    n_texts = int(text.max()) + 1
    part = (np.random.default_rng(seed).permutation(n_texts) % n)[text]
    cut = [
        (np.flatnonzero(part != number), np.flatnonzero(part == number)) for number in range(min(n, n_texts))
    ]
    return cut if n_texts > 1 else []


def draw_part(texts: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Return whether each question is in a random share of all, shape (n,); equal texts stay together.

    >>> int(draw_part(["Who?", "When?", "Who?", "Why?"], 0.34, 0).sum()) in (1, 2)
    True
    """
    _, text = np.unique(np.array(texts), return_inverse=True)
    n = int(text.max()) + 1
    chosen = np.random.default_rng(seed).permutation(n)[: round(n * share)]
    return np.isin(text, chosen)


def out_of_fold_scores(
    build: Callable[[], Router], labels: RoutingDataset, parts: Iterable[tuple[Rows, Rows]]
) -> Floats:
    """Return the scores of each question from a router fitted to other questions.

    Args:
        build: Builds a router.
        labels: The questions.
        parts: Indices of training and held-out questions, such as from `folds`.

    Returns:
        Shape (n_questions, n_arms), NaN for questions that are never held out.

    Raises:
        RouterError: A router cannot be fitted to the training questions of a part.
    """
    scores = np.full(labels.utility.shape, np.nan)
    for training, held_out in parts:
        scores[held_out] = build().fit(labels.rows(training)).scores(labels.features.rows(held_out))
    return scores


def kinds(table: Floats, n: int = FOLDS, seed: int = 0) -> list[tuple[Rows, Rows]]:
    """Split questions into at most `n` kinds with similar features, by k-means.

    Args:
        table: Features of the questions, shape (n_questions, n_names).
        n: Most kinds.
        seed: Seed that draws the first centres.

    Returns:
        For each kind, the indices of the other questions and of its questions; empty if all are alike.

    >>> table = np.array([[0.0, 1.0], [9.0, 1.0], [0.1, 1.0], [9.1, 1.0]])
    >>> sorted(held_out.tolist() for _, held_out in kinds(table, 2, 0))
    [[0, 2], [1, 3]]
    """
    from scipy.cluster.vq import kmeans2

    spread = table.std(axis=0)
    scaled = ((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).round(9)
    n = min(n, len(np.unique(scaled, axis=0)))
    if n < 2:
        return []
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a kind without a question
        _, part = kmeans2(scaled, n, minit="++", seed=seed)
    return [(np.flatnonzero(part != kind), np.flatnonzero(part == kind)) for kind in np.unique(part)]


def choose_best(scores: Floats, utility: Floats) -> Floats:
    """Return the utilities of the best-scored arms, shape (n_compared,).

    Args:
        scores: Scores of the arms, shape (n, n_arms).
        utility: Utility of the arms, NaN where unknown, shape (n, n_arms). Only known arms can be chosen, and
            only questions with at least two known arms are compared.

    >>> choose_best(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([[0.0, 1.0], [np.nan, 5.0]])).tolist()
    [1.0]
    """
    is_known = ~np.isnan(utility)
    compared = is_known.sum(axis=1) > 1
    chosen = np.where(is_known, scores, -np.inf).argmax(axis=1)
    return np.asarray(utility[compared, chosen[compared]])


def best_candidate(n_candidates: int, fit_and_score: FitAndScore, labels: RoutingDataset) -> int:
    """Return the candidate with the highest utility on held-out questions; of ties, the first.

    Utility is the purpose of a router. The squared error would also depend on arms that are never the best,
    and overfit when the best arms are alike.

    Args:
        n_candidates: Number of candidates.
        fit_and_score: Yields the scores of each candidate.
        labels: The questions.
    """
    earned = np.zeros(n_candidates)
    for training, held_out in folds(labels.features.texts):
        candidates = fit_and_score(training, held_out)
        earned += [choose_best(scores, labels.utility[held_out]).sum() for scores in candidates]
    return int(earned.argmax())
