"""What a model of rewards sees of a question."""

from armwise.feedback.dataset.features import featurize
from armwise.feedback.events import Context
from armwise.feedback.texts import pseudonym


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
