"""A language model as a judge: how good an answer is, or the passages that it shall be written from.

The judge writes a whole number from 0 to 10 as JSON. What it wrote is checked, and
it is asked again when it is no grade. Nothing here knows of arms: the same judge
steers a search and scores what was found offline. `arms.five_scores` has a judge that
looks at passages from five sides.

    ArmError
    `-- UnreadableError
        `-- JudgeError  the judge wrote no grade, however often it was asked
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from arms.asking import Asker, UnreadableError, json_values, quoted
from arms.base import Passage
from arms.kinds import Write
from arms.prompts import numbered

TOP = 10
"""The best grade."""

MAX_TOKENS = 48
"""Room for the JSON and for the few words that some models put around it."""

ANSWER_SYSTEM = (
    "You grade answers from 0 to 10. Give 10 when the answer is right, complete and supported by the "
    "passages. Give 0 when it is wrong or no answer."
)

PASSAGES_SYSTEM = (
    "You grade passages from 0 to 10. Give 10 when they hold all that is needed to answer the question. "
    "Give 0 when they do not help."
)

FORM = 'Write only JSON with the grade, a whole number n from 0 to 10: {"score": n}'


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
    asker = Asker(write, JudgeError, retries=retries)
    score = asker.ask(system, case, FORM, grade, max_tokens=MAX_TOKENS)
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


__all__ = ["JudgeError", "Verdict", "grade", "judge_answer", "judge_passages", "judged_case"]
