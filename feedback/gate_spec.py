"""The settings of the gate (`armwise.feedback.ope.gate`), which judges whether a candidate may go live."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from armwise.number import Number


class GateSpec(BaseModel):
    """The conditions that a candidate must meet to be promoted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    confidence: Literal["asymptotic", "strict"] = Field(
        default="asymptotic",
        description=(
            "How the gate bounds the gain. `asymptotic` finds a gain sooner if the candidate prefers arms "
            "that were rarely drawn; its `level` is approached as such draws add up. `strict` holds at its "
            "`level` for a log of any size."
        ),
    )
    level: Number = Field(
        default=0.95,
        gt=0.5,
        lt=1,
        description=(
            "Certainty of the gate. If a candidate's gain is at most `margin`, this is the probability "
            "that the gate never promotes it, however often it checks."
        ),
    )
    margin: Number = Field(
        default=0.0,
        description=(
            "Gain that a candidate must exceed. The gain is its mean reward minus the mean reward of what "
            "was served. With a negative margin, the gate also promotes a slightly worse candidate."
        ),
    )
    least_checked: int = Field(
        default=100,
        ge=0,
        description=(
            "Minimum decisions whose recomputed propensities agree with the log. Set this to 0 to accept a "
            "log whose propensities cannot be recomputed, such as an imported one."
        ),
    )
