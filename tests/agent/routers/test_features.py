"""The tables that a router sees, stage by stage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armwise.agent.policies import FORM, form
from armwise.agent.routers.features import (
    QUESTION,
    RETRIEVED,
    build_answered_table,
    build_question_table,
    build_retrieved_table,
    scale_columns,
)
from armwise.arms.base import Passage

ONE, OTHER = Passage("1", "Emma", "A novel by Austen."), Passage("2", "Nile", "A river.")
VECTORS = {"1": np.array([1.0, 0.0], np.float32), "2": np.array([0.0, 1.0], np.float32)}


@given(st.text(max_size=60))
def test_any_question_has_a_finite_row_of_known_names(text: str) -> None:
    assert set(form(text)) <= set(FORM)
    table = build_question_table([text])
    assert table.shape == (1, len(QUESTION))
    assert np.isfinite(table).all()


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("Who is the father of the author of Emma?", "n_of", 2),
        ("What is Emma's author's name?", "n_possessives", 2),
        ("Is Emma longer or older than Persuasion?", "n_comparisons", 2),
        ("The man who wrote a book that won", "n_clauses", 2),
    ],
)
def test_what_makes_a_question_nested_is_counted(text: str, name: str, count: int) -> None:
    assert build_question_table([text])[0, QUESTION.index(name)] == count


def test_an_arm_that_retrieves_nothing_has_no_row() -> None:
    embedding = np.array([[1.0, 0.0]], np.float32)
    table = build_retrieved_table(["Who wrote Emma?"], embedding, [[[], [ONE, OTHER]]], VECTORS)
    assert table.names == RETRIEVED
    assert np.isnan(table.values[0, 0]).all()
    assert table.values[0, 1, RETRIEVED.index("max_sim")] == 1.0


def test_arms_are_scaled_within_their_question() -> None:
    embedding = np.array([[1.0, 0.0]], np.float32)
    table = build_retrieved_table(["?"], embedding, [[[ONE], [OTHER]]], VECTORS)
    assert table.values[0, :, RETRIEVED.index("max_sim.scaled")].tolist() == [1.0, 0.0]


@given(arrays(np.float64, (3, 2), elements=st.floats(-1e3, 1e3) | st.just(np.nan)))
def test_scaling_keeps_order_and_gaps_and_stays_in_range(values: np.ndarray) -> None:
    told = scale_columns(values)
    assert (np.isnan(told) == np.isnan(values)).all()
    known = ~np.isnan(values)
    assert ((told[known] >= 0.0) & (told[known] <= 1.0)).all()
    for column in range(2):
        at = np.flatnonzero(known[:, column])
        for i in at:
            for j in at:
                if values[i, column] < values[j, column]:
                    assert told[i, column] <= told[j, column]


def test_answers_tell_which_arm_they_agree_with() -> None:
    table = build_answered_table(
        ["?"], ["a", "b", "c"], [["Nile", "the nile", "Emma"]], [[[OTHER], [], [ONE]]]
    )
    same = table.values[0][:, [table.names.index(f"same_as:{arm}") for arm in "abc"]]
    assert same.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_no_questions_make_empty_tables() -> None:
    assert build_retrieved_table([], np.empty((0, 2), np.float32), [], VECTORS).values.shape == (
        0,
        0,
        len(RETRIEVED),
    )
    assert build_answered_table([], ["a", "b"], [], []).values.shape[:2] == (0, 2)
