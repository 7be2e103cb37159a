"""The questions about three sources: which passages of the guides hold an answer."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from armwise.arms.base import Passage
from armwise.arms.corpus import open_source

ROOT = Path(__file__).parents[2]

QUESTIONS = ROOT / "examples" / "questions.jsonl"

SOURCES = {"library": "stdlib", "language": "language", "guides": ROOT / "docs" / "guide"}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def passages_of(dataset: str) -> dict[str, Passage]:
    """Return the passages of a source by id."""
    records = open_source(SOURCES[dataset]).records()
    return {f"{dataset}/{one.id}": one for record in records for one in record.passages}


def holding(passages: Iterable[tuple[str, Passage]], answers: Sequence[str]) -> list[str]:
    """Return the ids of the passages that hold an answer as whole words."""
    forms = "|".join(re.escape(" ".join(answer.split())) for answer in answers)
    answer = re.compile(rf"(?<!\w)({forms})(?!\w)", re.IGNORECASE)
    return [key for key, one in passages if answer.search(" ".join(f"{one.title}\n{one.text}".split()))]


def file_of(gold: str) -> str:
    """Return the file of a passage."""
    return gold.partition("#")[0]


def page() -> str:
    """Return the questions, each with the passages of the guides that hold its answer."""
    guides, lines = passages_of("guides"), []
    for question in read(QUESTIONS):
        if question["dataset"] == "guides":
            file = file_of(question["gold_ids"][0])
            near = ((key, one) for key, one in guides.items() if file_of(key) == file)
            question["gold_ids"] = holding(near, question["answers"]) or question["gold_ids"]
        lines.append(json.dumps(question, ensure_ascii=False) + "\n")
    return "".join(lines)
