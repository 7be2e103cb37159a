"""What linear bandits have in common: from features to what is believed of every arm's reward.

What they see of a question (x of `agent.policies.ridge`) is a 1, the named features
hashed into `dims` columns, and the embedding. With `shared`, all arms share the weights
of these same columns and of the arm's own features (z), each of which gets a column
when it is first learned from: so a question that is hard for every arm teaches all of
them, and a new arm starts from what its relatives taught.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.policies.inputs import check_context, check_reward, check_whole, hashed
from agent.policies.ridge import ArmRidge, Array
from agent.policies.state import pack, seal, unpack, unseal
from agent.policy import PolicyError
from feedback.events import Context, Decision


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one decision needs of its arms, kept for the next: their features seldom change."""

    arms: tuple[str, ...]
    features: dict[str, dict[str, float]]
    rows: NDArray[np.intp]
    z: Array  # shape (n_arms, n_shared); the question's columns of it are written anew
    prior: Array

    def match(self, arms: Sequence[str], features: Mapping[str, Mapping[str, float]]) -> bool:
        return self.arms == tuple(arms) and self.features == features


class RidgePolicy(ABC):
    """Hold a ridge regression of every arm's reward; a policy over it adds only the distribution.

    Args:
        settings: Arguments of the policy's class: `ridge`, `dims`, `shared`, `prior`,
            `prior_feature` and its own.

    Raises:
        PolicyError: A value out of its range.
    """

    kind: str
    resumes_exactly = True

    def __init__(self, **settings: Any) -> None:
        ridge, prior = settings["ridge"], settings["prior"]
        if not 0.0 < ridge < np.inf:
            raise PolicyError(f"ridge {ridge} is not a positive number")
        if not np.isfinite(prior):
            raise PolicyError(f"prior {prior} is not finite")
        check_whole(0, dims=settings["dims"])
        self._settings = settings
        self._rows: dict[str, int] = {}
        self._columns: dict[str, int] = {}
        self._model: ArmRidge | None = None
        self._asked: _Asked | None = None
        self._lock = Lock()

    @abstractmethod
    def _distribution(self, mean: Array, covariance: Array) -> Array:
        """Return a distribution over arms, shape (n,), from what is believed of their rewards."""

    def probabilities(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the distribution over the arms.

        Raises:
            PolicyError: A feature is not finite, or the embedding is not as long as those before.
        """
        return self._distribution(*self.posterior(context, arms))

    def posterior(self, context: Context, arms: Sequence[str]) -> tuple[Array, Array]:
        """Return the mean of each arm's reward, shape (n,), and their covariance, shape (n, n).

        The covariance is that of noise of variance 1, and without it.
        """
        check_context(context)
        x = self._question(context)
        with self._lock:
            model = self._model or self._empty(x)
            asked = self._ask(context, arms, x)
            seen = model.shared.shape[1]
            mean, covariance = model.posterior(asked.rows, x, asked.z[:, :seen])
            if asked.z.shape[1] > seen:  # features of arms that nothing was learned of yet
                new = asked.z[:, seen:]
                covariance += new @ new.T / self._settings["ridge"]
        return mean + asked.prior, covariance

    def learn(self, decision: Decision, reward: float) -> None:
        """Take in what the drawn arm earned beyond its prior."""
        check_reward(decision, reward)
        context, arm = decision.context, decision.drawn
        x = self._question(context)
        with self._lock:
            self._asked = None  # rows and columns may move
            model = self._model = self._model or self._empty(x)
            known = len(self._columns)
            z = self._shared(context, (arm,), x, self._columns)[0]
            if len(self._columns) > known:
                model.add_shared(len(self._columns) - known)
            if arm not in self._rows:
                self._rows[arm] = model.add_arm()
            model.learn(self._rows[arm], x, z, reward - self._prior(context, arm))

    def save(self) -> bytes:
        """Return the settings and a digest on one line, and the names and the model after it."""
        with self._lock:
            arrays = {} if self._model is None else {"own": self._model.own, "shared": self._model.shared}
            return seal(self._made_by, pack({"arms": [*self._rows], "columns": [*self._columns]}, arrays))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, or of another kind or other settings.
        """
        facts, arrays = unpack(unseal(state, self._made_by))
        loaded = copy.copy(self)
        vars(loaded).update(
            _rows={arm: row for row, arm in enumerate(facts["arms"])},
            _columns={name: column for column, name in enumerate(facts["columns"])},
            _model=ArmRidge(self._settings["ridge"], **arrays) if arrays else None,
            _asked=None,
            _lock=Lock(),
        )
        return loaded

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._settings}

    def _question(self, context: Context) -> Array:
        x = np.array([1.0, *hashed(context.features, self._settings["dims"]), *context.embedding])
        model = self._model
        if model is not None and len(x) != model.own.shape[2]:
            expected = model.own.shape[2] - 1 - self._settings["dims"]
            raise PolicyError(
                f"an embedding of {expected} numbers was expected, as before; got {len(context.embedding)}"
            )
        return x

    def _empty(self, x: Array) -> ArmRidge:
        return ArmRidge.empty(self._settings["ridge"], len(x), len(x) if self._settings["shared"] else 0)

    def _ask(self, context: Context, arms: Sequence[str], x: Array) -> _Asked:
        asked = self._asked
        # Before the first reward, an embedding may still be of any length.
        if asked is None or self._model is None or not asked.match(arms, context.arms):
            asked = self._asked = _Asked(
                arms=tuple(arms),
                features={name: dict(features) for name, features in context.arms.items()},
                rows=np.array([self._rows.get(arm, -1) for arm in arms], dtype=np.intp),
                z=self._shared(context, arms, x, dict(self._columns)),
                prior=np.array([self._prior(context, arm) for arm in arms]),
            )
        if self._settings["shared"]:
            asked.z[:, : len(x)] = x
        return asked

    def _shared(self, context: Context, arms: Sequence[str], x: Array, columns: dict[str, int]) -> Array:
        """Return the shared columns of each arm, shape (n_arms, n_shared); `columns` takes in new names."""
        if not self._settings["shared"]:
            return np.zeros((len(arms), 0))
        cells = [
            (i, len(x) + columns.setdefault(name, len(columns)), value)
            for i, arm in enumerate(arms)
            for name, value in context.arms.get(arm, {}).items()
        ]
        z = np.zeros((len(arms), len(x) + len(columns)))
        z[:, : len(x)] = x
        for i, column, value in cells:
            z[i, column] = value
        return z

    def _prior(self, context: Context, arm: str) -> float:
        named, prior = self._settings["prior_feature"], self._settings["prior"]
        return float(prior if named is None else context.arms.get(arm, {}).get(named, prior))
