"""Epsilon-greedy exploration: how much of it, and how that falls as rewards come in."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.policy import PolicyError, greedy

Decay = float | Literal["log"] | None
"""How epsilon falls: the rewards after which it has halved, with the logarithm, or not at all."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """Epsilon as a function of the rewards seen so far.

    After `t` rewards it is the greater of `min_epsilon` and

        epsilon                        decay None
        epsilon / (1 + t / decay)      decay a number
        epsilon / max(1, ln(1 + t))    decay "log"

    Attributes:
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Which of the three.
        min_epsilon: Where the decay ends, in [0, epsilon].

    Raises:
        PolicyError: A value out of its range.

    >>> Exploration(0.4, 10.0, 0.0).at(10), Exploration(1.0, "log", 0.0).at(0)
    (0.2, 1.0)
    """

    epsilon: float
    decay: Decay
    min_epsilon: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_epsilon <= self.epsilon <= 1.0:
            raise PolicyError(
                f"0 <= min_epsilon <= epsilon <= 1 does not hold for {self.min_epsilon} and {self.epsilon}"
            )
        if isinstance(self.decay, str):
            if self.decay != "log":
                raise PolicyError(f"decay {self.decay!r} is neither a number of rewards nor 'log'")
        elif self.decay is not None and not self.decay > 0.0:
            raise PolicyError(f"decay {self.decay} is not a positive number of rewards")

    def at(self, rewards: int) -> float:
        """Return epsilon after so many rewards, in [min_epsilon, epsilon]."""
        if self.decay is None:
            return self.epsilon
        slower = max(1.0, math.log1p(rewards)) if self.decay == "log" else 1.0 + rewards / float(self.decay)
        return max(self.min_epsilon, self.epsilon / slower)

    def spread(self, scores: NDArray[np.float64], rewards: int) -> NDArray[np.float64]:
        """Give epsilon to all arms alike, the best included, and the rest to the best ones.

        >>> Exploration(0.3, None, 0.0).spread(np.array([0.0, 1.0, 0.0]), 0).round(3).tolist()
        [0.1, 0.8, 0.1]
        """
        epsilon = self.at(rewards)
        return (1.0 - epsilon) * greedy(scores) + epsilon / len(scores)
