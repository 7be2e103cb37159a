"""Intervals for all estimates of a target at once, and for what it earns more than a baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from feedback.arrays import Floats
from feedback.dataset import Log
from feedback.ope import confidence_sequences as sequences
from feedback.ope.estimators import ESTIMATORS, Rows
from feedback.ope.exact_intervals import bernstein, clopper_pearson, has_bernstein
from feedback.ope.intervals import Interval, by_group, difference, hedged, normal, percentiles, replicates
from feedback.ope.sample import Terms

INTERVALS = ("normal", "bootstrap", "bernstein", "clopper_pearson", "anytime")
"""Kinds of interval by name; which estimators each is for stands in docs/reference/intervals.md."""


@dataclass(frozen=True, slots=True)
class EstimateWithInterval:
    """A number, and between what it is in most logs.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        kind: Which interval it is: a name out of `INTERVALS`.
        why: Why it is not of the kind that was asked for; empty where it is.
    """

    value: float
    low: float
    high: float
    kind: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class IntervalRequest:
    """Which intervals are wanted.

    Attributes:
        kind: A name out of `INTERVALS`.
        level: Share of logs whose interval is to hold the truth, in (0, 1).
        reward_range: Smallest and largest reward there can be.
        resamples: Of `bootstrap`.
        seed: Of the resamples, so that targets on the same rows share them.
    """

    kind: str
    level: float
    reward_range: tuple[float, float]
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in INTERVALS:
            raise ValueError(f"no interval {self.kind!r}; there are: {', '.join(INTERVALS)}")


@dataclass(frozen=True, slots=True, eq=False)
class TargetSample:
    """A target on the rows of a log.

    Attributes:
        log: The rows.
        weight: p_target / p_log of the drawn arms, shape (n,).
        reach: Largest weight that each row could have had, shape (n,); a guess where the log has the
            probabilities of the drawn arms alone.
        terms: Its estimates by estimator, those that there are.
        served: Whether it is what was served.
    """

    log: Log
    weight: Floats
    reach: Floats
    terms: Mapping[str, Terms]
    served: bool = False

    @property
    def farthest(self) -> float:
        """Largest weight that any row could have had."""
        return float(self.reach.max())

    def bounded(self, kind: str) -> float:
        """Return the farthest weight, for an interval that is wrong if it is beyond that.

        Raises:
            ValueError: Nobody knows it.
        """
        if self.log.p_log is None:
            raise ValueError(f"{kind} needs the probabilities of all arms, not of the drawn one alone")
        return self.farthest

    def safe(self, terms: Terms, reward_range: tuple[float, float]) -> Terms:
        """Return terms for intervals that look at the rows alone: hedged, and rows of a question as one.

        The range is the declared one: rare rewards may not have come yet.
        """
        return hedged(by_group(terms, self.log.questions), self.farthest, *reward_range)


Figures = dict[str, tuple[EstimateWithInterval, EstimateWithInterval | None]]
"""By estimator: the value, and what it is beyond the baseline's."""


def figures(seen: TargetSample, baseline: TargetSample | None, asked: IntervalRequest) -> Figures:
    """Put an interval on each estimate of a target, and on what it is beyond the baseline's.

    Where the interval that is asked for is none for an estimator, it is `normal`, and the figure says why.

    Args:
        seen: The target.
        baseline: What it is compared with, on the same rows; None for nothing.
        asked: Which intervals are wanted.
    """
    safe = {name: seen.safe(terms, asked.reward_range) for name, terms in seen.terms.items()}
    theirs = baseline.terms if baseline else {}
    other = {
        name: baseline.safe(theirs[name], asked.reward_range) for name in safe if baseline and name in theirs
    }
    if asked.kind == "bootstrap":
        value, beyond = _bootstrap(safe, other, asked)
    else:
        value = {name: _ends(seen, None, name, asked, terms) for name, terms in safe.items()}
        beyond = {
            name: _ends(seen, baseline, name, asked, difference(safe[name], terms))
            for name, terms in other.items()
        }
    return {
        name: (
            _figure(terms.value, value[name]),
            _figure(terms.value - theirs[name].value, beyond[name]) if name in beyond else None,
        )
        for name, terms in seen.terms.items()
    }


