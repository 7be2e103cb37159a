"""Pairs: one question answered by two arms, whose answers a judge compared without knowing who wrote them.

    sizes of classes --draw--> requests --a judge--> JudgedPairs --compare--> PairsComparison

The value of a pair is 1 if the challenger is better than the reference, -1 if it is worse, 0 if neither is,
and between them if two verdicts differ. A point of 100 is a hundredth of that. All ends are confidence
sequences (`armwise.feedback.ope.confidence_sequences`): one may look after every pair. They share an error of
`ERROR`, so that all of them hold together, for all classes and at all looks.

Requests are drawn with replacement: half of the draws are proportional, and half go to each class equally
often, so that rare classes are seen. A request that is drawn again has the same value and costs nothing. The
weight of a draw, the share of its class over its probability, is at most 2. Everything is about the mean over
the requests that are drawn from.

A verdict that is missing counts as the worst in a lower end and as the best in an upper end.

With labels, verdicts of your own on the first draws, the mean of (label - judge) is added to the difference
that the judge finds: the interval pays for a judge that errs. Source of that estimate: Angelopoulos, Bates,
Fannjiang, Jordan and Zrnic 2023, arXiv:2301.09633.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict, NonNegativeInt

from armwise.feedback.arrays import Flags, Floats, Integers, refuse
from armwise.feedback.ope import confidence_sequences
from armwise.feedback.ope.noninferiority import Ends

ERROR = 0.05
"""Largest probability that any end ever fails."""

LOWER_SHARE, UPPER_SHARE = 0.5, 0.25
"""Shares of the error that the two ends of the difference have; all other ends share the rest."""

MOST_MORE = 1_000_000
"""Most further pairs that a forecast names."""

RESAMPLES = 200
"""Resamples of the pairs in a forecast."""

RANGE = (0.05, 0.75)
"""Quantiles of the resamples between which a forecast is."""


class Word(StrEnum):
    """A verdict in a word."""

    SWITCH = "switch"
    """The challenger loses less than the margin."""

    KEEP = "keep"
    """The challenger loses more than the margin."""

    NOT_YET = "not yet"
    """Neither is known."""


def draw(sizes: Sequence[int], n: int, seed: int) -> tuple[Integers, Integers]:
    """Draw requests with replacement; more draws with the same seed begin with the same ones.

    Args:
        sizes: Number of requests in each class, each at least 1.
        n: Number of draws.
        seed: Seed of the draws.

    Returns:
        The class of each draw, and the number of the request in its class, shape (n,) each.

    >>> draw([90, 10], 6, 0)[0].tolist() == draw([90, 10], 9, 0)[0].tolist()[:6]
    True
    """
    count = np.array(sizes, dtype=np.int64)
    coin, which, member = np.random.default_rng(seed).random((n, 3)).T
    ends = np.cumsum(count)
    by_share = np.searchsorted(ends, np.floor(which * ends[-1]), side="right")
    group = np.where(coin < 0.5, by_share, np.floor(which * len(count))).astype(np.int64)
    return group, np.floor(member * count[group]).astype(np.int64)


def compute_weights(sizes: Sequence[int]) -> Floats:
    """Return the weight of a draw from each class: its share over the probability of the class.

    >>> compute_weights([90, 10]).round(3).tolist(), compute_weights([5]).tolist()
    ([1.286, 0.333], [1.0])
    """
    share = np.array(sizes, dtype=np.float64) / sum(sizes)
    weights: Floats = share / (0.5 * share + 0.5 / len(share))
    return weights


@dataclass(frozen=True, slots=True, eq=False)
class JudgedPairs:
    """Judged pairs in the order in which they were drawn.

    Attributes:
        value: The challenger minus the reference, shape (n,), in [-1, 1]; NaN: not known.
        group: Number of the class of each, shape (n,).
        weights: Weight of a draw from each class, shape (n_groups,); `[1.0]` without classes.
        labels: Your own verdicts on the first draws, shape (k,) with k at most n; NaN: asked for, not given.
        moves: Whether what is compared may change with time, as in a log, so that later bounds may be lower.

    Raises:
        ValueError: Shapes differ, there is no pair, or a value is out of its range.
    """

    value: Floats
    group: Integers
    weights: Floats
    labels: Floats | None = None
    moves: bool = False

    def __post_init__(self) -> None:
        if not len(self.value) or self.value.shape != self.group.shape:
            raise ValueError(f"{len(self.value)} values and {len(self.group)} classes of pairs")
        for name in ("value", "labels"):
            column = getattr(self, name)
            if column is not None:
                refuse(name, column, np.isnan(column) | (np.abs(column) <= 1.0), "from -1 to 1")
        if self.labels is not None and len(self.labels) > len(self.value):
            raise ValueError(f"{len(self.labels)} labels of {len(self.value)} pairs")


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Two arms on the requests of a class, or on all; each estimate is with its lower and its upper end.

    Attributes:
        pairs: Number of draws.
        difference: The challenger minus the reference, in [-1, 1].
        no_worse: Share of the requests in which the challenger is not worse.
        better: Draws in which it is better.
        equal: Draws in which neither is.
        worse: Draws in which it is worse.
        unknown: Draws without a verdict.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")  # a verdict has it among its figures

    pairs: NonNegativeInt
    difference: Ends
    no_worse: Ends
    better: NonNegativeInt
    equal: NonNegativeInt
    worse: NonNegativeInt
    unknown: NonNegativeInt


@dataclass(frozen=True, slots=True)
class PairsComparison:
    """Two arms on all requests, and on each class if there are several.

    Attributes:
        whole: On all.
        groups: On each class; empty if there is one. None: no pair of the class was drawn.
        by_judge: The difference without the labels; None: there are none.
    """

    whole: GroupComparison
    groups: tuple[GroupComparison | None, ...]
    by_judge: Ends | None = None


def decide(difference: Ends, margin: float) -> Word:
    """Return the verdict: `SWITCH` if all of the interval is above `-margin`, `KEEP` if all is below.

    Args:
        difference: The difference with its ends.
        margin: Largest loss that is accepted, at least 0.

    >>> [decide((0.0, low, high), 0.05).value for low, high in ((-0.04, 0.1), (-0.3, -0.06), (-0.1, 0.1))]
    ['switch', 'keep', 'not yet']
    """
    _, low, high = difference
    if low > high:
        return Word.NOT_YET  # only where an end has failed
    return Word.SWITCH if low > -margin else Word.KEEP if high < -margin else Word.NOT_YET


def compare(pairs: JudgedPairs) -> PairsComparison:
    """Compare two arms by their pairs."""
    n_groups = len(pairs.weights)
    ends = 2 + (4 * n_groups if n_groups > 1 else 0)
    other = ERROR * (1.0 - LOWER_SHARE - UPPER_SHARE) / ends
    errors = ERROR * LOWER_SHARE, ERROR * UPPER_SHARE
    weight, reach = pairs.weights[pairs.group], float(pairs.weights.max())
    by_judge: Ends | None = None
    if pairs.labels is None:
        difference = _compute_ends(pairs.value, weight, reach, errors, moves=pairs.moves)
    else:
        difference = _compute_labelled_ends(pairs, weight, reach, errors)
        halves = errors[0] / 2.0, errors[1] / 2.0  # the ends that are a part of those with labels
        by_judge = _compute_ends(pairs.value, weight, reach, halves, moves=pairs.moves)

    def describe(rows: Flags, of_rows: Floats, most: float, found: Ends | None) -> GroupComparison:
        value = pairs.value[rows]
        known = ~np.isnan(value)
        share = _compute_ends(
            np.where(known, np.where(value >= 0.0, 1.0, -1.0), np.nan),
            *(of_rows, most, (other, other)),
            moves=pairs.moves,
        )
        if found is None:
            found = _compute_ends(value, of_rows, most, (other, other), moves=pairs.moves)
        counts = ((value > 0.0).sum(), (value == 0.0).sum(), (value < 0.0).sum(), (~known).sum())
        estimate, low, high = ((1.0 + end) / 2.0 for end in share)
        return GroupComparison(len(value), found, (estimate, low, high), *map(int, counts))

    classes = [pairs.group == group for group in range(n_groups if n_groups > 1 else 0)]
    groups = (describe(rows, np.ones(rows.sum()), 1.0, None) if rows.any() else None for rows in classes)
    everything = np.ones(len(weight), dtype=np.bool_)
    return PairsComparison(describe(everything, weight, reach, difference), tuple(groups), by_judge)


def _compute_ends(
    value: Floats, weight: Floats, reach: float, errors: tuple[float, float], *, moves: bool
) -> Ends:
    """Return the weighted mean of values in [-1, 1] with its ends; NaN counts as the worse case."""
    known = ~np.isnan(value)
    estimate = float(np.average(value[known], weights=weight[known])) if known.any() else 0.0
    worst, best = (np.where(known, value, missing) for missing in (-1.0, 1.0))
    low = _lower(weight * worst, reach, errors[0], moves=moves)
    high = -_lower(-weight * best, reach, errors[1], moves=moves)
    return estimate, max(low, -1.0), min(high, 1.0)


def _compute_labelled_ends(
    pairs: JudgedPairs, weight: Floats, reach: float, errors: tuple[float, float]
) -> Ends:
    """Return the difference by the judge plus the mean of (label - judge), each with half of the error."""
    assert pairs.labels is not None
    n, ends = len(pairs.labels), list[float]()
    for sign, error in ((1.0, errors[0]), (-1.0, errors[1])):
        judged, labels = (
            np.where(np.isnan(column), -1.0, sign * column) for column in (pairs.value, pairs.labels)
        )
        low = _lower(weight * judged, reach, error / 2.0, moves=pairs.moves)
        gap = weight[:n] * (labels - judged[:n])
        ends.append(sign * (low + _lower(gap, 2.0 * reach, error / 2.0, moves=pairs.moves)))
    both = ~np.isnan(pairs.value[:n]) & ~np.isnan(pairs.labels)
    gap = (pairs.labels - pairs.value[:n])[both]
    known = ~np.isnan(pairs.value)
    estimate = float(np.average(pairs.value[known], weights=weight[known])) if known.any() else 0.0
    estimate += float(np.average(gap, weights=weight[:n][both])) if both.any() else 0.0
    return min(max(estimate, -1.0), 1.0), max(ends[0], -1.0), min(ends[1], 1.0)


def _lower(values: Floats, scale: float, error: float, *, moves: bool) -> float:
    if not len(values):
        return -scale
    rows = np.array([len(values)]) if moves else None
    return float(confidence_sequences.compute_lower_ends(values, scale, error, rows=rows, moves=moves)[-1])


def forecast_more(pairs: JudgedPairs, margin: float, seed: int = 0) -> tuple[int, int] | None:
    """Estimate how many further pairs a verdict takes, if they are like the ones so far.

    The pairs so far, and one that is better and one that is worse, are drawn again `RESAMPLES` times. Each
    resample says when one of the two ends would pass the margin.

    Args:
        pairs: The pairs so far, without labels.
        margin: Largest loss that is accepted.
        seed: Seed of the resamples.

    Returns:
        The `RANGE` of the resamples, from 1 to `MOST_MORE`; None: the lower end of it is beyond that.
    """
    reach = float(pairs.weights.max())
    weight = np.concatenate([pairs.weights[pairs.group], [1.0, 1.0]])
    value, n = np.concatenate([pairs.value, [1.0, -1.0]]), len(weight)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), RESAMPLES).T / n
    bets = confidence_sequences.BETS[:, np.newaxis]
    needed = np.full(RESAMPLES, float(MOST_MORE) + 1.0)
    shares = (LOWER_SHARE, 1.0), (UPPER_SHARE, -1.0)
    for share, sign in shares:
        steps = weight * np.where(np.isnan(value), -1.0, sign * value) / reach
        gains = np.log1p(bets * steps) - np.log1p(-sign * bets * margin / reach)
        target = np.log(len(bets) / (ERROR * share))
        needed = np.minimum(needed, _count_rows(gains[:, :-2].sum(axis=1), gains @ counts, target))
    low, high = np.quantile(needed, RANGE)
    return None if low > MOST_MORE else (max(int(low), 1), min(int(high), MOST_MORE))


def _count_rows(capital: Floats, gain: Floats, target: float) -> Floats:
    """Return after how many rows each course of the capital reaches a target, shape (n_courses,).

    Args:
        capital: Logarithm of the capital of each bet so far, shape (n_bets,).
        gain: What a row adds to it on each course, shape (n_bets, n_courses).
        target: Logarithm of the capital of all bets together that is reached.
    """
    low, high = np.zeros(gain.shape[1]), np.full(gain.shape[1], float(MOST_MORE) + 1.0)
    while (high - low > 1.0).any():
        middle = np.floor((low + high) / 2.0)
        reached = np.logaddexp.reduce(capital[:, np.newaxis] + middle * gain, axis=0) >= target
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
