"""What every arm answered on every question, what that is worth and what it took: JSON lines.

    {"id": "q1", "question": "Who ...?", "dataset": "nq", "arm": "bm25", "passages": ["p7", "p2"],
     "answer": "Marie Curie", "em": 1.0, "f1": 1.0, "steps": 1, "prompt_tokens": 412, ...}

    outcomes of a job --write_outcomes--> outcomes.jsonl --read_outcomes--> Outcomes: arrays by score and cost

`SCORES`, `COSTS` and `ABOUT` are all that a line may hold. Any other key is an error, also
where its value would not be missed: a score under a mistyped name would silently be no score.
"""

import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from arms.llm import judge
from arms.questions import Question
from arms.suggestions import did_you_mean

Floats = NDArray[np.float64]

FILE = "outcomes.jsonl"
"""The file in the folder of a job."""

SCORES = ("em", "f1", "acc", "recall", "answer_correctness", "bem", "judge", *judge.SCORE_NAMES)
"""Numbers in [0, 1], higher is better; null where nobody knows."""

COSTS = ("steps", "llm_calls", "prompt_tokens", "completion_tokens", "usd", "retrieval_s", "llm_s", "seconds")
"""Finite numbers that are not negative; null where nobody knows."""

ABOUT = (
    "id", "question", "dataset", "arm", "passages", "answer", "prompt", "tagged", "follow_up", "error",
)  # fmt: skip
"""Everything else: of which question and arm the line is, what was found and said, and what went wrong."""

KEYS = frozenset((*SCORES, *COSTS, *ABOUT))


