"""Support vector machines: regression of the utility of an arm, or classification of pairs of arms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from armwise.agent.lab.routers.cross_validation import Rows, best_candidate
from armwise.agent.lab.routers.preprocessing import Preparation, check_rows_differ
from armwise.agent.routers.base import (
    IdentityParameters,
    Parametrised,
    Schema,
    StageParameters,
    State,
)
from armwise.agent.routers.dataset import Features, Floats, RoutingDataset, positions

LANDMARKS = 256
"""Most training rows that the kernel compares with."""

GAMMA = 0.01
"""Inverse width of the Gaussian kernel: the larger, the narrower."""

IDENTITY = 3.0
"""Factor of the one-hot code of the arm."""

COST = 1.0
"""Cost of an error: the larger, the weaker the regularisation."""

TUBE = 0.1
"""Errors up to this size cost nothing (the epsilon of SVR)."""

STRENGTHS = (3000.0, 300.0, 30.0, 3.0)
"""Penalties of pairs on the squared coefficients, the strongest first, one of which is chosen."""


class PointwiseSVM(Parametrised[IdentityParameters]):
    """Predicts the utility of each arm by support vector regression with a Gaussian kernel.

    A row has the features of the question, the features of the arm (medians of the training data in place of
    missing ones), and the one-hot code of the arm. The kernel is approximated by Nystroem's method, since the
    exact one compares all pairs of rows: exp(-gamma |row - landmark|^2) with a few training rows are the
    inputs of a linear regression. Errors beyond the tube count squared, which is solved faster.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743, the pointwise
    SVM; Williams and Seeger 2001, Using the Nystroem method to speed up kernel machines (NIPS).
    """

    kind = "pointwise_svm"
    Params = IdentityParameters

    def _fit(self, labels: RoutingDataset) -> None:
        from sklearn.kernel_approximation import Nystroem  # loading takes a second, and scoring does without
        from sklearn.svm import LinearSVR

        check_rows_differ(self.kind, self.chosen, labels.features)
        self._preparation = Preparation.fit(labels.features, self.chosen.dims)
        rows = self._rows(labels.features, np.eye(labels.utility.shape[1]))
        is_known = ~np.isnan(labels.utility.ravel())
        rows, utility = rows[is_known], labels.utility.ravel()[is_known]
        kernel = Nystroem(gamma=GAMMA, n_components=min(LANDMARKS, len(rows)), random_state=0)
        model = LinearSVR(
            C=COST,
            epsilon=TUBE,
            loss="squared_epsilon_insensitive",
            dual=False,
            max_iter=100_000,
        ).fit(kernel.fit_transform(rows), utility)
        self._landmarks, self._weights = kernel.components_, kernel.normalization_.T @ model.coef_
        self._intercept = np.array(model.intercept_).reshape(())

    def _scores(self, features: Features) -> Floats:
        arms = self._fitted.arms
        rows = self._rows(features, np.eye(len(arms))[positions(arms, features.arms)])
        # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b takes one product of matrices
        lengths = (rows**2).sum(axis=1)[:, None] + (self._landmarks**2).sum(axis=1)
        near = np.exp(-GAMMA * (lengths - 2.0 * rows @ self._landmarks.T))
        scores: Floats = near @ self._weights + self._intercept
        return scores.reshape(len(features), -1)

    def _rows(self, features: Features, names: Floats) -> Floats:
        """Return a row per arm, grouped by question, shape (n * n_arms, d)."""
        arm_features = self._preparation.impute(features)
        shape = arm_features.shape[:2]
        question = self._preparation.question(features)[:, None]
        shared = np.broadcast_to(question, (*shape, question.shape[2]))
        named = np.broadcast_to(IDENTITY * self.chosen.identity * names, (*shape, names.shape[1]))
        return np.concatenate([shared, arm_features, named], axis=2).reshape(shape[0] * shape[1], -1)

    def _state(self) -> State:
        state = {"landmarks": self._landmarks, "weights": self._weights, "intercept": self._intercept}
        return {**state, **self._preparation.state()}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._preparation = Preparation.restore(state)
        self._landmarks, self._weights, self._intercept = (
            state[name] for name in ("landmarks", "weights", "intercept")
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """A score linear in the features of the question, with weights per arm, and in the arm's features.

    Attributes:
        question: Coefficients of the question, shape (d, n_arms).
        own: Coefficients of the features of an arm, shape (n_columns,).
        offset: Offset of each arm, shape (n_arms,).
    """

    question: Floats
    own: Floats
    offset: Floats

    def scores(self, question: Floats, own: Floats) -> Floats:
        """Return scores, shape (n, n_arms), from features of shapes (n, d) and (n, n_arms, n_columns)."""
        scores: Floats = question @ self.question + own @ self.own + self.offset
        return scores


class PairwiseSVM(Parametrised[StageParameters]):
    """Ranks the better of two arms first, by a linear support vector machine on differences.

    A linear score of a pair is the difference of the scores of two arms, so arms are scored one by one. The
    features of the question would cancel out; they have coefficients of each arm instead. Ties are left out,
    and every pair counts once, as its reverse is the same row. A margin below 1 counts squared.

    The rows of the pairs, which may be millions, are never materialised: a step needs the scores of the arms
    and the two indices of each pair.

    Source: Kim and Diaz 2025, LTRR: Learning to rank retrievers for LLMs, arXiv:2506.13743, SVM-rank;
    Chapelle and Keerthi 2010, Efficient algorithms for ranking with SVMs (Information Retrieval 13).
    """

    kind = "pairwise_svm"
    Params = StageParameters
    strength: float
    """The penalty that was chosen."""

    def _fit(self, labels: RoutingDataset) -> None:
        self._preparation = Preparation.fit(labels.features, self.chosen.dims)
        question = self._preparation.question(labels.features)
        arm_features = self._preparation.impute(labels.features)

        def fit_and_score(training: Rows, held_out: Rows) -> Iterator[Floats]:
            linear = None
            for strength in STRENGTHS:  # each fit starts at the solution before
                linear = rank(
                    question[training], arm_features[training], labels.utility[training], strength, linear
                )
                yield linear.scores(question[held_out], arm_features[held_out])

        self.strength = STRENGTHS[best_candidate(len(STRENGTHS), fit_and_score, labels)]
        self._linear = rank(question, arm_features, labels.utility, self.strength)

    def _scores(self, features: Features) -> Floats:
        at = positions(self._fitted.arms, features.arms)
        linear = Linear(self._linear.question[:, at], self._linear.own, self._linear.offset[at])
        return linear.scores(self._preparation.question(features), self._preparation.impute(features))

    def _state(self) -> State:
        linear: dict[str, Any] = {name: getattr(self._linear, name) for name in Linear.__slots__}
        return {**linear, "strength": np.array(self.strength), **self._preparation.state()}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._preparation = Preparation.restore(state)
        self._linear = Linear(*(state[name] for name in Linear.__slots__))
        self.strength = float(state["strength"])


def rank(
    question: Floats, own: Floats, utility: Floats, strength: float, start: Linear | None = None
) -> Linear:
    """Minimise the squared hinge loss of the pairs, plus `strength` times the squared coefficients.

    Args:
        question: Features of the questions, shape (n, d).
        own: Features of the arms, shape (n, n_arms, n_columns).
        utility: Utilities, NaN where unknown, shape (n, n_arms); unknown arms are in no pair.
        strength: Strength of the regularisation; the offsets of the arms are free.
        start: Initial coefficients; None: 0.
    """
    from scipy.optimize import minimize

    n_arms, d, n_columns = utility.shape[1], question.shape[1], own.shape[2]
    # comparisons with NaN are false
    row, winner, loser = np.nonzero(utility[:, :, None] > utility[:, None, :])
    better, worse = row * n_arms + winner, row * n_arms + loser
    n_pairs = max(1, len(row))

    def unpack(x: Floats) -> Linear:
        ends = (d * n_arms, d * n_arms + n_columns)
        return Linear(x[: ends[0]].reshape(d, n_arms), x[ends[0] : ends[1]], x[ends[1] :])

    def loss(x: Floats) -> tuple[float, Floats]:
        linear = unpack(x)
        scores = linear.scores(question, own).ravel()
        hinge = np.maximum(1.0 - scores[better] + scores[worse], 0.0)
        sums = (np.bincount(at, hinge, minlength=utility.size) for at in (worse, better))
        slope = 2.0 * np.subtract(*sums).reshape(utility.shape)
        squared = (linear.question**2).sum() + (linear.own**2).sum()
        of_question = question.T @ slope + 2.0 * strength * linear.question
        of_own = np.tensordot(slope, own, axes=2) + 2.0 * strength * linear.own
        gradient = np.concatenate([of_question.ravel(), of_own, slope.sum(axis=0)])
        # a mean, so that the tolerances do not depend on the number of pairs
        return ((hinge**2).sum() + strength * squared) / n_pairs, gradient / n_pairs

    initial = np.zeros((d + 1) * n_arms + n_columns)
    if start is not None:
        initial = np.concatenate([start.question.ravel(), start.own, start.offset])
    solution = minimize(loss, initial, jac=True, method="L-BFGS-B", options={"ftol": 1e-7, "gtol": 1e-5})
    return unpack(solution.x)
