"""Outcomes: what is written is read, gaps are unknown, and nothing that does not fit is let in."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.lab.portfolio.outcomes import (
    FILE,
    Outcome,
    OutcomesError,
    read_outcomes,
    write_outcomes,
)
from armwise.arms.questions import Question

RIVER = Question("q1", "Which river?", ("danube",), ("the Danube",), "rivers")
OPERA = Question("q2", "Who composed?", ("mozart",), ("Mozart",), "people")

GIVEN = (
    Outcome(RIVER, "none", (), "", {"em": 0.0, "f1": 0.5}, {"steps": 0, "llm_s": 0.25}, "short", False),
    Outcome(RIVER, "bm25", ("danube", "alps"), "the Danube", {"em": 1.0, "f1": 1.0, "recall": 1.0}),
    Outcome(OPERA, "bm25", error="it is away"),
)

LINE = {"id": "q1", "question": "Which river?", "arm": "bm25", "em": 1.0}


def lines(path: Path, *told: Any) -> Path:
    """Write lines: texts as they are, anything else as JSON."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in told))
    return path


@pytest.mark.parametrize("name", ["outcomes.jsonl", "outcomes.jsonl.gz"])
def test_what_is_written_is_read_and_failures_are_unknown(tmp_path: Path, name: str) -> None:
    write_outcomes(tmp_path / name, GIVEN)
    outcomes = read_outcomes(tmp_path / name, [OPERA, RIVER])
    assert outcomes.questions == (RIVER, OPERA), "in the order of the file, with all that is known of them"
    assert outcomes.arms == ("none", "bm25")
    assert outcomes.scores.keys() == {"em", "f1", "recall"}
    np.testing.assert_array_equal(outcomes.scores["em"], [[0.0, 1.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(outcomes.scores["recall"], [[np.nan, 1.0], [np.nan, np.nan]])
    assert outcomes.costs.keys() == {"steps", "llm_s"}
    np.testing.assert_array_equal(outcomes.costs["llm_s"], [[0.25, np.nan], [np.nan, np.nan]])
    assert outcomes.passages == (((), ("danube", "alps")), (None, None))
    assert outcomes.answers == (("", "the Danube"), (None, None))


def test_the_folder_of_a_job_is_read_without_questions(tmp_path: Path) -> None:
    write_outcomes(tmp_path / FILE, GIVEN)
    read = read_outcomes(tmp_path)
    assert [(q.id, q.text, q.dataset, q.answers) for q in read.questions] == [
        ("q1", RIVER.text, "rivers", ()),
        ("q2", OPERA.text, "people", ()),
    ]


def test_questions_tell_the_texts_that_a_file_lacks(tmp_path: Path) -> None:
    told = [{"id": id_, "dataset": "nq", "arm": "none", "em": 1, "follow_up": "?"} for id_ in ("q2", "q1")]
    read = read_outcomes(lines(tmp_path / "o", *told, ""), (RIVER, OPERA, Question("q3", "Unasked?")))
    assert [(q.id, q.text, q.answers, q.dataset) for q in read.questions] == [
        ("q2", OPERA.text, OPERA.answers, "nq"),
        ("q1", RIVER.text, RIVER.answers, "nq"),
    ]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")),
        st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1e6), st.text(max_size=5)),
        min_size=1,
    )
)
def test_every_cell_keeps_its_numbers_wherever_its_line_stands(
    tmp_path_factory: pytest.TempPathFactory, cells: dict[tuple[str, str], tuple[float, float, str]]
) -> None:
    path = tmp_path_factory.mktemp("laws") / "o.jsonl"
    write_outcomes(
        path,
        (
            Outcome(Question(question, "?"), arm, answer=answer, scores={"f1": f1}, costs={"usd": usd})
            for (question, arm), (f1, usd, answer) in cells.items()
        ),
    )
    read = read_outcomes(path)
    for row, question in enumerate(read.questions):
        for column, arm in enumerate(read.arms):
            wanted = cells.get((question.id, arm), (np.nan, np.nan, None))
            got = read.scores["f1"][row, column], read.costs["usd"][row, column], read.answers[row][column]
            np.testing.assert_equal(got, wanted)


@pytest.mark.parametrize("rows", [[1], [-1], np.array([1]), np.array([False, True]), [False, True]])
def test_some_questions_can_be_taken_by_number_or_by_mask(tmp_path: Path, rows: Any) -> None:
    write_outcomes(tmp_path / "o", GIVEN)
    part = read_outcomes(tmp_path / "o").only(rows)
    assert [question.id for question in part.questions] == ["q2"]
    assert part.arms == ("none", "bm25")
    assert (part.passages, part.answers) == (((None, None),), ((None, None),))
    for values in (*part.scores.values(), *part.costs.values()):
        np.testing.assert_array_equal(values, [[np.nan, np.nan]])


def test_a_mask_of_another_length_is_refused(tmp_path: Path) -> None:
    write_outcomes(tmp_path / "o", GIVEN)
    with pytest.raises(IndexError, match="boolean"):
        read_outcomes(tmp_path / "o").only([True])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([LINE, {**LINE, "em": 0.0}], "line 2: arm 'bm25' on question 'q1' was already given in line 1"),
        ([LINE, "{"], "line 2, is not JSON: "),
        (["", "[]"], "line 2, is not a JSON object but"),
        (['{"id": "q1", "arm": "a", "em": NaN}'], "line 1, is not JSON: "),
        ([LINE, {**LINE, "arm": "a", "em": 1.5}], r"line 2: em is 1\.5; it must be a number in \[0, 1\]"),
        ([{**LINE, "f1": "1"}], "line 1: f1 is '1'; it must be a number"),
        ([{**LINE, "f1": True}], "line 1: f1 is True; it must be a number"),
        ([{**LINE, "steps": -1}], "line 1: steps is -1; it must be a number finite and not negative"),
        ([LINE, {**LINE, "arm": "a", "recall": "all"}], "line 2: recall is 'all'; it must be a number"),
        ([{**LINE, "recal": 1.0}], "line 1: unknown key 'recal'; did you mean 'recall'"),
        ([{**LINE, "arm": None}], "line 1: arm must be non-empty text, got None"),
        ([{**LINE, "answer": 4}], "line 1: answer must be text, got 4"),
        ([{**LINE, "passages": "p1"}], "line 1: passages must be a list of ids, got 'p1'"),
        ([LINE, {**LINE, "arm": "a", "question": "Who?"}], "line 2: question 'q1' is 'Who.', and was"),
        ([{"id": "q9", "arm": "a"}], "line 1: question 'q9' has no text: add it"),
        ([], "has no outcome"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(tmp_path: Path, told: list[Any], message: str) -> None:
    with pytest.raises(OutcomesError, match=message):
        read_outcomes(lines(tmp_path / "o", *told))


def test_a_text_that_is_not_that_of_the_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutcomesError, match=r"question 'q1' is 'Which river.', but 'Who"):
        read_outcomes(lines(tmp_path / "o", LINE), [Question("q1", "Who composed?")])


def test_a_file_that_is_missing_or_cut_short_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutcomesError, match=r"cannot read outcomes from .*nowhere"):
        read_outcomes(tmp_path / "nowhere")
    (tmp_path / "o.gz").write_bytes(gzip.compress(json.dumps(LINE).encode())[:-8])
    with pytest.raises(OutcomesError, match=r"cannot read outcomes from .*o\.gz"):
        read_outcomes(tmp_path / "o.gz")
