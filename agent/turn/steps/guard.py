"""The guard: a class of requests whose answers became worse goes back to the reference arm.

The learner decides from rated answers which classes go back. This step does what it has decided, and gives
the reference a share of every other class, without which nothing could be compared.
"""

from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np

from armwise.agent.policies import sampling
from armwise.agent.turn.steps.base import Array, Draft, DrawInputs, StepRecord, TurnStep
from armwise.feedback.events import INCUMBENT
from armwise.feedback.guard import GuardSpec, Returned


class GuardStep(TurnStep):
    """Gives the reference a share of the draw: all but the floor in a class that went back.

    Args:
        spec: The guard.
        get_returned: Returns the classes that went back.
    """

    name: ClassVar[str] = "guard"
    binds_all: ClassVar[bool] = True

    def __init__(self, spec: GuardSpec, get_returned: Callable[[], Returned]) -> None:
        self._spec, self._get_returned = spec, get_returned

    @classmethod
    def build(cls, *, guard: GuardSpec | None, get_returned: Callable[[], Returned]) -> Self | None:
        """Return the step of a service; None: it has no guard."""
        return None if guard is None else cls(guard, get_returned)

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the reference and its least share. The caller's own decider has no guard.

        The class is left out of the record: it is in the features, which an erasure overwrites.
        """
        spec = self._spec
        if spec.reference not in draft.names or INCUMBENT in draft.records:
            return None
        return {"reference": spec.reference, "share": 1.0 if self.is_back(draft) else spec.share}

    def is_back(self, draft: Draft) -> bool:
        """Return whether the class of a request went back, and the reference can answer it."""
        spec = self._spec
        if spec.reference not in draft.names:
            return False
        return self._get_returned().has(spec.find_class(draft.context.features))

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        """Return the distribution in which the reference has its share; every arm keeps the floor."""
        if record["reference"] not in draw.arms:  # of a candidate that has other arms
            return p
        at, n = draw.arms.index(record["reference"]), len(draw.arms)
        back = sampling.mix_floor(np.eye(n)[at], sampling.lower_floor(draw.floor, n))
        lacking = min(record["share"], back[at]) - p[at]
        if lacking <= 0.0:
            return p
        return sampling.mix_canary(p, back, lacking / (back[at] - p[at]))
