"""Logs of questions whose every outcome is known, cut down to what a service would know.

    pool = read(folder)                                         what every arm earned on every question
    simulate(pool, "greedy", "1,000", ["means"], rng)           a log, and what is said of four targets

Four policies log: all arms alike; nearly always the best arm; a rough router; and one that learns from its
own log. All of them draw every arm with a chance of 0.02 at least.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict

from armwise.agent.lab.offline import read_questions
from armwise.arms.lab.portfolio import read_outcomes
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import ESTIMATORS, Model, Sample, Terms
from armwise.feedback.ope.estimators import Predictions, estimate
from armwise.feedback.ope.evaluation import IntervalRequest, TargetSample, figures, predict
from armwise.feedback.ope.sample import NeverDrawnError

FLOOR, STEP = 0.02, 0.02
SIZES: Mapping[str, tuple[int, int]] = {
    "200": (200, 1),
    "1,000": (1_000, 1),
    "4,000": (4_000, 1),
    "16,000": (16_000, 8),
}
"""Rows of a log, and how often each of its questions is asked."""

LOGGERS = ("uniform", "greedy", "router", "learning")
TARGETS = ("best arm", "another arm", "router", "uniform")


@dataclass(frozen=True, slots=True)
class Kind:
    """An interval that is tried.

    Attributes:
        interval: A name out of `armwise.feedback.ope.evaluation.INTERVALS`.
        of: Place of what it is put on: 0 for a value, 1 for a difference to what was served.
        grouped: Whether rows that ask the same question are taken as one observation.
    """

    interval: str
    of: int = 0
    grouped: bool = True


KINDS: Mapping[str, Kind] = {
    "normal": Kind("normal"),
    "normal, ungrouped": Kind("normal", grouped=False),
    "normal, difference": Kind("normal", of=1),
    "bootstrap": Kind("bootstrap"),
    "anytime": Kind("anytime"),
    "anytime, difference": Kind("anytime", of=1),
}


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """All questions, what every arm earned on them, and the policies.

    Attributes:
        arms: Their names.
        reward: Shape (n_questions, n_arms).
        source: Code of the data set of each question, shape (n_questions,): what the learning policy sees.
        X: Features of the question's words, shape (n_questions, d).
        loggers: Distributions by name, shape (n_questions, n_arms), of those that do not learn.
        targets: The same of the policies to be evaluated.
    """

    arms: tuple[str, ...]
    reward: Floats
    source: Integers
    X: Floats
    loggers: Mapping[str, Floats]
    targets: Mapping[str, Floats]

    @property
    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward there can be: F1 is 0 to 1, and the dearest arm takes its steps."""
        return float(self.reward.min()), 1.0

    def worth(self, policy: Floats) -> float:
        """Return what a policy, shape (n_questions, n_arms), earns on average over all questions."""
        return float(np.vdot(policy, self.reward)) / len(self.reward)


@cache
def read(folder: Path) -> Pool:
    """Read questions and outcomes, and make the policies."""
    outcomes = read_outcomes(folder / "outcomes.jsonl.gz", read_questions(folder / "queries.jsonl.gz"))
    reward = outcomes.scores["f1"] - STEP * outcomes.costs["steps"]
    _, source = np.unique([question.dataset for question in outcomes.questions], return_inverse=True)
    words = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(q.text for q in outcomes.questions)
    return invent(outcomes.arms, reward, source, TruncatedSVD(32, random_state=0).fit_transform(words))


