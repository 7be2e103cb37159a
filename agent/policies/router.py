"""A policy that acts on the scores of a router, and explores around the best one."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, Uniform
from armwise.agent.policies.features import FEATURE
from armwise.agent.policies.sampling import greedy
from armwise.feedback.events import Context
from armwise.feedback.texts import find_value


class Routed(Uniform):
    """Draws the arm with the best router score, or a random arm with probability epsilon. Does not learn.

    The scores are in the context, as a feature of each arm, so that a replay needs no router. To learn on
    top of a router, take a policy that uses the features of arms.

    Tied best arms share their mass evenly. An arm without a score, such as one added after the router was
    trained, gets the mean of the others; without any score, the distribution is uniform.

    Args:
        epsilon: Probability of drawing a random arm, from 0 to 1.

    Raises:
        PolicyError: A parameter out of its range.
    """

    kind = "routed"

    def __init__(self, epsilon: float = 0.05) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise PolicyError(f"epsilon {epsilon} is not in [0, 1]")
        self.epsilon = epsilon

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution over the arms. Raises PolicyError if a score is not finite."""
        return self.penalise(context, arms, np.zeros(len(arms)))

    def penalise(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution with a penalty subtracted from the scores. Raises PolicyError."""
        scores = self._scores(context, arms) - penalty
        return (1.0 - self.epsilon) * greedy(scores) + self.epsilon / len(arms)

    def _scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each arm, shape (n_arms,); a missing one is the mean of the others."""
        scores = [find_value(context.arms.get(arm, {}), FEATURE, None) for arm in arms]
        for arm, score in zip(arms, scores, strict=True):
            if score is not None and not math.isfinite(score):
                raise PolicyError(
                    f"feature {FEATURE!r} of arm {arm!r} is {score}; a finite number was expected"
                )
        known_scores = [score for score in scores if score is not None]
        mean = math.fsum(known_scores) / len(known_scores) if known_scores else 0.0
        return np.array([mean if score is None else score for score in scores])