class OutcomesError(ValueError):
    """Outcomes cannot be read; the message names the file, the line and the value."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one arm answered on one question: a line of the file.

    Attributes:
        question: Which one; a line keeps its id, text and data set.
        arm: Name of the arm.
        passages: Ids of what it found, best first; None where it failed.
        answer: What the language model answered from them; None where there is no answer.
        scores: Of `SCORES`, those that are known.
        costs: Of `COSTS`, those that are known.
        prompt: Name of the prompt that was asked; empty where none was.
        tagged: Whether the answer stood where the prompt wants it; None where it does not say.
        error: Why there is no answer, or no score of some name; empty otherwise.
    """

    question: Question
    arm: str
    passages: tuple[str, ...] | None = None
    answer: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    prompt: str = ""
    tagged: bool | None = None
    error: str = ""

    def line(self) -> bytes:
        r"""Return the line, with its end; what is not known is left out.

        >>> Outcome(Question("q1", "Who?"), "none", answer="She.", scores={"em": 1.0}).line()
        b'{"id":"q1","question":"Who?","arm":"none","answer":"She.","em":1.0}\n'
        """
        told = {
            "id": self.question.id,
            "question": self.question.text,
            "dataset": self.question.dataset or None,
            "arm": self.arm,
            "passages": self.passages,
            "answer": self.answer,
            **self.scores,
            **self.costs,
            "prompt": self.prompt or None,
            "tagged": self.tagged,
            "error": self.error or None,
        }
        known = {key: value for key, value in told.items() if value is not None}
        return orjson.dumps(known, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What every arm answered on every question, as arrays: NaN or None where it was not asked, or failed.

    Attributes:
        questions: In the order in which the file first names them.
        arms: Likewise.
        scores: Of `SCORES`, those that the file has, each of shape (n_questions, n_arms), in [0, 1].
        costs: Of `COSTS`, those that the file has, each of shape (n_questions, n_arms), not negative.
        passages: Ids of what each arm found, best first: `passages[question][arm]`.
        answers: What was answered: `answers[question][arm]`.
    """

    questions: tuple[Question, ...]
    arms: tuple[str, ...]
    scores: Mapping[str, Floats]
    costs: Mapping[str, Floats]
    passages: tuple[tuple[tuple[str, ...] | None, ...], ...]
    answers: tuple[tuple[str | None, ...], ...]

    def only(self, rows: ArrayLike) -> "Outcomes":
        """Return the outcomes of some questions: `rows` are their numbers, or a mask of shape (n_questions,).

        Raises:
            IndexError: There is no such row, or the mask has another length.
        """
        numbers = np.arange(len(self.questions))[np.asarray(rows)]
        return Outcomes(
            tuple(self.questions[row] for row in numbers),
            self.arms,
            {name: values[numbers] for name, values in self.scores.items()},
            {name: values[numbers] for name, values in self.costs.items()},
            tuple(self.passages[row] for row in numbers),
            tuple(self.answers[row] for row in numbers),
        )


def write_outcomes(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a line for each outcome; compressed when the name ends in .gz."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.writelines(outcome.line() for outcome in outcomes)


def read_outcomes(path: Path, questions: Sequence[Question] = ()) -> Outcomes:
    """Read outcomes: all lines, or the error of the first one that does not fit.

    Args:
        path: JSON lines, plain or, when the name ends in .gz, compressed; or the folder of a job.
        questions: Tell texts, right answers and supporting passages by id; where the file
            has a text too, it must be the same. May hold questions that the file does not.

    Raises:
        OutcomesError: The file cannot be read or holds no outcome, a line is no outcome, an
            arm stands twice on a question, a number is out of its range, or no text of a
            question is known.
    """
    file = path / FILE if path.is_dir() else path
    lines = _read(file)
    asked = {question.id: question for question in questions}
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    seen: dict[tuple[int, int], int] = {}
    found: list[Question] = []
    for number, line in lines.items():
        where = f"{file}, line {number}"
        row = rows.setdefault(line["id"], len(rows))
        column = columns.setdefault(line["arm"], len(columns))
        if row == len(found):
            found.append(_question(line, asked.get(line["id"]), where))
        elif (text := line.get("question") or found[row].text) != found[row].text:
            raise OutcomesError(
                f"{where}: question {line['id']!r} is {text!r}, and was {found[row].text!r} before"
            )
        if (first := seen.setdefault((row, column), number)) != number:
            raise OutcomesError(
                f"{where}: arm {line['arm']!r} on question {line['id']!r} is already that of line {first}"
            )
    shape = len(rows), len(columns)
    cells = tuple(np.array(list(seen)).T)
    keys = set[str]().union(*lines.values())

    def array(name: str, top: float) -> Floats:
        values = np.full(shape, np.nan)
        values[cells] = _numbers(name, top, lines, file)
        return values

    def table(key: str) -> tuple[tuple[Any, ...], ...]:
        values: list[list[Any]] = [[None] * shape[1] for _ in range(shape[0])]
        for (row, column), line in zip(seen, lines.values(), strict=True):
            value = line.get(key)
            values[row][column] = tuple(value) if isinstance(value, list) else value
        return tuple(map(tuple, values))

    return Outcomes(
        tuple(found),
        tuple(columns),
        {name: array(name, 1.0) for name in SCORES if name in keys},
        {name: array(name, np.inf) for name in COSTS if name in keys},
        table("passages"),
        table("answer"),
    )


def _read(file: Path) -> dict[int, dict[str, Any]]:
    """Return the lines by number, each with the right keys and types but for its numbers."""
    lines: dict[int, dict[str, Any]] = {}
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as read:
            for number, text in enumerate(read, start=1):
                if not text.isspace():
                    lines[number] = _parse(text, f"{file}, line {number}")
    except (OSError, EOFError, zlib.error) as error:
        raise OutcomesError(f"cannot read outcomes from {file}: {error}") from error
    if not lines:
        raise OutcomesError(f"{file} holds no outcome")
    return lines


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OutcomesError(f"{where}, is no JSON: {error}") from None
    if not isinstance(line, dict):
        raise OutcomesError(f"{where}, is no JSON object but {text[:60]!r}")
    for key in line.keys() - KEYS:
        raise OutcomesError(f"{where}: unknown key {key!r}{did_you_mean(key, KEYS)}")
    for key in ("id", "arm"):
        if not isinstance(line.get(key), str) or not line[key]:
            raise OutcomesError(f"{where}: {key} must be a text that is not empty, got {line.get(key)!r}")
    for key in ("question", "dataset", "answer"):
        if not isinstance(line.get(key, ""), str | None):
            raise OutcomesError(f"{where}: {key} must be a text, got {line[key]!r}")
    ids = line.get("passages")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
        raise OutcomesError(f"{where}: passages must be a list of ids, got {ids!r}")
    return line


def _question(line: Mapping[str, Any], known: Question | None, where: str) -> Question:
    """Join what a line and `questions` tell of a question. Raises OutcomesError."""
    text = line.get("question") or (known.text if known else "")
    if not text:
        raise OutcomesError(
            f"{where}: question {line['id']!r} has no text; pass the questions that it is one of"
        )
    if known is None:
        return Question(line["id"], text, dataset=line.get("dataset") or "")
    if text != known.text:
        raise OutcomesError(f"{where}: question {known.id!r} is {text!r}, but asked for is {known.text!r}")
    return replace(known, dataset=line.get("dataset") or known.dataset)


def _numbers(name: str, top: float, lines: Mapping[int, Mapping[str, Any]], file: Path) -> Floats:
    """Return one number of each line, NaN where it has none. Raises OutcomesError outside of [0, top]."""
    told = [line.get(name) for line in lines.values()]
    if not {type(value) for value in told} <= {float, int, NoneType}:
        wrong = [type(value) not in (float, int, NoneType) for value in told]
    else:
        values = np.array(told, dtype=np.float64)  # None becomes NaN, which JSON does not have
        fits = np.isnan(values) | ((values >= 0.0) & (values <= top) & (values < np.inf))
        if fits.all():
            return values
        wrong = (~fits).tolist()
    number, value = next(pair for pair, bad in zip(zip(lines, told, strict=True), wrong, strict=True) if bad)
    ought = "in [0, 1]" if top == 1.0 else "finite and not negative"
    raise OutcomesError(f"{file}, line {number}: {name} is {value!r}; it must be a number {ought}, or null")
