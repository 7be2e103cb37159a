"""Pairs: one question answered by two arms, whose answers a judge compared without knowing who wrote them.

    sizes of classes --draw--> requests --a judge--> JudgedPairs --compare--> PairsComparison

The value of a pair is 1 if the challenger is better than the reference, -1 if it is worse, 0 if neither is,
and between them if two verdicts differ. A point of 100 is a hundredth of that. All ends are confidence
sequences (`armwise.feedback.ope.confidence_sequences`): one may look after every pair. They share an error of
`ERROR`, so that all of them hold together, for all classes and at all looks.

Each request of a file is drawn once, in random order, until the file ends. What is bounded is the mean over
its requests of what the judge would say of each on average, which one verdict on each does not show exactly:
so the ends do not meet when the file ends. They are those of independent draws. Without replacement a mean
deviates less (Hoeffding 1963, section 6), so they hold for the file, and also for everything that the file is
a random sample of.

If there are several classes, every fourth pair is of the class with the fewest pairs, so that rare classes
are seen. It counts for its class at once, and for all requests when the random order of all comes to it.

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

from armwise.agent.proof.noninferiority import Ends
from armwise.feedback.arrays import Floats, Integers, refuse
from armwise.feedback.ope import confidence_sequences

ERROR = 0.05
"""Largest probability that any end ever fails."""

LOWER_SHARE, UPPER_SHARE = 0.5, 0.25
"""Shares of the error that the two ends of the difference have; all other ends share the rest."""

EVERY = 4
"""One of so many pairs is of the class with the fewest."""

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


def draw(sizes: Sequence[int], n: int, seed: int) -> tuple[Integers, Integers, Integers]:
    """Draw requests, each once; more draws with the same seed begin with the same ones.

    Args:
        sizes: Number of requests in each class, each at least 1.
        n: Most draws; there are no more than requests.
        seed: Seed of the random order of all requests.

    Returns:
        The class of each draw, the number of the request in its class, and its place in the random order.

    >>> groups, members, places = draw([90, 10], 1_000, 0)
    >>> len(groups), len({*zip(groups.tolist(), members.tolist())}), sorted(places) == list(range(100))
    (100, 100, True)
    """
    starts = np.cumsum([0, *sizes])
    order = np.random.default_rng(seed).permutation(starts[-1])
    group = np.searchsorted(starts, order, side="right") - 1
    of_class = [np.flatnonzero(group == one).tolist() for one in range(len(sizes))]
    if len(sizes) > 1:
        places = np.array(_mix_orders(group.tolist(), of_class, min(n, len(order))), dtype=np.int64)
    else:
        places = np.arange(min(n, len(order)))
    return group[places], (order - starts[group])[places], places


def _mix_orders(group: Sequence[int], of_class: Sequence[Sequence[int]], n: int) -> list[int]:
    """Return the places of the draws: in their order, except that each `EVERY`-th is of the rarest class.

    Args:
        group: The class of each place.
        of_class: The places of each class.
        n: Number of draws, at most the number of places.
    """
    count, drawn, at = [0] * len(of_class), dict[int, None](), 0
    while len(drawn) < n:
        if len(drawn) % EVERY == EVERY - 1:
            left = [one for one, places in enumerate(of_class) if count[one] < len(places)]
            rarest = min(left, key=lambda one: count[one])
            place = of_class[rarest][count[rarest]]
        else:
            while at in drawn:
                at += 1
            place = at
        drawn[place] = None
        count[group[place]] += 1
    return list(drawn)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedPairs:
    """Judged pairs in the order in which they were drawn.

    Attributes:
        value: The challenger minus the reference, shape (n,), in [-1, 1]; NaN: not known.
        group: Number of the class of each, shape (n,).
        n_groups: Number of classes.
        place: Place of each in the random order of all requests, shape (n,); None: in the order of the pairs.
        labels: Your own verdicts on the first requests of the random order, shape (k,) with k at most n; NaN:
            asked for, not given.
        moves: Whether what is compared may change with time, as in a log, so that later bounds may be lower.

    Raises:
        ValueError: Shapes differ, there is no pair, or a value is out of its range.
    """

    value: Floats
    group: Integers
    n_groups: int = 1
    place: Integers | None = None
    labels: Floats | None = None
    moves: bool = False

    def __post_init__(self) -> None:
        if not len(self.value) or self.value.shape != self.group.shape:
            raise ValueError(f"{len(self.value)} values and {len(self.group)} classes of pairs")
        for name in ("value", "labels"):
            column = getattr(self, name)
            if column is not None:
                refuse(name, column, np.isnan(column) | (np.abs(column) <= 1.0), "from -1 to 1")
        if self.labels is not None and len(self.labels) > len(self.of_all):
            raise ValueError(f"{len(self.labels)} labels of {len(self.of_all)} pairs")

    @property
    def of_all(self) -> Integers:
        """The pairs that are a random sample of all requests, in their random order."""
        return find_sample(np.arange(len(self.value)) if self.place is None else self.place)


def find_sample(place: Integers) -> Integers:
    """Return which draws have the places 0, 1, 2 and so on, up to the first place that was not drawn.

    >>> find_sample(np.array([0, 1, 7, 2, 4])).tolist()
    [0, 1, 3]
    """
    order = np.argsort(place)
    sample: Integers = order[place[order] == np.arange(len(place))]
    return sample


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Two arms on the requests of a class, or on all; each estimate is with its lower and its upper end.

    Attributes:
        pairs: Number of pairs.
        difference: The challenger minus the reference, in [-1, 1].
        no_worse: Share of the requests in which the challenger is not worse.
        better: Pairs in which it is better.
        equal: Pairs in which neither is.
        worse: Pairs in which it is worse.
        unknown: Pairs without a verdict.
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
    several = pairs.n_groups if pairs.n_groups > 1 else 0
    other = ERROR * (1.0 - LOWER_SHARE - UPPER_SHARE) / (2 + 4 * several)
    errors = ERROR * LOWER_SHARE, ERROR * UPPER_SHARE
    whole, by_judge = pairs.value[pairs.of_all], None
    if pairs.labels is None:
        difference = _compute_ends(whole, errors, moves=pairs.moves)
    else:
        difference = _compute_labelled_ends(whole, pairs.labels, errors, moves=pairs.moves)
        halves = errors[0] / 2.0, errors[1] / 2.0  # the ends that are a part of those with labels
        by_judge = _compute_ends(whole, halves, moves=pairs.moves)

    def describe(value: Floats, found: Ends | None = None) -> GroupComparison:
        signs = np.where(np.isnan(value), np.nan, np.where(value >= 0.0, 1.0, -1.0))
        share = _compute_ends(signs, (other, other), moves=pairs.moves)
        if found is None:
            found = _compute_ends(value, (other, other), moves=pairs.moves)
        counts = ((value > 0.0).sum(), (value == 0.0).sum(), (value < 0.0).sum(), np.isnan(value).sum())
        estimate, low, high = ((1.0 + end) / 2.0 for end in share)
        return GroupComparison(len(value), found, (estimate, low, high), *map(int, counts))

    classes = (pairs.value[pairs.group == group] for group in range(several))
    groups = (describe(value) if len(value) else None for value in classes)
    return PairsComparison(describe(whole, difference), tuple(groups), by_judge)


def _compute_ends(value: Floats, errors: tuple[float, float], *, moves: bool) -> Ends:
    """Return the mean of values in [-1, 1] with its ends; NaN counts as the worse case."""
    known = ~np.isnan(value)
    worst, best = (np.where(known, value, missing) for missing in (-1.0, 1.0))
    low, high = _lower(worst, 1.0, errors[0], moves=moves), -_lower(-best, 1.0, errors[1], moves=moves)
    return _mean(value[known]), max(low, -1.0), min(high, 1.0)


def _compute_labelled_ends(
    value: Floats, labels: Floats, errors: tuple[float, float], *, moves: bool
) -> Ends:
    """Return the difference by the judge plus the mean of (label - judge), each with half of the error."""
    n, ends = len(labels), list[float]()
    for sign, error in ((1.0, errors[0]), (-1.0, errors[1])):
        judged, labelled = (np.where(np.isnan(column), -1.0, sign * column) for column in (value, labels))
        low = _lower(judged, 1.0, error / 2.0, moves=moves)
        ends.append(sign * (low + _lower(labelled - judged[:n], 2.0, error / 2.0, moves=moves)))
    gap = labels - value[:n]
    estimate = _mean(value[~np.isnan(value)]) + _mean(gap[~np.isnan(gap)])
    return min(max(estimate, -1.0), 1.0), max(ends[0], -1.0), min(ends[1], 1.0)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


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
    value = np.concatenate([pairs.value[pairs.of_all], [1.0, -1.0]])
    n = len(value)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), RESAMPLES).T / n
    bets = confidence_sequences.BETS[:, np.newaxis]
    needed = np.full(RESAMPLES, float(MOST_MORE) + 1.0)
    shares = (LOWER_SHARE, 1.0), (UPPER_SHARE, -1.0)
    for share, sign in shares:
        steps = np.where(np.isnan(value), -1.0, sign * value)
        gains = np.log1p(bets * steps) - np.log1p(-sign * bets * margin)
        target = np.log(len(bets) / (ERROR * share))
        needed = np.minimum(needed, _count_rows(gains[:, :-2].sum(axis=1), gains @ counts, target))
    low, high = np.quantile(needed, RANGE) * (EVERY / (EVERY - 1) if pairs.n_groups > 1 else 1.0)
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
