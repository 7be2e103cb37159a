"""Evaluate candidates on the log of a service, or on an export.

request --> selected rows of the training log --> distributions of each candidate there
        --> estimates, intervals, diagnostics, verdicts --> report
"""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import numpy as np

from agent.config import AppConfig
from agent.evaluation.candidate_factory import Setting
from agent.evaluation.candidate_names import CandidateName, EvaluationError, Kind, parse_name
from agent.evaluation.propensity_check import Recomputed, recompute
from agent.evaluation.report import Report
from agent.evaluation.request import EvaluationRequest
from agent.evaluation.results import CandidateResult
from agent.evaluation.summarize import GateInputs, candidate_results
from agent.evaluation.targets import Distributions, targets
from agent.reporting import counted
from arms.base import Progress
from feedback.dataset import EmptyLogError, Log, Selection, Source
from feedback.log import Store, database
from feedback.ope import evaluate, gate

LEARNERS = (Kind.CONFIGURED, Kind.RECIPE, Kind.POLICY)
"""Candidates that learn as the log is replayed."""

HEDGED = "two imaginary rows stand for what was not drawn, and rows that ask the same are one observation"

INDEPENDENT_ROWS = "rows are taken to be independent of each other, also those that ask the same"

BEST = "Each interval holds by itself: the best of several candidates looks better than it is."

INTERVAL_REMARKS = {
    "normal": f"Intervals are of the normal approximation: {HEDGED}.",
    "bootstrap": f"Intervals are of 1,000 resampled logs: {HEDGED}.",
    "bernstein": f"Intervals hold at any number of rows: {INDEPENDENT_ROWS}.",
    "clopper_pearson": f"Intervals are exact, for rewards of two values: {INDEPENDENT_ROWS}.",
    "anytime": (
        "Intervals hold at all times at once, however often one looks: each row is taken to be drawn afresh, "
        "given all rows before it, also where it asks the same."
    ),
}
"""Assumptions of each kind of interval."""


def evaluate_log(
    config: AppConfig,
    request: EvaluationRequest,
    source: Source,
    store: Store | None,
    progress: Progress,
) -> Report:
    """Evaluate candidates on a training log.

    Args:
        config: Names the reward, the configured policy, the arms, the floor and the gate.
        request: What to evaluate.
        source: The training log, or an export.
        store: The log, for the versions that it holds; None where there is only an export.
        progress: Called with the progress.

    Raises:
        EvaluationError: No decision is selected that can be judged, or a candidate is unknown or cannot
            be judged by this log (`CandidateError`).
        LogUnavailableError: Try again later.
    """
    rule = request.changed(config.reward)
    try:
        log = source.log(rule, selection_of(request), progress)
    except EmptyLogError as error:
        raise EvaluationError(str(error)) from None
    candidates = _candidates(request, log)
    found = targets(log, candidates, Setting.of(config, rule, store, request.ceiling), source, progress)
    if candidates[0].kind is not Kind.SERVED and not found[0].kept.any():
        reasons = counted(found[0].excluded)
        raise EvaluationError(f"no decision can judge the baseline {request.baseline!r}: {reasons}")
    checked, settled = None, math.inf
    if request.gate:
        settled = source.settled(selection_of(request).since)
        rng = np.random.default_rng(request.seed)
        checked = Recomputed() if store is None else recompute(store, config, log, rng, progress)
    evaluations = evaluate(
        log,
        Distributions(found),
        np.random.default_rng(request.seed),
        kept={one.name: one.kept for one in found},
        baseline=None if candidates[0].kind is Kind.SERVED else request.baseline,
        estimators=request.estimators,
        interval=request.interval,
        reward_range=rule.clip,
        reward_model=request.reward_model,
        progress=progress,
    )
    excluded = Counter(log.excluded)
    if store is not None and not request.selects:
        excluded.update(store.unlearned())  # of the whole log, whatever its time
    results = candidate_results(found, evaluations, GateInputs(config.gate, rule.clip, checked, settled))
    return Report(
        request=request,
        source="an export" if store is None else database.shown(config.database_url),
        made_at=time.time(),
        armwise=version("armwise"),
        reward=rule.model_dump(mode="json"),
        floor=config.floor,
        rows=len(log),
        questions=log.n_questions,
        first_at=float(log.at.min()),
        last_at=float(log.at.max()),
        positions=(int(log.seq[0]), int(log.seq[-1])),
        digest=_digest(log),
        excluded=dict(excluded.most_common()),
        earned=float(log.reward.mean()),
        drawn=dict(
            zip(log.arms, (np.bincount(log.drawn, minlength=len(log.arms)) / len(log)).tolist(), strict=True)
        ),
        candidates=results,
        assumptions=(
            *source.remarks(rule),
            *_assumptions(candidates, checked),
            *_waiting(log, settled),
            *_intervals(request.interval, results),
            *([BEST] if len(candidates) > 2 else []),
        ),
    )


def selection_of(request: EvaluationRequest) -> Selection:
    """Return the selection of a request."""
    first, last = request.versions or (1, 0)
    return Selection(
        since=None if request.since is None else request.since.timestamp(),
        until=None if request.until is None else request.until.timestamp(),
        versions=tuple(range(first, last + 1)),
        features=request.selected_features,
    )


def _candidates(request: EvaluationRequest, log: Log) -> list[CandidateName]:
    """Return the candidates, the baseline first."""
    usual = (Kind.UNIFORM, *(f"{Kind.FIXED}:{arm}" for arm in log.arms), Kind.CONFIGURED)
    names = dict.fromkeys((request.baseline, *(request.candidates or usual)))
    return [parse_name(name) for name in names]


def _digest(log: Log) -> str:
    """Return a digest of the rows."""
    digest = hashlib.blake2b("\0".join(log.arms).encode(), digest_size=16)
    for column in (log.seq, log.drawn, log.propensity, log.reward):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _assumptions(candidates: list[CandidateName], checked: Recomputed | None) -> Iterator[str]:
    """Yield the assumptions of the estimates."""
    yield (
        "Values are of explored turns that succeeded and were judged; the others are assumed to be missing "
        "at random."
    )
    yield (
        "Propensities on record are those that were drawn with, and rewards follow from the question and the "
        "arm that was drawn, not from what was drawn before."
    )
    if checked is not None:
        again = f"{checked.checked:,} distributions were computed again, and {checked.mismatched:,} differed"
        yield f"{again}; {checked.lost:,} could not be recomputed." if checked.lost else f"{again}."
    if any(one.kind in LEARNERS for one in candidates):
        yield (
            "A learning candidate returns its distribution for each decision before it learns from it; "
            "decisions that are not selected, and labels, are only learned from."
        )


def _waiting(log: Log, settled: float) -> Iterator[str]:
    """Yield which decisions the gate leaves out, if any."""
    if left_out := int((log.at >= settled).sum()):
        yield (
            f"The gate takes decisions in the order in which they were made, "
            f"without {left_out:,} {gate.WAITING}: "
            "what is at hand of these was chosen by how soon feedback came."
        )


def _intervals(requested: str, results: Sequence[CandidateResult]) -> Iterator[str]:
    """Yield the assumptions of each kind of interval in the results."""
    figures = [(one.value, one.difference) for each in results for one in each.estimates]
    kinds = {figure.kind for both in figures for figure in both if figure is not None}
    if requested in kinds:
        yield INTERVAL_REMARKS[requested]
    for other in sorted(kinds - {requested}):
        yield f"Where a note says so they are {other} ones instead. {INTERVAL_REMARKS[other]}"
