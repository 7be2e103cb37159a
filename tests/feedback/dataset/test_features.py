"""What a model of rewards sees of a question."""

from feedback.dataset.features import featurize
from feedback.events import Context
from feedback.texts import pseudonym


def test_a_name_of_a_feature_and_its_pseudonym_have_the_same_column() -> None:
    named, erased = ({"tier=free": 1.0, "length": 0.5}, {pseudonym("tier=free"): 1.0, "length": 0.5})
    rows = featurize([Context("", features) for features in (named, erased)])
    assert (rows[0] != rows[1]).nnz == 0
    assert rows[0].nnz == 2
