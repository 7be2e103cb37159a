"""Epsilon-greedy exploration, over one river regressor per arm."""

import copy
import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import check_context, check_reward
from armwise.agent.policies.sampling import greedy
from armwise.agent.policies.serialization import ObjectFormat, seal, unseal
from armwise.arms import extras
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym

if TYPE_CHECKING:
    from river.base import Regressor

Decay = float | Literal["log"] | None
"""The decay of epsilon: the number of rewards after which it is halved, `log`, or None: constant."""


@dataclass(frozen=True, slots=True)
class EpsilonSchedule:
    """Epsilon as a function of the number of rewards so far.

    After `t` rewards it is the greater of `min_epsilon` and

        epsilon                        decay None
        epsilon / (1 + t / decay)      decay a number
        epsilon / max(1, ln(1 + t))    decay "log"

    Attributes:
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Selects the formula.
        min_epsilon: Lower bound, in [0, epsilon].

    Raises:
        PolicyError: A value is out of its range.

    >>> EpsilonSchedule(0.4, 10.0, 0.0).at(10), EpsilonSchedule(1.0, "log", 0.0).at(0)
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
        """Return epsilon after a number of rewards, in [min_epsilon, epsilon]."""
        if self.decay is None:
            return self.epsilon
        slower = max(1.0, math.log1p(rewards)) if self.decay == "log" else 1.0 + rewards / float(self.decay)
        return max(self.min_epsilon, self.epsilon / slower)

    def spread(self, scores: NDArray[np.float64], rewards: int) -> NDArray[np.float64]:
        """Return a distribution: epsilon shared by all arms, the rest by the best ones, shape (n_arms,).

        >>> EpsilonSchedule(0.3, None, 0.0).spread(np.array([0.0, 1.0, 0.0]), 0).round(3).tolist()
        [0.1, 0.8, 0.1]
        """
        epsilon = self.at(rewards)
        return (1.0 - epsilon) * greedy(scores) + epsilon / len(scores)


LINEAR: Literal["linear"] = "linear"
"""The default model: linear regression with AdaGrad."""

RATE = 0.02
"""Learning rate of the default model."""

Model = Literal[
    "linear",
    "river.ensemble.SRPRegressor",
    "river.forest.AMFRegressor",
    "river.forest.ARFRegressor",
    "river.forest.OXTRegressor",
    "river.linear_model.BayesianLinearRegression",
    "river.linear_model.LinearRegression",
    "river.linear_model.PARegressor",
    "river.tree.HoeffdingAdaptiveTreeRegressor",
    "river.tree.HoeffdingTreeRegressor",
    "river.tree.SGTRegressor",
]
"""The default, and the permitted import paths: an import runs code, and a request may name a model.

Each is built from plain values, predicts one number, has equal states after equal histories, and continues
exactly from a saved state. Other models of river fail in this: `KNNRegressor` draws without a seed,
factorization machines save other bytes after loading, `AMRules` divides by zero.
"""

MODELS: tuple[str, ...] = get_args(Model)

PLAIN_TYPES = (bool, int, float, str, type(None))
"""Permitted types of a regressor's arguments, and of items of lists in them."""

FORMAT = 1
"""Format of a state; a state of another format is learned again from the log."""

RIVER_VERSION = extras.installed("river")
"""Part of every state, since another version may read the same state differently."""

STATES = ObjectFormat(
    {
        "builtins:dict", "builtins:float", "builtins:int",
        "collections:Counter", "collections:defaultdict", "random:Random", "statistics:NormalDist",
        "river.forest.online_extra_trees:ExtraTrees._detection_mode_all",
        "river.forest.online_extra_trees:ExtraTrees._detection_mode_drop",
        "river.forest.online_extra_trees:ExtraTrees._detection_mode_off",
        "river.linear_model.pa:BasePA._calc_tau_0",
        "river.linear_model.pa:BasePA._calc_tau_1",
        "river.linear_model.pa:BasePA._calc_tau_2",
        "river.tree.splitter.ebst_splitter:EBSTNode._update_estimator_univariate",
    },
    (
        "river._river_rust.drift:", "river._river_rust.vectordict:", "river.drift.adwin:",
        "river.ensemble.streaming_random_patches:", "river.forest.", "river.linear_model.", "river.metrics.",
        "river.optim.", "river.stats.", "river.tree.",
    ),
    {
        "collections:Counter", "collections:defaultdict", "random:Random",
        "river._river_rust.vectordict:VectorDict",
    },
)  # fmt: skip
"""Format of the states of regressors, restricted to objects of these classes and methods."""


