"""Evaluate target policies on a log: estimates, intervals and diagnostics for each.

    found = evaluate(log, {"bm25": p_target}, rng)
    found["bm25"].estimates      by each estimator: a value and a difference, with intervals
    found["bm25"].diagnostics    weights and overlap

A target that was trained on the rows it is evaluated on is overestimated: train it on earlier rows.
Predictions of rewards, the baseline and resamples are computed once for all targets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Integers,
    Matrix,
    refuse_unless_distributions,
    select_rows,
    split,
)
from armwise.feedback.decisions import ProgressCallback
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope.diagnostics import Diagnostics, diagnose
from armwise.feedback.ope.estimators import ESTIMATORS, Estimator, Predictions
from armwise.feedback.ope.intervals import (
    LEVEL,
    Interval,
    by_group,
    difference,
    hedge,
    normal,
    percentiles,
    present,
    replicates,
)
from armwise.feedback.ope.reward_model import Model, cross_fit
from armwise.feedback.ope.sample import UNKNOWN, NeverDrawnError, Sample, Terms, effective_size

INTERVALS = ("normal", "bootstrap", "anytime")
"""Kinds of interval by name; docs/reference/intervals.md has which estimators each is for."""


@dataclass(frozen=True, slots=True)
class EstimateWithInterval:
    """An estimate with its interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        kind: Kind of the interval: a name out of `INTERVALS`.
        why: Why the kind differs from the request; empty if it does not.
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
            raise ValueError(f"unknown interval {self.kind!r}; available: {', '.join(INTERVALS)}")


@dataclass(frozen=True, slots=True, eq=False)
class TargetSample:
    """A target on the rows of a log.

    Attributes:
        log: The rows.
        weight: p_target / p_log of the drawn arms, shape (n,).
        reach: Largest weight that each row could have had, shape (n,); a guess if the log has the
            probabilities of drawn arms only.
        terms: Terms of the estimates, by estimator.
        served: Whether it is the logging policy.
    """

    log: LoggedDraws
    weight: Floats
    reach: Floats
    terms: Mapping[str, Terms]
    served: bool = False

    def safe(self, terms: Terms, reward_range: tuple[float, float]) -> Terms:
        """Return terms for intervals that rest on the drawn rows alone: hedged, and grouped by observation.

        The range is the declared one: rare rewards may be missing from the log.
        """
        return hedge(by_group(terms, self.log.groups), float(self.reach.max()), *reward_range)


Figures = dict[str, tuple[EstimateWithInterval, EstimateWithInterval | None]]
"""The value and its difference to that of the baseline, by estimator."""


def figures(target: TargetSample, baseline: TargetSample | None, request: IntervalRequest) -> Figures:
    """Return each estimate of a target and its difference to the baseline's, with intervals.

    If the requested interval does not apply, it is `normal`, and `why` has the reason.

    Args:
        target: The target.
        baseline: The policy that it is compared with, on the same rows, if any.
        request: The requested intervals.
    """
    theirs = baseline.terms if baseline else {}
    if request.kind == "bootstrap" and target.terms:
        ends = _bootstrap(target, baseline, request)
    else:  # one by one, as the columns of each are as long as the log
        ends = {name: _compare(target, baseline, name, request) for name in target.terms}
    return {
        name: (
            _figure(terms.value, ends[name][0]),
            None if beyond is None else _figure(terms.value - theirs[name].value, beyond),
        )
        for name, terms in target.terms.items()
        for beyond in (ends[name][1],)
    }


IMPOSSIBLE = "it holds no possible value, and all that are possible stand in its place"
"""Why an interval was replaced by the range of possible values."""

_DRAWN_ROWS = ("normal", "bootstrap")
"""Intervals that rest on the drawn rows alone."""


