"""A language model as a judge: how good an answer is, or the passages that it shall be written from.

The judge writes a whole number from 0 to 10 as JSON. What it wrote is checked, and
it is asked again when it is no grade. Nothing here knows of arms: the same judge
steers a search and scores what was found offline. `arms.llm.judge` has a judge that
looks at passages from five sides.

    ArmError
    `-- UnreadableError
        `-- JudgeError  the judge wrote no grade, however often it was asked
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from arms.base import Passage
from arms.llm.base import Write
from arms.llm.prompts import numbered
from arms.llm.structured_output import StructuredCaller, UnreadableError, json_values, quoted, read_object

TOP = 10
"""The best grade."""

VERDICT_TOKENS = 48
"""Room for the JSON and for the few words that some models put around it."""

ANSWER_SYSTEM = (
    "You grade answers from 0 to 10. Give 10 when the answer is right, complete and supported by the "
    "passages. Give 0 when it is wrong or no answer."
)

PASSAGES_SYSTEM = (
    "You grade passages from 0 to 10. Give 10 when they hold all that is needed to answer the question. "
    "Give 0 when they do not help."
)

VERDICT_SCHEMA = 'Write only JSON with the grade, a whole number n from 0 to 10: {"score": n}'


class JudgeError(UnreadableError):
    """The judge wrote no grade, however often it was asked."""

    told: ClassVar[str] = "the judge wrote no grade"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge found.

    Attributes:
        score: The grade as a fraction of the best one, in [0, 1].
        tokens: Tokens read and written for it, further attempts included.
    """

    score: float
    tokens: int


def judge_answer(
    write: Write,
    question: str,
    passages: Sequence[Passage],
    answer: str,
    *,
    word_budget: int = 600,
    retries: int = 1,
) -> Verdict:
    """Grade an answer: is it right, complete, and supported by the passages?

    Args:
        write: Asks the language model.
        question: What was asked.
        passages: What the answer was written from; may be empty.
        answer: What is graded.
        word_budget: Most words of passages to show.
        retries: How often to ask again after text that is no grade.

    Raises:
        JudgeError: It wrote no grade.
        GeneratorError: The language model failed.
    """
    case = f"{judged_case(question, passages, word_budget)}\nAnswer: {answer}"
    return _judge(write, ANSWER_SYSTEM, case, retries)


def judge_passages(
    write: Write, question: str, passages: Sequence[Passage], *, word_budget: int = 600, retries: int = 1
) -> Verdict:
    """Grade passages: how well do they let one answer the question?

    Takes and raises what `judge_answer` does.
    """
    return _judge(write, PASSAGES_SYSTEM, judged_case(question, passages, word_budget), retries)


def judged_case(question: str, passages: Sequence[Passage], word_budget: int) -> str:
    r"""Return passages and question as a judge is shown them.

    >>> judged_case("Why?", [], 600)
    'There are no passages.\n\nQuestion: Why?'
    """
    shown = "\n\n".join(numbered(passages, word_budget)) or "There are no passages."
    return f"{shown}\n\nQuestion: {question}"


def _judge(write: Write, system: str, case: str, retries: int) -> Verdict:
    asker = StructuredCaller(write, JudgeError, retries=retries)
    score = asker.ask(system, case, VERDICT_SCHEMA, grade, max_tokens=VERDICT_TOKENS)
    return Verdict(score / TOP, asker.tokens)


def grade(text: str) -> float:
    """Return the grade in what a judge wrote, in [0, 10].

    >>> grade('The answer is mostly right: {"score": 8}.')
    8.0

    Raises:
        ValueError: There is no JSON object with a `score` in that range.
    """
    for found in json_values(text, "{"):
        score = found.get("score")
        # a bool is an int to Python, and no grade
        if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= TOP:
            return float(score)
    raise ValueError(f'{quoted(text)} holds no {{"score": n}} with n from 0 to {TOP}')


LOW, HIGH = 1, 5
"""The worst and the best score."""

FIVE_SCORES_TOKENS = 128
"""Room for the JSON, a fence, and the total that some models add."""


class FiveScores(BaseModel):
    """What a judge finds in passages, as it writes it: whole numbers from 1 to 5, more is better."""

    # other keys are let through: some models add a reason or a total
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    relevance: int = Field(ge=LOW, le=HIGH, description="the passages are about what is asked")
    coverage: int = Field(ge=LOW, le=HIGH, description="together they hold all that the answer needs")
    accuracy: int = Field(ge=LOW, le=HIGH, description="what they say is right and to be trusted")
    ranking: int = Field(ge=LOW, le=HIGH, description="the most useful ones come first")
    redundancy: int = Field(ge=LOW, le=HIGH, description="they do not repeat each other; 1 if all are alike")

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


_SIDES = "\n".join(f"- {name}: {field.description}" for name, field in FiveScores.model_fields.items())

SYSTEM = (
    "You grade the passages that a search found for a question. Give a whole number from 1 (not at all) "
    f"to 5 (fully) for each of these:\n{_SIDES}"
)

_SHAPE = ", ".join(f'"{name}": n' for name in FiveScores.model_fields)

FIVE_SCORES_SCHEMA = f"Write only JSON, with whole numbers n from 1 to 5: {{{_SHAPE}}}"


@dataclass(frozen=True, slots=True)
class FiveVerdict:
    """What the judge found, and what it took.

    Attributes:
        scores: The five.
        tokens: Tokens read and written for them, further attempts included.
        malformed: Texts before that were no scores.
    """

    scores: FiveScores
    tokens: int
    malformed: int


def judge_five(
    write: Write, question: str, passages: Sequence[Passage], *, word_budget: int = 600, retries: int = 1
) -> FiveVerdict:
    """Score a list of passages for a question from five sides.

    Args:
        write: Asks the language model.
        question: What was asked.
        passages: What was found, best first; may be empty.
        word_budget: Most words of passages to show.
        retries: How often to ask again, saying what was wrong.

    Raises:
        JudgeError: It wrote no such scores.
        GeneratorError: The language model failed.

    Source: R3AG, Zhao et al. 2026, arXiv:2604.22849, appendix A.4.
    """
    asker = StructuredCaller(write, JudgeError, retries=retries)
    case = judged_case(question, passages, word_budget)
    scores = asker.ask(
        SYSTEM, case, FIVE_SCORES_SCHEMA, partial(read_object, FiveScores), max_tokens=FIVE_SCORES_TOKENS
    )
    return FiveVerdict(scores, asker.tokens, asker.malformed)


JUDGED = ("judge_relevance", "judge_coverage", "judge_accuracy", "judge_ranking", "judge_redundancy")
"""What a judge finds in the passages; `judge` is their mean."""