class EpsilonGreedy:
    """The arm with the best predicted reward, or any arm with probability epsilon.

    Epsilon is shared by all arms, the best one included, and the rest of the mass by all
    arms tied for the best. Its decay is that of `EpsilonSchedule`.

    Args:
        model: Model of the rewards: `linear`, or the import path of a river regressor.
        params: Arguments of that regressor: numbers, strings, booleans, nulls and lists of these; its
            `seed` is 0 by default.
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Number of rewards after which epsilon is halved, `log` to divide it by
            ln(1 + rewards), None for no decay.
        min_epsilon: Lower bound of epsilon, in [0, epsilon].
        prior: Predicted reward of an arm without rewards; above every possible reward, new
            arms are tried first.

    Raises:
        PolicyError: A parameter out of its range, or a model that is not allowed.
    """

    kind = "epsilon_greedy"
    resumes_exactly = True

    def __init__(
        self,
        model: Model = LINEAR,
        params: Mapping[str, Any] | None = None,
        *,
        epsilon: float = 0.05,
        decay: Decay = None,
        min_epsilon: float = 0.0,
        prior: float = 1.0,
    ) -> None:
        check_model(model, params)
        self.model, self.params, self.prior = model, dict(params or {}), prior
        self._exploration = EpsilonSchedule(epsilon, decay, min_epsilon)
        self._regressors: dict[str, Regressor] = {}
        self._rewards = 0
        self._regressor()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Check that the model is permitted. Raises PolicyError."""
        del configured
        check_model(params.get("model", LINEAR), params.get("params"))

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return epsilon shared by all arms, plus the rest shared by the best ones.

        Raises:
            PolicyError: A feature or a prediction is not finite.
        """
        return self.penalised(context, arms, np.zeros(len(arms)))

    def penalised(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution with a penalty subtracted from the predictions. Raises PolicyError."""
        check_context(context)
        features = _features(context)
        scores = np.array([self._score(arm, features) for arm in arms])
        return self._exploration.spread(scores - penalty, self._rewards)

    def learn(self, decision: Decision, reward: float) -> None:
        """Update the regressor of the drawn arm."""
        check_reward(decision, reward)
        if decision.drawn not in self._regressors:
            self._regressors[decision.drawn] = self._regressor()
        self._regressors[decision.drawn].learn_one(_features(decision.context), reward)
        self._rewards += 1

    def save(self) -> bytes:
        """Return river's version, the model and a digest on one line, then the regressors as plain data."""
        return seal(self._made_by, STATES.dump({"rewards": self._rewards, "regressors": self._regressors}))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state, which may only name classes of river's regressors.

        Raises:
            PolicyError: The state is damaged, has another model, version of river or format, or names code.
        """
        attributes = STATES.load(unseal(state, self._made_by))
        loaded = copy.copy(self)
        vars(loaded).update(_rewards=attributes["rewards"], _regressors=attributes["regressors"])
        return loaded

    def _score(self, arm: str, features: dict[Any, float]) -> float:
        regressor = self._regressors.get(arm)
        return self.prior if regressor is None else float(regressor.predict_one(features))

    def _regressor(self) -> "Regressor":
        module, _, name = self.model.rpartition(".")
        try:
            if self.model == LINEAR:
                with extras.explained():
                    from river import linear_model, optim

                return linear_model.LinearRegression(**{"optimizer": optim.AdaGrad(RATE)} | self.params)
            # Imported here: trees and forests take time to load, and most policies need none.
            with extras.explained():
                build: type[Regressor] = getattr(importlib.import_module(module), name)
            # Without a seed, equal histories would not give equal states.
            seed = {"seed": 0} if "seed" in inspect.signature(build).parameters else {}
            return build(**seed | self.params)
        except (ImportError, AttributeError, LookupError, ValueError, TypeError) as error:
            raise PolicyError(f"model {self.model!r} with {self.params} cannot be built: {error}") from error

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"river": RIVER_VERSION, "model": self.model, "params": self.params, "format": FORMAT}


def check_model(model: object, params: object) -> None:
    """Check that a model is permitted, before anything is imported or built.

    Args:
        model: Argument of `EpsilonGreedy`, unchecked.
        params: Argument of `EpsilonGreedy`, unchecked.

    Raises:
        PolicyError: The model is not one of `MODELS`, or a parameter is not a plain value.

    >>> check_model("river.tree.HoeffdingTreeRegressor", {"grace_period": 50})
    >>> check_model("river.tree.HoeffdingTree", None)
    Traceback (most recent call last):
    armwise.agent.policies.base.PolicyError: model 'river.tree.HoeffdingTree' is not allowed; did you mean \
'river.tree.HoeffdingTreeRegressor'?
    """
    if not isinstance(model, str) or model not in MODELS:
        raise PolicyError(f"model {model!r} is not allowed{did_you_mean(str(model), MODELS)}")
    if params is None:
        return
    if not isinstance(params, Mapping):
        raise PolicyError(f"params of model {model!r}: arguments by name were expected, got {params!r}")
    for name, value in params.items():
        if not all(isinstance(part, PLAIN_TYPES) for part in (value if isinstance(value, list) else [value])):
            raise PolicyError(
                f"params of model {model!r}: {name!r} must be a number, a string, a boolean, null or a list "
                f"of these, got {value!r}"
            )


def _features(context: Context) -> dict[Any, float]:
    """Return the named features by pseudonyms, and the embedding as `e0`, `e1`, ...

    >>> _features(Context("?", {"length": 0.25}, (0.5, -0.5)))
    {'length': 0.25, 'e0': 0.5, 'e1': -0.5}
    """
    named = by_pseudonym(context.features)
    return {**named, **dict(zip(_names(len(context.embedding)), context.embedding, strict=True))}


@lru_cache(maxsize=8)
def _names(dims: int) -> tuple[str, ...]:
    return tuple(f"e{i}" for i in range(dims))
