"""Linear bandits: a ridge regression of the reward, with two ways to explore.

    LinUCB           the arm with the highest upper confidence bound
    LinearThompson   each arm with its posterior probability of being the best

The cost of a decision is quadratic in the number of columns: 32 numbers of an embedding
are cheap, all 384 are not.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, ReplayStep
from armwise.agent.policies.encoding import (
    check_context,
    check_reward,
    check_whole,
    question_columns,
)
from armwise.agent.policies.features import FEATURE
from armwise.agent.policies.ridge import ArmRidge, Array
from armwise.agent.policies.sampling import best_probabilities, greedy
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym, find_value, pseudonym

DEFAULT_RIDGE_WITH_PRIOR = 3000.0
"""The default penalty with a `prior_feature`."""

PRIOR = 1.0
"""Expected reward of an arm without rewards; at the top of the range, so that new arms are tried."""

BLOCK = 64
"""Steps of a replay that are replayed together."""

Features = Mapping[str, Mapping[str, float]]
"""Features of arms, by their names."""


@dataclass(frozen=True, slots=True)
class _ArmColumns:
    """The columns of the arms of one decision, cached for the next: the features of arms seldom change."""

    arms: tuple[str, ...]
    features: Features
    rows: NDArray[np.intp]
    z: Array  # shape (n_arms, n_shared); its columns of the question are overwritten

    def match(self, arms: Sequence[str], features: Features) -> bool:
        return self.arms == tuple(arms) and self.features == features


@dataclass(frozen=True, slots=True)
class _Description:
    """The scaled features of one arm by their columns after the question's, cached for its next reward."""

    features: Mapping[str, float]
    columns: list[int]
    values: list[float]


