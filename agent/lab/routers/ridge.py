"""Ridge regression on the question, one per arm, with a penalty chosen by cross-validation."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.cross_validation import Rows, best_candidate
from armwise.agent.lab.routers.preprocessing import Preparation
from armwise.agent.routers.base import Parameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from armwise.agent.routers.features import terms

STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)
"""Penalties on the squared coefficients, the strongest first, one of which cross-validation chooses."""

LEAST = 3
"""Least number of questions in which a word must occur to count."""

DIMS = 32
"""Principal components of the embedding among the features."""


class RidgeParameters(Parameters):
    """What the regression sees."""

    sees: Literal["words", "embedding", "features"] = Field(
        "words",
        description=(
            "What the regression sees. `words`: TF-IDF of words and word pairs. `embedding`: the question's "
            "embedding. `features`: named features and the embedding's principal components."
        ),
    )


class RidgeRouter(Parametrised[RidgeParameters]):
    """Predicts the utility of each arm with its own ridge regression.

    All arms have the same penalty, and their intercepts are free: with a stronger one, the scores approach
    the mean utilities of the arms, and the choice the best single arm. On few or noisy questions a weak
    penalty is worse than that arm, so cross-validation chooses the penalty with the highest utility.
    (Utilities are not centred by question: where all are known, that changes no difference between arms.)

    If no word is in enough questions, the scores are the means of the arms.

    Source: Hoerl and Kennard 1970, Ridge regression: biased estimation for nonorthogonal problems.
    """

    kind = "ridge"
    Params = RidgeParameters
    strength: float
    """The penalty that was chosen."""

    def _fit(self, labels: RoutingDataset) -> None:
        features, utility = labels.features, labels.utility
        if self.chosen.sees == "words":
            self._words = fit_words(features.texts)
        elif self.chosen.sees == "features":
            self._preparation = Preparation.fit(features, DIMS)
        inputs = self._inputs(features)

        def fit_and_score(training: Rows, held_out: Rows) -> Iterator[Floats]:
            seen, unseen = inputs[training], inputs[held_out]
            for strength in STRENGTHS:
                coefficients, means = solve(seen, utility[training], strength)
                yield unseen @ coefficients + means

        self.strength = STRENGTHS[best_candidate(len(STRENGTHS), fit_and_score, labels)]
        self._coefficients, self._means = solve(inputs, utility, self.strength)

    def _scores(self, features: Features) -> Floats:
        scores: Floats = self._inputs(features) @ self._coefficients + self._means
        return scores[:, positions(self._fitted.arms, features.arms)]

    def _inputs(self, features: Features) -> Any:
        """Return the inputs of the regression, shape (n, d), sparse or dense."""
        if self.chosen.sees == "words":
            if self._words is None:
                return np.empty((len(features), 0))
            return self._words.transform(features.texts)
        if self.chosen.sees == "features":
            return self._preparation.question(features)
        if not features.embedding.shape[1]:
            raise RouterError("router 'ridge' on the embedding needs the questions' embeddings")
        return features.embedding.astype(np.float64)

    def _state(self) -> State:
        state = {
            "coefficients": self._coefficients,
            "means": self._means,
            "strength": np.array(self.strength),
        }
        if self.chosen.sees == "words":
            vocabulary = [] if self._words is None else self._words.get_feature_names_out()
            idf = np.empty(0) if self._words is None else self._words.idf_
            text = np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)
            return {**state, "words.text": text, "words.idf": idf}
        return {**state, **self._preparation.state()} if self.chosen.sees == "features" else state

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._coefficients, self._means = state["coefficients"], state["means"]
        self.strength = float(state["strength"])
        if self.chosen.sees == "words":
            vocabulary = state["words.text"].tobytes().decode().splitlines()
            self._words = _vectorizer(vocabulary=vocabulary) if vocabulary else None
            if self._words is not None:
                self._words.idf_ = state["words.idf"]
        elif self.chosen.sees == "features":
            self._preparation = Preparation.restore(state)


def fit_words(texts: Sequence[str]) -> Any:
    """Return a vectorizer of words and word pairs, fitted to questions; None: all words are too rare."""
    try:
        return _vectorizer(min_df=LEAST).fit(texts)
    except ValueError:  # scikit-learn refuses an empty vocabulary
        return None


def _vectorizer(**params: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=terms, sublinear_tf=True, **params)


def solve(inputs: Any, utility: Floats, strength: float) -> tuple[Floats, Floats]:
    """Return the coefficients of each arm, shape (d, n_arms), and its intercept, shape (n_arms,).

    Args:
        inputs: Inputs of the regression, shape (n, d), sparse or dense.
        utility: Utilities, NaN where unknown, shape (n, n_arms). An arm without any known utility gets the
            smallest of all, at most 0, as its intercept.
        strength: Penalty on the squared coefficients; the intercept is free.
    """
    from sklearn.linear_model import Ridge

    is_known = ~np.isnan(utility)
    coefficients, intercept = np.zeros((inputs.shape[1], utility.shape[1])), np.zeros(utility.shape[1])
    # one fit for all arms that are known on the same questions; usually that is all arms
    patterns, pattern = np.unique(is_known, axis=1, return_inverse=True)
    for number, rows in enumerate(patterns.T):
        arms, targets = np.flatnonzero(pattern.ravel() == number), utility[rows]
        if not rows.any():
            intercept[arms] = np.nan_to_num(utility).min()
        elif not inputs.shape[1]:
            intercept[arms] = targets[:, arms].mean(axis=0)
        else:
            solver = "cholesky" if isinstance(inputs, np.ndarray) else "sparse_cg"
            model = Ridge(alpha=strength, solver=solver, tol=1e-6).fit(inputs[rows], targets[:, arms])
            coefficients[:, arms] = model.coef_.reshape(
                len(arms), -1
            ).T  # scikit-learn drops the axis of a single arm
            intercept[arms] = model.intercept_
    return coefficients, intercept
