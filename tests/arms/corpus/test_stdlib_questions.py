"""The example questions can be answered from the passages that they name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.corpus.corpus import Corpus, ingest

QUESTIONS = Path(__file__).parents[3] / "examples" / "stdlib_questions.jsonl"


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return ingest("stdlib", tmp_path_factory.mktemp("stdlib"))


def test_every_question_is_complete_and_asked_once(questions: list[dict[str, Any]]) -> None:
    assert all(set(question) == {"id", "question", "answers", "type", "gold_ids"} for question in questions)
    assert all(question["answers"] and all(question["answers"]) for question in questions)
    assert len({question["id"] for question in questions}) == len(questions)
    assert len({question["question"].lower() for question in questions}) == len(questions)


@pytest.mark.slow
def test_a_gold_passage_holds_an_answer_as_whole_words(
    questions: list[dict[str, Any]], corpus: Corpus
) -> None:
    unsupported = []
    for question in questions:
        if question["type"] == "general":
            continue
        gold = corpus.passages(corpus.positions(question["gold_ids"]))
        told = "\n".join(f"{passage.title}\n{passage.text}" for passage in gold)
        forms = "|".join(re.escape(re.sub(r"\s+", " ", form)) for form in question["answers"])
        if not re.search(rf"(?<!\w)({forms})(?!\w)", re.sub(r"\s+", " ", told), re.IGNORECASE):
            unsupported.append(question["id"])
    assert unsupported == []
