"""What retrieved passages tell without a label."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.signals import (
    ANSWERED,
    FOUND,
    SIGNALS,
    WORDED,
    answer_signals,
    measure_agreement,
    signals,
    word_signals,
)

RANKINGS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True), min_size=1, max_size=5)


def units(rng: np.random.Generator, n: int, dim: int = 8) -> np.ndarray:
    rows = rng.standard_normal((n, dim)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_signals_are_what_their_formulas_say() -> None:
    rng = np.random.default_rng(3)
    question, one, other = units(rng, 1)[0], units(rng, 4), units(rng, 3)
    told = dict(zip(SIGNALS, signals(question, [one, other])[0], strict=True))
    y = one @ question
    mean, against = one.mean(axis=0), other.mean(axis=0)
    np.testing.assert_allclose(told["avg_sim"], y.mean(), rtol=1e-5)
    np.testing.assert_allclose(told["max_sim"], y.max(), rtol=1e-6)
    np.testing.assert_allclose(told["var_sim"], y.var(), rtol=1e-5)
    np.testing.assert_allclose(told["overall_sim"], mean @ question / np.linalg.norm(mean), rtol=1e-5)
    cosine = mean @ against / np.linalg.norm(mean) / np.linalg.norm(against)
    np.testing.assert_allclose(told["cross_sim"], cosine, rtol=1e-5, atol=1e-6)


def test_moran_is_that_of_the_diffused_scores() -> None:
    rng = np.random.default_rng(4)
    question, found = units(rng, 1)[0], np.abs(units(rng, 5))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    y = (found @ question).astype(np.float64)
    near = found.astype(np.float64) @ found.T
    smoothed = (near / near.sum(axis=1, keepdims=True)) @ y
    expected = smoothed @ y / np.linalg.norm(y) / np.linalg.norm(smoothed)
    told = signals(question, [found])[0, SIGNALS.index("moran")]
    np.testing.assert_allclose(told, expected, rtol=1e-5)


def test_an_arm_that_found_nothing_has_no_signal() -> None:
    rng = np.random.default_rng(5)
    question, found = units(rng, 1)[0], [units(rng, 4), units(rng, 4)]
    nothing = np.empty((0, 8), dtype=np.float32)
    told = signals(question, [nothing, *found])
    assert np.isnan(told[0]).all()
    np.testing.assert_array_equal(told[1:], signals(question, found))


def test_one_retriever_alone_has_no_others_to_compare_with() -> None:
    rng = np.random.default_rng(6)
    told = signals(units(rng, 1)[0], [units(rng, 4)])
    assert np.isnan(told[0, SIGNALS.index("cross_sim")])
    assert np.isfinite(np.delete(told[0], SIGNALS.index("cross_sim"))).all()


@given(
    st.text(alphabet="ab ?'", max_size=20),
    st.lists(st.lists(st.text(alphabet="ab .", max_size=12), max_size=3), min_size=1, max_size=3),
)
def test_word_signals_are_shares(question: str, texts: list[list[str]]) -> None:
    found = [
        [Passage(f"{arm}-{at}", text[:3], text) for at, text in enumerate(row)]
        for arm, row in enumerate(texts)
    ]
    told = word_signals(question, found)
    assert told.shape == (len(texts), len(WORDED))
    for row, passages in zip(told, found, strict=True):
        assert np.isnan(row).all() if not passages else ((row >= 0.0) & (row <= 1.0)).all()


def test_coverage_counts_each_word_once_over_all_passages() -> None:
    found = [Passage("1", "", "river river"), Passage("2", "", "delta")]
    told = dict(zip(WORDED, word_signals("Which river delta floods?", [found])[0].tolist(), strict=True))
    assert told["coverage"] == 2 / 3
    assert told["best_coverage"] == told["mean_coverage"] == told["first_coverage"] == 1 / 3


def test_pairs_are_those_of_the_passage_with_most() -> None:
    texts = ("which river floods", "river floods deltas", "deltas")
    found = [Passage(str(at), "", text) for at, text in enumerate(texts)]
    told = dict(zip(WORDED, word_signals("Which river floods?", [found])[0].tolist(), strict=True))
    assert told["pairs"] == 1.0


def test_a_title_is_known_without_what_is_in_brackets() -> None:
    found = [Passage("1", "Emma (novel)", "By Austen.")]
    told = dict(zip(WORDED, word_signals("Who wrote Emma?", [found])[0].tolist(), strict=True))
    assert told["titled"] == 1.0


def test_ranks_are_voted_on_by_the_arms_that_found_anything() -> None:
    told = measure_agreement([["a", "b"], ["b", "c"], [], ["b"]])
    assert told[[0, 1, 3]].tolist() == [[1.75, 0.5], [1.5, 0.5], [2.5, 1.0]]
    assert np.isnan(told[2]).all()


def test_signals_of_answers_are_as_computed_by_hand() -> None:
    ada, name, other = (
        Passage("p", "Ada Lovelace", "She wrote notes in 1843."),
        Passage("q", "", "Ada was her name."),
        Passage("r", "", "Nobody."),
    )
    answers = ["Ada", "in 1843", "Ada in May", "ada", "Yes"]
    told = answer_signals(
        "Did Ada or Bob write in 1843?", answers, [[other, name], [ada], [], [ada, name], [other]]
    )
    expected = {
        "votes": [0.4, 0.2, 0.2, 0.4, 0.2],
        "overlap": [0.5, 0.28, 0.48, 0.5, 0.2],
        "kinds": [0.8] * 5,
        "words": [1, 2, 3, 1, 1],
        "characters": [3, 7, 10, 3, 3],
        "digit": [0, 1, 0, 0, 0],
        "verdict": [0, 0, 0, 0, 1],
        "in_question": [1, 1, 0, 1, 0],
        "in_own": [0.5, 1, 0, 1, 0],
        "in_first": [0, 1, 0, 1, 0],
        "in_all": [2, 1, 0, 2, 0],
    }
    for column, (signal, values) in enumerate(expected.items()):
        np.testing.assert_allclose(told[:, column], values, err_msg=signal)


@given(RANKINGS)
def test_agreement_of_retrievers_is_bounded(
    rankings: list[list[str]],
) -> None:
    told = measure_agreement(rankings)
    assert told.shape == (len(rankings), len(FOUND))
    for row, ranking in zip(told, rankings, strict=True):
        if ranking:
            assert 0.0 < row[0] <= len(rankings)
            assert 0.0 <= row[1] <= 1.0
        else:
            assert np.isnan(row).all()


@given(RANKINGS)
def test_the_order_of_retrievers_does_not_matter(rankings: list[list[str]]) -> None:
    order = np.random.default_rng(len(rankings)).permutation(len(rankings))
    told = measure_agreement(rankings)
    np.testing.assert_allclose(measure_agreement([rankings[i] for i in order]), told[order])


def test_retrievers_that_found_the_same_share_all() -> None:
    told = measure_agreement([["a", "b"], ["b", "a"], ["a", "b"]])
    assert told[:, FOUND.index("shared")].tolist() == [1.0, 1.0, 1.0]


def test_an_empty_answer_stands_nowhere() -> None:
    told = dict(zip(ANSWERED, answer_signals("?", [""], [[Passage("1", "", "text")]])[0], strict=True))
    assert (told["in_own"], told["in_first"], told["in_all"], told["in_question"]) == (0.0, 0.0, 0.0, 0.0)
