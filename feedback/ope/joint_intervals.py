"""Intervals for all estimates of a target at once, and for its differences to a baseline."""

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
"""Kinds of interval by name; docs/reference/intervals.md has which estimators each is for."""


@dataclass(frozen=True, slots=True)
class EstimateWithInterval:
    """An estimate with its interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        kind: Which interval it is: a name out of `INTERVALS`.
        why: Why it is not of the requested kind; empty where it is.
    """

    value: float
    low: float
    high: float
    kind: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class IntervalRequest:
    """The requested intervals.

    Attributes:
        kind: A name out of `INTERVALS`.
        level: Coverage, in (0, 1).
        reward_range: Smallest and largest possible reward.
        resamples: Number of resamples of `bootstrap`.
        seed: Seed that draws the resamples, so that targets on the same rows share them.
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
        terms: Estimates by estimator, where there are any.
        served: Whether it is the logging policy.
    """

    log: Log
    weight: Floats
    reach: Floats
    terms: Mapping[str, Terms]
    served: bool = False

    @property
    def largest_reach(self) -> float:
        """Largest weight that any row could have had."""
        return float(self.reach.max())

    def bounded(self, kind: str) -> float:
        """Return the largest possible weight, for an interval that is wrong without it.

        Raises:
            ValueError: It is not known.
        """
        if self.log.p_log is None:
            raise ValueError(f"{kind} needs the probabilities of all arms, not of the drawn one alone")
        return self.largest_reach

    def safe(self, terms: Terms, reward_range: tuple[float, float]) -> Terms:
        """Return terms for intervals of the drawn rows alone: hedged, and grouped by question.

        The range is the declared one: rare rewards may be missing from the log.
        """
        return hedged(by_group(terms, self.log.questions), self.largest_reach, *reward_range)


Figures = dict[str, tuple[EstimateWithInterval, EstimateWithInterval | None]]
"""By estimator: the value, and its difference to the baseline's."""


def figures(target: TargetSample, baseline: TargetSample | None, request: IntervalRequest) -> Figures:
    """Return each estimate of a target and its difference to the baseline's, with intervals.

    Where the requested interval does not apply, it is `normal`, and `why` has the reason.

    Args:
        target: The target.
        baseline: The policy it is compared with, on the same rows; None for none.
        request: The requested intervals.
    """
    safe = {name: target.safe(terms, request.reward_range) for name, terms in target.terms.items()}
    theirs = baseline.terms if baseline else {}
    other = {
        name: baseline.safe(theirs[name], request.reward_range)
        for name in safe
        if baseline and name in theirs
    }
    if request.kind == "bootstrap":
        value, beyond = _bootstrap(safe, other, request)
    else:
        value = {name: _ends(target, None, name, request, terms) for name, terms in safe.items()}
        beyond = {
            name: _ends(target, baseline, name, request, difference(safe[name], terms))
            for name, terms in other.items()
        }
    return {
        name: (
            _figure(terms.value, value[name]),
            _figure(terms.value - theirs[name].value, beyond[name]) if name in beyond else None,
        )
        for name, terms in target.terms.items()
    }


Ends = tuple[Interval, str, str]
"""An interval, its kind, and why that is not the requested kind."""


def _figure(value: float, ends: Ends) -> EstimateWithInterval:
    (low, high), kind, why = ends
    return EstimateWithInterval(value, low, high, kind, why)


def _ends(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest, safe: Terms
) -> Ends:
    """Return the requested interval; where it does not apply, the normal one of the safe terms."""
    why = ""
    if request.kind in _SPECIAL:
        try:
            return _SPECIAL[request.kind](target, baseline, name, request), request.kind, why
        except ValueError as error:
            why = str(error)
    return normal(safe, request.level), "normal", why


def _bootstrap(
    safe: Mapping[str, Terms], other: Mapping[str, Terms], request: IntervalRequest
) -> tuple[dict[str, Ends], dict[str, Ends]]:
    """Return the intervals of values and of differences, all from the same resamples."""
    rng = np.random.default_rng(request.seed)
    lines = replicates([*safe.values(), *other.values()], rng, request.resamples)
    own, theirs = lines[: len(safe)], lines[len(safe) :]
    value = dict(zip(safe, percentiles(own, request.level), strict=True))
    line = dict(zip(safe, own, strict=True))
    beyond = {
        name: percentiles((line[name] - their_line)[np.newaxis], request.level)[0]
        for name, their_line in zip(other, theirs, strict=True)
    }
    return _of_kind(request.kind, value), _of_kind(request.kind, beyond)


def _of_kind(kind: str, intervals: Mapping[str, Interval]) -> dict[str, Ends]:
    return {name: (ends, kind, "") for name, ends in intervals.items()}


def _bernstein(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest
) -> Interval:
    if not has_bernstein(ESTIMATORS[name], difference=baseline is not None):
        raise ValueError("bernstein is none for it")
    return bernstein(
        target.terms[name],
        target.bounded("bernstein"),
        *request.reward_range,
        request.level,
        baseline=baseline.terms[name] if baseline else None,
        baseline_reach=1.0 if baseline is None or baseline.served else baseline.bounded("bernstein"),
    )


def _clopper_pearson(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest
) -> Interval:
    if ESTIMATORS[name].rows is not Rows.KEPT or baseline:
        raise ValueError("clopper_pearson is none for it")
    target.bounded("clopper_pearson")  # what replay kept are draws of the target only if its bound is right
    two = np.unique(target.log.reward)
    low, high = (two[0], two[-1]) if len(two) == 2 else request.reward_range
    return clopper_pearson(target.terms[name], request.level, float(low), float(high))


def _anytime(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest
) -> Interval:
    if not ESTIMATORS[name].anytime or (baseline and not baseline.served):
        raise ValueError("anytime is none for it")
    reach = None if target.log.p_log is None else target.reach
    evidence = sequences.Evidence(target.weight, target.log.reward, request.reward_range, reach)
    bound = sequences.difference if baseline else sequences.value
    bounds = bound(evidence, request.level, rows=np.array([len(target.log)]))
    return float(bounds.low[0]), float(bounds.high[0])


_SPECIAL: Mapping[str, Callable[[TargetSample, TargetSample | None, str, IntervalRequest], Interval]] = {
    "bernstein": _bernstein,
    "clopper_pearson": _clopper_pearson,
    "anytime": _anytime,
}
"""Intervals that apply to some estimators or logs only: they raise ValueError with the reason."""
