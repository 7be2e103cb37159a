"""The settings of a decision point, and how further points differ from the default one."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from armwise.agent.config.sections import Learning, Observations, Sticky, Tap
from armwise.agent.config.warm_start import WarmStartSpec
from armwise.agent.policies import FeatureSpec, PolicySpec
from armwise.agent.routers import saved
from armwise.arms.llm import writing
from armwise.arms.relative_paths import InFolder
from armwise.arms.retrievers import ArmSpec, catalog
from armwise.feedback.budget import Budget
from armwise.feedback.drift import DriftSpec
from armwise.feedback.ope import GateSpec
from armwise.feedback.reward import RewardRule
from armwise.number import Number

DEFAULT_POINT = "default"
"""Name of the decision point that the top level of the configuration describes."""

NOT_INHERITED = ("fallback", "log_away", "router", "warm_start", "tap", "observations")
"""Keys that a point with other arms does not inherit, since they name arms."""


Arms = Annotated[dict[str, ArmSpec], Field(min_length=1), InFolder(catalog.locate_arms)]
"""Arms by name."""


class PointFields(BaseModel):
    """What a decision point has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: Arms | None = Field(default=None, description="Arms of the point; null for those of the top level.")
    fallback: str | None = Field(
        default=None, description="Arm that answers when the drawn one fails; null makes a failure a 502."
    )
    answering: writing.Answering = writing.Answering()
    policy: PolicySpec = PolicySpec(kind="vowpal")
    features: FeatureSpec = FeatureSpec()
    router: saved.RouterConfig | None = Field(
        default=None,
        description="A trained router, whose score of an arm is a feature of that arm; null for none.",
    )
    exploration: Number = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Share of the draws that all eligible arms have alike, whatever the policy prefers: the "
        "least that an estimate or a change can count on.",
    )
    floor: Number | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Least probability of every eligible arm, in the place of `exploration`; "
        "null: `exploration` over the number of eligible arms.",
    )
    reward: RewardRule = RewardRule()
    budget: Budget | None = Field(
        default=None,
        description="A ceiling on the mean cost of a request that a policy decides; null for none.",
    )
    learning: Learning = Learning()
    observations: Observations = Observations()
    sticky: Sticky = Sticky()
    cache_turns: Number | None = Field(
        default=5.0,
        ge=1,
        description="Turns of a conversation over which a draw spreads what an arm costs more because its "
        "language model lacks the conversation in its cache: the turns after it read it from there. 1 counts "
        "all of it in this turn; null counts none. Nothing is counted where tokens of a cache have no price "
        "(`usd_per_kilotoken_cached`) or dollars do not count (`reward.cost.usd`).",
    )
    drift: DriftSpec | None = Field(
        default=DriftSpec(),
        description="How drift is detected, and what happens after an alarm; null turns detection off.",
    )
    gate: GateSpec = GateSpec()
    warm_start: WarmStartSpec | None = Field(
        default=None,
        description="How labels become a candidate, and what promotes it; null for no warm starts.",
    )
    tap: Tap | None = Field(
        default=None,
        description="How decisions that another system makes are taken by `POST /v1/observations` and shared "
        "with it; null takes none.",
    )


class PointSpec(PointFields):
    """A decision point: the keys in which it differs from the top level. What it leaves out is as there."""

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only the keys that were set, so that a copy of the configuration means the same."""
        inherited = {"arms"} if self.arms is None else set()
        return {
            name: value for name, value in dump(self).items() if name in self.model_fields_set - inherited
        }

    def over(self, service: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document of a service with only this point.

        Args:
            service: The configuration of the service, as JSON.
        """
        settings = self.model_dump(mode="json")
        if self.arms is None:
            return {**service, **settings}
        base = {key: value for key, value in service.items() if key not in NOT_INHERITED}
        return {**base, "limits": {**service["limits"], "arm_caps": {}}, **settings}
