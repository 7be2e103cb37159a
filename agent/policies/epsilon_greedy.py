"""Epsilon-greedy exploration, over one linear regression per arm."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import check_context, check_reward
from armwise.agent.policies.sampling import greedy
from armwise.agent.policies.serialization import seal, unseal
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym

Decay = float | Literal["log"] | None
"""The decay of epsilon: the number of rewards after which it is halved, `log`, or None: constant."""


@dataclass(frozen=True, slots=True)
class EpsilonSchedule:
    """Epsilon as a function of the number of rewards so far.

    After `t` rewards it is

        epsilon                        decay None
        epsilon / (1 + t / decay)      decay a number
        epsilon / max(1, ln(1 + t))    decay "log"

    Attributes:
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Selects the formula.

    Raises:
        PolicyError: A value is out of its range.

    >>> EpsilonSchedule(0.4, 10.0).at(10), EpsilonSchedule(1.0, "log").at(0)
    (0.2, 1.0)
    """

    epsilon: float
    decay: Decay

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon <= 1.0:
            raise PolicyError(f"epsilon {self.epsilon} is not a number from 0 to 1")
        if isinstance(self.decay, str):
            if self.decay != "log":
                raise PolicyError(f"decay {self.decay!r} is neither a number of rewards nor 'log'")
        elif self.decay is not None and not self.decay > 0.0:
            raise PolicyError(f"decay {self.decay} is not a positive number of rewards")

    def at(self, rewards: int) -> float:
        """Return epsilon after a number of rewards."""
        if self.decay is None:
            return self.epsilon
        slower = max(1.0, math.log1p(rewards)) if self.decay == "log" else 1.0 + rewards / float(self.decay)
        return self.epsilon / slower

    def spread(self, scores: NDArray[np.float64], rewards: int) -> NDArray[np.float64]:
        """Return a distribution: epsilon shared by all arms, the rest by the best ones, shape (n_arms,).

        >>> EpsilonSchedule(0.3, None).spread(np.array([0.0, 1.0, 0.0]), 0).round(3).tolist()
        [0.1, 0.8, 0.1]
        """
        epsilon = self.at(rewards)
        return (1.0 - epsilon) * greedy(scores) + epsilon / len(scores)


RATE, RATE_OF_INTERCEPT = 0.02, 0.01
"""Learning rates of a regression."""

PRIOR = 1.0
"""Predicted reward of an arm without rewards, so that new arms are tried."""


@dataclass(slots=True)
class _Regression:
    """A linear regression that learns by AdaGrad.

    Attributes:
        intercept: The prediction without features.
        weights: Weight of each feature, and the sum of its squared gradients.

    Source: Duchi et al. 2011, Adaptive subgradient methods for online learning and stochastic optimization.
    """

    intercept: float = 0.0
    weights: dict[str, list[float]] = field(default_factory=dict)

    def predict(self, features: Mapping[str, float]) -> float:
        """Return the expected reward."""
        known = (name for name in features if name in self.weights)
        return self.intercept + math.fsum(self.weights[name][0] * features[name] for name in known)

    def learn(self, features: Mapping[str, float], reward: float) -> None:
        """Take a step down the squared error of one reward."""
        gradient = 2.0 * (self.predict(features) - reward)
        self.intercept -= RATE_OF_INTERCEPT * gradient
        for name, value in features.items():
            weight, slope = self.weights.setdefault(name, [0.0, 0.0]), gradient * value
            weight[1] += slope * slope
            weight[0] -= RATE * slope / math.sqrt(weight[1] + 1e-8)


class EpsilonGreedy:
    """Draws the arm with the best predicted reward, or a random arm with probability epsilon.

    All arms, including the best, share epsilon evenly, and all arms tied for the best share the
    rest. Epsilon decays as in `EpsilonSchedule`.

    Args:
        epsilon: Probability of exploring at the start, from 0 to 1.
        decay: Number of rewards after which epsilon is halved. With `log`, epsilon is divided by ln(1 +
            rewards) instead. With None, it stays constant.

    Raises:
        PolicyError: A parameter out of its range.
    """

    kind = "epsilon_greedy"
    resumes_exactly = True

    def __init__(self, *, epsilon: float = 0.05, decay: Decay = None) -> None:
        self._exploration = EpsilonSchedule(epsilon, decay)
        self._regressions: dict[str, _Regression] = {}
        self._rewards = 0

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters, because none names a file."""
        del params, configured

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the distribution: epsilon shared by all arms, plus the rest shared by the best ones.

        Raises:
            PolicyError: A feature or a prediction is not finite.
        """
        return self.penalise(context, arms, np.zeros(len(arms)))

    def penalise(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution with a penalty subtracted from the predictions. Raises PolicyError."""
        check_context(context)
        features = _features(context)
        scores = np.array([self._score(arm, features) for arm in arms])
        return self._exploration.spread(scores - penalty, self._rewards)

    def learn(self, decision: Decision, reward: float) -> None:
        """Update the regression of the drawn arm."""
        check_reward(decision, reward)
        regression = self._regressions.setdefault(decision.drawn, _Regression())
        regression.learn(_features(decision.context), reward)
        self._rewards += 1

    def save(self) -> bytes:
        """Return the kind and a digest on one line, then the regressions as JSON."""
        arms = {arm: astuple(regression) for arm, regression in self._regressions.items()}
        return seal({"kind": self.kind}, json.dumps({"rewards": self._rewards, "arms": arms}).encode())

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state. Raises PolicyError if it is damaged, or of another policy."""
        body = unseal(state, {"kind": self.kind})
        try:
            facts = json.loads(body)
        except ValueError as error:
            raise PolicyError(f"state cannot be read: {error!r}") from error
        loaded = copy.copy(self)
        regressions = {arm: _Regression(*parts) for arm, parts in facts["arms"].items()}
        vars(loaded).update(_rewards=facts["rewards"], _regressions=regressions)
        return loaded

    def _score(self, arm: str, features: Mapping[str, float]) -> float:
        regression = self._regressions.get(arm)
        return PRIOR if regression is None else regression.predict(features)


def _features(context: Context) -> dict[str, float]:
    """Return the named features by pseudonyms, and the embedding as `e0`, `e1`, ...

    >>> _features(Context("?", {"length": 0.25}, (0.5, -0.5)))
    {'length': 0.25, 'e0': 0.5, 'e1': -0.5}
    """
    named = by_pseudonym(context.features)
    return {**named, **dict(zip(_names(len(context.embedding)), context.embedding, strict=True))}


@lru_cache(maxsize=8)
def _names(dims: int) -> tuple[str, ...]:
    return tuple(f"e{i}" for i in range(dims))
