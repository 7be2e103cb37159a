"""Predict the reward of every arm, for the doubly robust estimates.

    ridge   one ridge regression on features shared by all arms and on features of each,
            so that a rarely drawn arm is predicted from the others
    means   the mean reward of each arm; uses no features, and is fast

Each row is predicted from rows with other questions (cross-fitting): a model that has seen the
reward it predicts biases the estimate upwards.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.events import Context
from armwise.feedback.texts import by_pseudonym

Model = Literal["ridge", "means"]

_WORDS = 1 << 12

_FEATURES = 1 << 8
"""Hashed columns for the words of a question and for its named features."""


def featurize(contexts: Sequence[Context]) -> Any:
    """Hash the words and the named features of each question, shape (n, d), sparse.

    Embeddings are added if all contexts have one, of the same length.
    """
    from scipy import sparse
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=_WORDS).transform(c.question for c in contexts)
    features = FeatureHasher(n_features=_FEATURES).transform(by_pseudonym(c.features) for c in contexts)
    blocks = [words, features]
    if len({len(c.embedding) for c in contexts}) == 1 and contexts[0].embedding:
        blocks.append(sparse.csr_matrix(np.array([c.embedding for c in contexts])))
    return sparse.hstack(blocks, format="csr")


def stack(blocks: Sequence[Any]) -> Any:
    """Stack features of consecutive contexts, shape (n, d); without embeddings unless all have them."""
    from scipy import sparse

    if len({block.shape[1] for block in blocks}) > 1:
        blocks = [block[:, : _WORDS + _FEATURES] for block in blocks]
    return sparse.vstack(blocks, format="csr")


def cross_fit(
    X: Any,  # noqa: N803 - a matrix, as in scikit-learn
    drawn: Integers,
    reward: Floats,
    questions: Integers,
    n_arms: int,
    rng: np.random.Generator,
    *,
    model: Model = "ridge",
    folds: int = 5,
    penalty: float = 10.0,
) -> Floats:
    """Predict the reward of every arm in every row, from rows with other questions.

    Predictions are clipped to the rewards in the training folds.

    Args:
        X: Features, shape (n, d), sparse or dense; `means` ignores them.
        drawn: Column of the drawn arm, shape (n,).
        reward: Reward, shape (n,).
        questions: Codes of the questions from 0, shape (n,).
        n_arms: Number of arms.
        rng: Source of the folds.
        model: `ridge` or `means`.
        folds: Number of folds of the questions; at most one per question.
        penalty: For `ridge`, weight of the squared coefficients, above 0. `means` adds
            one imaginary row with the mean reward of all arms to each arm.

    Returns:
        The predictions, shape (n, n_arms).

    Raises:
        ValueError: There are fewer than two questions or folds, so none to hold out; the model is
            unknown.
    """
    fold, folds = _folds(questions, folds, rng)
    match model:
        case "means":
            return _means(drawn, reward, fold, folds, n_arms)
        case "ridge":
            return _ridge(X, drawn, reward, fold, folds, n_arms, penalty)
    raise ValueError(f"unknown reward model {model!r}; available: ridge, means")


def _folds(questions: Integers, folds: int, rng: np.random.Generator) -> tuple[Integers, int]:
    """Return the fold of each row, the same for all rows of a question, and the number of folds.

    Args:
        questions: Codes 0, 1, 2, without gaps, shape (n,).
        folds: Largest number of folds; at most one per question.
        rng: Source of the folds.

    Raises:
        ValueError: There are fewer than two questions or folds, so none to hold out.
    """
    n_questions = int(questions.max()) + 1
    folds = min(folds, n_questions)
    if folds < 2:
        raise ValueError(
            f"cross-fitting needs at least 2 folds and 2 questions, got {folds} and {n_questions}"
        )
    fold: Integers = (rng.permutation(n_questions) % folds)[questions]
    return fold, folds


def _means(drawn: Integers, reward: Floats, fold: Integers, folds: int, n_arms: int) -> Floats:
    """Return the mean reward of each arm in the other folds, shape (n, n_arms)."""
    others = 1.0 - np.eye(folds)

    def elsewhere(cell: Integers, column: Floats | None, width: int) -> Floats:
        """Sum a column over the rows of each cell that lie in the other folds, shape (folds, width)."""
        sums: Floats = others @ np.bincount(cell, column, minlength=folds * width).reshape(folds, width)
        return sums

    cell = fold * n_arms + drawn
    typical = elsewhere(fold, reward, 1) / elsewhere(fold, None, 1)
    count, total = elsewhere(cell, None, n_arms), elsewhere(cell, reward, n_arms)
    table: Floats = (total + typical) / (count + 1.0)
    return table[fold]


def _ridge(
    X: Any,  # noqa: N803 - a matrix, as in scikit-learn
    drawn: Integers,
    reward: Floats,
    fold: Integers,
    folds: int,
    n_arms: int,
    penalty: float,
) -> Floats:
    """Return the predictions of a ridge regression on the other folds, shape (n, n_arms)."""
    from scipy import sparse
    from sklearn.linear_model import Ridge

    features = sparse.csr_matrix(X, dtype=np.float64)
    # Only large features are scaled: rare words stay small, so that the penalty holds them down.
    largest = abs(features).max(axis=0).toarray().ravel()
    features = features @ sparse.diags(1.0 / np.maximum(largest, 1.0), format="csr")
    design = _interactions(features, drawn, n_arms)
    q_hat = np.empty((len(reward), n_arms))
    for part in range(folds):
        held_out, training = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        earned, questions = reward[training], features[held_out]
        regression = Ridge(alpha=penalty, solver="sparse_cg").fit(design[training], earned)
        for arm in range(n_arms):
            rows = _interactions(questions, np.full(len(held_out), arm), n_arms)
            q_hat[held_out, arm] = regression.predict(rows).clip(earned.min(), earned.max())
    return q_hat


def _interactions(features: Any, arm: Integers, n_arms: int) -> Any:
    """Return [features, the arm, features in the columns of the arm], shape (n, d + n_arms + n_arms * d)."""
    from scipy import sparse

    n, d = features.shape
    ones = sparse.csr_matrix((np.ones(n), arm, np.arange(n + 1)), shape=(n, n_arms))
    arm_columns = features.indices + d * np.repeat(arm, np.diff(features.indptr))
    crossed = sparse.csr_matrix((features.data, arm_columns, features.indptr), shape=(n, n_arms * d))
    return sparse.hstack([features, ones, crossed], format="csr")
