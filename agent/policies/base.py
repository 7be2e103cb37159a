"""The contract of a policy: it returns a distribution, and `agent.policies.sampling.choose` draws from it.

Policies never draw, so every decision has its propensity, and any policy can be replayed on any log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Context, Decision


class PolicyError(ValueError):
    """A policy cannot be built or loaded, or did not return a distribution."""


@runtime_checkable
class Policy(Protocol):
    """A policy maps a context to a distribution over arms, and learns from rewards.

    Attributes:
        kind: Name in the catalogue of policies.
        resumes_exactly: Whether `load(save())` followed by `learn` gives the same state as without saving.
            If False, Armwise recovers the state by replaying the log.

    Threads: a replica only reads the policy that it serves, perhaps from several threads at once, so what
    `probabilities` stores needs a lock. The learner updates a policy object of its own from one thread.

    A class may have further members, which the catalogue reads:

    - `reads_context = False`: its distribution is the same in every context.
    - `reads_question = True`: it reads the text of a question. Once the text is erased, its distribution
      cannot be recomputed.
    - `check_arms(arms)`, a method that raises PolicyError if it cannot choose among these arms.
    - `check_untrusted(params, configured)`, static: raises PolicyError if parameters from a request could
      import code or open a file; `configured` says that the configuration has the same parameters. A kind
      without it can only be named by the configuration.
    - `penalise(context, arms, penalty)`, its distribution with a penalty subtracted from each predicted
      reward, shape (n_arms,); for a policy that predicts rewards.
    - `replay(steps)`, its distribution at each `ReplayStep`, or None where it is not asked. It learns each
      step before the next one. It is for a policy that does so more quickly than by one call after the other,
      with the same results but for rounding.
    - `learns_costs = True`: `learn` takes what the reward lost to costs as a third argument.
    - `restarts`, the times at which it forgot what it had learned, each a `Restart`.
    - `example`, parameters of a small policy of this kind with the arms `bm25`, `dense` and `none`, for the
      reference and for the tests of every kind.
    """

    kind: str
    resumes_exactly: bool

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return one probability per arm, shape (n_arms,), summing to 1.

        Calls do not change the policy: equal contexts give equal results until `learn`.
        """
        ...

    def learn(self, decision: Decision, reward: float) -> None:
        """Learn from one decision and its reward."""
        ...

    def save(self) -> bytes:
        """Return the state as bytes; equal histories give equal bytes."""
        ...

    def load(self, state: bytes) -> Self:
        """Return a policy with this one's parameters and the given state. Raises PolicyError."""
        ...


class ReplayStep(NamedTuple):
    """A step of a replay: a policy is asked about a logged decision, then learns it.

    Attributes:
        decision: The decision.
        arms: Those of its arms that the policy chooses among; empty: it is not asked.
        floor: Smallest probability of an arm.
        penalty: Reward that each of `arms` loses under a budget; empty without one.
        reward: The reward of the drawn arm; None: it does not learn.
        cost: What the reward lost to costs.
    """

    decision: Decision
    arms: tuple[str, ...] = ()
    floor: float = 0.0
    penalty: Sequence[float] = ()
    reward: float | None = None
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A moment at which the policy forgot what it had learned.

    Attributes:
        reward: Number of the reward that showed the change, from 1.
        arm: The arm whose reward had changed.
        rise: Whether it had risen.
        kept: Number of the latest rewards that were kept.
        before: Mean of the arm's remembered rewards that were dropped; of all arms, if it had none.
        after: Mean of the arm's kept rewards.
    """

    reward: int
    arm: str
    rise: bool
    kept: int
    before: float
    after: float


def list_restarts(policy: Policy) -> Sequence[Restart]:
    """Return the restarts of a policy, the oldest first; empty for a policy that never restarts."""
    restarts: Sequence[Restart] = getattr(policy, "restarts", ())
    return restarts


class Uniform:
    """Draws every arm with the same probability, without learning."""

    kind = "uniform"
    resumes_exactly = True

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters, because none names a file."""

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 / n_arms for each."""
        del context
        return np.full(len(arms), 1.0 / len(arms))

    def learn(self, decision: Decision, reward: float) -> None:
        """Do nothing."""

    def save(self) -> bytes:
        """Return no bytes: there is no state."""
        return b""

    def load(self, state: bytes) -> Self:
        """Return itself: there is no state."""
        del state
        return self


class Fixed(Uniform):
    """Always draws the same arm. If it is not eligible, draws a random eligible arm instead.

    Args:
        arm: Name of that arm.
    """

    kind = "fixed"
    example: ClassVar = {"arm": "dense"}

    def __init__(self, arm: str) -> None:
        self.arm = arm

    def check_arms(self, arms: Sequence[str]) -> None:
        """Check that the named arm is among these. Raises PolicyError."""
        if self.arm not in arms:
            raise PolicyError(f"policy 'fixed' names the arm {self.arm!r}{did_you_mean(self.arm, arms)}")

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 for the arm, 0 for the rest."""
        if self.arm not in arms:
            return super().probabilities(context, arms)
        return np.array([float(name == self.arm) for name in arms])
