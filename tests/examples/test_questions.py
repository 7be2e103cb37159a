"""The questions about three sources are answered by the passages that they name."""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.documents.questions import QUESTIONS, SOURCES, file_of, holding, passages_of, read

ROOT = Path(__file__).parents[2]

LIBRARY = ROOT / "examples" / "stdlib_questions.jsonl"


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    return read(QUESTIONS)


def test_every_question_is_complete_and_asked_once(questions: list[dict[str, Any]]) -> None:
    keys = {"id", "question", "answers", "type", "dataset", "gold_ids"}
    assert all(set(question) == keys for question in questions)
    assert all(question["answers"] and all(question["answers"]) for question in questions)
    assert len({question["id"] for question in questions}) == len(questions)
    assert len({question["question"].lower() for question in questions}) == len(questions)


def test_any_part_of_the_file_asks_each_source_alike(questions: list[dict[str, Any]]) -> None:
    assert [question["dataset"] for question in questions] == ["library", "language", "guides"] * 48
    types = Counter((question["dataset"], question["type"]) for question in questions)
    assert {kind for _, kind in types} == {"exact", "paraphrase"}
    assert min(types.values()) >= 15


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the questions are about what the interpreter of Python 3.11 says"
)
@pytest.mark.parametrize("dataset", SOURCES)
@pytest.mark.slow
def test_the_passages_that_a_question_names_hold_an_answer(
    questions: list[dict[str, Any]], dataset: str
) -> None:
    passages, wrong = passages_of(dataset), []
    for question in questions:
        gold = question["gold_ids"]
        if question["dataset"] == dataset and set(gold) != set(
            holding(((one, passages[one]) for one in gold if one in passages), question["answers"])
        ):
            near = [(key, one) for key, one in passages.items() if file_of(key) == file_of(gold[0])]
            there = holding(near, question["answers"]) or "no passage, so another question is needed"
            wrong.append(f"{question['id']} names {gold}, but its answer is in {there}")
    assert wrong == []


def test_questions_about_the_library_are_those_of_its_own_file(questions: list[dict[str, Any]]) -> None:
    theirs = {one["question"]: one for one in read(LIBRARY)}
    for question in questions:
        if question["dataset"] == "library":
            one: Mapping[str, Any] = theirs[question["question"]]
            assert question["answers"] == one["answers"]
            assert question["gold_ids"] == [f"library/{gold}" for gold in one["gold_ids"]]
