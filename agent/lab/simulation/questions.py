"""Questions with known answers, which a simulation asks: one JSON object per line."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armwise.agent.config.warm_start import QUESTION_LINE

T = TypeVar("T")


class QuestionsError(ValueError):
    """A file of questions is unusable; the message names the file and the line."""


class SimulatedQuestion(BaseModel):
    """A question with its right answers or supporting passages. Other fields of a line are ignored."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(min_length=1, description="Unique in its file.")
    question: str = Field(min_length=1, description="The text of the question.")
    answers: tuple[str, ...] = Field(default=(), description="Right answers; any one will do.")
    gold_ids: tuple[str, ...] = Field(default=(), description="Ids of the passages that support the answer.")
    dataset: str | None = Field(default=None, description="Where it comes from.")
    type: str | None = Field(default=None, description="What kind of question it is.")

    @property
    def group(self) -> str:
        """The data set, else the type, else `all`."""
        return self.dataset or self.type or "all"


def load_questions(path: Path) -> list[SimulatedQuestion]:
    """Read questions from JSON lines, compressed if the name ends in .gz.

    Raises:
        QuestionsError: The file is unreadable or empty, a line is not a
            question, or an id occurs twice; lines are named by number.
    """
    line_numbers: dict[str, int] = {}
    questions = []
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    question = _parse(line, f"{path}, line {number}")
                    before = line_numbers.setdefault(question.id, number)
                    if before != number:
                        raise QuestionsError(
                            f"{path}, line {number}: id {question.id!r} was already given in line {before}"
                        )
                    questions.append(question)
    except (OSError, EOFError, zlib.error) as error:
        raise QuestionsError(f"cannot read questions from {path}: {error}") from error
    if not questions:
        raise QuestionsError(f"{path} holds no question; expected lines like {QUESTION_LINE}")
    return questions


def shuffle(questions: Sequence[T], seed: int) -> list[T]:
    """Return the questions in random order, which the seed determines."""
    return [questions[i] for i in np.random.default_rng(seed).permutation(len(questions))]


def _parse(line: bytes, where: str) -> SimulatedQuestion:
    try:
        return SimulatedQuestion.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise QuestionsError(f"{where}, is not a question: {what}; expected {QUESTION_LINE}") from None
