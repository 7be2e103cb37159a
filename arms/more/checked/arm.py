"""A checked arm: one language model answers, a check says how well, and another one answers if not well.

The arm finds the passages of its first member. Both answers are written from these in the turn, which knows
the conversation, streams, and charges each model: see `armwise.agent.turn.checked`.
"""

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, Query, Retrieval
from armwise.arms.more.checked.command import CommandCheck
from armwise.arms.more.checked.judged import JudgeCheck
from armwise.arms.more.checked.schema import SchemaCheck
from armwise.arms.retrievers.kind import CheckedArms, Kind, Members, Resources
from armwise.number import Number


class CheckedParams(BaseModel):
    """Parameters of a checked arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: str = Field(description="Arm that answers first, usually the cheap one.")
    then: str = Field(
        description=(
            "Arm that answers if the check fails. It answers from the passages that the first arm found. "
            "It must search in the same way as the first arm, or be of kind `none`."
        )
    )
    check: Annotated[SchemaCheck | CommandCheck | JudgeCheck, Field(discriminator="by")] = Field(
        description="Check that the first answer must pass."
    )
    threshold: Number = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Minimum score for sending the first answer. `armwise lab threshold` fits it to the log.",
    )
    explore: Number = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Share of questions for which chance, not the score, decides which answer is sent. You need "
            "such questions to evaluate other thresholds from the log. Keep 0 if an answer that fails the "
            "check must never be sent."
        ),
    )


class CheckedArm(Kind[CheckedParams]):
    """Answers with one arm, [checks the answer](checks.md), and asks another arm if the check fails.

    The search is that of its first member, and the language models are those of both; the answers are checked
    in the turn.
    """

    kind = "checked"
    params = CheckedParams
    example: ClassVar = {
        "first": "bm25",
        "then": "none",
        "check": {"by": "schema", "satisfies": {"type": "object"}},
    }
    light = filters = True
    features = ("threshold",)

    def __init__(self, name: str, first: Arm) -> None:
        self.name, self.backbones = name, first.backbones
        self._first = first

    @classmethod
    @override
    def build(cls, name: str, params: CheckedParams, have: Resources, member: Members) -> Self:
        return cls(name, member(params.first))

    @classmethod
    @override
    def members(cls, params: CheckedParams) -> tuple[str, ...]:
        return params.first, params.then

    @classmethod
    @override
    def searches(cls, params: CheckedParams, member: str) -> float:
        return float(member == params.first)

    @classmethod
    @override
    def steps(cls, params: CheckedParams) -> float:
        return 0.0

    @classmethod
    @override
    def checks(cls, params: CheckedParams) -> CheckedArms:
        return CheckedArms(params.first, params.then, params.check, params.threshold, params.explore)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return what the first member finds. Raises ArmError."""
        return self._first.search(query, k)
