"""Held-out questions: what a router that never saw them would have earned on them."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agent.routers.dataset import Floats, RoutingDataset

Rows = NDArray[np.intp]

Rehearsal = Callable[[Rows, Rows], Iterable[Floats]]
"""From the questions to fit to and those held out to the scores of the latter by each candidate."""


def folds(texts: Sequence[str], n: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Cut questions into `n` parts of about equal size, and pair the others with each.

    All questions of the same text are in one part: what is held out was not seen. There are fewer parts
    where there are fewer texts, and none where there is one.

    Returns:
        The questions to fit to, and those held out.

    >>> [(len(seen), len(held_out)) for seen, held_out in folds(["Who?", "When?", "Who?", "Why?"], 3, 0)]
    [(2, 2), (3, 1), (3, 1)]
    """
    _, text = np.unique(np.array(texts), return_inverse=True)
    n_texts = int(text.max()) + 1
    part = (np.random.default_rng(seed).permutation(n_texts) % n)[text]
    cut = [
        (np.flatnonzero(part != number), np.flatnonzero(part == number)) for number in range(min(n, n_texts))
    ]
    return cut if n_texts > 1 else []


def worth(scores: Floats, utility: Floats) -> float:
    """Return what the best-scored arms are worth together.

    Args:
        scores: Shape (n, n_arms).
        utility: NaN where unknown: such an arm is not asked, and questions with fewer than two others do
            not count. Shape (n, n_arms).

    >>> worth(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([[0.0, 1.0], [np.nan, 5.0]]))
    1.0
    """
    known = ~np.isnan(utility)
    compared = known.sum(axis=1) > 1
    asked = np.where(known, scores, -np.inf).argmax(axis=1)
    return float(utility[compared, asked[compared]].sum())


def most_worth(n_candidates: int, rehearse: Rehearsal, labels: RoutingDataset, n: int, seed: int) -> int:
    """Return the candidate whose best-scored arms are worth most on held-out questions; of ties, the first.

    This is what a router is for. The squared error says less of it: it is won on arms that nobody would
    ask, and where those worth asking are alike, it overfits.

    Args:
        n_candidates: How many.
        rehearse: Fits and asks them.
        labels: The questions.
        n: How many parts are held out in turn.
        seed: Of the parts.
    """
    if n_candidates == 1:
        return 0
    earned = np.zeros(n_candidates)
    for seen, held_out in folds(labels.features.texts, n, seed):
        earned += [worth(scores, labels.utility[held_out]) for scores in rehearse(seen, held_out)]
    return int(earned.argmax())
