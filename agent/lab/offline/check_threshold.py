"""Fit the threshold of a checked arm to the log: with which score is the first answer worth sending?

With `explore`, a coin overrules the score in a known share of the decisions, so the log has rewards of both
answers at every score. The value of a threshold is then estimated doubly robustly: the mean reward of either
choice near this score, corrected by the residuals of the decisions that chose as this threshold would have,
each with the weight 1 / p.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from rich.table import Table

from armwise.agent.config import AppConfig, ConfigError
from armwise.arms.retrievers import ArmGraph
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.arrays import Flags, Floats
from armwise.feedback.log import Store, listing
from armwise.feedback.training_log import read_examples, settled

LEVEL = 0.95

MOST_CANDIDATES = 21
"""Most thresholds that are compared; of more scores, quantiles are taken."""

FEWEST = 30
"""Fewest decisions that a threshold is fitted to."""

PRIOR = 4.0
"""Weight, in decisions, of the mean of a choice over all scores in its mean near one score."""


class ThresholdError(ValueError):
    """The log cannot say what a threshold is worth; the message says why."""


@dataclass(frozen=True)
class CheckedAnswers:
    """Decisions with a checked answer, as columns of shape (n,).

    Attributes:
        score: What the check said of the first answer, in [0, 1].
        goes_on: Whether the second model answered.
        probability: Probability of that choice, in (0, 1).
        reward: Reward of the decision, with the cost of all that was asked.
    """

    score: Floats
    goes_on: Flags
    probability: Floats
    reward: Floats

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.score)


@dataclass(frozen=True, slots=True)
class ThresholdValue:
    """What a threshold is estimated to be worth.

    Attributes:
        threshold: Smallest score with which the first answer is sent.
        goes_on: Share of the questions that the second model answers.
        value: Mean reward.
        gain: Mean reward minus that of the present threshold.
        low: Lower end of the 95 % interval of the gain; all intervals of a fit hold together.
        high: Upper end.
    """

    threshold: float
    goes_on: float
    value: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ThresholdFit:
    """The values of thresholds.

    Attributes:
        arm: Name of the arm.
        present: The configured threshold.
        n: Number of decisions.
        values: One for each threshold, lowest first.
        left_out: Number of decisions that were left out, by reason.
    """

    arm: str
    present: float
    n: int
    values: tuple[ThresholdValue, ...]
    left_out: Mapping[str, int]

    @property
    def best(self) -> ThresholdValue:
        """The threshold of the largest value; of equals the lowest, which asks the second model least."""
        return max(self.values, key=lambda value: (value.gain, -value.threshold))

    @property
    def chosen(self) -> float:
        """The threshold to configure: the best one if it is surely worth more than the present one."""
        return self.best.threshold if self.best.low > 0 else self.present

    @property
    def summary(self) -> str:
        """The result in a sentence."""
        best = self.best
        if best.threshold == self.present:
            return f"no other threshold is estimated to be worth more than the present {self.present:g}"
        found = f"threshold {best.threshold:g} is estimated to be worth {best.gain:+.4f} a question"
        if best.low > 0:
            return f"{found} ({best.low:+.4f} to {best.high:+.4f}) more than the present {self.present:g}"
        return (
            f"{found} ({best.low:+.4f} to {best.high:+.4f}) compared with the present {self.present:g}: "
            "the log does not separate them yet"
        )

    def table(self) -> Table:
        """Return the values as a table."""
        table = Table(title=f"thresholds of {self.arm}, {self.n:,} decisions")
        for column in ("threshold", "goes on", "reward", f"gain on {self.present:g}", "95 % interval"):
            table.add_column(column, justify="right")
        for value in self.values:
            table.add_row(
                f"{value.threshold:g}",
                f"{value.goes_on:.1%}",
                f"{value.value:.4f}",
                f"{value.gain:+.4f}",
                f"{value.low:+.4f} to {value.high:+.4f}",
            )
        return table


def fit_threshold(arm: str, answers: CheckedAnswers, present: float) -> ThresholdFit:
    """Estimate the value of the thresholds that differ on these decisions.

    Args:
        arm: Name of the arm.
        answers: Decisions of which each could have gone either way.
        present: The threshold to compare with.

    Raises:
        ThresholdError: There are too few decisions.
    """
    if len(answers) < FEWEST:
        raise ThresholdError(
            f"arm {arm!r}: {len(answers)} decisions with a score, a coin and a reward: at least {FEWEST} "
            "are needed"
        )
    candidates = _candidates(answers.score, present)
    expected = _expect(answers, candidates)
    now = _values(answers, expected, present)
    # each other threshold may be picked: their intervals hold together
    from scipy.special import ndtri  # here: a service that fits no threshold does not load it

    width = ndtri(1.0 - (1.0 - LEVEL) / 2.0 / max(1, len(candidates) - 1))
    values = []
    for threshold in candidates:
        value = _values(answers, expected, threshold)
        difference = value - now
        gain, error = float(difference.mean()), _error(answers, expected, threshold, present)
        share = float((answers.score < threshold).mean())
        ends = gain - width * error, gain + width * error
        values.append(ThresholdValue(threshold, share, float(value.mean()), gain, *ends))
    return ThresholdFit(arm, present, len(answers), tuple(values), {})


def _expect(answers: CheckedAnswers, candidates: Sequence[float]) -> Floats:
    """Return the mean reward of stopping and of going on near the score of each decision, shape (n, 2)."""
    group = np.searchsorted(candidates, answers.score, side="right")
    expected = np.empty((len(answers), 2))
    for choice in (0, 1):
        rows = answers.goes_on == bool(choice)
        overall = float(answers.reward[rows].mean()) if rows.any() else float(answers.reward.mean())
        sums = np.bincount(group[rows], answers.reward[rows], minlength=len(candidates) + 1)
        counts = np.bincount(group[rows], minlength=len(candidates) + 1)
        expected[:, choice] = ((sums + PRIOR * overall) / (counts + PRIOR))[group]
    return expected


def _values(answers: CheckedAnswers, expected: Floats, threshold: float) -> Floats:
    """Return the estimated reward of each decision under a threshold, shape (n,)."""
    wanted = answers.score < threshold
    residual = answers.reward - np.where(answers.goes_on, expected[:, 1], expected[:, 0])
    weight = (answers.goes_on == wanted) / answers.probability
    values: Floats = np.where(wanted, expected[:, 1], expected[:, 0]) + weight * residual
    return values


def _error(answers: CheckedAnswers, expected: Floats, threshold: float, present: float) -> float:
    """Return the standard error of the difference of two thresholds.

    Where coins are rare, few or none of the decisions between the two thresholds were overruled, and the
    spread of these says little. So the weights count with what is expected of them, and the rewards with
    their spread over all decisions of either choice.
    """
    sign = (answers.score < threshold).astype(np.float64) - (answers.score < present)
    on = np.where(answers.goes_on, answers.probability, 1.0 - answers.probability)
    of_draws = (sign != 0.0) * (_spread(answers, True) / on + _spread(answers, False) / (1.0 - on))
    of_scores = np.var(sign * (expected[:, 1] - expected[:, 0]))
    return float(np.sqrt((of_draws.mean() + of_scores) / len(answers)))


def _spread(answers: CheckedAnswers, choice: bool) -> float:
    """Return the variance of the rewards of a choice; of all rewards where fewer than two have it."""
    rows = answers.goes_on == choice
    return float(np.var(answers.reward[rows] if rows.sum() >= 2 else answers.reward))


def _candidates(score: Floats, present: float) -> list[float]:
    """Return the thresholds to compare, lowest first: 0, the distinct scores, and the present one."""
    distinct = np.unique(score)
    if len(distinct) > MOST_CANDIDATES:
        distinct = np.unique(np.quantile(score, np.linspace(0, 1, MOST_CANDIDATES), method="nearest"))
    return sorted({0.0, present, *distinct.tolist()})


def fit_logged_threshold(config: AppConfig, arm: str) -> ThresholdFit:
    """Fit the threshold of a checked arm to the log.

    Args:
        config: The configuration.
        arm: Name of the arm.

    Raises:
        ConfigError: There is no such arm, or its answers are not checked.
        ThresholdError: The log cannot say what a threshold is worth.
        LogUnavailableError, LogGapError: The log cannot be read.
    """
    if arm not in config.arms:
        raise ConfigError(f"unknown arm {arm!r}{did_you_mean(arm, config.arms)}")
    if (checked := ArmGraph(config.arms).find_checks(arm)) is None:
        raise ConfigError(f"arm {arm!r} is of kind {config.arms[arm].kind!r}: its answers are not checked")
    with closing(Store(config.database_url, config.reward.join, create=False)) as store:
        answers, left_out = read_checked(store, config, arm)
    if not len(answers) and left_out["without a coin"]:
        raise ThresholdError(
            f"arm {arm!r}: in none of {left_out['without a coin']:,} decisions could a coin overrule the "
            "score: what the other answer would have been worth is not in the log. Set `explore` of the arm, "
            "such as to 0.1"
        )
    fit = fit_threshold(arm, answers, checked.threshold)
    return ThresholdFit(fit.arm, fit.present, fit.n, fit.values, dict(left_out))


def read_checked(store: Store, config: AppConfig, arm: str) -> tuple[CheckedAnswers, Counter[str]]:
    """Return the decisions of an arm with a score and a reward, and how many were left out by reason."""
    stages = dict(listing.stages(store, arm))
    rows, left_out = list[tuple[float, ...]](), Counter[str]()
    until = settled.read(store, config.reward).before
    for example in read_examples(store, config.reward.join):
        if (first := _first_check(stages.pop(example.decision.id, ()))) is None:
            continue
        if (reward := config.reward.compute_reward(example)) is None:
            left_out["without a reward"] += 1
        elif example.decision.decided_at >= until:
            left_out["still waiting for feedback"] += 1
        elif example.turns > 1:
            left_out["of a conversation of several turns"] += 1
        elif first[2] >= 1.0:
            left_out["without a coin"] += 1
        else:
            rows.append((*first, reward))
    score, goes_on, probability, reward_column = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return CheckedAnswers(score, goes_on > 0.5, probability, reward_column), left_out


def _first_check(stages: Sequence[Any]) -> tuple[float, float, float] | None:
    """Return score, whether it went on, and the probability of that; None: no check that can be read."""
    for stage in stages:
        if not isinstance(stage, Mapping) or stage.get("score") is None:
            continue
        numbers = [stage.get(name) for name in ("score", "goes_on", "probability")]
        if all(isinstance(number, int | float) and isfinite(number) for number in numbers):
            score, goes_on, p = map(float, numbers)  # type: ignore[arg-type]
            return (score, goes_on, p) if 0.0 <= score <= 1.0 and 0.0 < p <= 1.0 else None
    return None