Ends = tuple[Interval, str, str]
"""An interval, its kind, and why that is not the kind that was asked for."""


def _figure(value: float, ends: Ends) -> EstimateWithInterval:
    (low, high), kind, why = ends
    return EstimateWithInterval(value, low, high, kind, why)


def _ends(
    seen: TargetSample, baseline: TargetSample | None, name: str, asked: IntervalRequest, safe: Terms
) -> Ends:
    """Return the interval that is asked for; where that is none, the normal one of the safe terms."""
    why = ""
    if asked.kind in _SPECIAL:
        try:
            return _SPECIAL[asked.kind](seen, baseline, name, asked), asked.kind, why
        except ValueError as error:
            why = str(error)
    return normal(safe, asked.level), "normal", why


def _bootstrap(
    safe: Mapping[str, Terms], other: Mapping[str, Terms], asked: IntervalRequest
) -> tuple[dict[str, Ends], dict[str, Ends]]:
    """Return the intervals of values and of differences, all from the same resamples."""
    rng = np.random.default_rng(asked.seed)
    lines = replicates([*safe.values(), *other.values()], rng, asked.resamples)
    own, theirs = lines[: len(safe)], lines[len(safe) :]
    value = dict(zip(safe, percentiles(own, asked.level), strict=True))
    line = dict(zip(safe, own, strict=True))
    beyond = {
        name: percentiles((line[name] - their_line)[np.newaxis], asked.level)[0]
        for name, their_line in zip(other, theirs, strict=True)
    }
    return _of_kind(asked.kind, value), _of_kind(asked.kind, beyond)


def _of_kind(kind: str, intervals: Mapping[str, Interval]) -> dict[str, Ends]:
    return {name: (ends, kind, "") for name, ends in intervals.items()}


def _bernstein(
    seen: TargetSample, baseline: TargetSample | None, name: str, asked: IntervalRequest
) -> Interval:
    if not has_bernstein(ESTIMATORS[name], difference=baseline is not None):
        raise ValueError("bernstein is none for it")
    return bernstein(
        seen.terms[name],
        seen.bounded("bernstein"),
        *asked.reward_range,
        asked.level,
        baseline=baseline.terms[name] if baseline else None,
        baseline_reach=1.0 if baseline is None or baseline.served else baseline.bounded("bernstein"),
    )


def _clopper_pearson(
    seen: TargetSample, baseline: TargetSample | None, name: str, asked: IntervalRequest
) -> Interval:
    if ESTIMATORS[name].rows is not Rows.KEPT or baseline:
        raise ValueError("clopper_pearson is none for it")
    seen.bounded("clopper_pearson")  # what replay kept are draws of the target only if its bound is right
    two = np.unique(seen.log.reward)
    low, high = (two[0], two[-1]) if len(two) == 2 else asked.reward_range
    return clopper_pearson(seen.terms[name], asked.level, float(low), float(high))


def _anytime(
    seen: TargetSample, baseline: TargetSample | None, name: str, asked: IntervalRequest
) -> Interval:
    if not ESTIMATORS[name].anytime or (baseline and not baseline.served):
        raise ValueError("anytime is none for it")
    reach = None if seen.log.p_log is None else seen.reach
    evidence = sequences.Evidence(seen.weight, seen.log.reward, asked.reward_range, reach)
    bound = sequences.difference if baseline else sequences.value
    bounds = bound(evidence, asked.level, rows=np.array([len(seen.log)]))
    return float(bounds.low[0]), float(bounds.high[0])


_SPECIAL: Mapping[str, Callable[[TargetSample, TargetSample | None, str, IntervalRequest], Interval]] = {
    "bernstein": _bernstein,
    "clopper_pearson": _clopper_pearson,
    "anytime": _anytime,
}
"""Intervals that are not for every estimator, nor for every log: they raise ValueError, saying why."""