def invent(arms: tuple[str, ...], reward: Floats, source: Integers, X: Floats) -> Pool:  # noqa: N803 - a matrix
    """Make the policies that log and those that are evaluated."""
    n, k = reward.shape
    order = np.argsort(-reward.mean(axis=0))
    uniform, sure = np.full((n, k), 1.0 / k), np.eye(k)
    # Each question is scored by a regression on other questions: many for the target, few for the log.
    folds = KFold(5, shuffle=True, random_state=0)
    fitted = cross_val_predict(Ridge(1.0), X, reward, cv=folds)
    few = np.random.default_rng(0).permutation(n)[: max(k, n // 10)]
    rough = Ridge(1.0).fit(X[few], reward[few]).predict(X)
    floored = k * FLOOR
    loggers = {
        "uniform": uniform,
        "greedy": np.tile(floored / k + (1.0 - floored) * sure[order[0]], (n, 1)),
        "router": floored / k + (1.0 - floored) * softmax(rough, 0.05),
    }
    targets = {
        "best arm": np.tile(sure[order[0]], (n, 1)),
        "another arm": np.tile(sure[order[k // 2]], (n, 1)),
        "router": softmax(fitted, 0.02),
        "uniform": uniform,
    }
    return Pool(arms, reward, source, X, loggers, targets)


def softmax(score: Floats, temperature: float) -> Floats:
    """Return distributions in which an arm that scores more has more, shape (n, n_arms).

    >>> softmax(np.array([[1.0, 1.0]]), 0.1).tolist()
    [[0.5, 0.5]]
    """
    grown = np.exp((score - score.max(axis=1, keepdims=True)) / temperature)
    return grown / grown.sum(axis=1, keepdims=True)


def drawn_from(p: Floats, rng: np.random.Generator) -> Integers:
    """Draw an arm in each row of `p`."""
    return (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(max=p.shape[1] - 1)


def served(
    pool: Pool, logger: str, asked: Integers, rng: np.random.Generator
) -> tuple[Floats, Integers, float]:
    """Log questions, shape (n,): what arms are drawn from, what is drawn, and what that policy is worth."""
    if logger == "learning":
        return learned(pool, asked, rng)
    policy = pool.loggers[logger]
    return policy[asked], drawn_from(policy[asked], rng), pool.worth(policy)


def learned(pool: Pool, asked: Integers, rng: np.random.Generator) -> tuple[Floats, Integers, float]:
    """Log as a policy that learns: most goes to the arm that has earned most on such questions so far."""
    n, k = len(asked), len(pool.arms)
    shape = (int(pool.source.max()) + 1, k)
    earned, counts, worth = np.full(shape, float(pool.reward.mean())), np.ones(shape), 0.0
    p, drawn = np.empty((n, k)), np.empty(n, dtype=np.int64)
    for start in range(0, n, 50):  # a version is served for 50 decisions
        rows = slice(start, start + 50)
        policy = FLOOR + (1.0 - k * FLOOR) * np.eye(k)[(earned / counts).argmax(axis=1)]
        source = pool.source[asked[rows]]
        p[rows] = policy[source]
        drawn[rows] = drawn_from(p[rows], rng)
        np.add.at(earned, (source, drawn[rows]), pool.reward[asked[rows], drawn[rows]])
        np.add.at(counts, (source, drawn[rows]), 1.0)
        worth += len(source) / n * pool.worth(policy[pool.source])
    return p, drawn, worth


def names_of(models: Sequence[Model]) -> dict[str, tuple[Model, str]]:
    """Return what is asked, by name: a model and an estimator; the first model is that of the plain names.

    >>> list(names_of(["means", "ridge"]))[-2:]
    ['dr ridge', 'switch_dr ridge']
    """
    plain: dict[str, tuple[Model, str]] = {name: (models[0], name) for name in ESTIMATORS}
    modelled = [name for name in plain if ESTIMATORS[name].predictions is not Predictions.NONE]
    return plain | {f"{name} {model}": (model, name) for model in models[1:] for name in modelled}


def simulate(pool: Pool, logger: str, size: str, models: Sequence[Model], rng: np.random.Generator) -> Floats:
    """Make one log, and return all that is said of the targets, shape (targets, names, 1 + 2 * kinds).

    The last axis has the error of the value, and how far each end of each interval is above the truth;
    NaN where an estimator has no answer, or an interval is none for it.
    """
    n, times = SIZES[size]
    rows = rng.permutation(rng.integers(len(pool.reward), size=n // times).repeat(times))
    p_log, drawn, worth = served(pool, logger, rows, rng)
    _, questions = np.unique(rows, return_inverse=True)
    reward, ones = pool.reward[rows, drawn], np.ones(n)
    log = LoggedDraws.from_arrays(pool.arms, drawn, reward, p_log=p_log, groups=questions)
    ungrouped = replace(log, groups=np.arange(n))
    folds, names = int(rng.integers(2**63)), names_of(models)
    q_hat = {model: predict(log, pool.X[rows], np.random.default_rng(folds), model) for model in models}
    errors = np.full((len(TARGETS), len(names), 1 + 2 * len(KINDS)), np.nan)
    for at, target in enumerate(TARGETS):
        p_target = pool.targets[target][rows]
        plain = Sample(log.propensity, drawn, reward, p_target)
        terms = {}
        for model in models:
            sample = replace(plain, q_hat=q_hat[model])
            for name in (name for name in names if names[name][0] == model):
                with suppress(NeverDrawnError):
                    terms[name] = estimate(sample, names[name][1])
        target_sample = TargetSample(log, plain.weight, (p_target / p_log).max(axis=1), terms)
        logged = TargetSample(
            log, ones, ones, {name: Terms(name, reward, ones, ones) for name in terms}, served=True
        )
        truth = pool.worth(pool.targets[target])
        for place, kind in enumerate(KINDS.values()):
            request = IntervalRequest(kind.interval, 0.95, pool.reward_range, resamples=500, seed=folds)
            look = target_sample if kind.grouped else replace(target_sample, log=ungrouped)
            for name, pair in figures(look, logged if kind.of else None, request).items():
                row, figure = errors[at, list(names).index(name)], pair[kind.of]
                row[0] = pair[0].value - truth
                if figure is not None and figure.kind == kind.interval:
                    aim = truth - worth * kind.of
                    row[1 + 2 * place : 3 + 2 * place] = figure.low - aim, figure.high - aim
    return errors
