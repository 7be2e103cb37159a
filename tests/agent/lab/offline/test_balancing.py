"""Which of the made questions are kept, so that they favour neither lexical nor dense arms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.lab.offline.balancing import balance, on_par, sample
from armwise.arms.lab.portfolio import MatrixArms, ScoreMatrix
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec
from armwise.feedback.ope.sample import effective_size


def test_another_seed_draws_another_sample() -> None:
    weights = np.ones(1000)
    assert sample(weights, 9, 0).tolist() != sample(weights, 9, 1).tolist()


weighted = st.lists(
    st.tuples(st.floats(0.01, 10.0), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=30,
)


@given(weighted)
def test_balanced_families_score_the_same(rows: list[tuple[float, float, float]]) -> None:
    weights, lexical, dense = np.array(rows).T
    found = balance(weights, lexical, dense)
    difference = lexical - dense
    if (difference > 0).any() and (difference < 0).any():
        assert (found * difference).sum() == pytest.approx(0.0, abs=1e-6 * found.sum())
        assert found.mean() == pytest.approx(1.0)
        ratio = found / weights  # depends on the difference alone
        for value in set(difference.tolist()):
            of = ratio[difference == value]
            assert of == pytest.approx(of[0])
    else:
        assert found is weights


def test_questions_of_weight_zero_do_not_count_among_those_on_which_a_family_is_better() -> None:
    weights = np.array([1.0, 1.0, 0.0])
    assert balance(weights, np.array([1.0, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])) is weights


@given(
    st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-3), st.integers(0, 9)
)
def test_a_sample_holds_no_row_twice_and_none_of_weight_zero(given_weights: list[float], seed: int) -> None:
    weights = np.array(given_weights)
    size = effective_size(weights)
    assert 1 - 1e-9 <= size <= len(weights) + 1e-9
    kept = sample(weights, round(size), seed)
    assert len(set(kept.tolist())) == len(kept) <= round(size)
    assert (weights[kept] > 0).all()


def scored(kinds: dict[str, str], scores: np.ndarray[Any, Any], *corpora: str) -> ScoreMatrix:
    """Return scores of arms of these kinds over these corpora, shape (n_arms, n_questions)."""
    questions = tuple(Question(f"q{n}", f"question {n}") for n in range(scores.shape[1]))
    each = zip(kinds.items(), corpora or [None] * len(kinds), strict=True)
    specs = {arm: ArmSpec(kind=kind, corpus=corpus) for (arm, kind), corpus in each}
    table = MatrixArms(specs, {}, {}, "R@4", {})
    return ScoreMatrix(questions, table, np.ascontiguousarray(scores, dtype=np.float32))


def test_the_seed_draws_the_sample_of_a_matrix() -> None:
    scores = (np.random.default_rng(0).random((2, 400)) < np.array([[0.9], [0.6]])).astype(np.float32)
    found = scored({"words": "bm25", "vectors": "dense"}, scores)
    assert on_par(found, 1).tolist() == on_par(found, 1).tolist() != on_par(found, 2).tolist()


def test_questions_that_are_kept_favour_neither_words_nor_vectors() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.random((2, 2000)) < np.array([[0.9], [0.6]])).astype(np.float32)
    found = scored({"words": "bm25", "vectors": "dense"}, scores)
    lexical, dense = scores[:, on_par(found)].mean(axis=1)
    assert scores.mean(axis=1)[0] - scores.mean(axis=1)[1] > 0.25
    assert abs(lexical - dense) < 0.05
    alone = scored({"words": "bm25", "more": "bm25"}, scores)
    assert on_par(alone).tolist() == list(range(2000)), "nothing to compare with"


OF_TWO = {"library": "bm25", "guides": "bm25", "guides_near": "dense"}
"""Arms over two corpora, of which one has no dense arm."""


def of_two_corpora() -> np.ndarray[Any, Any]:
    """Return scores of those arms on 1,000 questions of each corpus, of which the others find nothing."""
    rng = np.random.default_rng(0)
    found = rng.random((3, 2000)) < np.array([[0.9], [0.9], [0.6]])
    found[0, 1000:] = found[1:, :1000] = False
    return found.astype(np.float32)


def test_words_and_vectors_are_compared_in_the_same_corpus() -> None:
    scores = of_two_corpora()
    kept = on_par(scored(OF_TWO, scores, "library", "guides", "guides"))
    assert (kept < 1000).sum() > 300, "questions of the corpus without a dense arm are not thinned out for it"
    _, words, vectors = scores[:, kept[kept >= 1000]].mean(axis=1)
    assert abs(words - vectors) < 0.05
    apart = on_par(scored(OF_TWO, scores, "library", "library", "guides"))
    assert apart.tolist() == list(range(2000)), "no corpus has both"
