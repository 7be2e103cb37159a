"""A policy that learns while another one decides, and how far the two agree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agent.policies.base import Policy, PolicyError, Uniform
from feedback.events import Context, Decision


class ShadowPolicy:
    """Decide as a baseline does, and learn as another policy would, until that one is trusted.

    Its distribution is the baseline's. What the policy in its shadow would have done is on record
    beside each decision. Its state is that policy's, byte for byte: once it is asked for by itself,
    it goes on from all that was learned.

    Under a baseline that always takes one arm, the rest is tried at the floor alone, and the policy
    learns as slowly.

    Args:
        baseline: Decides. It learns nothing, as `fixed`, `routed` and `uniform` do: what is learned
            is the policy's.
        policy: Learns, and is watched.

    Raises:
        PolicyError: A baseline that learns, or an apprentice of an apprentice.
    """

    kind = "apprentice"

    def __init__(self, baseline: Policy, policy: Policy) -> None:
        if not isinstance(baseline, Uniform):
            raise PolicyError(
                f"baseline {baseline.kind!r} would learn: take one that does not, such as 'fixed'"
            )
        if isinstance(policy, ShadowPolicy):
            raise PolicyError("policy 'apprentice' cannot be the policy of an apprentice")
        self._baseline, self._policy = baseline, policy
        self.resumes_exactly = policy.resumes_exactly

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the baseline's distribution."""
        return self._baseline.probabilities(context, arms)

    def shadow(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution of the policy that learns."""
        return self._policy.probabilities(context, arms)

    def learn(self, decision: Decision, reward: float) -> None:
        """Teach the policy: a decision says with which probability its arm was drawn, by whomever."""
        self._policy.learn(decision, reward)

    def save(self) -> bytes:
        """Return the policy's state."""
        return self._policy.save()

    def load(self, state: bytes) -> Self:
        """Return an apprentice whose policy has the given state. Raises PolicyError."""
        return type(self)(self._baseline, self._policy.load(state))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much alike two policies decide.

    Attributes:
        decisions: How many were compared.
        shared: Mean of the probability mass that both distributions share, in [0, 1]: 1 where
            they are the same, 0 where they never take the same arm.
        same_arm: Share of the decisions in which the same arm is the most probable of both.
    """

    decisions: int
    shared: float
    same_arm: float


def agreement(decisions: Iterable[Decision]) -> Agreement:
    """Compare the distributions that arms were drawn from with those in their shadow.

    Decisions without a shadow are passed over.

    Raises:
        ValueError: None of them has a shadow.

    >>> arms, p, shadow = ("a", "b"), (0.75, 0.25), (0.25, 0.75)
    >>> one = Decision("d-1", Context("?"), arms, p, "a", "apprentice", 1, shadow=shadow)
    >>> agreement([one])
    Agreement(decisions=1, shared=0.5, same_arm=0.0)
    """
    compared = [one for one in decisions if one.shadow]
    if not compared:
        raise ValueError("no decision has a shadow to compare it with")
    shared = sum(sum(map(min, one.probabilities, one.shadow)) for one in compared)
    same = sum(_first_best(one.probabilities) == _first_best(one.shadow) for one in compared)
    return Agreement(len(compared), shared / len(compared), same / len(compared))


def _first_best(probabilities: Sequence[float]) -> int:
    return probabilities.index(max(probabilities))
