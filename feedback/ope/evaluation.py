"""Evaluate target policies on a log: estimates, intervals and diagnostics for each.

    found = evaluate(log, {"bm25": p_target}, rng)
    found["bm25"].estimates      by each estimator: a value and a difference, with intervals
    found["bm25"].diagnostics    weights and overlap

A target that was trained on the rows it is evaluated on is overestimated: train it on earlier rows. What
targets share is computed once: predictions of rewards, the baseline, resamples.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from feedback.arrays import TOLERANCE, Flags, Floats, refuse_unless_distributions
from feedback.dataset import Log
from feedback.ope.diagnostics import Diagnostics, diagnose
from feedback.ope.doubly_robust import mrdr_weight
from feedback.ope.estimators import ESTIMATORS, Estimator, Predictions, Rows
from feedback.ope.intervals import LEVEL
from feedback.ope.joint_intervals import EstimateWithInterval, Figures, IntervalRequest, TargetSample, figures
from feedback.ope.reward_model import Model, cross_fit
from feedback.ope.sample import NeverDrawnError, Sample, Terms

DEFAULT_ESTIMATORS = ("ips", "snips", "dr")
"""Estimators by default."""

NEVER_DRAWN = "never drawn"
"""Note on a target that draws none of the drawn arms."""

ProgressCallback = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Estimated:
    """The result of one estimator for one target.

    Attributes:
        estimator: A name out of `ESTIMATORS`.
        value: Expected reward of a decision; None where there is no estimate.
        difference: To the baseline, on the rows that both are evaluated on; None for the baseline itself,
            and where there is no estimate.
        effective_n: Kish's effective sample size.
        parameter: The clip, threshold or shrinkage that was used; None where there is none.
        note: Why there is no value, or another interval than requested; empty for neither.
    """

    estimator: str
    value: EstimateWithInterval | None
    difference: EstimateWithInterval | None = None
    effective_n: float = 0.0
    parameter: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The estimates of one target.

    Attributes:
        log: The rows that it was evaluated on.
        estimates: In the order of the request.
        diagnostics: Weights and overlap.
        weight: Importance weight of each row, p_target / p_log of the drawn arm, shape (n,).
    """

    log: Log
    estimates: tuple[Estimated, ...]
    diagnostics: Diagnostics
    weight: Floats


def evaluate(
    log: Log,
    targets: Mapping[str, Floats],
    rng: np.random.Generator,
    *,
    kept: Mapping[str, Flags] | None = None,
    baseline: str | None = None,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    interval: str = "normal",
    level: float = LEVEL,
    reward_range: tuple[float, float] | None = None,
    reward_model: Model = "ridge",
    q_hat: Floats | None = None,
    resamples: int = 1000,
    progress: ProgressCallback | None = None,
) -> dict[str, Evaluation]:
    """Estimate the values of targets, and their differences to the baseline.

    A target that draws arms which the log could not draw has no estimates: they would ignore these arms.

    Args:
        log: The decisions of the logging policy.
        targets: The distributions of each target, shape (n, n_arms), by name.
        rng: Source of the folds and of the resamples, which are the same for all targets.
        kept: Rows that a target is evaluated on, shape (n,), at least one; all where none are given.
        baseline: The target that others are compared with; None for the logging policy.
        estimators: Names out of `ESTIMATORS`.
        interval: A name out of `feedback.ope.joint_intervals.INTERVALS`; where it does not
            apply to an estimator or to this log, `normal` is used, and a note says why.
        level: Coverage of the intervals, in (0, 1).
        reward_range: Smallest and largest possible reward; those in the log by default, which is
            less than `bernstein` and `anytime` require.
        reward_model: Predicts rewards: `ridge`, which uses the log's features, or `means`.
        q_hat: Predictions, shape (n, n_arms), in place of its own.
        resamples: Number of resamples of `bootstrap`.
        progress: Called with the progress.

    Raises:
        ValueError: An unknown estimator, interval or baseline; a target that is not a distribution in some
            row.
    """
    _refuse_unknown("estimator", estimators, ESTIMATORS)
    _refuse_unknown("target", [baseline] if baseline else [], targets)
    folds, draws = rng.integers(2**63, size=2).tolist()
    wanted = [ESTIMATORS[name] for name in estimators]
    read = {estimator.predictions for estimator in wanted}
    if log.n_questions > 1 and q_hat is None and Predictions.SHARED in read:
        q_hat = predict(log, np.random.default_rng(folds), reward_model)
    elif log.n_questions > 1 and Predictions.OWN in read and reward_model != "means":
        _ = log.X  # computed once, where each target would compute its own
    rewards = (float(log.reward.min()), float(log.reward.max())) if reward_range is None else reward_range
    request = IntervalRequest(interval, level, rewards, resamples, draws)
    everywhere = np.ones(len(log), dtype=np.bool_)
    rows = dict.fromkeys(targets, everywhere) | dict(kept or {})
    against, shared = (log.p_log, everywhere) if baseline is None else (targets[baseline], rows[baseline])
    evaluator = _TargetEvaluation(
        log, [ESTIMATORS[name] for name in estimators], q_hat, reward_model, folds, against
    )
    found = {}
    for done, (name, p_target) in enumerate(targets.items(), start=1):
        if p_target.shape != (len(log), len(log.arms)):
            raise ValueError(f"{name} must have the shape {len(log), len(log.arms)}, got {p_target.shape}")
        refuse_unless_distributions(name, p_target)
        target_terms, both = evaluator.at(p_target, rows[name]), rows[name] & shared
        if p_target is against or not both.any():
            values = figures(target_terms.seen, None, request)
        elif np.array_equal(both, rows[name]):
            values = figures(target_terms.seen, evaluator.baseline(both), request)
        else:
            beyond = figures(evaluator.at(p_target, both).seen, evaluator.baseline(both), request)
            alone = figures(target_terms.seen, None, request)
            values = {each: (alone[each][0], beyond.get(each, (None, None))[1]) for each in alone}
        found[name] = target_terms.evaluation(estimators, values)
        if progress:
            progress("evaluating", done, len(targets))
    return found


