"""Nearest neighbours: an arm is scored by what it was worth on the most similar training questions."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from armwise.agent.lab.routers.cross_validation import folds
from armwise.agent.routers.base import Parameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions

AT_ONCE = 1024
"""Questions that are compared with all training questions at a time."""

TIE = 1e-6
"""Cosines that differ by less are equal: in float32, a sum of products depends on its order."""


COUNTS = (10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300)
"""Numbers of nearest training questions, one of which cross-validation chooses."""


class NearestNeighbors(Parametrised[Parameters]):
    """Scores an arm by its mean utility on the nearest training questions, by embedding.

    Cross-validation chooses their number, from 10 to 300, by the squared error of the scores: a weight of
    cost and a prior need scores in the unit of the utility. Each arm has its own neighbours, the questions on
    which it is known; those that are as near as the last of them count, too. Beyond the number of known
    questions, a score is the mean of all. An arm without any known utility gets the smallest of all, at most
    0.

    A question whose embedding is 0 is as near to all, and scored with the means. Embeddings are saved in
    float16: 2 * dim + 8 * n_arms bytes a question.

    Source: Hu et al. 2024, RouterBench, arXiv:2403.12031, for language models; Cover and Hart 1967, Nearest
    neighbor pattern classification, for the rule.
    """

    kind = "knn"
    Params = Parameters
    k: int
    """The number of neighbours that was chosen."""

    def _fit(self, labels: RoutingDataset) -> None:
        examples, utility = _units(labels.features), labels.utility
        error = np.zeros(len(COUNTS))
        for training, held_out in folds(labels.features.texts):
            known = examples[training], utility[training]
            error += [
                np.nansum((scores - utility[held_out]) ** 2)
                for scores in mean_of_nearest(examples[held_out], *known, COUNTS)
            ]
        self.k = COUNTS[int(error.argmin())]
        self._examples, self._utility = examples, utility

    def _scores(self, features: Features) -> Floats:
        (scores,) = mean_of_nearest(_units(features), self._examples, self._utility, [self.k])
        return scores[:, positions(self._fitted.arms, features.arms)]

    def _state(self) -> State:
        examples = self._examples.astype(np.float16)
        return {"examples": examples, "utility": self._utility, "k": np.array(self.k)}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._examples, self._utility = state["examples"].astype(np.float32), state["utility"]
        self.k = int(state["k"])


def mean_of_nearest(
    asked: NDArray[np.float32], examples: NDArray[np.float32], utility: Floats, ks: Sequence[int]
) -> Iterator[Floats]:
    """Yield the mean utility of each arm on the `k` nearest questions on which it is known, for each `k`.

    Args:
        asked: Unit vectors of questions, shape (n, dim).
        examples: Unit vectors of the training questions, shape (m, dim).
        utility: Utility of the training questions, NaN where unknown, shape (m, n_arms).
        ks: Numbers of neighbours, each at least 1; of more than are known, all are taken.

    Yields:
        Scores in the unit of the utility, shape (n, n_arms).
    """
    known = ~np.isnan(utility)
    scores = np.full((len(ks), len(asked), utility.shape[1]), min(0.0, np.nan_to_num(utility).min()))
    # arms that are known on the same questions share their neighbours; usually these are all arms
    patterns, pattern = np.unique(known, axis=1, return_inverse=True)
    for number, rows in enumerate(patterns.T):
        if not rows.any():
            continue
        arms, near, worth = np.flatnonzero(pattern.ravel() == number), examples[rows], utility[rows]
        places = [len(near) - min(k, len(near)) for k in ks]
        for start in range(0, len(asked), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            cosines = asked[part] @ near.T
            ordered = np.partition(cosines, sorted(set(places)), axis=1)
            for at, place in enumerate(places):
                chosen = (cosines >= ordered[:, place, None] - np.float32(TIE)).astype(np.float64)
                scores[at, part, arms] = (
                    chosen @ worth[:, arms] / chosen.sum(axis=1, keepdims=True)
                ).T  # an index of arms beside a number and a slice comes first
    yield from scores


def _units(features: Features) -> NDArray[np.float32]:
    """Return the embeddings at length 1 or 0, rounded to float16, shape (n, dim). Raises RouterError."""
    vectors = features.embedding.astype(np.float64)
    if not vectors.shape[1]:
        raise RouterError("router 'knn' needs the questions' embeddings")
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length > 0.0, length, 1.0)).astype(np.float16).astype(np.float32)
