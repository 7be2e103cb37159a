"""Outcomes: the answer of every arm to every question, with scores and costs, as JSON lines.

    {"id": "q1", "question": "Who ...?", "dataset": "nq", "arm": "bm25", "passages": ["p7", "p2"],
     "answer": "Marie Curie", "em": 1.0, "f1": 1.0, "steps": 1, "prompt_tokens": 412, ...}

    outcomes of a job --write_outcomes--> outcomes.jsonl --read_outcomes--> Outcomes: arrays by score and cost

A line has only the keys of `SCORES`, `COSTS` and `ABOUT`: a mistyped score is an error.
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

from armwise.arms import manifest
from armwise.arms.llm import judge
from armwise.arms.questions import Question
from armwise.arms.suggestions import did_you_mean

Floats = NDArray[np.float64]

FILE = "outcomes.jsonl"
"""The file in the folder of a job."""

SCORES = ("em", "f1", "acc", "recall", "answer_correctness", "judge", *judge.SCORE_NAMES)
"""Numbers in [0, 1], higher is better; null if unknown."""

COSTS = (
    "steps", "llm_calls", "prompt_tokens", "completion_tokens", "usd", "search_usd",
    "retrieval_s", "llm_s", "seconds",
)  # fmt: skip
"""Finite numbers of at least 0; null if unknown. `search_usd` is the part of `usd` for searches."""

ABOUT = (
    "id", "question", "dataset", "arm", "passages", "answer", "prompt", "tagged", "follow_up", "error",
)  # fmt: skip
"""Keys for the question, the arm, its passages and answer, and errors."""

KEYS = frozenset((*SCORES, *COSTS, *ABOUT))


class OutcomesError(ValueError):
    """Outcomes cannot be read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of an arm to a question: a line of the file.

    Attributes:
        question: The question; a line has its id, text and data set.
        arm: Name of the arm.
        passages: Ids of its passages, best first; None: the arm failed.
        answer: Answer of the language model.
        scores: Known values of `SCORES`.
        costs: Known values of `COSTS`.
        prompt: Name of the prompt.
        tagged: Whether the answer was in the tag that the prompt asks for; None: the prompt has no tag.
        error: Why the answer or a score is missing.
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
        r"""Return the line with its newline; unknown values are left out.

        >>> Outcome(Question("q1", "Who?"), "none", answer="She.", scores={"em": 1.0}).line()
        b'{"id":"q1","question":"Who?","arm":"none","answer":"She.","em":1.0}\n'
        """
        fields = {
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
        document = {key: value for key, value in fields.items() if value is not None}
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of all arms as arrays; NaN or None: missing or failed.

    Attributes:
        questions: The questions, in the order of the file.
        arms: Names of the arms, in the order of the file.
        scores: The `SCORES` that the file has, each of shape (n_questions, n_arms), in [0, 1].
        costs: The `COSTS` that the file has, each of shape (n_questions, n_arms), at least 0.
        passages: Ids of the passages, best first: `passages[question][arm]`.
        answers: The answers: `answers[question][arm]`.
    """

    questions: tuple[Question, ...]
    arms: tuple[str, ...]
    scores: Mapping[str, Floats]
    costs: Mapping[str, Floats]
    passages: tuple[tuple[tuple[str, ...] | None, ...], ...]
    answers: tuple[tuple[str | None, ...], ...]

    def only(self, rows: ArrayLike) -> "Outcomes":
        """Return the outcomes of some questions, given by index or by a mask of shape (n_questions,).

        Raises:
            IndexError: An index is out of range, or the mask has another length.
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
    """Write a line for each outcome; compressed if the name ends in .gz."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.writelines(outcome.line() for outcome in outcomes)


def read_outcomes(path: Path, questions: Sequence[Question] = ()) -> Outcomes:
    """Read outcomes.

    Args:
        path: JSON lines, compressed if the name ends in .gz; or the folder of a job, whose files are
            compared with its manifest.
        questions: Texts, right answers and supporting passages by id; a text in the file must
            be the same. Further questions are ignored.

    Raises:
        OutcomesError: The file is unreadable or empty, a line is malformed, an arm occurs
            twice on a question, a number is out of range, or a question lacks its text.
    """
    if (path / manifest.MANIFEST).is_file() and (problems := manifest.problems(path, contents=True)):
        raise OutcomesError(f"{path}: {', '.join(problems)}; delete it and run `armwise lab label` again")
    file = path / FILE if path.is_dir() else path
    lines = _read(file)
    given = {question.id: question for question in questions}
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    numbers: dict[tuple[int, int], int] = {}
    row_questions: list[Question] = []
    for number, line in lines.items():
        where = f"{file}, line {number}"
        row = rows.setdefault(line["id"], len(rows))
        column = columns.setdefault(line["arm"], len(columns))
        if row == len(row_questions):
            row_questions.append(_question(line, given.get(line["id"]), where))
        elif (text := line.get("question") or row_questions[row].text) != row_questions[row].text:
            raise OutcomesError(
                f"{where}: question {line['id']!r} is {text!r}, and was {row_questions[row].text!r} before"
            )
        if (first := numbers.setdefault((row, column), number)) != number:
            raise OutcomesError(
                f"{where}: arm {line['arm']!r} on question {line['id']!r} was already given in line {first}"
            )
    shape = len(rows), len(columns)
    cells = tuple(np.array(list(numbers)).T)
    keys = set[str]().union(*lines.values())

    def array(name: str, top: float) -> Floats:
        values = np.full(shape, np.nan)
        values[cells] = _numbers(name, top, lines, file)
        return values

    def table(key: str) -> tuple[tuple[Any, ...], ...]:
        values: list[list[Any]] = [[None] * shape[1] for _ in range(shape[0])]
        for (row, column), line in zip(numbers, lines.values(), strict=True):
            value = line.get(key)
            values[row][column] = tuple(value) if isinstance(value, list) else value
        return tuple(map(tuple, values))

    return Outcomes(
        tuple(row_questions),
        tuple(columns),
        {name: array(name, 1.0) for name in SCORES if name in keys},
        {name: array(name, np.inf) for name in COSTS if name in keys},
        table("passages"),
        table("answer"),
    )


def _read(file: Path) -> dict[int, dict[str, Any]]:
    """Return the lines by number; their keys and the types of all but numbers are checked."""
    lines: dict[int, dict[str, Any]] = {}
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as read:
            for number, text in enumerate(read, start=1):
                if not text.isspace():
                    lines[number] = _parse(text, f"{file}, line {number}")
    except (OSError, EOFError, zlib.error) as error:
        raise OutcomesError(f"cannot read outcomes from {file}: {error}") from error
    if not lines:
        raise OutcomesError(f"{file} has no outcomes")
    return lines


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OutcomesError(f"{where}, is not JSON: {error}") from None
    if not isinstance(line, dict):
        raise OutcomesError(f"{where}, is not a JSON object but {text[:60]!r}")
    for key in line.keys() - KEYS:
        raise OutcomesError(f"{where}: unknown key {key!r}{did_you_mean(key, KEYS)}")
    for key in ("id", "arm"):
        if not isinstance(line.get(key), str) or not line[key]:
            raise OutcomesError(f"{where}: {key} must be non-empty text, got {line.get(key)!r}")
    for key in ("question", "dataset", "answer"):
        if not isinstance(line.get(key, ""), str | None):
            raise OutcomesError(f"{where}: {key} must be text, got {line[key]!r}")
    ids = line.get("passages")
    if ids is not None and not (
        isinstance(ids, list) and all(isinstance(passage_id, str) for passage_id in ids)
    ):
        raise OutcomesError(f"{where}: passages must be a list of ids, got {ids!r}")
    return line


def _question(line: Mapping[str, Any], given: Question | None, where: str) -> Question:
    """Merge the question of a line with the known one. Raises OutcomesError."""
    text = line.get("question") or (given.text if given else "")
    if not text:
        raise OutcomesError(
            f"{where}: question {line['id']!r} has no text: add it, or pass the questions with --queries"
        )
    if given is None:
        return Question(line["id"], text, dataset=line.get("dataset") or "")
    if text != given.text:
        raise OutcomesError(f"{where}: question {given.id!r} is {text!r}, but {given.text!r} was given")
    return replace(given, dataset=line.get("dataset") or given.dataset)


def _numbers(name: str, top: float, lines: Mapping[int, Mapping[str, Any]], file: Path) -> Floats:
    """Return the value of a key in each line, NaN if missing. Raises OutcomesError outside of [0, top]."""
    given = [line.get(name) for line in lines.values()]
    if not {type(value) for value in given} <= {float, int, NoneType}:
        wrong = [type(value) not in (float, int, NoneType) for value in given]
    else:
        values = np.array(given, dtype=np.float64)  # None becomes NaN, which JSON does not have
        fits = np.isnan(values) | ((values >= 0.0) & (values <= top) & (values < np.inf))
        if fits.all():
            return values
        wrong = (~fits).tolist()
    number, value = next(pair for pair, bad in zip(zip(lines, given, strict=True), wrong, strict=True) if bad)
    ought = "in [0, 1]" if top == 1.0 else "finite and not negative"
    raise OutcomesError(f"{file}, line {number}: {name} is {value!r}; it must be a number {ought}, or null")
