"""The exploration floor: every arm that may be drawn has some probability, whatever the policy prefers."""

from collections.abc import Callable
from typing import ClassVar, Self

from armwise.agent.policies import Exploration, sampling
from armwise.agent.turn.steps.base import Draft, StepRecord, TurnStep
from armwise.agent.turn.steps.canary import CanaryStep


class FloorStep(TurnStep):
    """Gives each arm the least probability that policies draw with.

    Args:
        explores: The share of the draws that is spread over all arms.
        get_raised: Returns what it is raised to for a while after an alarm; None: it is not.
    """

    name: ClassVar[str] = "floor"

    def __init__(
        self, explores: Exploration, get_raised: Callable[[], Exploration | None] = lambda: None
    ) -> None:
        self._explores, self._get_raised = explores, get_raised

    @classmethod
    def build(cls, *, explores: Exploration, get_raised: Callable[[], Exploration | None]) -> Self:
        """Return the step of a service."""
        return cls(explores, get_raised)

    def compute_least(self, n_arms: int) -> float:
        """Return the least probability of each of so many arms."""
        least, raised = self._explores.among(n_arms), self._get_raised()
        return least if raised is None else max(least, raised.among(n_arms))

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the least probability of each arm in this draw; a canary's share counts as exploration."""
        n_arms, share = len(draft.names), draft.records.get(CanaryStep.name, {}).get("share", 0.0)
        return {"least": sampling.count_share(self.compute_least(n_arms), n_arms, share)}
