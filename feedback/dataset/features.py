"""Hash a stored context into a dense feature vector."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from armwise.feedback.arrays import Integers
from armwise.feedback.dataset.log import Categorize, Describe
from armwise.feedback.events import ROUTER, SIMILARITY, Context, Example
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


def described(examples: Callable[[], Iterator[Example]]) -> Describe:
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


def arm_categories(examples: Callable[[], Iterator[Example]]) -> Categorize:
    """Return a function from arms and positions to the discrete features of these arms.

    Features named `family=bm25`, `family=dense` and so on are values of one feature, `family`; others are
    categories by their number, rounded to six digits. Scores of a router and similarities are left out: they
    predict the reward of the row.

    Args:
        examples: Starts a new pass over the examples, in order.
    """

    def categorize(arms: tuple[str, ...], seq: Integers) -> Integers:
        columns: dict[str, Integers] = {}
        values: dict[str, dict[object, int]] = {}
        for row, context in enumerate(_contexts(examples(), seq)):
            for column, arm in enumerate(arms):
                for name, value in _discrete(context.arms.get(arm, {})).items():
                    if name not in columns:
                        columns[name] = np.zeros((len(seq), len(arms)), dtype=np.int64)
                        values[name] = {}
                    codes = values[name]
                    columns[name][row, column] = codes.setdefault(value, len(codes) + 1)
        if not columns:
            return np.zeros((len(seq), len(arms), 0), dtype=np.int64)
        return np.stack([columns[name] for name in sorted(columns)], axis=2)

    return categorize


def _discrete(features: Mapping[str, float]) -> Mapping[str, object]:
    """Return the features of an arm as categories by name.

    >>> _discrete({"family=bm25": 1.0, "cost": 0.1234567, "router": 0.9})
    {'family': 'bm25', 'cost': 0.123457}
    """
    categories: dict[str, object] = {}
    for name, value in features.items():
        if name in (ROUTER, SIMILARITY) or value == 0.0:
            continue
        stem, equals, category = name.partition("=")
        if equals and value == 1.0:
            before = categories.get(stem)
            categories[stem] = category if before is None else f"{before},{category}"
        else:
            categories[name] = round(value, 6)
    return categories


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
