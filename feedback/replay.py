"""Replay the log: what would another policy have earned on the same decisions?

    log = Log.from_examples(examples, reward)         the rows that may be evaluated
    p_target = target(log, policy.probabilities)      or `fixed`, or `uniform`
    evaluate(log, p_target, rng)                      three estimates with intervals

A target that was trained on the rows it is evaluated on looks better than it is:
train it on the rows before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedback.estimators import (
    Estimate,
    Floats,
    Integers,
    Terms,
    dr,
    ips,
    refuse,
    refuse_unless_distributions,
    snips,
)
from feedback.events import LABELS, Context, Decision, Example, Mode
from feedback.intervals import bootstrap, by_group, hedged, normal
from feedback.reward_model import cross_fit, describe

ESTIMATORS = ("ips", "snips", "dr")


@dataclass(frozen=True, eq=False)
class Log:
    """The decisions that can be evaluated, as arrays. Row i is one decision.

    Attributes:
        arms: Every arm that was eligible in some row.
        drawn: Column of the arm that was drawn, shape (n,).
        p_log: What it was drawn from, shape (n, n_arms); 0 where an arm was not eligible.
        reward: What it earned, shape (n,), finite.
        questions: Rows that ask the same have the same code, shape (n,), from 0, none left out.
        X: Features of each row, shape (n, d), sparse or dense.
        excluded: Examples that were left out, by reason.
        decisions: The facts behind the rows; empty for a log that was not read from any.

    Raises:
        ValueError: Shapes that differ, an empty log, or a value out of its range.
    """

    arms: tuple[str, ...]
    drawn: Integers
    p_log: Floats
    reward: Floats
    questions: Integers
    X: Any
    excluded: Mapping[str, int] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.reward)
        if not n:
            raise ValueError(f"no example can be evaluated; left out: {dict(self.excluded)}")
        shapes = [a.shape for a in (self.drawn, self.reward, self.questions, self.p_log)]
        if shapes != [(n,), (n,), (n,), (n, len(self.arms))] or self.X.shape[0] != n:
            raise ValueError(
                f"drawn, reward and questions must be ({n},), p_log ({n}, {len(self.arms)}) and X ({n}, d), "
                f"got {shapes} and {self.X.shape}"
            )
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < len(self.arms)), "a column of p_log")
        refuse_unless_distributions("p_log", self.p_log)
        refuse("probability of the drawn arm", self.propensity, self.propensity > 0.0, "above 0")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        refuse("question code", self.questions, (self.questions >= 0) & (self.questions < n), f"below {n}")
        rows = np.bincount(self.questions)
        refuse("rows of a question code", rows, rows > 0, "above 0: codes are 0, 1, 2 and so on")

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def n_questions(self) -> int:
        """How many different questions the rows ask."""
        return int(self.questions.max()) + 1

    @cached_property
    def propensity(self) -> Floats:
        """Probability with which the drawn arm was drawn, shape (n,)."""
        chances: Floats = self.p_log[np.arange(len(self)), self.drawn]
        return chances

    def where(self, kept: NDArray[np.bool_]) -> "Log":
        """Return the log of some rows, at least one; `kept` has shape (n,)."""
        _, questions = np.unique(self.questions[kept], return_inverse=True)
        return replace(
            self,
            drawn=self.drawn[kept],
            p_log=self.p_log[kept],
            reward=self.reward[kept],
            questions=questions,
            X=self.X[np.flatnonzero(kept)],
            decisions=tuple(compress(self.decisions, kept)),
        )

    def eligible(self, arm: str) -> NDArray[np.bool_]:
        """Return in which rows an arm could have been drawn, shape (n,). Raises ValueError."""
        if arm not in self.arms:
            raise ValueError(f"arm {arm!r} is not in the log; it has: {', '.join(self.arms)}")
        possible: NDArray[np.bool_] = self.p_log[:, self.arms.index(arm)] > 0.0
        return possible

    @classmethod
    def from_examples(cls, examples: Iterable[Example], reward: Callable[[Example], float | None]) -> "Log":
        """Keep the examples that a policy drew from a distribution and that have a reward.

        Args:
            examples: The training log, in any order.
            reward: What an example is worth; None when that is not known.

        Raises:
            ValueError: No example is left, or one of them is no draw from a distribution.
        """
        excluded: Counter[str] = Counter()
        decisions: list[Decision] = []
        rewards: list[float] = []
        for example in examples:
            if example.decision.mode is not Mode.EXPLORE:
                excluded[str(example.decision.mode)] += 1
            elif example.decision.policy == LABELS:
                excluded[LABELS] += 1
            elif (value := reward(example)) is None:
                excluded["no reward"] += 1
            else:
                decisions.append(example.decision)
                rewards.append(value)
        if not decisions:
            raise ValueError(f"no example can be evaluated; left out: {dict(excluded)}")
        arms = tuple(dict.fromkeys(chain.from_iterable(d.arms for d in decisions)))
        column = {arm: j for j, arm in enumerate(arms)}
        codes: dict[str, int] = {}
        return cls(
            arms=arms,
            drawn=np.array([column[d.drawn] for d in decisions], dtype=np.int64),
            p_log=_scatter(decisions, column, (d.probabilities for d in decisions)),
            reward=np.array(rewards, dtype=np.float64),
            questions=np.array(
                [codes.setdefault(d.context.question, len(codes)) for d in decisions], dtype=np.int64
            ),
            X=describe([d.context for d in decisions]),
            excluded=dict(excluded),
            decisions=tuple(decisions),
        )


def target(log: Log, probabilities: Callable[[Context, Sequence[str]], Floats]) -> Floats:
    """Ask a policy again what it would draw from in each row, shape (n, n_arms).

    Args:
        log: Read from examples, so that it knows their contexts.
        probabilities: A policy's, with the floor that it would be served with.

    Raises:
        ValueError: The log was not read from examples, or an answer has too few or too
            many probabilities.
    """
    if len(log.decisions) != len(log):
        raise ValueError("the log holds no contexts to ask a policy about: read it with Log.from_examples")
    column = {arm: j for j, arm in enumerate(log.arms)}
    answers = (probabilities(d.context, d.arms).tolist() for d in log.decisions)
    return _scatter(log.decisions, column, answers)


def uniform(log: Log) -> Floats:
    """Return the distribution that draws every eligible arm alike, shape (n, n_arms)."""
    eligible = log.p_log > 0.0
    share: Floats = eligible / eligible.sum(axis=1, keepdims=True)
    return share


def fixed(log: Log, arm: str) -> Floats:
    """Return the distribution that always draws `arm`, shape (n, n_arms).

    Where it was not eligible, the eligible ones are drawn alike.

    Raises:
        ValueError: The log does not know the arm.
    """
    eligible = log.eligible(arm)
    only = np.eye(len(log.arms))[log.arms.index(arm)]
    return np.where(eligible[:, np.newaxis], only, uniform(log))


def terms(log: Log, p_target: Floats, estimator: str, q_hat: Floats | None = None) -> Terms:
    """Return the terms of one estimator; `dr` needs the predictions `q_hat`, shape (n, n_arms).

    Raises:
        ValueError: An estimator of another name, `dr` without `q_hat`, or what the
            estimator itself refuses.
    """
    rows = np.arange(len(log))
    match estimator:
        case "ips":
            return ips(log.propensity, p_target[rows, log.drawn], log.reward)
        case "snips":
            return snips(log.propensity, p_target[rows, log.drawn], log.reward)
        case "dr" if q_hat is not None:
            return dr(log.propensity, p_target, log.drawn, log.reward, q_hat)
        case "dr":
            raise ValueError("dr needs q_hat: see fit_reward_model")
        case _:
            raise ValueError(f"no estimator {estimator!r}; there are: {', '.join(ESTIMATORS)}")


def evaluate(
    log: Log,
    p_target: Floats,
    rng: np.random.Generator,
    estimators: Sequence[str] = ESTIMATORS,
    *,
    q_hat: Floats | None = None,
    resamples: int = 0,
) -> list[Estimate]:
    """Estimate what the target would have earned, with 95 % intervals.

    Rows that ask the same question are taken as one observation by the intervals,
    which are asked of terms hedged by the smallest and largest reward in the log; see
    `feedback.intervals`.

    Args:
        log: What another policy did.
        p_target: What the target would draw from, shape (n, n_arms).
        rng: Source of the folds and of the resamples.
        estimators: Names out of `ESTIMATORS`.
        q_hat: Predictions for `dr`; fitted here when not given. Fit them once to
            evaluate many targets.
        resamples: 0 for the closed-form interval, more for a bootstrap of so many.

    Raises:
        NeverDrawnError: The target draws none of the logged arms.
        ValueError: `p_target` is not a distribution in some row, or draws an arm that
            the log could not have drawn there; `dr` of a log with a single question;
            what the estimators refuse.
    """
    reach = largest_weight(log, p_target)
    if q_hat is None and "dr" in estimators:
        q_hat = fit_reward_model(log, rng)
    parts = [terms(log, p_target, name, q_hat) for name in estimators]
    low, high = float(log.reward.min()), float(log.reward.max())
    safe = [hedged(by_group(part, log.questions), reach, low, high) for part in parts]
    intervals = bootstrap(safe, rng, resamples) if resamples else [normal(part) for part in safe]
    return [
        Estimate(part.estimator, part.value, *interval, n=len(log), effective_n=part.effective_n)
        for part, interval in zip(parts, intervals, strict=True)
    ]


def largest_weight(log: Log, p_target: Floats) -> float:
    """Return the largest p_target / p_log over all rows and arms, drawn or not.

    Raises:
        ValueError: As `evaluate` says of `p_target`.
    """
    if p_target.shape != log.p_log.shape:
        raise ValueError(f"p_target must have the shape {log.p_log.shape} of p_log, got {p_target.shape}")
    refuse_unless_distributions("p_target", p_target)
    supported = (log.p_log > 0.0) | (p_target == 0.0)
    refuse("p_target", p_target, supported, "0 for an arm that the log could not draw")
    return float(np.divide(p_target, log.p_log, out=np.zeros_like(p_target), where=log.p_log > 0.0).max())


def fit_reward_model(log: Log, rng: np.random.Generator, folds: int = 5) -> Floats:
    """Predict the reward of every arm in every row, shape (n, n_arms); see `feedback.reward_model`.

    Raises:
        ValueError: Fewer than two questions or folds: nothing to hold out.
    """
    return cross_fit(log.X, log.drawn, log.reward, log.questions, len(log.arms), rng, folds=folds)


def _scatter(
    decisions: Sequence[Decision], column: Mapping[str, int], rows: Iterable[Sequence[float]]
) -> Floats:
    """Put the distribution of each decision into the columns of its arms, shape (n, n_arms)."""
    lengths = np.array([len(d.arms) for d in decisions])
    columns = np.fromiter((column[arm] for d in decisions for arm in d.arms), dtype=np.int64)
    values = np.fromiter(chain.from_iterable(rows), dtype=np.float64)
    if len(values) != len(columns):
        raise ValueError(f"one probability for each eligible arm makes {len(columns)}, got {len(values)}")
    p = np.zeros((len(decisions), len(column)))
    p[np.repeat(np.arange(len(decisions)), lengths), columns] = values
    return p
