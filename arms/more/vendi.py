"""Vendi: passages that are relevant and diverse by the Vendi score."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from armwise.arms.more.diversity import Cosines, DiverseArm, DiverseParams, Picks
from armwise.arms.retrievers.dense import Candidates
from armwise.number import Number

ROUNDING = 1e-6
"""Tolerance of bounds, above their rounding errors; candidates within it of the best are compared exactly."""


class VendiParams(DiverseParams):
    """Parameters of a Vendi arm."""

    diversity: Number = Field(
        ge=0.0,
        le=1.0,
        description="Weight of diversity (the Vendi score). Relevance gets the rest.",
    )


def vendi_score(kernels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the effective number of items of each set: exp of the entropy of the eigenvalues of K / n.

    Args:
        kernels: Similarities within each set, with a diagonal of 1, shape (sets, n, n).

    Returns:
        Shape (sets,), in [1, n].

    >>> vendi_score(np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]])).round(6).tolist()
    [2.0, 1.0]

    Source: Friedman and Dieng 2022, The Vendi Score: A Diversity Evaluation Metric for
    Machine Learning, arXiv:2210.02410.
    """
    from scipy.special import entr

    spectra = np.linalg.eigvalsh(kernels / kernels.shape[-1])
    entropies = entr(np.maximum(spectra, 0.0)).sum(axis=-1)  # an eigenvalue of 0 may be computed below 0
    scores: NDArray[np.float64] = np.exp(entropies)
    return scores


def vendi_bound(purity: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the highest Vendi score of `n` items whose squared eigenvalues of K / n sum to `purity`.

    Of all spectra with that sum, one large eigenvalue and n - 1 equal small ones have the highest entropy.

    Args:
        purity: In [1 / n, 1], any shape.
        n: At least 2.

    >>> vendi_bound(np.array([0.25, 1.0]), 4).tolist()
    [4.0, 1.0]

    Source: Harremoes and Topsoe 2001, Inequalities between entropy and index of
    coincidence derived from information diagrams, IEEE Transactions on Information Theory 47(7).
    """
    from scipy.special import entr

    large = (1.0 + np.sqrt(np.maximum((n - 1) * (n * purity - 1.0), 0.0))) / n
    small = np.maximum(1.0 - large, 0.0) / (n - 1)
    scores: NDArray[np.float64] = np.exp(entr(large) + (n - 1) * entr(small))
    return scores


def vendi_picks(
    relevance: NDArray[np.floating],
    vectors: NDArray[np.floating],
    diversities: NDArray[np.float64],
    n: int,
) -> Picks:
    """Pick `n` candidates greedily for each diversity s, ties by index.

    The objective is s VS(T) + (1 - s) sum of the relevance in T. Eigenvalues are computed only
    for candidates whose bound may be the best, and once for all configurations with the
    same set.

    Args:
        relevance: Cosines between question and candidate, shape (m,).
        vectors: Vectors of the candidates, shape (m, dim).
        diversities: In [0, 1], shape (c,).
        n: At least 1, at most m.

    Returns:
        Indices of candidates, and their gains, both of shape (c, n).

    >>> relevance, vectors = np.array([0.9, 0.8, 0.5]), np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> vendi_picks(relevance, vectors, np.array([0.1, 0.9]), 2)[0].tolist()
    [[0, 1], [0, 2]]

    Source: Retriever Portfolios, 2026, arXiv:2605.31176 (Vendi); after Rezaei and Dieng
    2025, Vendi-RAG, arXiv:2502.11228.
    """
    cosines = Cosines(vectors)
    weights = diversities[:, np.newaxis]
    relevances = (1.0 - weights) * relevance
    picks = relevances.argmax(axis=1)[:, np.newaxis]
    gains = weights + np.take_along_axis(relevances, picks, axis=1)
    reached = weights  # s times the Vendi score of the picks; that of one passage is 1
    for _ in range(1, n):
        sets, set_indices = _distinct(picks)
        values = _values(_Grown(sets, cosines.rows(sets)), set_indices, weights, relevances, picks)
        best = values.argmax(axis=1)[:, np.newaxis]
        value = np.take_along_axis(values, best, axis=1)
        picks = np.hstack([picks, best])
        gains = np.hstack([gains, value - reached])
        reached = value - np.take_along_axis(relevances, best, axis=1)
    return picks, gains


class _Grown:
    """Sets of candidates, each extended by any single candidate.

    Args:
        sets: Indices of candidates, shape (u, t).
        cosines: Cosines of these with all candidates, shape (u, t, m).
    """

    def __init__(self, sets: NDArray[np.intp], cosines: NDArray[np.float64]) -> None:
        self._cosines = cosines
        self._within = np.take_along_axis(cosines, sets[:, np.newaxis, :], axis=2)
        self._n = sets.shape[1] + 1

    def bounds(self) -> NDArray[np.float64]:
        """Return an upper bound of each Vendi score, shape (u, m)."""
        within = np.einsum("uij,uij->u", self._within, self._within)[:, np.newaxis]
        across = np.einsum("utm,utm->um", self._cosines, self._cosines)
        return vendi_bound((within + 2.0 * across + 1.0) / self._n**2, self._n)

    def scores(self, sets: NDArray[np.intp], joined: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the Vendi scores of sets, each with an added candidate, all of shape (e,)."""
        kernels = np.ones((len(sets), self._n, self._n))
        kernels[:, :-1, :-1] = self._within[sets]
        kernels[:, -1, :-1] = kernels[:, :-1, -1] = self._cosines[sets, :, joined]
        return vendi_score(kernels)


def _values(
    grown: _Grown,
    set_indices: NDArray[np.intp],
    weights: NDArray[np.float64],
    relevances: NDArray[np.float64],
    picks: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Return each objective with each candidate added, shape (c, m); -inf: its bound rules it out as best."""
    most = grown.bounds()
    bounds = weights * most[set_indices] + relevances
    np.put_along_axis(bounds, picks, -np.inf, axis=1)

    def exact(open_to: NDArray[np.bool_]) -> NDArray[np.float64]:
        configurations, candidates = np.nonzero(open_to)
        needed = np.zeros(most.shape, dtype=bool)
        needed[set_indices[configurations], candidates] = True
        scores = np.zeros(most.shape)
        scores[needed] = grown.scores(*np.nonzero(needed))
        return np.where(open_to, weights * scores[set_indices] + relevances, -np.inf)

    promising = exact(bounds == bounds.max(axis=1, keepdims=True))
    return exact(bounds >= promising.max(axis=1, keepdims=True) - ROUNDING)


def _distinct(picks: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct sets among the rows, and the index of each row's set.

    >>> _distinct(np.array([[5, 3], [3, 5], [5, 4]]))
    (array([[3, 5],
           [4, 5]]), array([0, 0, 1]))
    """
    sets: dict[tuple[int, ...], int] = {}
    set_indices = [sets.setdefault(tuple(row), len(sets)) for row in np.sort(picks, axis=1).tolist()]
    return np.array(list(sets)), np.array(set_indices)


class VendiArm(DiverseArm[VendiParams]):
    """Picks the nearest passages, balanced with diversity by the Vendi score."""

    kind = "vendi"
    params = VendiParams
    example: ClassVar = {"backbone": "minilm", "diversity": 0.5}
    features = ("diversity",)

    @staticmethod
    @override
    def pick(configurations: Sequence[VendiParams], candidates: Candidates, n: int) -> Picks:
        diversities = np.array([params.diversity for params in configurations])
        return vendi_picks(candidates.relevance, candidates.vectors, diversities, n)