class RidgePolicy(ABC):
    """A ridge regression of every arm's reward; a subclass adds the distribution.

    Args:
        settings: Arguments of the policy's class: `ridge`, `dims`, `shared`, `prior_feature`
            and its own.

    Attributes:
        default_ridge: The penalty without a `prior_feature`, unless one is given.

    Raises:
        PolicyError: A value out of its range.
    """

    kind: str
    default_ridge: float
    resumes_exactly = True

    def __init__(self, **settings: Any) -> None:
        ridge = settings["ridge"]
        if ridge is None:
            ridge = settings["ridge"] = (
                self.default_ridge if settings["prior_feature"] is None else DEFAULT_RIDGE_WITH_PRIOR
            )
        if not 0.0 < ridge < np.inf:
            raise PolicyError(f"ridge {ridge} is not a positive number")
        check_whole(0, dims=settings["dims"])
        self._settings = settings
        self._rows: dict[str, int] = {}
        self._columns: dict[str, int] = {}
        self._model: ArmRidge | None = None
        self._cached: _ArmColumns | None = None
        self._descriptions: dict[str, _Description] = {}
        self._lock = Lock()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters: none names a file."""
        del params, configured

    @abstractmethod
    def _distribution(self, mean: Array, covariance: Array) -> Array:
        """Return a distribution over arms, shape (..., n), from the posterior of their rewards."""

    def probabilities(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the distribution over the arms.

        Raises:
            PolicyError: A feature is not finite, or the embedding differs in length from earlier ones.
        """
        return self._distribution(*self.posterior(context, arms))

    def penalise(self, context: Context, arms: Sequence[str], penalty: Array) -> Array:
        """Return the distribution with a penalty subtracted from the mean rewards."""
        mean, covariance = self.posterior(context, arms)
        return self._distribution(mean - penalty, covariance)

    def posterior(self, context: Context, arms: Sequence[str]) -> tuple[Array, Array]:
        """Return the mean of each arm's reward, shape (n,), and their covariance, shape (n, n).

        The covariance is the posterior's for noise of variance 1, excluding the noise itself.
        """
        check_context(context)
        x = self._question(context)
        with self._lock:
            model = self._model or self._empty(x)
            cached = self._arm_columns(context, arms, x)
            if self._settings["shared"]:
                cached.z[:, : len(x)] = x
            n_learned = model.shared.shape[1]
            mean, covariance = model.posterior(cached.rows, x, cached.z[:, :n_learned])
            if cached.z.shape[1] > n_learned:  # features of arms without a reward so far
                new = cached.z[:, n_learned:]
                covariance += new @ new.T / self._settings["ridge"]
        return mean + self._priors(context, arms), covariance

    def learn(self, decision: Decision, reward: float) -> None:
        """Update from the difference between the reward and the prior of the drawn arm."""
        check_reward(decision, reward)
        context, arm = decision.context, decision.drawn
        x = self._question(context)
        with self._lock:
            model = self._model or self._empty(x)
            n_columns = len(self._columns)
            z = self._learn_columns(context, arm, x)
            if self._model is None or arm not in self._rows or len(self._columns) > n_columns:
                self._model, self._cached = model, None  # rows or columns move
            if len(self._columns) > n_columns:
                model.add_shared(len(self._columns) - n_columns)
            if arm not in self._rows:
                self._rows[arm] = model.add_arm()
            model.learn(self._rows[arm], x, z, reward - self._priors(context, (arm,))[0])

    def replay(self, steps: Sequence[ReplayStep]) -> Sequence[Array | None]:
        """Return its distribution at each step, and learn each after it: many by a few products."""
        found: list[Array | None] = []
        while len(found) < len(steps):
            rest = steps[len(found) : len(found) + BLOCK]
            with self._lock:
                if block := [*self._list_alike(rest)]:
                    found += self._replay(block)
                    continue
            step = rest[0]  # it brings an arm or a column
            penalty = np.array(step.penalty or (0.0,))
            asked = bool(step.arms)
            found.append(self.penalise(step.decision.context, step.arms, penalty) if asked else None)
            if step.reward is not None:
                self.learn(step.decision, step.reward)
        return found

    def _list_alike(self, steps: Sequence[ReplayStep]) -> Iterator[tuple[ReplayStep, Array, _ArmColumns]]:
        """Yield steps with the same arms, and their columns, until one brings an arm or a column."""
        arms = steps[0].decision.arms
        for step in steps:
            decision, learns = step.decision, step.reward is not None
            if self._model is None or decision.arms != arms or (learns and decision.drawn not in self._rows):
                return
            if step.reward is None:
                check_context(decision.context)
            else:
                check_reward(decision, step.reward)
            x = self._question(decision.context)
            columns = self._arm_columns(decision.context, arms, x)
            if columns.z.shape[1] > self._model.shared.shape[1]:
                return
            yield step, x, columns

    def _replay(self, block: Sequence[tuple[ReplayStep, Array, _ArmColumns]]) -> Sequence[Array | None]:
        steps, x, columns = zip(*block, strict=True)
        model, arms, n_own = self._model, steps[0].decision.arms, len(x[0])
        assert model is not None  # nothing is alike before
        learned = [t for t, step in enumerate(steps) if step.reward is not None]
        drawn = np.array([arms.index(steps[t].decision.drawn) for t in learned], dtype=np.intp)
        prior = np.array([self._priors(step.decision.context, arms) for step in steps])
        mean, covariance = model.replay(
            np.array(x),
            columns[0].rows,
            np.array([one.z[:, n_own:] for one in columns]),
            drawn,
            np.array(learned, dtype=np.intp),
            np.array([steps[t].reward for t in learned]) - prior[learned, drawn],
        )
        mean += prior
        if all(step.arms == arms and not step.penalty for step in steps):
            return [*self._distribution(mean, covariance)]
        found: list[Array | None] = []
        for step, m, c in zip(steps, mean, covariance, strict=True):
            at = [arms.index(arm) for arm in step.arms]
            p = self._distribution(m[at] - (step.penalty or 0.0), c[np.ix_(at, at)]) if at else None
            found.append(p)
        return found

    def save(self) -> bytes:
        """Return the settings and a digest on one line, then the names and the model."""
        with self._lock:
            arrays = {} if self._model is None else {"own": self._model.own, "shared": self._model.shared}
            return seal(self._made_by, pack({"arms": [*self._rows], "columns": [*self._columns]}, arrays))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, or of another kind or with other settings.
        """
        facts, arrays = unpack(unseal(state, self._made_by))
        model = ArmRidge(self._settings["ridge"], **arrays) if arrays else None
        loaded = copy.copy(self)
        vars(loaded).update(
            _rows={arm: row for row, arm in enumerate(facts["arms"])},
            _columns={
                name: column for column, name in enumerate(by_pseudonym(dict.fromkeys(facts["columns"], 0.0)))
            },
            _model=model,
            _cached=None,
            _descriptions={},
            _lock=Lock(),
        )
        return loaded

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._settings}

    def _question(self, context: Context) -> Array:
        n = None if self._model is None else self._model.own.shape[2] - 1
        return np.array([1.0, *question_columns(context, self._settings["dims"], n)])

    def _empty(self, x: Array) -> ArmRidge:
        return ArmRidge.empty(self._settings["ridge"], len(x), len(x) if self._settings["shared"] else 0)

    def _arm_columns(self, context: Context, arms: Sequence[str], x: Array) -> _ArmColumns:
        cached, features = self._cached, self._model_features(context, arms)
        # Before the first reward, an embedding may still be of any length.
        if cached is None or self._model is None or not cached.match(arms, features):
            cached = self._cached = _ArmColumns(
                arms=tuple(arms),
                features={arm: dict(values) for arm, values in features.items()},
                rows=np.array([self._rows.get(arm, -1) for arm in arms], dtype=np.intp),
                z=self._build_shared(features, arms, x),
            )
        return cached

    def _model_features(self, context: Context, arms: Sequence[str]) -> Features:
        """Return the features of arms, except the one that serves as the prior."""
        prior_feature = self._settings["prior_feature"]
        if prior_feature is None:
            return context.arms
        kept = {arm: dict(context.arms.get(arm, ())) for arm in arms}
        for features in kept.values():
            features.pop(prior_feature, None)
            features.pop(pseudonym(prior_feature), None)
        return kept

    def _build_shared(self, features: Features, arms: Sequence[str], x: Array) -> Array:
        """Return the shared columns of each arm, shape (n_arms, n_shared); unknown names come last."""
        if not self._settings["shared"]:
            return np.zeros((len(arms), 0))
        columns = dict(self._columns)
        cells = [
            (i, len(x) + columns.setdefault(name, len(columns)), value)
            for i, arm in enumerate(arms)
            for name, value in _scale(features.get(arm, {})).items()
        ]
        z = np.zeros((len(arms), len(x) + len(columns)))
        z[:, : len(x)] = x
        for i, column, value in cells:
            z[i, column] = value
        return z

    def _learn_columns(self, context: Context, arm: str, x: Array) -> Array:
        """Return the shared columns of one arm, shape (n_shared,), after adding columns for new names."""
        if not self._settings["shared"]:
            return np.zeros(0)
        features = self._model_features(context, (arm,)).get(arm, {})
        description = self._descriptions.get(arm)
        if description is None or description.features != features:
            scaled = _scale(features)
            columns = [self._columns.setdefault(name, len(self._columns)) for name in scaled]
            description = self._descriptions[arm] = _Description(dict(features), columns, [*scaled.values()])
        z = np.zeros(len(x) + len(self._columns))
        z[: len(x)] = x
        if description.columns:
            z[len(x) :][description.columns] = description.values
        return z

    def _priors(self, context: Context, arms: Sequence[str]) -> list[float]:
        feature = self._settings["prior_feature"]
        if feature is None:
            return [PRIOR] * len(arms)
        return [find_value(context.arms.get(arm, {}), feature, PRIOR) for arm in arms]


def _scale(features: Mapping[str, float]) -> dict[str, float]:
    """Scale the description of an arm to length 1, by pseudonyms; the score of a router stays as it is.

    >>> [*_scale({"kind=graph": 0.75, "hops": 1.0, "router": 0.4}).values()]
    [0.6, 0.8, 0.4]
    """
    length = math.hypot(*(value for name, value in features.items() if name != FEATURE)) or 1.0
    scaled = {name: value if name == FEATURE else value / length for name, value in features.items()}
    return by_pseudonym(scaled)


class LinUCB(RidgePolicy):
    """Draws the arm with the highest upper confidence bound.

    The bound is the mean of the reward plus `alpha` standard deviations. Tied arms share the mass.

    Args:
        alpha: Number of standard deviations in the bound, at least 0. With 0, the policy does not explore.
        ridge: Penalty on squared weights. It takes about this many rewards to outweigh the prior. None means
            100, or 3000 with `prior_feature`.
        dims: Number of columns that the question's named features are hashed into. 0 leaves them out.
        shared: Whether arms share weights, as in Li et al.'s hybrid model. If false, each arm learns
            separately (the disjoint model), and the policy does not use arm features.
        prior_feature: Arm feature to use as expected reward, such as `router`, a trained router's score. The
            feature ranks the arms from the start, and the policy learns only how far rewards differ from it.
            It must have the reward's unit, as the scores of a `calibrated` router do. The policy expects an
            arm without the feature to earn 1.

    Source: Li et al. 2010, arXiv:1003.0146.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "linucb"
    default_ridge = 100.0

    def __init__(
        self,
        *,
        alpha: float = 0.2,
        ridge: float | None = None,
        dims: int = 32,
        shared: bool = True,
        prior_feature: str | None = None,
    ) -> None:
        if not 0.0 <= alpha < np.inf:
            raise PolicyError(f"alpha {alpha} is not a finite number of at least 0")
        super().__init__(alpha=alpha, ridge=ridge, dims=dims, shared=shared, prior_feature=prior_feature)

    def _distribution(self, mean: Array, covariance: Array) -> Array:
        variance = covariance.diagonal(0, -2, -1)
        return greedy(mean + self._settings["alpha"] * np.sqrt(np.maximum(variance, 0.0)))


