"""Hash a stored context into a dense feature vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from armwise.feedback.events import Context
from armwise.feedback.texts import by_pseudonym

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

    if len({block.shape[1] for block in blocks}) > 1:  # not all have embeddings of one length
        plain = featurize([Context("")]).shape[1]
        blocks = [block[:, :plain] for block in blocks]
    return sparse.vstack(blocks, format="csr")
