"""Bandits of other packages beside ours: each sees the same numbers of a question and chooses an arm.

    river       in this environment: Thompson sampling, UCB, LinUCB of `river.bandit`
    mabwiser    LinUCB and Thompson sampling
    pareto      ParetoBandit: LinUCB that forgets, without its budget
    litellm     LiteLLM's adaptive router: Beta posteriors by kind of request

Besides, for tables of outcomes, thirty lines: a ridge regression an arm, of what a reward is above the mean
so far, and the arm with the highest upper confidence bound.

None records with which chance it chose. What is not installed here is read from folders that are given by
path, each filled by `pip install --target FOLDER mabwiser paretobandit litellm`.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Rival(Protocol):
    """A bandit of another package."""

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Return the arm for a question: its text, and its numbers of shape (d,)."""
        ...

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Take a reward in [0, 1]."""
        ...

    def save(self) -> bytes:
        """Return what the package keeps of itself, by its own means, else by pickle."""
        ...


class River:
    """A bandit of `river.bandit` without a context."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Pull an arm."""
        del text, x
        return str(self._policy.pull([*arms]))

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Update the arm."""
        del text, x
        self._policy.update(arm, reward)

    def save(self) -> bytes:
        """Pickle the policy."""
        return pickle.dumps(self._policy)


def river_thompson(arms: Sequence[str], d: int, seed: int) -> Rival:
    """Return Thompson sampling with a normal posterior."""
    from river import bandit, proba

    del arms, d
    return River(bandit.ThompsonSampling(reward_obj=proba.Gaussian(), burn_in=20, seed=seed))


def river_ucb(arms: Sequence[str], d: int, seed: int) -> Rival:
    """Return UCB."""
    from river import bandit

    del arms, d
    return River(bandit.UCB(delta=1.0, seed=seed))


def river_exp3(arms: Sequence[str], d: int, seed: int) -> Rival:
    """Return EXP3, which makes no assumption on rewards."""
    from river import bandit

    del arms, d
    return River(bandit.Exp3(gamma=0.05, seed=seed))


class MABWiser:
    """A bandit of MABWiser, which wants one row to begin with."""

    def __init__(self, learning: Any, arms: Sequence[str], d: int, seed: int) -> None:
        from mabwiser.mab import MAB

        self._arms = [*arms]
        self._mab = MAB(self._arms, learning, seed=seed)
        self._mab.fit([arms[0]], [0.5], np.zeros((1, d)))

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Predict an arm; one that is new is added."""
        del text
        for arm in arms:
            if arm not in self._arms:
                self._arms.append(arm)
                self._mab.add_arm(arm)
        return str(self._mab.predict(x[None]))

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Fit one row."""
        del text
        self._mab.partial_fit([arm], [reward], x[None])

    def save(self) -> bytes:
        """Pickle the bandit."""
        return pickle.dumps(self._mab)


def mabwiser_linucb(arms: Sequence[str], d: int, seed: int) -> Rival:
    """Return disjoint LinUCB."""
    from mabwiser.mab import LearningPolicy

    return MABWiser(LearningPolicy.LinUCB(alpha=0.2, l2_lambda=10.0), arms, d, seed)


class Pareto:
    """ParetoBandit with every arm at the same price, so that it pursues the reward."""

    def __init__(self, arms: Sequence[str], d: int, seed: int) -> None:
        from pareto_bandit import BanditRouter, FeatureService

        price = {"input_cost_per_m": 1.0, "output_cost_per_m": 1.0}
        self._price, self._arms = price, set(arms)
        self._router = BanditRouter.create(
            {arm: dict(price) for arm in arms},
            feature_service=FeatureService.for_precomputed(dimension=d),
            priors="none",
            cost_penalty=0.0,
            bandit_seed=seed,
        )

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Route a vector; a model that is new is registered."""
        del text
        for arm in set(arms) - self._arms:
            self._arms.add(arm)
            self._router.register_model(arm, speed="balanced", **self._price)
        return str(self._router.route(x)[0])

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Update from one reward."""
        del text
        self._router.update(arm, x, reward)

    def save(self) -> bytes:
        """Save the state to a file."""
        with tempfile.TemporaryDirectory() as folder:
            self._router.save_state(Path(folder, "state"))
            return b"".join(file.read_bytes() for file in sorted(Path(folder).iterdir()))


class _Beta:
    """What LiteLLM draws from: the part of `random.Random` that it uses."""

    def __init__(self, seed: int) -> None:
        self.betavariate = np.random.default_rng(seed).beta


class LiteLLM:
    """LiteLLM's adaptive router: its classifier of requests, its posteriors, its choice, at equal cost."""

    def __init__(self, arms: Sequence[str], d: int, seed: int) -> None:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
        from litellm.router_strategy.adaptive_router import bandit, classifier
        from litellm.types.router import AdaptiveRouterPreferences

        del arms, d
        self._bandit, self._classify = bandit, classifier.classify_prompt
        self._preferences = AdaptiveRouterPreferences(quality_tier=2, strengths=[])
        self._cells: dict[tuple[Any, str], Any] = {}
        self._rng = _Beta(seed)

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Draw from the posteriors of the kind of request."""
        del x
        cells = {arm: self._cell(text, arm)[1] for arm in arms}
        return str(self._bandit.pick_best(cells, dict.fromkeys(arms, 1.0), rng=self._rng))

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Add a success and a failure in part."""
        del x
        key, cell = self._cell(text, arm)
        self._cells[key] = self._bandit.apply_delta(cell, reward, 1.0 - reward)

    def save(self) -> bytes:
        """Pickle the posteriors, which the package keeps in a database."""
        return pickle.dumps(self._cells)

    def _cell(self, text: str, arm: str) -> tuple[tuple[Any, str], Any]:
        kind = self._classify(text)
        key = (kind, arm)
        if key not in self._cells:
            self._cells[key] = self._bandit.initial_cell(self._preferences, kind)
        return key, self._cells[key]


