"""The caller's own decider: it keeps a share of the draws while the policy takes over step by step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from armwise.agent.policies import sampling
from armwise.agent.turn.eligibility import NoEligibleArmError
from armwise.agent.turn.steps.base import Array, Draft, DrawInputs, StepRecord, TurnStep
from armwise.feedback.events import INCUMBENT


class IncumbentStep(TurnStep):
    """Mixes the policy's distribution with that of the caller's own decider.

    It logs what the policy alone would have drawn from, too: for replay, and to estimate its gain.

    Args:
        share: Share of the policy, in [0, 1]; at 1 the other decider takes no part.
        default: Probability of each arm by that decider in requests that name none; None: it takes no part.
    """

    name: ClassVar[str] = INCUMBENT

    def __init__(self, share: float, default: Mapping[str, float] | None = None) -> None:
        self.share, self._default = share, default

    @classmethod
    def build(cls, *, tap: Any) -> Self | None:
        """Return the step of a service; None: it has no tap."""
        if tap is None:
            return None
        return cls(tap.share, None if tap.incumbent is None else {tap.incumbent: 1.0})

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the other decider's share and its distribution. Raises NoEligibleArmError."""
        named = draft.ask.steps.get(self.name, self._default)
        if named is None or self.share >= 1.0:
            return None
        if gone := [arm for arm, p in named.items() if p and arm not in draft.names]:
            eligible = ", ".join(draft.names)
            message = f"the incumbent's arm {gone[0]!r} is not eligible now; eligible: {eligible}"
            raise NoEligibleArmError(message)
        draft.terms = replace(draft.terms, policy=INCUMBENT)
        pmf = {arm: named.get(arm, 0.0) for arm in draft.names}
        return {"share": 1.0 - self.share, "pmf": pmf}

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        """Return the mixture; of a decision that another system has made, the policy's part alone."""
        record["shadow"] = dict(zip(draw.arms, p.tolist(), strict=True))
        if "pmf" not in record:
            return p
        theirs = np.array([record["pmf"][arm] for arm in draw.arms])
        return sampling.mix_canary(p, theirs, record["share"])
