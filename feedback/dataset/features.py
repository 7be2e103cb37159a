"""Hash a stored context into a dense feature vector."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from armwise.feedback.arrays import Integers
from armwise.feedback.dataset.log import Describe
from armwise.feedback.events import Context, Example
from armwise.feedback.texts import by_pseudonym

_CHUNK = 4096

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


def make_describer(examples: Callable[[], Iterator[Example]]) -> Describe:
    """Return a function from positions to features, which reads the examples again.

    Args:
        examples: Starts a new pass over the examples, in order.
    """

    def describe(seq: Integers) -> Any:
        from scipy import sparse

        contexts_in_order = _contexts(examples(), seq)
        blocks = []
        while contexts := list(islice(contexts_in_order, _CHUNK)):
            blocks.append(featurize(contexts))
        if len({block.shape[1] for block in blocks}) > 1:  # not all have embeddings of one length
            plain = featurize([Context("")]).shape[1]
            blocks = [block[:, :plain] for block in blocks]
        return sparse.vstack(blocks, format="csr")

    return describe


def _contexts(examples: Iterator[Example], seq: Integers) -> Iterator[Context]:
    """Yield the contexts at rising positions."""
    rest = iter(np.asarray(seq).tolist())
    position = next(rest, None)
    for example in examples:
        if position is None:
            return
        if example.seq == position:
            yield example.decision.context
            position = next(rest, None)