def present_figures(target: TargetSample, baseline: TargetSample | None, request: IntervalRequest) -> Figures:
    """Return the `figures` as they are shown (`intervals.present`): within the range of rewards, and open.

    A target that draws like its baseline in every row has a difference of exactly 0. Without propensities
    there are no weights, and each observation counts by its rows. The arguments are those of `figures`; the
    range of the request is the declared one.
    """
    least, most = request.reward_range
    span = most - least
    weighted = target.log.has_propensities
    differs = baseline is not None and not (weighted and _is_close(target.weight, baseline.weight))
    n = _independent(target.log.groups, target.weight if weighted else None)
    estimates = {}
    for name, (value, beyond) in figures(target, baseline, request).items():
        estimates[name] = (
            _present(value, (least, most), n, request.level),
            beyond and _present(beyond, (-span, span), n if differs else inf, request.level),
        )
    return estimates


def _is_close(one: Floats, other: Floats) -> bool:
    """Return whether no weight differs by more than `TOLERANCE`."""
    return all((np.abs(one[rows] - other[rows]) <= TOLERANCE).all() for rows in split(len(one)))


def _independent(groups: Integers, weight: Floats | None) -> float:
    """Return Kish's effective number of groups by weight; None: each row weighs the same."""
    return effective_size(np.bincount(groups, weight).astype(np.float64, copy=False))


def _present(
    figure: EstimateWithInterval, possible: Interval, n: float, level: float
) -> EstimateWithInterval:
    sample_size = n if figure.kind in _DRAWN_ROWS else inf
    value, ends = present(figure.value, (figure.low, figure.high), possible, n=sample_size, level=level)
    impossible = figure.low > possible[1] or figure.high < possible[0]
    why = IMPOSSIBLE if impossible else figure.why
    return replace(figure, value=value, low=ends[0], high=ends[1], why=why)


Ends = tuple[Interval, str, str]
"""An interval, its kind, and why the kind differs from the request."""


def _figure(value: float, ends: Ends) -> EstimateWithInterval:
    (low, high), kind, why = ends
    return EstimateWithInterval(value, low, high, kind, why)


def _compare(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest
) -> tuple[Ends, Ends | None]:
    """Return the interval of an estimator's value, and that of its difference to the baseline."""
    safe = target.safe(target.terms[name], request.reward_range)
    value = _ends(target, None, name, request, safe)
    if baseline is None or name not in baseline.terms:
        return value, None
    safe = difference(safe, baseline.safe(baseline.terms[name], request.reward_range))
    return value, _ends(target, baseline, name, request, safe)


def _ends(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest, safe: Terms
) -> Ends:
    """Return the requested interval, or the normal interval of the safe terms if that does not apply."""
    why = ""
    if request.kind == "anytime":
        try:
            return _anytime(target, baseline, name, request), request.kind, why
        except ValueError as error:
            why = str(error)
    return normal(safe, request.level), "normal", why


def _bootstrap(
    target: TargetSample, baseline: TargetSample | None, request: IntervalRequest
) -> dict[str, tuple[Ends, Ends | None]]:
    """Return the intervals of each estimator's value and difference, all from the same resamples."""
    safe = {name: target.safe(terms, request.reward_range) for name, terms in target.terms.items()}
    other = {
        name: baseline.safe(baseline.terms[name], request.reward_range)
        for name in safe
        if baseline and name in baseline.terms
    }
    rng = np.random.default_rng(request.seed)
    lines = replicates([*safe.values(), *other.values()], rng, request.resamples)
    target_lines, theirs = lines[: len(safe)], lines[len(safe) :]
    value = dict(zip(safe, percentiles(target_lines, request.level), strict=True))
    line = dict(zip(safe, target_lines, strict=True))
    beyond = {
        name: percentiles((line[name] - their_line)[np.newaxis], request.level)[0]
        for name, their_line in zip(other, theirs, strict=True)
    }
    return {
        name: (
            (ends, request.kind, ""),
            (beyond[name], request.kind, "") if name in beyond else None,
        )
        for name, ends in value.items()
    }


