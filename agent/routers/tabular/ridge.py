"""Ridge regression on the question: one an arm, held down as far as held-out questions want it."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from agent.routers.base import Parameters, Parametrised, Schema, State, Strengths
from agent.routers.cross_validation import Rows, most_worth
from agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from agent.routers.preprocessing import Preparation


class RidgeParameters(Parameters):
    """What a ridge regression looks at, and how strongly it is held down."""

    sees: Literal["words", "embedding", "features"] = Field(
        "words",
        description="TF-IDF of words and pairs of words, the embedding, or named numbers and PCA of it.",
    )
    strengths: Strengths = Field(
        [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0],
        description="Weights of the squared coefficients, of which held-out questions choose one.",
    )
    folds: int = Field(5, ge=2, description="Parts of the questions that are held out in turn to see it.")
    least: int = Field(3, ge=1, description="Questions that a word must stand in to count.")
    dims: int = Field(32, ge=0, description="Principal components among the features.")
    seed: int = Field(0, ge=0, description="Of the parts.")


class RidgeRouter(Parametrised[RidgeParameters]):
    """Scores an arm with its expected utility, by one ridge regression an arm.

    All arms share one strength, and their means are free: the stronger, the nearer the scores to the
    mean utilities of the arms, that is to the best single arm. On few or noisy questions a weak strength
    earns less than that arm does, so the strength is the one whose arms earn most on held-out questions.
    (Utilities are not centred by question: where all are known, that changes no difference between arms.)

    Where no word stands in enough questions, the scores are the means of the arms.

    Source: Hoerl and Kennard 1970, Ridge regression: biased estimation for nonorthogonal problems.
    """

    kind = "ridge"
    Params = RidgeParameters
    strength: float
    """The one that was chosen."""

    def _fit(self, labels: RoutingDataset) -> None:
        features, utility = labels.features, labels.utility
        if self.chosen.sees == "words":
            self._words = fit_words(features.texts, self.chosen.least)
        elif self.chosen.sees == "features":
            self._preparation = Preparation.of(features, self.chosen.dims)
        inputs = self._inputs(features)
        strengths = sorted(self.chosen.strengths, reverse=True)

        def rehearse(seen: Rows, held_out: Rows) -> Iterator[Floats]:
            for strength in strengths:
                coefficients, means = solve(inputs[seen], utility[seen], strength)
                yield inputs[held_out] @ coefficients + means

        at = most_worth(len(strengths), rehearse, labels, self.chosen.folds, self.chosen.seed)
        self.strength = strengths[at]
        self._coefficients, self._means = solve(inputs, utility, self.strength)

    def _scores(self, features: Features) -> Floats:
        scores: Floats = self._inputs(features) @ self._coefficients + self._means
        return scores[:, positions(self._fitted.arms, features.arms)]

    def _inputs(self, features: Features) -> Any:
        """Return what the regression sees of each question, shape (n, d), sparse or dense."""
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
            known = [] if self._words is None else self._words.get_feature_names_out()
            idf = np.empty(0) if self._words is None else self._words.idf_
            text = np.frombuffer("\n".join(known).encode(), dtype=np.uint8)
            return {**state, "words.text": text, "words.idf": idf}
        return {**state, **self._preparation.state()} if self.chosen.sees == "features" else state

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._coefficients, self._means = state["coefficients"], state["means"]
        self.strength = float(state["strength"])
        if self.chosen.sees == "words":
            known = state["words.text"].tobytes().decode().splitlines()
            self._words = _vectorizer(vocabulary=known) if known else None
            if self._words is not None:
                self._words.idf_ = state["words.idf"]
        elif self.chosen.sees == "features":
            self._preparation = Preparation.restore(state)


def fit_words(texts: Sequence[str], least: int) -> Any:
    """Return a fitted vectorizer of words and pairs of words, or None where no word is frequent enough.

    Args:
        texts: The training questions.
        least: Questions that a word must stand in to count.
    """
    try:
        return _vectorizer(min_df=least).fit(texts)
    except ValueError:  # scikit-learn refuses an empty vocabulary
        return None


def _vectorizer(**params: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **params)


def solve(inputs: Any, utility: Floats, strength: float) -> tuple[Floats, Floats]:
    """Return the coefficients of each arm, shape (d, n_arms), and its intercept, shape (n_arms,).

    Args:
        inputs: Shape (n, d), sparse or dense.
        utility: NaN where unknown: left out. An arm of which nothing is known gets the smallest, 0 at
            most. Shape (n, n_arms).
        strength: Weight of the squared coefficients; the intercept is free.
    """
    from sklearn.linear_model import Ridge

    known = ~np.isnan(utility)
    coefficients, intercept = np.zeros((inputs.shape[1], utility.shape[1])), np.zeros(utility.shape[1])
    # arms that are known on the same questions, as most often all are, share the work
    patterns, pattern = np.unique(known, axis=1, return_inverse=True)
    for number, rows in enumerate(patterns.T):
        arms, seen = np.flatnonzero(pattern.ravel() == number), utility[rows]
        if not rows.any():
            intercept[arms] = np.nan_to_num(utility).min()
        elif not inputs.shape[1]:
            intercept[arms] = seen[:, arms].mean(axis=0)
        else:
            solver = "cholesky" if isinstance(inputs, np.ndarray) else "sparse_cg"
            model = Ridge(alpha=strength, solver=solver, tol=1e-6).fit(inputs[rows], seen[:, arms])
            coefficients[:, arms] = model.coef_.reshape(len(arms), -1).T  # one arm comes without its axis
            intercept[arms] = model.intercept_
    return coefficients, intercept
