"""The questions about three sources are answered by the passages that they name.

`python -m tests.examples.test_questions` writes anew which passages of the guides hold an answer.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.base import Passage
from armwise.arms.corpus import open_source

ROOT = Path(__file__).parents[2]

QUESTIONS = ROOT / "examples" / "questions.jsonl"

LIBRARY = ROOT / "examples" / "stdlib_questions.jsonl"

SOURCES = {"library": "stdlib", "language": "language", "guides": ROOT / "docs" / "guide"}

ANEW = "after a change of a guide: `python -m tests.examples.test_questions`"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def passages_of(dataset: str) -> dict[str, Passage]:
    records = open_source(SOURCES[dataset]).records()
    return {f"{dataset}/{one.id}": one for record in records for one in record.passages}


def holding(passages: Iterable[tuple[str, Passage]], answers: Sequence[str]) -> list[str]:
    """Return the ids of the passages that hold an answer as whole words."""
    forms = "|".join(re.escape(" ".join(answer.split())) for answer in answers)
    answer = re.compile(rf"(?<!\w)({forms})(?!\w)", re.IGNORECASE)
    return [key for key, one in passages if answer.search(" ".join(f"{one.title}\n{one.text}".split()))]


def file_of(gold: str) -> str:
    return gold.partition("#")[0]


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
    assert wrong == [], ANEW


def test_questions_about_the_library_are_those_of_its_own_file(questions: list[dict[str, Any]]) -> None:
    theirs = {one["question"]: one for one in read(LIBRARY)}
    for question in questions:
        if question["dataset"] == "library":
            one: Mapping[str, Any] = theirs[question["question"]]
            assert question["answers"] == one["answers"]
            assert question["gold_ids"] == [f"library/{gold}" for gold in one["gold_ids"]]


def main() -> None:
    """Write which passages of the guides hold an answer."""
    guides, lines = passages_of("guides"), []
    for question in read(QUESTIONS):
        if question["dataset"] == "guides":
            file = file_of(question["gold_ids"][0])
            near = ((key, one) for key, one in guides.items() if file_of(key) == file)
            question["gold_ids"] = holding(near, question["answers"]) or question["gold_ids"]
        lines.append(json.dumps(question, ensure_ascii=False) + "\n")
    QUESTIONS.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
