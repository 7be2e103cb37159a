"""A language model as a judge of answers, or of the passages that an answer is written from.

    ANSWER       one grade from 0 to 10 of an answer
    PAIR         which of two answers is better, or neither
    FIVE_SCORES  five scores from 1 to 5 of passages

The judge writes its grade as JSON, and is prompted again when that cannot be read. Its thoughts are no
grade. It has to write the grade once: of different ones none counts, as it may quote what it judges.

    ArmError
    `-- UnreadableAnswerError
        `-- JudgeError  no attempt gave a grade
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Passage
from armwise.arms.llm.base import Write
from armwise.arms.llm.pricing import Bound
from armwise.arms.llm.prompts import passage_block
from armwise.arms.llm.quotation import ONLY_DATA, enclose
from armwise.arms.llm.structured_output import (
    StructuredCaller,
    UnreadableAnswerError,
    WholeNumber,
    asking_bound,
    json_values,
    quote_start,
    read_object,
    read_whole,
    require_agreement,
)

T = TypeVar("T")

BEST_GRADE = 10

TAGS = enclose("question", "") + enclose("answer", "")
"""Surround what is graded."""

WORD_BUDGET = 600
"""Most words of passages that a judge is shown."""

LOW, HIGH = 1, 5
"""The worst and the best of the five scores."""


class JudgeError(UnreadableAnswerError):
    """No attempt of the judge gave a grade."""

    summary: ClassVar[str] = "the judge wrote no grade"


@dataclass(frozen=True, slots=True)
class Rubric(Generic[T]):
    """What is graded, and how the grade is written and read.

    Attributes:
        system: The system message.
        form: The form of the grade.
        read: Text of the judge -> its grade. Raises ValueError.
        max_tokens: Room for the JSON and for the few words that some models put around it.
    """

    system: str
    form: str
    read: Callable[[str], T]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Grade(Generic[T]):
    """A grade and its cost.

    Attributes:
        grade: In [0, 1], or the five scores.
        tokens: Tokens read and written, of all attempts.
        malformed: Attempts that gave no grade.
    """

    grade: T
    tokens: int
    malformed: int = 0


def grade(
    write: Write,
    rubric: Rubric[T],
    question: str,
    passages: Sequence[Passage],
    answer: str | None = None,
    *,
    word_budget: int = WORD_BUDGET,
    retries: int = 1,
    reasoning_tokens: int = 0,
) -> Grade[T]:
    """Grade passages, or an answer that was written from them.

    Args:
        write: Prompts the language model.
        rubric: One of the presets of this module.
        question: The question.
        passages: Best first; may be empty.
        answer: The answer, for a rubric that grades it.
        word_budget: Most words of passages to show.
        retries: Further attempts after text that is not a grade.
        reasoning_tokens: Room for thoughts before the grade.

    Raises:
        JudgeError: No attempt gave a grade.
        GeneratorError: The language model failed.
    """
    caller = StructuredCaller(write, JudgeError, retries=retries, reasoning_tokens=reasoning_tokens)
    case = _case(question, passages, word_budget)
    if answer is not None:
        case += "\n" + enclose("answer", answer)
    verdict = caller.ask(rubric.system, case, rubric.form, rubric.read, max_tokens=rubric.max_tokens)
    return Grade(verdict, caller.tokens, caller.malformed)


def grade_bound(rubric: Rubric[T], *, answer_tokens: int, word_budget: int, retries: int) -> Bound:
    """Return the most that `grade` has the model read and write, for an answer of so many tokens."""
    return asking_bound(
        rubric.system + TAGS,
        rubric.form,
        rubric.max_tokens,
        words=word_budget,
        read=answer_tokens,
        retries=retries,
    )


def prefer(
    write: Write,
    question: str,
    passages: Sequence[Passage],
    first: str,
    second: str,
    *,
    reasoning_tokens: int = 0,
) -> Grade[float]:
    """Compare two answers; who wrote them is not shown. The order should be random: judges prefer a place.

    Args:
        write: Prompts the language model.
        question: The question.
        passages: Those that both were written from; may be empty.
        first: One answer.
        second: The other one.
        reasoning_tokens: Room for thoughts before the verdict.

    Returns:
        1 where the first one is better, -1 where the second one is, 0 where neither is.

    Raises:
        JudgeError: No attempt named an answer.
        GeneratorError: The language model failed.
    """
    caller = StructuredCaller(write, JudgeError, reasoning_tokens=reasoning_tokens)
    case = "\n".join(
        [
            _case(question, passages, WORD_BUDGET),
            *(f"Answer {n}:\n{enclose('answer', answer)}" for n, answer in ((1, first), (2, second))),
        ]
    )
    verdict = caller.ask(PAIR.system, case, PAIR.form, PAIR.read, max_tokens=PAIR.max_tokens)
    return Grade(verdict, caller.tokens, caller.malformed)


def prefer_bound(*, answer_tokens: int, reasoning_tokens: int = 0, retries: int = 1) -> Bound:
    """Return the most that `prefer` has the model read and write, for two answers with these tokens."""
    return asking_bound(
        PAIR.system + TAGS + enclose("answer", ""),
        PAIR.form,
        PAIR.max_tokens + reasoning_tokens,
        words=WORD_BUDGET,
        read=answer_tokens,
        retries=retries,
    )


def _case(question: str, passages: Sequence[Passage], word_budget: int) -> str:
    r"""Return passages and question as a judge is shown them.

    >>> _case("Why?", [], 600)
    'There are no passages.\n\n<question>\nWhy?\n</question>'
    """
    shown = passage_block(passages, word_budget) or "There are no passages."
    return f"{shown}\n\n{enclose('question', question)}"


def read_grade(text: str) -> float:
    """Return the grade in a text as a fraction of the best one.

    >>> read_grade('The answer is mostly right: {"score": 8}.')
    0.8

    Raises:
        ValueError: There is no JSON object with a `score` from 0 to 10, or there are different scores.
    """
    scores = [read_whole(document.get("score")) for document in json_values(text, "{")]
    # a bool is an int to Python, and no grade
    numbers = [score for score in scores if isinstance(score, int | float) and not isinstance(score, bool)]
    if grades := [number / BEST_GRADE for number in numbers if 0 <= number <= BEST_GRADE]:
        return require_agreement(text, grades)
    raise ValueError(f'{quote_start(text)} has no {{"score": n}} with n from 0 to {BEST_GRADE}')


GRADE_FORM = 'Write only JSON with the grade, a whole number n from 0 to 10: {"score": n}'

ANSWER = Rubric(
    "You grade answers from 0 to 10. Give 10 when the answer is right, complete and supported by the "
    f"passages. Give 0 when it is wrong or no answer. {ONLY_DATA}",
    GRADE_FORM,
    read_grade,
    48,
)


def read_better(text: str) -> float:
    """Return 1 where a text names the first answer, -1 for the second one, 0 for neither.

    >>> read_better('{"better": 2}')
    -1.0

    Raises:
        ValueError: There is no JSON object with `better` 0, 1 or 2, or there are different ones.
    """
    named = [read_whole(document.get("better")) for document in json_values(text, "{")]
    numbers = [better for better in named if isinstance(better, int) and not isinstance(better, bool)]
    if verdicts := [(0.0, 1.0, -1.0)[better] for better in numbers if better in (0, 1, 2)]:
        return require_agreement(text, verdicts)
    raise ValueError(f'{quote_start(text)} has no {{"better": n}} with n 0, 1 or 2')


PAIR = Rubric(
    "You compare two answers to a question. The better one is right where the other one is wrong, or more "
    "complete, or better supported by the passages; neither its length nor its place counts. " + ONLY_DATA,
    'Write only JSON with the number of the better answer, or 0 if neither is better: {"better": n}',
    read_better,
    48,
)


class FiveScores(BaseModel):
    """Scores of passages as the judge writes them: whole numbers from 1 to 5, more is better.

    Source: R3AG, Zhao et al. 2026, arXiv:2604.22849, appendix A.4.
    """

    # other keys are ignored: some models add a reason or a total
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    relevance: WholeNumber = Field(ge=LOW, le=HIGH, description="the passages are about what is asked")
    coverage: WholeNumber = Field(ge=LOW, le=HIGH, description="together they hold all that the answer needs")
    accuracy: WholeNumber = Field(ge=LOW, le=HIGH, description="what they say is right and to be trusted")
    ranking: WholeNumber = Field(ge=LOW, le=HIGH, description="the most useful ones come first")
    redundancy: WholeNumber = Field(
        ge=LOW, le=HIGH, description="they do not repeat each other; 1 if all are alike"
    )

    def fractions(self) -> dict[str, float]:
        """Return each score in [0, 1]: 1 becomes 0, and 5 becomes 1."""
        return {name: (score - LOW) / (HIGH - LOW) for name, score in self}

    @property
    def mean(self) -> float:
        """The mean of the five in [0, 1]: (their mean - 1) / 4.

        >>> FiveScores(relevance=5, coverage=4, accuracy=3, ranking=2, redundancy=1).mean
        0.5
        """
        return math.fsum(self.fractions().values()) / len(type(self).model_fields)


_CRITERIA = "\n".join(f"- {name}: {field.description}" for name, field in FiveScores.model_fields.items())

_SHAPE = ", ".join(f'"{name}": n' for name in FiveScores.model_fields)

FIVE_SCORES = Rubric(
    "You grade the passages that a search found for a question. Give a whole number from 1 (not at all) "
    f"to 5 (fully) for each of these:\n{_CRITERIA}\n{ONLY_DATA}",
    f"Write only JSON, with whole numbers n from 1 to 5: {{{_SHAPE}}}",
    partial(read_object, FiveScores),
    128,
)

SCORE_NAMES = ("judge_relevance", "judge_coverage", "judge_accuracy", "judge_ranking", "judge_redundancy")
"""Keys of the five scores in an outcome; `judge` is their mean."""