class RidgeBound:
    """A ridge regression an arm with an upper bound at .2 standard deviations; the noise counts as 1.

    Args:
        penalties: On the square of each weight, shape (d,); those of columns to leave out are infinite.
        n_arms: Arms that there are at most.
    """

    def __init__(self, penalties: Floats, n_arms: int) -> None:
        self._inverse = np.repeat(np.diag(1.0 / penalties)[None], n_arms, axis=0)
        self._reward, self._one = np.zeros((2, n_arms, len(penalties)))
        self._seen = np.array([1.0, 0.5])  # rewards, and their sum
        self._rows: dict[str, int] = {}

    def choose(self, text: str, x: Floats, arms: Sequence[str]) -> str:
        """Choose the highest bound."""
        del text
        rows = [self._rows.setdefault(arm, len(self._rows)) for arm in arms]
        gain, level = self._inverse[rows] @ x, self._seen[1] / self._seen[0]
        mean = (gain * (self._reward[rows] - level * self._one[rows])).sum(axis=1)
        return arms[int((mean + 0.2 * np.sqrt(gain @ x)).argmax())]

    def learn(self, text: str, x: Floats, arm: str, reward: float) -> None:
        """Update the inverse by Sherman and Morrison's formula."""
        del text
        row = self._rows[arm]
        gain = self._inverse[row] @ x
        self._inverse[row] -= np.outer(gain, gain) / (1.0 + gain @ x)
        self._reward[row] += reward * x
        self._one[row] += x
        self._seen += [1.0, reward]

    def save(self) -> bytes:
        """Pickle the arrays."""
        return pickle.dumps(vars(self))


def ridge(intercept: float, form: float, embedding: float, n_form: int) -> Callable[..., Rival]:
    """Return what makes a ridge regression with these penalties, of `n_form` columns of the form."""

    def make(arms: Sequence[str], d: int, seed: int) -> Rival:
        del seed
        return RidgeBound(np.repeat([intercept, form, embedding], [1, n_form, d - 1 - n_form]), len(arms))

    return make


def ridges(n_form: int) -> dict[str, Callable[..., Rival]]:
    """Return the ridge regressions by name."""
    nothing = np.inf
    return {
        **{f"ridge {one:.0f} on form": ridge(one, one, nothing, n_form) for one in (1.0, 10.0, 100.0)},
        **{f"ridge {one:.0f} on both": ridge(one, one, one, n_form) for one in (1.0, 10.0, 100.0)},
        "ridge 10, 300 on both": ridge(10.0, 300.0, 300.0, n_form),
        "mean": ridge(10.0, nothing, nothing, n_form),
    }


RIVALS: dict[str, Callable[[Sequence[str], int, int], Rival]] = {
    "river Thompson": river_thompson,
    "river UCB": river_ucb,
    "river EXP3": river_exp3,
    "MABWiser LinUCB": mabwiser_linucb,
    "ParetoBandit": Pareto,
    "LiteLLM adaptive": LiteLLM,
}
"""By name: made for some arms, so many numbers of a question and a seed."""


def import_from(paths: Sequence[Path]) -> None:
    """Make other packages importable, after those that are installed."""
    sys.path.extend(str(path) for path in paths if str(path) not in sys.path)


def available() -> dict[str, str]:
    """Return the rivals that cannot be run here, each with why."""
    missing = {}
    for name, make in RIVALS.items():
        try:
            rival = make(("a", "b"), 3, 0)
            rival.learn("why?", np.ones(3), rival.choose("why?", np.ones(3), ("a", "b")), 0.5)
        except ImportError as error:
            missing[name] = str(error)
    return missing
