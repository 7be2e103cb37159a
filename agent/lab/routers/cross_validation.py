"""Cross-validation: held-out questions, out-of-fold scores, and a parameter chosen by the utility on them."""

import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import Router
from armwise.agent.routers.dataset import Floats, RoutingDataset

Rows = NDArray[np.intp]

FitAndScore = Callable[[Rows, Rows], Iterable[Floats]]
"""Fits each candidate to the training questions, and returns its scores of the held-out ones."""


def folds(texts: Sequence[str], n: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Split questions into `n` folds of about equal size.

    Questions of the same text are in one fold. There are fewer folds if there are fewer texts, and none if
    there is one.

    Returns:
        Of each fold, the training questions and the held-out ones.

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
    """Return whether each question is in a random share of them; equal texts are together, shape (n,).

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
    """Return the score of each question by a router that was not fitted to it.

    Args:
        build: Builds a router.
        labels: The questions.
        parts: Training questions and held-out ones.

    Returns:
        NaN where a question was never held out, shape (n_questions, n_arms).

    Raises:
        RouterError: The training questions of a part cannot be fitted to.
    """
    scores = np.full(labels.utility.shape, np.nan)
    for training, held_out in parts:
        scores[held_out] = build().fit(labels.rows(training)).scores(labels.features.rows(held_out))
    return scores


def kinds(table: Floats, n: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Split questions into `n` kinds that are alike in their features, by k-means.

    Args:
        table: Features of the questions, shape (n_questions, n_names).
        n: Number of kinds at most.
        seed: Seed that draws the first centres.

    Returns:
        Of each kind, the other questions and its own; none if all questions are alike.

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


def worth(scores: Floats, utility: Floats) -> float:
    """Return the sum of the utilities of the best-scored arms.

    Args:
        scores: Shape (n, n_arms).
        utility: NaN where unknown: such an arm is not chosen, and questions with fewer than two others do
            not count. Shape (n, n_arms).

    >>> worth(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([[0.0, 1.0], [np.nan, 5.0]]))
    1.0
    """
    is_known = ~np.isnan(utility)
    compared = is_known.sum(axis=1) > 1
    chosen = np.where(is_known, scores, -np.inf).argmax(axis=1)
    return float(utility[compared, chosen[compared]].sum())


def best_candidate(
    n_candidates: int, fit_and_score: FitAndScore, labels: RoutingDataset, n: int, seed: int
) -> int:
    """Return the candidate with the highest utility on held-out questions; of ties, the first.

    The utility is the purpose of a router. The squared error depends on arms that are never the best one, and
    overfits where the best ones are alike.

    Args:
        n_candidates: Number of candidates.
        fit_and_score: Yields the scores of each candidate.
        labels: The questions.
        n: Number of folds.
        seed: Seed that shuffles clusters or questions into folds.
    """
    if n_candidates == 1:
        return 0
    earned = np.zeros(n_candidates)
    for training, held_out in folds(labels.features.texts, n, seed):
        earned += [worth(scores, labels.utility[held_out]) for scores in fit_and_score(training, held_out)]
    return int(earned.argmax())