class LinearThompson(RidgePolicy):
    """Draws each arm with the posterior probability that its reward is the highest.

    Thompson sampling draws from this distribution; this policy computes it. Arms that share
    weights have dependent rewards. The common part is left out, because it cannot change which
    reward is the highest, and the rest is treated as independent.

    Args:
        scale: Standard deviation of reward noise, above 0. A larger value explores more.
        ridge: Penalty on squared weights, as in `linucb`. None means 10, or 3000 with `prior_feature`.
        dims: Number of columns that the question's named features are hashed into. 0 leaves them out.
        shared: Whether arms share weights, as in Li et al.'s hybrid model. If false, each arm learns
            separately (the disjoint model), and the policy does not use arm features.
        prior_feature: Arm feature to use as expected reward, such as `router`, a trained router's score. The
            feature ranks the arms from the start, and the policy learns only how far rewards differ from it.
            It must have the reward's unit, as the scores of a `calibrated` router do. The policy expects an
            arm without the feature to earn 1.

    Source: Agrawal and Goyal 2013, Thompson sampling for contextual bandits with linear
    payoffs, arXiv:1209.3352.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "linear_thompson"
    default_ridge = 10.0

    def __init__(
        self,
        *,
        scale: float = 0.1,
        ridge: float | None = None,
        dims: int = 32,
        shared: bool = True,
        prior_feature: str | None = None,
    ) -> None:
        if not 0.0 < scale < np.inf:
            raise PolicyError(f"scale {scale} is not a positive number")
        super().__init__(scale=scale, ridge=ridge, dims=dims, shared=shared, prior_feature=prior_feature)

    def _distribution(self, mean: Array, covariance: Array) -> Array:
        if mean.ndim > 1:
            return np.array([self._distribution(*one) for one in zip(mean, covariance, strict=True)])
        variance = np.maximum(covariance.diagonal(), 0.0)  # rounding may leave less
        variance = np.maximum(variance - max(0.0, float(covariance.min())), 1e-6 * variance)
        return best_probabilities(mean, self._settings["scale"] * np.sqrt(variance))
