"""Our columns beside `rank_bm25`: the same scores for any documents and any query."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from armwise.arms.retrievers.bm25 import EPSILON, BM25Params, WordWeights

# few words, so that some are in over half of the documents and some queries repeat one
WORD = st.sampled_from([*"abcdefgh", "rare", "rarer"])
DOCUMENTS = st.lists(st.lists(WORD, max_size=12), min_size=1, max_size=20).filter(any)
PARAMS = st.builds(
    BM25Params,
    k1=st.sampled_from([0.5, 1.2, 2.0]),
    b=st.sampled_from([0.0, 0.75, 1.0]),
)


def shuffled(n: int) -> NDArray[np.intp]:
    """Return the positions of rows in another order."""
    return np.random.default_rng(n).permutation(n)


@given(DOCUMENTS, st.lists(WORD | st.just("unknown"), max_size=8), PARAMS)
def test_scores_equal_those_of_rank_bm25(
    documents: list[list[str]], query: list[str], params: BM25Params
) -> None:
    columns = WordWeights.build(documents, shuffled(len(documents)), params)
    peer = BM25Okapi(documents, k1=params.k1, b=params.b, epsilon=EPSILON)

    scores, matched = columns.scores(query)

    with np.errstate(invalid="ignore"):  # the peer divides 0 by 0 in a document without words when b is 1
        expected = np.nan_to_num(peer.get_scores(query))[columns.positions(np.arange(len(documents)))]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)
    with_a_word = [set(query) & set(documents[p]) for p in columns.positions(np.arange(len(documents)))]
    assert matched.tolist() == np.flatnonzero(with_a_word).tolist()
