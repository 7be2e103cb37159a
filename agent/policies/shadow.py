"""A policy that learns in the shadow of another one, and the agreement of the two."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import Policy, PolicyError, Uniform
from armwise.feedback.events import Context, Decision


class ShadowPolicy:
    """A baseline that decides, and a policy that learns from its decisions without serving.

    Arms are drawn from the baseline's distribution; that of the learning policy is logged with each decision.
    The state is the learning policy's, byte for byte, so that the policy can continue from it by itself.

    A baseline with a constant arm draws the others only at the floor, so that the policy learns slowly.

    Args:
        baseline: Policy that decides and learns nothing: `fixed`, `routed` or `uniform`.
        policy: Policy that learns from these decisions.

    Raises:
        PolicyError: The baseline learns, or the policy is itself a shadow policy.
    """

    kind = "apprentice"
    parts = ("baseline", "policy")
    example: ClassVar = {
        "baseline": {"kind": "fixed", "params": {"arm": "dense"}},
        "policy": {"kind": "vowpal"},
    }

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters: the policies within are checked by themselves."""

    def __init__(self, baseline: Policy, policy: Policy) -> None:
        if not isinstance(baseline, Uniform):
            raise PolicyError(f"baseline {baseline.kind!r} learns: take one that does not, such as 'fixed'")
        if isinstance(policy, ShadowPolicy):
            raise PolicyError("policy 'apprentice' cannot be the policy of an apprentice")
        self._baseline, self._policy = baseline, policy
        self.resumes_exactly = policy.resumes_exactly
        self.reads_question = getattr(policy, "reads_question", False)

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the baseline's distribution."""
        return self._baseline.probabilities(context, arms)

    @property
    def in_shadow(self) -> Policy:
        """The learning policy."""
        return self._policy

    def learn(self, decision: Decision, reward: float) -> None:
        """Update the learning policy; the propensity is the decision's, whichever policy made it."""
        self._policy.learn(decision, reward)

    def save(self) -> bytes:
        """Return the learning policy's state."""
        return self._policy.save()

    def load(self, state: bytes) -> Self:
        """Return a shadow policy whose learning policy has the given state. Raises PolicyError."""
        return type(self)(self._baseline, self._policy.load(state))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of two policies.

    Attributes:
        decisions: Number of decisions compared.
        shared: Mean of the probability mass that both distributions share, in [0, 1]: 1 if they are equal,
            0 if they never draw the same arm.
        same_arm: Share of the decisions in which both have the same most probable arm.
    """

    decisions: int
    shared: float
    same_arm: float


def agreement(decisions: Iterable[Decision]) -> Agreement:
    """Compare the distributions that arms were drawn from with those of the shadow policy.

    Decisions that lack either distribution are left out.

    Raises:
        ValueError: No decision has a shadow distribution.

    >>> arms, p, shadow = ("a", "b"), (0.75, 0.25), (0.25, 0.75)
    >>> decision = Decision("d-1", Context("?"), arms, p, "a", "apprentice", 1, shadow=shadow)
    >>> agreement([decision])
    Agreement(decisions=1, shared=0.5, same_arm=0.0)
    """
    compared = [
        decision
        for decision in decisions
        if decision.shadow and len(decision.probabilities) == len(decision.arms)
    ]
    if not compared:
        raise ValueError("no decision has a shadow to compare it with")
    shared = sum(sum(map(min, decision.probabilities, decision.shadow)) for decision in compared)
    same = sum(_first_best(decision.probabilities) == _first_best(decision.shadow) for decision in compared)
    return Agreement(len(compared), shared / len(compared), same / len(compared))


def _first_best(probabilities: Sequence[float]) -> int:
    return probabilities.index(max(probabilities))
