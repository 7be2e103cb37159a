"""A decision point in the configuration: what differs from the service, and the actions of requests."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from agent.config.sections import Learning, Observations
from agent.config.warm_start import WarmStartSpec
from agent.policies import FeatureSpec, PolicySpec
from agent.routers import saved
from arms.llm import writing
from arms.retrievers import ArmSpec
from feedback.budget import Budget
from feedback.drift import DriftSpec
from feedback.ope import GateSpec
from feedback.reward import RewardRule

DEFAULT = "default"
"""The point that the top level of the configuration is."""

ACTION = "action-"
"""What the names of actions of a request begin with; the position in the request follows, from 1."""

POLICY = {
    "kind": "vowpal",
    "params": {
        "args": "--cb_explore_adf --squarecb --gamma_scale 20 --clip_p 1 --learning_rate 0.2 -q sf",
    },
}
"""Features of a point whose actions come with the request and that names none: context times action."""

FEATURES = {"words": 0, "shape": False}
"""Likewise: there is no question in words."""

NONE = ("portfolio", "fallback", "router", "warm_start")
"""What such a point does not take over from the service."""


class PointSpec(BaseModel):
    """A decision point: what differs from the top level, key by key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actions: Literal["request"] | None = Field(
        default=None,
        description="`request`: the actions come with each request, with their features; null: its `arms`.",
    )
    arms: dict[str, ArmSpec] | None = Field(
        default=None, min_length=1, description="Arms of the point; what is left out is as at the top level."
    )
    fallback: str | None = Field(default=None, description="As at the top level, like all that follow.")
    answering: writing.Answering = writing.Answering()
    policy: PolicySpec = PolicySpec(kind="vowpal")
    features: FeatureSpec = FeatureSpec()
    router: saved.RouterConfig | None = None
    floor: float = Field(default=0.01, gt=0, lt=1, description="Least probability of every eligible action.")
    reward: RewardRule = RewardRule()
    budget: Budget | None = None
    learning: Learning = Learning()
    observations: Observations = Observations()
    drift: DriftSpec | None = DriftSpec()
    gate: GateSpec = GateSpec()
    warm_start: WarmStartSpec | None = None

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is as at the top level, so that a copy of the configuration means the same."""
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}

    @property
    def ranks(self) -> bool:
        """Whether the actions come with the request."""
        return self.actions == "request"

    def over(self, service: Mapping[str, Any], most_actions: int) -> dict[str, Any]:
        """Return the document of its own configuration.

        Args:
            service: The configuration of the service, as JSON.
            most_actions: Actions of one request.

        Raises:
            ValueError: A key has no place where the actions come with the request.
        """
        own = self.model_dump(mode="json", exclude={"actions"})
        if self.arms is None and not self.ranks:
            return {**service, **own}
        # names of arms would mean others here
        limits = {**service["limits"], "arm_caps": {}}
        base = {**service, **dict.fromkeys(NONE), "limits": limits, "observations": {}}
        if not self.ranks:
            return {**base, **own}
        if refused := [name for name in ("arms", *NONE, "observations") if own.get(name)]:
            raise ValueError(f"{refused[0]} has no place where `actions` is request")
        seen = {**FEATURES, **own.get("features", {})}
        if seen["words"] or seen["shape"] or seen.get("embedding"):
            raise ValueError(
                "features: there is no question where `actions` is request: words: 0, shape: false"
            )
        arms = {f"{ACTION}{n}": {"kind": "none"} for n in range(1, most_actions + 1)}
        return {**base, "policy": POLICY, **own, "features": seen, "arms": arms}
