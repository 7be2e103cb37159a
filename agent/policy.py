"""A policy returns a distribution; `choose` draws from it, and nothing else does.

So no policy can forget its propensity, and any policy can be replayed on any
log. The draw is hashed from the decision id: the same id draws the same arm.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedback.events import Context, Decision

TOLERANCE = 1e-6
"""How far a distribution may be from summing to 1 before it is refused (VW's are float32)."""


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


def validate(probabilities: NDArray[np.float64], n_arms: int) -> NDArray[np.float64]:
    """Return the distribution as float64, normalised.

    Args:
        probabilities: What a policy returned.
        n_arms: How many arms it was asked about.

    Returns:
        Shape (n_arms,), non-negative, summing to 1 to rounding.

    Raises:
        PolicyError: Wrong shape, not finite, negative, or not summing to 1.

    >>> validate(np.array([0.25, 0.75]), 2).tolist()
    [0.25, 0.75]
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape != (n_arms,):
        raise PolicyError(f"a distribution over {n_arms} arms was expected, got shape {p.shape}")
    values = p.tolist()  # a few arms are added up faster outside numpy
    total: float = sum(values)
    # Negated, so that a total of NaN is refused too.
    if not abs(total - 1.0) <= TOLERANCE or min(values) < 0.0:
        raise PolicyError(f"not a distribution: {values} sums to {total}")
    return p / total


def mix_floor(probabilities: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Mix a uniform distribution in, so that every arm has at least `floor`.

    Args:
        probabilities: Shape (n_arms,), summing to 1.
        floor: Smallest probability that an arm may get, in [0, 1 / n_arms].

    Raises:
        PolicyError: `floor` is too large for this many arms.

    >>> mix_floor(np.array([1.0, 0.0]), 0.1).round(3).tolist()
    [0.9, 0.1]
    """
    n = len(probabilities)
    if not 0.0 <= floor * n <= 1.0:
        raise PolicyError(f"floor {floor} is too large for {n} arms: at most {1 / n:.4g}")
    return (1.0 - floor * n) * probabilities + floor


def served_distribution(
    policy: Policy, context: Context, arms: Sequence[str], floor: float
) -> NDArray[np.float64]:
    """Return what an arm is drawn from: the policy's distribution with the floor mixed in, shape (n_arms,).

    Args:
        policy: Asked once.
        context: What it sees.
        arms: The eligible arms, at least one.
        floor: Least probability of each; lowered to 1 / n_arms where that is less.

    Raises:
        PolicyError: The policy's answer is no distribution over the arms.

    >>> served_distribution(Fixed("bm25"), Context("who?"), ["none", "bm25"], 0.1).round(3).tolist()
    [0.1, 0.9]
    """
    p = validate(policy.probabilities(context, arms), len(arms))
    return mix_floor(p, min(floor, 1.0 / len(arms)))


def uniform_from(decision_id: str, salt: str) -> float:
    """Hash a decision id to a number in [0, 1): BLAKE2b, 53 bits.

    >>> 0.0 <= uniform_from("d-1", "salt") < 1.0
    True
    """
    digest = hashlib.blake2b(decision_id.encode(), key=_key(salt), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


@lru_cache(maxsize=8)
def _key(salt: str) -> bytes:
    """Return a key of 64 bytes, the most that BLAKE2b takes, for a salt of any length."""
    return hashlib.blake2b(salt.encode()).digest()


def choose(probabilities: NDArray[np.float64], u: float) -> int:
    """Draw: the index of the first arm whose cumulative probability exceeds `u`.

    Args:
        probabilities: Shape (n_arms,), summing to 1.
        u: In [0, 1), from `uniform_from`.

    >>> choose(np.array([0.25, 0.0, 0.75]), 0.25)
    2
    """
    index = int(probabilities.cumsum().searchsorted(u, side="right"))
    # Rounding can leave the last cumulative probability below `u`.
    return index if index < len(probabilities) else int(np.flatnonzero(probabilities)[-1])


def greedy(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put all mass on the best arms, split evenly among ties.

    Raises:
        PolicyError: A score is not a number.

    >>> greedy(np.array([1.0, 3.0, 3.0])).tolist()
    [0.0, 0.5, 0.5]
    """
    best = scores == scores.max()
    n_best = np.count_nonzero(best)
    if n_best == 0:
        raise PolicyError(f"no best arm among the scores {scores.tolist()}")
    return np.asarray(best / n_best)


class Uniform:
    """Every arm with the same probability; learns nothing."""

    kind = "uniform"
    resumes_exactly = True

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 / n_arms for each."""
        del context
        return np.full(len(arms), 1.0 / len(arms))

    def learn(self, decision: Decision, reward: float) -> None:
        """Do nothing."""

    def save(self) -> bytes:
        """Return nothing: there is no state."""
        return b""

    def load(self, state: bytes) -> Self:
        """Return itself: there is no state."""
        del state
        return self


class Fixed(Uniform):
    """Always the same arm; uniform over the others when it is not eligible."""

    kind = "fixed"

    def __init__(self, arm: str) -> None:
        self.arm = arm

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return 1 for the arm, 0 for the rest."""
        if self.arm not in arms:
            return super().probabilities(context, arms)
        return np.array([float(name == self.arm) for name in arms])
