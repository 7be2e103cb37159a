"""The utility of an answer in labels: a weighted sum of scores of its outcome, minus its priced cost.

`LTRR` is the gain over no retrieval, scaled by question; `R3AG` adds a prior of the arm.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.feedback.reward import Prices
from armwise.number import Number

PRIOR_MEASURE = "em"
"""Measure whose mean is R3AG's prior of an arm."""


class Utility(BaseModel):
    """The utility of an answer, which a router learns to predict."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measures: dict[str, Number] = Field(
        default={"f1": 1.0}, min_length=1, description="Scores of the outcomes, each with its weight."
    )
    prior: Number = Field(
        default=0.0, ge=0, description="Weight of the arm's mean exact match over all questions, as in R3AG."
    )
    cost_weight: Number = Field(
        default=0.0, ge=0, description=("Utility lost per unit of priced cost (see `cost`).")
    )
    cost: Prices = Prices()
    over: str | None = Field(
        default=None,
        description="Arm whose utility is subtracted on each question, such as one that retrieves nothing.",
    )
    scale: Literal["none", "minmax"] = Field(
        default="none",
        description=(
            "How the utilities of each question are scaled. `minmax` maps them to the range from 0 to 1, and "
            "equal utilities to 0.5."
        ),
    )

    @model_validator(mode="after")
    def _check_weights(self) -> "Utility":
        for name, weight in self.measures.items():
            if not weight > 0.0:
                raise ValueError(f"measure {name!r} has weight {weight}; a positive one was expected")
        return self


LTRR = Utility(over="none", scale="minmax")
"""The labels of Kim, Diaz 2025 (arXiv:2506.13743), with any measure; an arm `none` is required."""

R3AG = Utility(measures={"em": 1.0, "f1": 0.2}, prior=0.2)
"""The generation utility of R3AG (2026)."""
