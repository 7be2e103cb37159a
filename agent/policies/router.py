"""A policy that acts on the scores of a router, with exploration around the best one."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, Uniform
from armwise.agent.policies.features import FEATURE
from armwise.agent.policies.sampling import greedy
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Context
from armwise.feedback.texts import find_value

Explore = Literal["epsilon", "softmax", "squarecb"]
"""How scores become a distribution."""


class Routed(Uniform):
    """The arm with the best score of a router, with exploration.

    The scores are in the context, as a feature of each arm, so that a replay needs no router. The policy
    never learns; to learn on top of a router, take a policy that uses the features of arms.

    With `s` the scores, `b` the best arms and `n` the number of all:

        epsilon    epsilon / n for each, the rest for the best
        softmax    in proportion to exp(s / temperature)
        squarecb   1 / (n + gamma (s_b - s)) for each that is not the best, the rest for the best

    Tied best arms share their mass evenly. An arm without a score, such as one added after the router was
    trained, gets the mean of the others; without any score, the distribution is uniform.

    Args:
        explore: How scores become a distribution.
        epsilon: Probability of exploring with `epsilon`, in [0, 1].
        temperature: Temperature of `softmax`, in units of the scores, above 0.
        gamma: Exploitation of `squarecb`, per unit of the scores, at least 0; the larger, the greedier.
        feature: Name of the feature of an arm that holds its score.

    Raises:
        PolicyError: A parameter out of its range.

    Source: Foster, Rakhlin 2020, Beyond UCB: Optimal and Efficient Contextual Bandits with Regression
    Oracles, arXiv:2002.04926, for `squarecb`.
    """

    kind = "routed"
    example: ClassVar = {"feature": "steps"}

    def __init__(
        self,
        explore: Explore = "epsilon",
        *,
        epsilon: float = 0.05,
        temperature: float = 0.1,
        gamma: float = 100.0,
        feature: str = FEATURE,
    ) -> None:
        if explore not in (ways := get_args(Explore)):
            raise PolicyError(f"explore {explore!r} is not known{did_you_mean(explore, ways)}")
        if not 0.0 <= epsilon <= 1.0:
            raise PolicyError(f"epsilon {epsilon} is not in [0, 1]")
        if not 0.0 < temperature < math.inf:
            raise PolicyError(f"temperature {temperature} is not a positive number")
        if not 0.0 <= gamma < math.inf:
            raise PolicyError(f"gamma {gamma} is not a number of at least 0")
        self.explore, self.feature = explore, feature
        self.epsilon, self.temperature, self.gamma = epsilon, temperature, gamma

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution over the arms. Raises PolicyError if a score is not finite."""
        return self.penalised(context, arms, np.zeros(len(arms)))

    def penalised(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution with a penalty subtracted from the scores. Raises PolicyError."""
        scores = self._scores(context, arms) - penalty
        match self.explore:
            case "epsilon":
                return (1.0 - self.epsilon) * greedy(scores) + self.epsilon / len(arms)
            case "softmax":
                return softmax(scores, self.temperature)
            case "squarecb":
                return inverse_gaps(scores, self.gamma)

    def _scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each arm, shape (n_arms,); a missing one is the mean of the others."""
        scores = [find_value(context.arms.get(arm, {}), self.feature, None) for arm in arms]
        for arm, score in zip(arms, scores, strict=True):
            if score is not None and not math.isfinite(score):
                raise PolicyError(
                    f"feature {self.feature!r} of arm {arm!r} is {score}; a finite number was expected"
                )
        known_scores = [score for score in scores if score is not None]
        mean = math.fsum(known_scores) / len(known_scores) if known_scores else 0.0
        return np.array([mean if score is None else score for score in scores])


def softmax(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Return probabilities in proportion to exp(score / temperature).

    >>> softmax(np.array([0.0, np.log(3.0)]), 1.0).round(3).tolist()
    [0.25, 0.75]
    """
    weights = np.exp((scores - scores.max()) / temperature)
    return np.asarray(weights / weights.sum())


def inverse_gaps(scores: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Return SquareCB's probabilities, with the number of arms as its parameter mu.

    >>> inverse_gaps(np.array([1.0, 0.0]), 2.0).tolist()
    [0.75, 0.25]
    >>> inverse_gaps(np.array([0.3, 0.1 + 0.2]), 2.0).tolist()
    [0.5, 0.5]
    """
    best = greedy(scores)
    p = np.where(best > 0.0, 0.0, 1.0 / (len(scores) + gamma * (scores.max() - scores)))
    return np.asarray(p + (1.0 - p.sum()) * best)
