"""Health: arms that fail, are full or still load their encoder are not drawn."""

from collections.abc import Mapping
from typing import ClassVar, Self

from armwise.agent.turn.eligibility import OverloadedError
from armwise.agent.turn.health import ArmHealth
from armwise.agent.turn.steps.base import Draft, TurnStep
from armwise.arms.base import ArmError


class HealthStep(TurnStep):
    """Leaves out arms that are unavailable now.

    Args:
        health: Circuit breakers and concurrency caps of arms and language models.
    """

    name: ClassVar[str] = "health"
    is_last: ClassVar[bool] = True

    def __init__(self, health: ArmHealth) -> None:
        self._health = health

    @classmethod
    def build(cls, *, health: ArmHealth) -> Self:
        """Return the step of a service."""
        return cls(health)

    def mask(self, draft: Draft) -> Mapping[str, str]:
        """Return the arms that are unavailable now.

        Raises:
            ArmError: The encoders of all arms are still being loaded, or their sources are out of reach.
            OverloadedError: No arm has room.
        """
        names, searched = draft.names, draft.probes.found.keys() | draft.probes.failed.keys()
        masked = self._health.mask_arms(names, searched, draft.models, draft.ask.asked_by)
        if self._health.away.keys() >= {*names}:
            raise ArmError(f"the sources of all eligible arms are out of reach: {', '.join(names)}")
        if (self._health.loading | self._health.away.keys()) >= {*names}:
            raise ArmError(f"the encoders of all eligible arms are still loading: {', '.join(names)}")
        if masked.keys() >= set(names):
            raise OverloadedError(f"all eligible arms are busy: {', '.join(names)}")
        return masked