def predict(
    log: Log, rng: np.random.Generator, model: Model = "ridge", weight: Floats | None = None
) -> Floats:
    """Predict the reward of every arm in every row, shape (n, n_arms); see `feedback.ope.reward_model`.

    Raises:
        ValueError: Fewer than two questions: nothing to hold out; no features for `ridge`.
    """
    X = None if model == "means" else log.X  # noqa: N806 - a matrix, as in scikit-learn
    return cross_fit(X, log.drawn, log.reward, log.questions, len(log.arms), rng, model=model, weight=weight)


@dataclass(frozen=True, slots=True, eq=False)
class _TargetTerms:
    """A target on the rows of a log, with everything but its intervals."""

    seen: TargetSample
    sample: Sample
    notes: Mapping[str, str]

    def evaluation(self, estimators: Iterable[str], values: Figures) -> Evaluation:
        """Return the estimates with their intervals."""
        seen = self.seen
        estimates = []
        for name in estimators:
            if name not in values:
                estimates.append(Estimated(name, None, note=self.notes[name]))
                continue
            terms, (value, beyond) = seen.terms[name], values[name]
            note = _note(value, beyond)
            estimates.append(Estimated(name, value, beyond, terms.effective_n, terms.parameter, note))
        log = seen.log
        diagnostics = diagnose(
            self.sample, log.arms, excluded=log.excluded, questions=log.questions, p_log=log.p_log
        )
        return Evaluation(seen.log, tuple(estimates), diagnostics, seen.weight)


def _note(value: EstimateWithInterval, beyond: EstimateWithInterval | None) -> str:
    """Return which of the two has another interval than requested, and why."""
    if beyond is None or beyond.why == value.why:
        return f"{value.kind} interval: {value.why}" if value.why else ""
    both = (("value", value), ("difference", beyond))
    return "; ".join(f"{one.kind} interval of the {what}: {one.why}" for what, one in both if one.why)


class _TargetEvaluation:
    """Computes the terms of targets on rows of a log, and caches those of the baseline."""

    def __init__(
        self,
        log: Log,
        estimators: Sequence[Estimator],
        q_hat: Floats | None,
        model: Model,
        folds: int,
        against: Floats | None,
    ) -> None:
        self._log, self._estimators, self._against = log, estimators, against
        self._q_hat, self._model, self._folds = q_hat, model, folds
        self._last: tuple[Flags, TargetSample] | None = None

    def at(self, p_target: Floats, rows: Flags) -> _TargetTerms:
        """Return the terms of a target on some rows."""
        log, q_hat = self._log, self._q_hat
        if not rows.all():
            log, p_target = log.where(rows), p_target[rows]
            q_hat = None if q_hat is None else q_hat[rows]
        sample = Sample(log.propensity, log.drawn, log.reward, p_target, q_hat)
        known = {Predictions.NONE: True, Predictions.SHARED: q_hat is not None, Predictions.OWN: False}
        if log.n_questions > 1 and any(one.predictions is Predictions.OWN for one in self._estimators):
            rng = np.random.default_rng(self._folds)
            sample = replace(sample, q_mrdr=predict(log, rng, self._model, mrdr_weight(sample)))
            known[Predictions.OWN] = True
        reach, unsupported = log.reach(p_target), _unsupported(log, p_target)
        # Of the propensities of drawn arms alone, the reach is a guess, and no bound of a rejection.
        bounded = {"bound": float(reach.max())} if log.p_log is not None else {}
        terms, notes = {}, {}
        for one in self._estimators:
            if unsupported > TOLERANCE:
                notes[one.name] = f"draws with a chance of {unsupported:.2g} what the log could not"
            elif not known[one.predictions]:
                notes[one.name] = "needs two different questions or more"
            else:
                try:
                    terms[one.name] = one(sample, **(bounded if one.rows is Rows.KEPT else {}))
                except NeverDrawnError as error:
                    notes[one.name] = str(error) if sample.weight.any() else NEVER_DRAWN
        return _TargetTerms(
            TargetSample(log, sample.weight, reach, terms, served=p_target is log.p_log), sample, notes
        )

    def baseline(self, rows: Flags) -> TargetSample:
        """Return the terms of the baseline on some rows; for the logging policy, those of the plain mean."""
        if self._last is None or not np.array_equal(self._last[0], rows):
            self._last = rows, self._baseline(rows)
        return self._last[1]

    def _baseline(self, rows: Flags) -> TargetSample:
        if self._against is not None:
            seen = self.at(self._against, rows).seen
            return replace(seen, served=self._against is self._log.p_log)
        log = self._log if rows.all() else self._log.where(rows)
        one = np.ones(len(log))
        terms = {each.name: Terms(each.name, log.reward, one, one) for each in self._estimators}
        return TargetSample(log, one, one, terms, served=True)


def _unsupported(log: Log, p_target: Floats) -> float:
    """Return the share of draws of the target that the log could not make; 0 where that is not known."""
    return 0.0 if log.p_log is None else float(p_target[log.p_log <= 0.0].sum() / len(log))


def _refuse_unknown(what: str, names: Iterable[str], known: Mapping[str, object]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are: {', '.join(known)}")