def _anytime(
    target: TargetSample, baseline: TargetSample | None, name: str, request: IntervalRequest
) -> Interval:
    if not ESTIMATORS[name].anytime or (baseline and not baseline.served):
        raise ValueError("anytime does not apply to it")
    reach = target.reach if target.log.is_whole else None
    evidence = sequences.Evidence(target.weight, target.log.reward, request.reward_range, reach)
    bound = sequences.difference if baseline else sequences.value
    bounds = bound(evidence, request.level, rows=np.array([len(target.log)]))
    return float(bounds.low[0]), float(bounds.high[0])


# -- estimates -------------------------------------------------------------------------------------


DEFAULT_ESTIMATORS = ("ips", "snips", "dr")
"""Estimators by default."""

WITHOUT_PROPENSITIES = ("dm",)
"""Estimators that work without propensities."""

NEVER_DRAWN = "never drawn"
"""Note on a target that draws none of the drawn arms."""


@dataclass(frozen=True, slots=True)
class EstimatorResult:
    """The result of one estimator for one target.

    Attributes:
        estimator: A name out of `ESTIMATORS`.
        value: Expected reward of a decision; None: it cannot be estimated.
        difference: Difference to the baseline, on the rows that both are evaluated on; None for the baseline
            itself.
        effective_n: Kish's effective sample size.
        note: Why the value is missing, or the interval is of another kind than requested; empty otherwise.
    """

    estimator: str
    value: EstimateWithInterval | None
    difference: EstimateWithInterval | None = None
    effective_n: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The estimates of one target.

    Attributes:
        log: The rows that it was evaluated on.
        estimates: The estimates, in the order of the request.
        diagnostics: Weights and overlap.
        weight: Importance weight of each row, p_target / p_log of the drawn arm, shape (n,).
    """

    log: LoggedDraws
    estimates: tuple[EstimatorResult, ...]
    diagnostics: Diagnostics
    weight: Floats


def evaluate(
    log: LoggedDraws,
    targets: Mapping[str, Floats],
    rng: np.random.Generator,
    **options: Any,
) -> dict[str, Evaluation]:
    """Return the evaluation of each target by name; the arguments are those of `evaluate_each`."""
    return dict(evaluate_each(log, targets, rng, **options))


def evaluate_each(
    log: LoggedDraws,
    targets: Mapping[str, Floats | Matrix],
    rng: np.random.Generator,
    *,
    kept: Mapping[str, Flags] | None = None,
    baseline: str | None = None,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    interval: str = "normal",
    level: float = LEVEL,
    reward_range: tuple[float, float] | None = None,
    reward_model: Model = "ridge",
    features: Any = None,
    q_hat: Floats | None = None,
    resamples: int = 1000,
    progress: ProgressCallback | None = None,
) -> Iterator[tuple[str, Evaluation]]:
    """Estimate what each target policy would have earned, and how it differs from the baseline.

    A target that draws arms which the log could not draw gets no estimates, as they would ignore these arms.
    With a declared `reward_range`, estimates and intervals are passed through `intervals.present`.

    Args:
        log: The decisions of the logging policy.
        targets: The distributions of each target, shape (n, n_arms), by name.
        rng: Source of the folds and of the resamples, which are the same for all targets.
        kept: Rows that a target is evaluated on, shape (n,), at least one, by target; by default all.
        baseline: The target that others are compared with; None: the logging policy.
        estimators: Names out of `ESTIMATORS`.
        interval: A name out of `armwise.feedback.ope.evaluation.INTERVALS`; if it does not apply to an
            estimator or to this log, `normal` is used, and a note says why.
        level: Coverage of the intervals, in (0, 1).
        reward_range: Smallest and largest possible reward. By default those in the log, not enough for
            `anytime`; estimates are then not cut to the range.
        reward_model: Model that predicts rewards: `ridge`, which reads the features, or `means`.
        features: Features of the rows, shape (n, d), sparse or dense.
        q_hat: Predictions, shape (n, n_arms), instead of the model's.
        resamples: Number of resamples of `bootstrap`.
        progress: Called with the progress.

    Raises:
        ValueError: An unknown estimator, interval or baseline; a target with a row that is not a
            distribution.
    """
    _refuse_unknown("estimator", estimators, ESTIMATORS)
    _refuse_unknown("target", [baseline] if baseline else [], targets)
    folds, draws = rng.integers(2**63, size=2).tolist()
    chosen = [ESTIMATORS[name] for name in estimators]
    read = {estimator.predictions for estimator in chosen}
    if log.n_groups > 1 and q_hat is None and Predictions.SHARED in read:
        q_hat = predict(log, features, np.random.default_rng(folds), reward_model)
    rewards = (float(log.reward.min()), float(log.reward.max())) if reward_range is None else reward_range
    request = IntervalRequest(interval, level, rewards, resamples, draws)
    everywhere = np.ones(len(log), dtype=np.bool_)
    rows = dict.fromkeys(targets, everywhere) | dict(kept or {})
    compute_figures = figures if reward_range is None else present_figures
    against, shared = log.p_log, everywhere
    if baseline is not None:
        against, shared = targets[baseline], rows[baseline]
    evaluator = _TargetEvaluation(log, chosen, q_hat, against)

    def compare(name: str) -> Evaluation:
        p_target = targets[name]
        if p_target.shape != (len(log), len(log.arms)):
            raise ValueError(f"{name} must have the shape {len(log), len(log.arms)}, got {p_target.shape}")
        refuse_unless_distributions(name, select_rows(p_target, rows[name]))
        found, both = evaluator.at(p_target, rows[name]), rows[name] & shared
        if p_target is against or not both.any():
            values = compute_figures(found.target, None, request)
        elif np.array_equal(both, rows[name]):
            values = compute_figures(found.target, evaluator.baseline(both), request)
        else:
            beyond = compute_figures(evaluator.at(p_target, both).target, evaluator.baseline(both), request)
            alone = compute_figures(found.target, None, request)
            values = {each: (alone[each][0], beyond.get(each, (None, None))[1]) for each in alone}
        return found.evaluation(estimators, values)

    for done, name in enumerate(targets, start=1):
        yield name, compare(name)
        if progress:
            progress("evaluating", done, len(targets))


def predict(log: LoggedDraws, features: Any, rng: np.random.Generator, model: Model = "ridge") -> Floats:
    """Predict the reward of every arm in every row, shape (n, n_arms); see `feedback.ope.reward_model`.

    Raises:
        ValueError: There are fewer than two observations, so none to hold out, or no features for `ridge`.
    """
    if model == "ridge" and features is None:
        raise ValueError("there are no features, which a ridge regression reads: give them, or use means")
    return cross_fit(features, log.drawn, log.reward, log.groups, len(log.arms), rng, model=model)


@dataclass(frozen=True, slots=True, eq=False)
class _TargetTerms:
    """A target on the rows of a log, with all that its intervals are computed from."""

    target: TargetSample
    sample: Sample
    notes: Mapping[str, str]

    def evaluation(self, estimators: Iterable[str], values: Figures) -> Evaluation:
        """Return the estimates with their intervals."""
        target = self.target
        estimates = []
        for name in estimators:
            if name not in values:
                estimates.append(EstimatorResult(name, None, note=self.notes[name]))
                continue
            terms, (value, beyond) = target.terms[name], values[name]
            note = _note(value, beyond)
            estimates.append(EstimatorResult(name, value, beyond, terms.effective_n, note))
        log = target.log
        diagnostics = diagnose(
            *(self.sample, log.arms),
            groups=log.groups,
            p_log=log.p_log if log.is_whole else None,
        )
        return Evaluation(target.log, tuple(estimates), diagnostics, target.weight)


def _note(value: EstimateWithInterval, beyond: EstimateWithInterval | None) -> str:
    """Return why the intervals of the value or of the difference are of another kind than requested."""
    if beyond is None or beyond.why == value.why:
        return f"{value.kind} interval: {value.why}" if value.why else ""
    both = (("value", value), ("difference", beyond))
    return "; ".join(
        f"{estimate.kind} interval of the {what}: {estimate.why}" for what, estimate in both if estimate.why
    )


class _TargetEvaluation:
    """Computes the terms of targets on rows of a log, and caches those of the baseline."""

    def __init__(
        self,
        log: LoggedDraws,
        estimators: Sequence[Estimator],
        q_hat: Floats | None,
        against: Floats | Matrix,
    ) -> None:
        self._log, self._estimators, self._against, self._q_hat = log, estimators, against, q_hat
        self._last: tuple[Flags, TargetSample] | None = None

    def at(
        self, p_target: Floats | Matrix, rows: Flags, estimators: Sequence[Estimator] | None = None
    ) -> _TargetTerms:
        """Return the terms of a target on some rows, by some estimators; None: by all."""
        log, q_hat = self._log, self._q_hat
        if not rows.all():
            log, p_target = log.where(rows), select_rows(p_target, rows)
            q_hat = None if q_hat is None else q_hat[rows]
        sample = Sample(log.propensity, log.drawn, log.reward, p_target, q_hat)
        reach, unsupported = log.reach(p_target), _measure_unsupported(log, p_target)
        terms, notes = {}, {}
        for estimator in self._estimators if estimators is None else estimators:
            unknown = not log.has_propensities and estimator.name not in WITHOUT_PROPENSITIES
            lacking = {
                UNKNOWN: unknown,
                f"draws with a chance of {unsupported:.2g} what the log could not": unsupported > TOLERANCE,
                "needs two different questions or more": (
                    estimator.predictions is Predictions.SHARED and q_hat is None
                ),
            }
            if reason := next((why for why, holds in lacking.items() if holds), ""):
                notes[estimator.name] = reason
            else:
                try:
                    terms[estimator.name] = estimator(sample)
                except NeverDrawnError as error:
                    notes[estimator.name] = str(error) if sample.weight.any() else NEVER_DRAWN
        served = p_target is log.p_log
        return _TargetTerms(TargetSample(log, sample.weight, reach, terms, served), sample, notes)

    def baseline(self, rows: Flags) -> TargetSample:
        """Return the terms of the baseline on some rows.

        For the logging policy, whose weights are 1, these are the plain mean unless an estimator predicts.
        """
        if self._last is None or not np.array_equal(self._last[0], rows):
            self._last = rows, self._baseline(rows)
        return self._last[1]

    def _baseline(self, rows: Flags) -> TargetSample:
        against = self._against
        if against is not self._log.p_log:
            return self.at(against, rows).target
        log = self._log if rows.all() else self._log.where(rows)
        one: Floats = np.broadcast_to(1.0, len(log))
        terms = {each.name: Terms(each.name, log.reward, one, one) for each in self._estimators}
        predicting = [each for each in self._estimators if each.predictions is not Predictions.NONE]
        if log.is_whole and predicting:
            terms |= self.at(against, rows, predicting).target.terms
        return TargetSample(log, one, one, terms, served=True)


def _measure_unsupported(log: LoggedDraws, p_target: Floats | Matrix) -> float:
    """Return the share of draws of the target that the log could not make; 0 if that is unknown."""
    return sum(float(p_target[rows][log.p_log[rows] <= 0.0].sum()) for rows in split(len(log))) / len(log)


def _refuse_unknown(what: str, names: Iterable[str], registry: Mapping[str, object]) -> None:
    for name in names:
        if name not in registry:
            raise ValueError(f"unknown {what} {name!r}; available: {', '.join(registry)}")
