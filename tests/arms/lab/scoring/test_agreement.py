"""What retrievers and answers tell of each other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.signals import ANSWERED, FOUND, answer_signals, found_signals

RANKINGS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True), min_size=1, max_size=5)


@given(RANKINGS)
def test_agreement_of_retrievers_is_bounded_and_nothing_found_tells_nothing(
    rankings: list[list[str]],
) -> None:
    told = found_signals(rankings)
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
    told = found_signals(rankings)
    np.testing.assert_allclose(found_signals([rankings[i] for i in order]), told[order])


def test_retrievers_that_found_the_same_share_all() -> None:
    told = found_signals([["a", "b"], ["b", "a"], ["a", "b"]])
    assert told[:, FOUND.index("shared")].tolist() == [1.0, 1.0, 1.0]


def test_answers_that_differ_in_form_alone_agree() -> None:
    told = answer_signals("Who?", ["The Nile.", "nile", "Amazon"], [[], [], []])
    assert told[:, ANSWERED.index("votes")].tolist() == [2 / 3, 2 / 3, 1 / 3]
    assert told[0, ANSWERED.index("kinds")] == 2 / 3


def test_an_answer_is_looked_for_as_whole_words_in_titles_and_texts() -> None:
    found = [[Passage("1", "Nile", "A river."), Passage("2", "", "Nileism.")], [Passage("3", "", "The Nile")]]
    told = dict(zip(ANSWERED, answer_signals("Which river?", ["Nile", "river"], found)[0], strict=True))
    assert (told["in_own"], told["in_first"], told["in_all"], told["in_question"]) == (0.5, 1.0, 2.0, 0.0)


def test_an_answer_that_repeats_the_question_is_told() -> None:
    told = answer_signals("Which river?", ["river"], [[]])
    assert told[0, ANSWERED.index("in_question")] == 1.0


def test_an_empty_answer_stands_nowhere() -> None:
    told = dict(zip(ANSWERED, answer_signals("?", [""], [[Passage("1", "", "text")]])[0], strict=True))
    assert (told["in_own"], told["in_first"], told["in_all"], told["in_question"]) == (0.0, 0.0, 0.0, 0.0)
