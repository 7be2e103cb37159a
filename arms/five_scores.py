"""A judge that looks at passages from five sides, and gives each a whole number from 1 to 5.

    passages, best first --judge_five--> FiveScores: relevance, coverage, accuracy, ranking, redundancy

More is better in all five: a list that says everything once has a redundancy of 5. A text that
is no such scores is asked for again; where it stays so, it is a `JudgeError` to be counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from arms.asking import Asker, read_object
from arms.base import Passage
from arms.judge import JudgeError, judged_case
from arms.kinds import Write

LOW, HIGH = 1, 5
"""The worst and the best score."""

MAX_TOKENS = 128
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

FORM = f"Write only JSON, with whole numbers n from 1 to 5: {{{_SHAPE}}}"


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
    asker = Asker(write, JudgeError, retries=retries)
    case = judged_case(question, passages, word_budget)
    scores = asker.ask(SYSTEM, case, FORM, partial(read_object, FiveScores), max_tokens=MAX_TOKENS)
    return FiveVerdict(scores, asker.tokens, asker.malformed)


__all__ = ["FORM", "FiveScores", "FiveVerdict", "judge_five"]
