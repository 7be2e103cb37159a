"""What a model of rewards sees of a question."""

import numpy as np

from armwise.feedback.dataset.features import arm_categories, featurize
from armwise.feedback.events import ROUTER, SIMILARITY, Context
from armwise.feedback.texts import pseudonym
from tests.feedback.examples import example


def test_a_name_of_a_feature_and_its_pseudonym_have_the_same_column() -> None:
    named, erased = ({"tier=free": 1.0, "length": 0.5}, {pseudonym("tier=free"): 1.0, "length": 0.5})
    rows = featurize([Context("", features) for features in (named, erased)])
    assert (rows[0] != rows[1]).nnz == 0
    assert rows[0].nnz == 2


def test_embeddings_that_not_all_rows_have_in_one_length_are_left_out() -> None:
    embeddings: tuple[tuple[float, ...], ...] = ((0.1,), (0.1, 0.2), ())
    rows = featurize([Context("red", {}, embedding) for embedding in embeddings])
    assert rows.shape == (3, 4096 + 256), "hashed words and named features"
    assert featurize([Context("red", {}, (0.1, 0.2))] * 3).shape == (3, 4096 + 256 + 2)


def test_the_features_of_arms_are_categories_by_row_and_what_predicts_rewards_is_none() -> None:
    own = [
        {"bm25": {"family=words": 1.0, "cost": 0.1}, "dense": {"family=vectors": 1.0, "cost": 0.1}},
        {"bm25": {"family=words": 1.0, "cost": 0.2, ROUTER: 0.9}},
        {"dense": {"family=words": 1.0, "cost": 0.1, SIMILARITY: 0.3}, "other": {"new": 1.0}},
    ]
    examples = [example(seq, context=Context("", arms=arms)) for seq, arms in enumerate(own, start=1)]
    codes = arm_categories(lambda: iter(examples))(("dense", "bm25"), np.array([1, 2, 3]))
    assert codes.shape == (3, 2, 2), "the cost, and the family"
    cost, family = codes[:, :, 0].tolist(), codes[:, :, 1].tolist()
    assert family == [[1, 2], [0, 2], [2, 0]]
    assert cost == [[1, 1], [0, 2], [1, 0]]
    some = arm_categories(lambda: iter(examples))(("other",), np.array([2, 3]))
    assert some.tolist() == [[[0]], [[1]]]
    assert arm_categories(lambda: iter(examples))(("other",), np.array([1])).shape == (1, 1, 0)
