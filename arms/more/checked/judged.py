"""A check by a language model as a judge, who grades the answer."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Passage
from armwise.arms.llm import Bound, Write, writing
from armwise.arms.llm.judge import ANSWER, BEST_GRADE, WORD_BUDGET, grade, grade_bound
from armwise.arms.retrievers import CheckResult

RETRIES = 1


class JudgeCheck(BaseModel):
    """A language model checks the answer. Its grade from 0 to 10 becomes a score from 0 to 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["judge"] = Field(description="A language model checks the answer.")
    judge: str = Field(
        default=writing.DEFAULT, description=("Name of a language model in `llms`, or `default`.")
    )

    @property
    def llm(self) -> str:
        """Name of the language model that grades."""
        return self.judge

    def compute_bound(self, answer_tokens: int) -> Bound:
        """Return the most that a grade has the model read and write."""
        return grade_bound(ANSWER, answer_tokens=answer_tokens, word_budget=WORD_BUDGET, retries=RETRIES)

    def __call__(self, question: str, passages: Sequence[Passage], answer: str, write: Write) -> CheckResult:
        """Return the grade of an answer. Raises JudgeError, GeneratorError."""
        given = grade(write, ANSWER, question, passages, answer, word_budget=WORD_BUDGET, retries=RETRIES)
        return CheckResult(given.grade, f"a grade of {BEST_GRADE * given.grade:g}")
