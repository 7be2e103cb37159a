"""The contract of a policy: it returns a distribution, and `agent.policies.sampling.choose` draws from it.

No policy draws by itself, so every decision has its propensity, and any policy can be replayed on any log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Context, Decision


class PolicyError(ValueError):
    """A policy returned something that is not a distribution, or cannot be loaded."""


@runtime_checkable
class Policy(Protocol):
    """Map a context to a distribution over arms, and learn from rewards.

    Attributes:
        kind: Name in the catalogue of policies.
        resumes_exactly: Whether `load(save())` followed by `learn` gives the same
            state as never having been saved. Where it is False, state is
            recovered by replaying the log.

    A class may have further members, which the catalogue reads:

    - `reads_context = False`: its distribution is the same in every context.
    - `reads_question = True`: it reads the text of a question, and not only features. Once the text is
      erased, its distribution cannot be recomputed.
    - `check_arms(arms)`, a method that raises PolicyError if it cannot choose among these arms.
    - `check_untrusted(params, configured)`, static: raises PolicyError if parameters from a request could
      import code or open a file; `configured` says that the configuration has the same ones. A kind without
      it can be named by the configuration alone.
    - `check_new_actions(params)`, static: a policy with it can decide among actions that it has never seen;
      raises PolicyError if these parameters prevent that.
    - `contributions(context, arms)`, what each feature adds to the score of each arm, by its name; raises
      PolicyError where the score is not such a sum with its parameters.
    - `penalised(context, arms, penalty)`, its distribution if each reward were less by its penalty, shape
      (n_arms,); of a policy that predicts rewards.
    - `in_shadow`, the policy that learns beside it and does not serve.
    - `restarts`, the times at which it forgot what it had learned, each a `Restart`.
    - `parts`, names of parameters that are specifications of policies.
    - `learns_names = True`: it learns something for each name of an arm, whatever its `parts` do.
    - `example`, parameters of a small policy of this kind, for the reference and for the tests of every kind;
      its arms are `bm25`, `dense` and `none`. Without it, there are none.
    """

    kind: str
    resumes_exactly: bool

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return one probability per arm, shape (n_arms,), summing to 1. Pure until `learn`."""
        ...

    def learn(self, decision: Decision, reward: float) -> None:
        """Update from one rewarded decision: the stored fact, not loose arguments."""
        ...

    def save(self) -> bytes:
        """Return the state; equal histories give equal bytes."""
        ...

    def load(self, state: bytes) -> Self:
        """Return a policy with this one's parameters and the given state. Raises PolicyError."""
        ...


@dataclass(frozen=True, slots=True)
class Restart:
    """A time at which the policy forgot what it had learned.

    Attributes:
        reward: Number of the reward that showed the change, from 1.
        arm: The arm whose reward had changed.
        rise: Whether it had risen.
        kept: How many of the latest rewards were kept.
        before: Mean reward of the arm among those that were remembered and not kept; of all arms, where there
            was none.
        after: Mean reward of the arm among those that were kept.
    """

    reward: int
    arm: str
    rise: bool
    kept: int
    before: float
    after: float


def list_restarts(policy: Policy) -> Sequence[Restart]:
    """Return when a policy forgot what it had learned, the oldest first; none where it never does."""
    restarts: Sequence[Restart] = getattr(policy, "restarts", ())
    return restarts


class Uniform:
    """Every arm with the same probability; learns nothing."""

    kind = "uniform"
    resumes_exactly = True

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters: none names a file."""

    @staticmethod
    def check_new_actions(params: Mapping[str, Any]) -> None:
        """Accept all parameters: nothing is learned for each name of an arm."""

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
    """Always the same arm; uniform over the eligible ones when it is not among them.

    Args:
        arm: Name of that arm.
    """

    kind = "fixed"
    example: ClassVar = {"arm": "dense"}

    def __init__(self, arm: str) -> None:
        self.arm = arm

    def check_arms(self, arms: Sequence[str]) -> None:
        """Refuse arms without the one that is named. Raises PolicyError."""
        if self.arm not in arms:
            raise PolicyError(f"policy 'fixed' names the arm {self.arm!r}{did_you_mean(self.arm, arms)}")

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 for the arm, 0 for the rest."""
        if self.arm not in arms:
            return super().probabilities(context, arms)
        return np.array([float(name == self.arm) for name in arms])
