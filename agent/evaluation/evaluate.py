"""Evaluate candidates on the log of a service, or on an export.

request --> selected rows of the training log --> distributions of each candidate there
        --> estimates, intervals, diagnostics, verdicts --> report

Candidates without a context (`served`, `uniform`, `fixed:<arm>`) are computed as arrays; contexts are read if
a candidate needs them, once for all candidates.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import islice, takewhile
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.candidates import (
    Candidate,
    CandidateError,
    CandidateKind,
    CandidateName,
    CandidateService,
    EvaluationError,
    LeftOutError,
    build_candidate,
    parse_name,
)
from armwise.agent.evaluation.report import (
    DIRECT_ALONE,
    ArmWeights,
    CandidateResult,
    Estimated,
    Interval,
    Report,
    Stretch,
    Weights,
)
from armwise.agent.evaluation.request import EvaluationRequest
from armwise.agent.learning import restore_policy, verify
from armwise.agent.policies import Policy, PolicyError
from armwise.agent.reporting import format_counts
from armwise.agent.routers import dataset
from armwise.agent.wings import PROPENSITY_DOUBT, load
from armwise.arms.base import Progress
from armwise.feedback.dataset import UNSETTLED, EmptyLogError, Log
from armwise.feedback.decisions import Selection, format_time
from armwise.feedback.events import FOREIGN, Decision, Example
from armwise.feedback.log import Store, without_password
from armwise.feedback.ope import (
    WITHOUT_PROPENSITIES,
    Diagnostics,
    EstimateWithInterval,
    GateSpec,
    Verdict,
    evaluate,
    evaluation,
    gate,
    judge,
)
from armwise.feedback.registry import arm_sets, keys
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import TrainingLog
from armwise.feedback.training_log import Settled, read_examples
from armwise.feedback.training_log import examples as training_log_examples

BLOCK = 256
"""Rows of the training log in one read."""

ABOUT = {
    CandidateKind.SERVED: "The distribution that decided when the log was written.",
    CandidateKind.UNIFORM: "Every eligible arm, with the same probability.",
    CandidateKind.FIXED: "Always {}; judged on decisions for which it was eligible.",
}


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTarget:
    """The target policy of a candidate.

    Attributes:
        name: Name of the candidate.
        about: Description, in a sentence.
        make: Returns the distribution of each row, shape (n, n_arms); uniform in rows outside `kept`.
        kept: Whether it is evaluated on a row, shape (n,).
        excluded: Number of rows that are left out, by reason.
        notes: Remarks; a sentence each.
        unsupported: Arms that it brings and that were never eligible in the log.
        share: Largest share that it had as a canary; 0: it had none.
    """

    name: str
    about: str
    make: Callable[[], dataset.Floats]
    kept: NDArray[np.bool_]
    excluded: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    share: float = 0.0

    @property
    def p(self) -> dataset.Floats:
        """The distribution of each row, shape (n, n_arms), computed at each access unless stored."""
        return self.make()


class Distributions(Mapping[str, dataset.Floats]):
    """The distributions of targets that have rows, by name, computed on access to save memory.

    Args:
        found: The targets, the baseline first; the distribution of the baseline stays in memory.
    """

    def __init__(self, found: Sequence[CandidateTarget]) -> None:
        self._found = {target.name: target for target in found if target.kept.any()}
        self._baseline, self._p = found[0].name, found[0].p

    def __getitem__(self, name: str) -> dataset.Floats:
        target = self._found[name]
        return self._p if name == self._baseline else target.p

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def targets(
    log: Log,
    candidates: Sequence[CandidateName],
    setting: CandidateService,
    source: TrainingLog,
    on_progress: Progress,
) -> list[CandidateTarget]:
    """Return the target policy of each candidate, in their order.

    Args:
        log: The rows that they are evaluated on.
        candidates: The names.
        setting: The service in which they would run.
        source: Source of the log.
        on_progress: Called with the progress.

    Raises:
        CandidateError: A candidate cannot be built, or cannot decide.
    """
    plain = {named.name: _plain(log, named) for named in candidates if named.kind in ABOUT}
    replayed = [
        _ReplayedCandidate(named.name, build_candidate(named, setting), log)
        for named in candidates
        if named.kind not in ABOUT
    ]
    if replayed:
        _replay(log, replayed, setting, source, on_progress)
    targets_by_name = plain | {candidate.name: candidate.target() for candidate in replayed}
    return [targets_by_name[named.name] for named in candidates]


def uniform(log: Log) -> dataset.Floats:
    """Return the uniform distribution over the eligible arms, shape (n, n_arms)."""
    eligible = np.ones((len(log), len(log.arms))) if log.p_log is None else log.p_log > 0.0
    share: dataset.Floats = eligible / eligible.sum(axis=1, keepdims=True)
    return share


def _plain(log: Log, named: CandidateName) -> CandidateTarget:
    """Return the target of a candidate without a context. Raises CandidateError."""
    n, about = len(log), ABOUT[named.kind].format(named.argument)
    everywhere = np.ones(n, dtype=np.bool_)
    if named.kind is CandidateKind.UNIFORM:
        return CandidateTarget(named.name, about, partial(uniform, log), everywhere)
    if named.kind is CandidateKind.SERVED:
        if log.p_log is None:
            reason = (
                "only the probability of the drawn arm is on record"
                if log.has_propensities
                else "no propensity is on record"
            )
            unknown = {reason: n}
            return CandidateTarget(named.name, about, partial(uniform, log), ~everywhere, unknown)
        on_record: dataset.Floats = log.p_log
        return CandidateTarget(named.name, about, lambda: on_record, everywhere)
    if named.argument not in log.arms:
        raise CandidateError(
            f"candidate {named.name!r}: that arm was never eligible; the log has: {', '.join(log.arms)}"
        )
    kept = log.eligible(named.argument)
    left_out = {"the arm could not have been drawn": int(n - kept.sum())} if not kept.all() else {}
    return CandidateTarget(
        named.name,
        about,
        partial(_only, log, named.argument),
        kept,
        left_out,
    )


def _only(log: Log, arm: str) -> dataset.Floats:
    """Return the distribution that draws an arm wherever it was eligible, shape (n, n_arms)."""
    only = np.eye(len(log.arms))[log.column[arm]]
    return np.where(log.eligible(arm)[:, None], only, uniform(log))


class _ReplayedCandidate:
    """A candidate with its distributions so far."""

    def __init__(self, name: str, candidate: Candidate, log: Log) -> None:
        self.name, self.candidate = name, candidate
        self._p = uniform(log)
        self._kept = np.zeros(len(log), dtype=np.bool_)
        self._excluded: Counter[str] = Counter()
        self._column = log.column
        self._places: dict[tuple[str, ...], tuple[tuple[str, ...], list[int]]] = {}
        self._notes = tuple(_notes(candidate.arms, log.arms))
        self.block: Sequence[Example] = ()  # the rows being replayed, with the contexts of the candidate

    def decide(self, row: int, example: Example) -> None:
        """Record its distribution in a row. Raises CandidateError."""
        try:
            p = self._row(example)
        except LeftOutError as reason:
            self._excluded[str(reason)] += 1
        else:
            self._p[row] = p
            self._kept[row] = True

    def _row(self, example: Example) -> dataset.Floats:
        """Return its distribution with a column for each arm. Raises LeftOutError, CandidateError."""
        arms, columns = self._select_known(example.decision.arms)
        if example.seq <= self.candidate.after:
            raise LeftOutError(self.candidate.reason)
        if not arms:
            raise LeftOutError("none of the arms that it knows was eligible")
        try:
            p = self.candidate.probabilities(example.decision, arms)
        except LeftOutError:
            raise
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {str(self.name)!r} cannot decide a logged decision: {error}"
            ) from error
        row = np.zeros(len(self._column))
        row[columns] = p
        return row

    def learn(self, example: Example, reward: float | None) -> None:
        """Learn from a row and its reward, if it has one. Raises CandidateError."""
        try:
            self.candidate.learn(example, reward)
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {str(self.name)!r} cannot learn from a logged decision: {error}"
            ) from error

    def target(self) -> CandidateTarget:
        """Return the target policy."""
        excluded, notes = dict(self._excluded.most_common()), (*self._notes, *self.candidate.notes())
        unsupported = tuple(sorted(self.candidate.brought - self._column.keys()))
        return CandidateTarget(
            self.name,
            self.candidate.about,
            lambda: self._p,
            self._kept,
            excluded,
            notes,
            unsupported,
            getattr(self.candidate, "largest_share", 0.0),
        )

    def _select_known(self, eligible: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
        """Return the eligible arms that it knows, and their columns."""
        if eligible not in self._places:
            arms = tuple(arm for arm in eligible if arm in self.candidate.arms)
            self._places[eligible] = arms, [self._column[arm] for arm in arms]
        return self._places[eligible]


def _replay(
    log: Log,
    replayed: Sequence[_ReplayedCandidate],
    setting: CandidateService,
    source: TrainingLog,
    on_progress: Progress,
) -> None:
    """Replay the training log up to the last row of `log`: candidates decide each row, then learn from it."""
    last = int(log.seq[-1])
    # the results of a canary depend only on rows after its version
    kinds = [parse_name(candidate.name).kind for candidate in replayed]
    after = min(
        (candidate.candidate.after if kind is CandidateKind.CANARY else 0)
        for candidate, kind in zip(replayed, kinds, strict=True)
    )
    rest = takewhile(lambda example: example.seq <= last, source.examples(after))
    while block := list(islice(rest, BLOCK)):
        start, stop = np.searchsorted(log.seq, (block[0].seq, block[-1].seq + 1)).tolist()
        row_of = dict(zip(log.seq[start:stop].tolist(), range(start, stop), strict=True))
        judged = [example.decision for example in block if example.seq in row_of]
        for candidate in replayed:
            candidate.block = candidate.candidate.view(block)
            if judged:
                candidate.candidate.prepare(judged)
        for place, example in enumerate(block):
            if example.seq in row_of:
                for candidate in replayed:
                    candidate.decide(row_of[example.seq], candidate.block[place])
            reward = (
                None
                if training_log_examples.find_run(example.decision) is not None
                else setting.rule.compute_learned_reward(example)
            )
            for candidate in replayed:
                candidate.learn(candidate.block[place], reward)
        on_progress("asking candidates", block[-1].seq, last)


def _notes(arms: frozenset[str], logged: Sequence[str]) -> Iterator[str]:
    """Yield remarks on arms that the candidate or the log lacks."""
    if new := sorted(arms - set(logged)):
        yield f"Never eligible in the log, so nothing is known about it here: {', '.join(new)}."
    if gone := [arm for arm in logged if arm not in arms]:
        yield f"Unknown to the candidate, which never draws it: {', '.join(gone)}."


ROWS, VERSIONS = 200, 20
"""Decisions to recompute, and most versions that they come from, since relearning an old version is slow."""


@dataclass(frozen=True, slots=True)
class RecomputedCheck:
    """The result of a check.

    Attributes:
        checked: Decisions that were recomputed.
        mismatched: Recomputed decisions that differ.
        lost: Decisions that cannot be recomputed: their policy or floor is missing, or another system made
            them.
    """

    checked: int = 0
    mismatched: int = 0
    lost: int = 0


def recompute(
    store: Store, config: AppConfig, log: Log, rng: np.random.Generator, on_progress: Progress
) -> RecomputedCheck:
    """Recompute the distributions of some decisions.

    Args:
        store: The log.
        config: Has the reward that versions have learned from.
        log: The decisions.
        rng: Selects the decisions.
        on_progress: Called with the progress.

    Raises:
        LogUnavailableError: Try again later.
    """
    checked = mismatched = lost = 0
    policies, own = _Policies(store, config), config.build_steps()
    decisions = sorted(
        _some(store, config, log, rng), key=lambda decision: (decision.version, decision.candidate)
    )
    for done, decision in enumerate(decisions, start=1):
        try:
            versions = {decision.version, *([decision.candidate] if decision.share else ())}
            recalled = {version: policies.find(version) for version in versions}
        except PolicyError:
            recalled = {}
        if not recalled or decision.policy in FOREIGN or decision.floor is None:
            lost += 1
        else:
            checked += 1
            recomputed = verify(decision, recalled, salt="", steps=own)
            mismatched += not recomputed.distribution.same  # only distributions are compared
        on_progress("computing propensities again", done, len(decisions))
    return RecomputedCheck(checked, mismatched, lost)


def _some(store: Store, config: AppConfig, log: Log, rng: np.random.Generator) -> Iterator[Decision]:
    """Yield decisions at random, of a few versions."""
    versions, rows = np.unique(log.version, return_counts=True)
    order = rng.choice(len(versions), len(versions), replace=False, p=rows / rows.sum())
    enough = int(np.searchsorted(rows[order].cumsum(), ROWS)) + 1
    some = versions[order[: max(VERSIONS, enough)]]
    pool = log.seq[np.isin(log.version, some)]
    for seq in rng.choice(pool, min(ROWS, len(pool)), replace=False).tolist():
        for example in read_examples(store, config.reward.join, seq - 1, seq):
            yield example.decision


class _Policies:
    """The policies of versions, with a cache of two, such as a version and its canary."""

    def __init__(self, store: Store, config: AppConfig) -> None:
        self._store, self._config = store, config
        self._arms = arm_sets.list_defined(store) or list(config.actions)
        self._found: dict[int, Policy] = {}

    def find(self, number: int) -> Policy:
        """Return the policy of a version. Raises PolicyError if it is lost."""
        if number not in self._found:
            version = registry_versions.find(self._store, number)
            if version is None:
                raise PolicyError(f"there is no version {number}")
            if len(self._found) > 1:
                self._found.clear()
            self._found[number] = restore_policy(self._store, version, self._config.reward, self._arms)
        return self._found[number]


STRETCHES, FEWEST = 12, 25
"""Most stretches of a log, and fewest rows in each."""


@dataclass(frozen=True, slots=True)
class GateInputs:
    """The inputs of verdicts and warnings.

    Attributes:
        log: The settled decisions with a reward.
        targets: The candidates on these rows, by name.
        gate: The conditions of a promotion, which are also the thresholds of warnings.
        reward_range: Smallest and largest possible reward.
        checked: Result of the check of propensities, if verdicts are requested.
        known: Examples that each version had learned, by number; None: not on record.
    """

    log: Log
    targets: Mapping[str, CandidateTarget]
    gate: GateSpec
    reward_range: tuple[float, float]
    checked: RecomputedCheck | None
    known: Mapping[int, int] | None = None

    def verdict(self, name: str) -> dict[str, Any] | None:
        """Return the verdict on a candidate as JSON, if verdicts are requested."""
        if self.checked is None:
            return None
        reason, target = None, self.targets[name]
        if target.unsupported:
            reason = (
                f"It brings {', '.join(target.unsupported)}, which no decision of the log could have drawn: "
                "nothing is known of what it earns. Make it live first (`armwise apply`), or use --force."
            )
        elif not target.kept.any():
            reason = f"No decision is left to judge it by: {format_counts(target.excluded)}."
        if reason is not None:
            # the log has no rewards of these arms; a share of the traffic would give some
            verdict = Verdict(False, (reason,), None, (), undecided=not target.unsupported)
        else:
            verdict = self._judge(target)
        document: dict[str, Any] = orjson.loads(orjson.dumps(verdict.document()))
        return {**document, "canary_share": target.share} if target.share else document

    def _judge(self, target: CandidateTarget) -> Verdict:
        log = self.log if target.kept.all() else self.log.where(target.kept)
        positions = None
        if self.known is not None:
            positions = np.array([self.known.get(number, 0) for number in log.version.tolist()])
        return judge(
            self._build_gate(target),
            log,
            target.p[target.kept],
            reward_range=self.reward_range,
            known=positions,
            checked=self.checked.checked if self.checked else 0,
            mismatched=self.checked.mismatched if self.checked else 0,
        )

    def _build_gate(self, target: CandidateTarget) -> GateSpec:
        """Return the conditions for a candidate.

        What was served includes the canary's share, so its gain over what was served is (1 - share) times
        its gain over the other policy. A negative margin is scaled by the same factor.
        """
        if self.gate.margin >= 0.0:
            return self.gate
        return self.gate.model_copy(update={"margin": self.gate.margin * (1.0 - target.share)})


def candidate_results(
    found: Sequence[CandidateTarget], evaluations: Mapping[str, evaluation.Evaluation], inputs: GateInputs
) -> tuple[CandidateResult, ...]:
    """Return the results of each candidate.

    Args:
        found: The distributions of the candidates, the baseline first.
        evaluations: Evaluations of the candidates that have rows.
        inputs: Inputs of verdicts and warnings.
    """
    return tuple(
        _candidate_result(target, evaluations.get(target.name), inputs, served=target is found[0])
        for target in found
    )


def _candidate_result(
    target: CandidateTarget,
    target_evaluation: evaluation.Evaluation | None,
    inputs: GateInputs,
    *,
    served: bool,
) -> CandidateResult:
    result = CandidateResult(
        name=target.name,
        about=target.about,
        rows=0 if target_evaluation is None else len(target_evaluation.log),
        excluded=dict(target.excluded),
        notes=target.notes,
        verdict=None if served else inputs.verdict(target.name),
    )
    if target_evaluation is None:
        return result
    drawn = bool(target_evaluation.weight.any())
    return result.model_copy(
        update={
            "estimates": tuple(
                _to_estimated(each, _doubt(target_evaluation.log)) for each in target_evaluation.estimates
            ),
            "weights": describe_weights(target_evaluation, served=served) if drawn else None,
            "shares": {each.arm: each.target for each in target_evaluation.diagnostics.overlap},
            "over_time": over_time(target_evaluation.log, target_evaluation.weight) if drawn else (),
        }
    )


def _doubt(log: Log) -> str:
    """Return the reason to doubt every figure of a log; empty if its propensities were recorded."""
    if not log.has_propensities:
        return DIRECT_ALONE
    return "propensities were estimated, not recorded" if log.estimated else ""


def _to_estimated(estimate: evaluation.EstimatorResult, doubt: str) -> Estimated:
    return Estimated(
        estimator=estimate.estimator,
        value=_interval(estimate.value),
        difference=_interval(estimate.difference),
        effective_n=estimate.effective_n,
        note=estimate.note if estimate.value is None else "; ".join(filter(None, (estimate.note, doubt))),
    )


def _interval(estimate: EstimateWithInterval | None) -> Interval | None:
    return (
        None
        if estimate is None
        else Interval(value=estimate.value, low=estimate.low, high=estimate.high, kind=estimate.kind)
    )


def describe_weights(one: evaluation.Evaluation, *, served: bool) -> Weights:
    """Return the weights of a candidate.

    Args:
        one: The evaluation of the candidate.
        served: Whether it is the baseline, whose weights raise no warnings.
    """
    weight, diagnostics = one.weight, one.diagnostics
    return Weights(
        effective_n=diagnostics.effective_n,
        largest=diagnostics.largest_weight,
        mean=diagnostics.mean_weight,
        mean_error=diagnostics.mean_weight_error,
        arms=tuple(
            ArmWeights(
                arm=overlap.arm,
                drawn=overlap.logged,
                wanted=overlap.target,
                overlap=overlap.covered,
                effective_n=overlap.effective_n,
                largest=overlap.largest_weight,
            )
            for overlap in diagnostics.overlap
        ),
        warnings=() if served else tuple(_warnings(weight, diagnostics)),
    )


def _warnings(weight: dataset.Floats, diagnostics: Diagnostics) -> list[str]:
    """Return warnings about weights beyond the thresholds of the gate."""
    warnings = []
    if diagnostics.effective_n < gate.LEAST_EFFECTIVE_N:
        warnings.append(
            f"The {diagnostics.n:,} decisions carry as much information as {diagnostics.effective_n:,.0f} "
            "decisions of the candidate: too few."
        )
    largest = float(weight.max() / weight.sum())
    if largest > gate.LARGEST_SHARE:
        warnings.append(f"A single decision has {largest:.0%} of all weight.")
    if abs(diagnostics.mean_weight_z) > gate.LARGEST_WEIGHT_ERROR:
        warnings.append(
            f"The mean weight is {diagnostics.mean_weight:.3f}, which is "
            f"{abs(diagnostics.mean_weight_z):.1f} standard errors from 1: "
            "logged propensities may be wrong."
        )
    return warnings


def over_time(log: Log, weight: dataset.Floats) -> tuple[Stretch, ...]:
    """Return the value along the log, in stretches of equally many rows.

    Args:
        log: The rows.
        weight: Weight of each row for the candidate, shape (n,).
    """
    pieces = np.array_split(np.arange(len(log)), max(1, min(STRETCHES, len(log) // FEWEST)))
    return tuple(
        Stretch(
            since=float(log.at[rows].min()),
            until=float(log.at[rows].max()),
            rows=len(rows),
            value=float(weight[rows] @ log.reward[rows] / weight[rows].sum()) if weight[rows].any() else None,
        )
        for rows in pieces
    )


LEARNERS = (CandidateKind.CONFIGURED, CandidateKind.RECIPE, CandidateKind.POLICY)
"""Candidates that learn as the log is replayed."""


def evaluate_log(
    config: AppConfig,
    request: EvaluationRequest,
    source: TrainingLog,
    store: Store | None,
    progress: Progress,
) -> Report:
    """Evaluate candidates on a training log.

    Args:
        config: Has the reward, the configured policy, the arms, the floor and the gate.
        request: Candidates, selection and estimators.
        source: The training log, or an export.
        store: The log, for its versions; None if there is only an export.
        progress: Called with the progress.

    Raises:
        EvaluationError: No usable decision is selected; or, as a CandidateError, a candidate is unknown or
            cannot be evaluated on this log.
        LogUnavailableError: Try again later.
    """
    rule = request.apply_prices(config.reward)
    setting = CandidateService.from_config(config, rule, store, request.ceiling)
    names = tuple(parse_name(name) for name in request.candidates)
    canaries = names if all(name.kind is CandidateKind.CANARY for name in names) else ()
    first = min((setting.version(name)[1].examples_seq for name in canaries), default=0)  # that can matter
    selection = replace(read_selection(request), after=first)
    settled = source.settled
    log = _read(source, rule, selection, settled, progress)
    request = _possible(request, log)
    candidates = _candidates(request, log)
    baseline = None if candidates[0].kind is CandidateKind.SERVED else request.baseline
    positions = None
    if request.gate and store is not None:
        positions = registry_versions.positions(store, rule.join, set(log.version.tolist()))
    target_policies = targets(log, candidates, setting, source, progress)
    if baseline is not None and not target_policies[0].kept.any():
        reasons = format_counts(target_policies[0].excluded)
        raise EvaluationError(f"no decision can be used to evaluate the baseline {baseline!r}: {reasons}")
    checked = None
    if request.gate:
        rng = np.random.default_rng(request.seed)
        checked = RecomputedCheck() if store is None else recompute(store, config, log, rng, progress)
    evaluations = _estimate(request, rule, log, target_policies, baseline, progress)
    inputs = GateInputs(
        log,
        {target.name: target for target in target_policies},
        config.judging_gate,
        rule.reward_range,
        checked,
        positions,
    )
    results = candidate_results(target_policies, evaluations, inputs)
    return Report(
        request=request,
        source="an export" if store is None else without_password(config.database_url),
        made_at=time.time(),
        armwise=version("armwise"),
        reward=rule.model_dump(mode="json"),
        floor=config.explores.among(len(config.actions)),
        rows=len(log),
        questions=log.n_questions,
        first_at=float(log.at.min()),
        last_at=float(log.at.max()),
        positions=(int(log.seq[0]), int(log.seq[-1])),
        digest=_digest(log),
        excluded=_count_excluded(request, log, store),
        earned=float(log.reward.mean()),
        drawn=dict(
            zip(log.arms, (np.bincount(log.drawn, minlength=len(log.arms)) / len(log)).tolist(), strict=True)
        ),
        arm_colours={
            arm: number for number, arm in enumerate(() if store is None else arm_sets.list_defined(store))
        },
        candidates=results,
        assumptions=(
            *filter(None, [load(PROPENSITY_DOUBT)(log, settled.before)]),
            *source.remarks(rule),
            *_provenance(log),
            *_remarks_on_cluster(request, log),
            *_assumptions(candidates, checked, log),
            *_note_unsettled(settled, len(log), rule.wait_time),
        ),
    )


def _read(
    source: TrainingLog, rule: RewardRule, selection: Selection, settled: Settled, progress: Progress
) -> Log:
    """Return the selected rows whose rewards are final.

    Raises:
        EvaluationError: No usable decision is selected.
        LogUnavailableError: Try again later.
    """
    try:
        log = source.log(rule, selection, progress)
    except EmptyLogError as error:
        raise EvaluationError(str(error)) from None
    final = log.at < settled.before
    if not final.any():
        raise EvaluationError(
            f"no decision can be evaluated yet: all {len(log):,} since {format_time(settled.before)} may "
            f"still get feedback, until `reward.wait_time`, {rule.wait_time}, has passed"
        )
    unsettled = int((~final).sum())
    return replace(log.where(final), excluded={**log.excluded, UNSETTLED: unsettled}) if unsettled else log


def _estimate(
    request: EvaluationRequest,
    rule: RewardRule,
    log: Log,
    target_policies: Sequence[CandidateTarget],
    baseline: str | None,
    progress: Progress,
) -> Mapping[str, evaluation.Evaluation]:
    """Return the estimates of each candidate by name, compared with a baseline; None: what was served."""
    return evaluate(
        log,
        Distributions(target_policies),
        np.random.default_rng(request.seed),
        kept={target.name: target.kept for target in target_policies},
        baseline=baseline,
        estimators=request.estimators,
        interval=request.interval,
        reward_range=rule.reward_range,
        reward_model=request.reward_model,
        cluster=None if request.cluster == "none" else request.cluster,
        progress=progress,
    )


def _count_excluded(request: EvaluationRequest, log: Log, store: Store | None) -> dict[str, int]:
    """Return how many decisions are left out, by reason, the most frequent first."""
    excluded = Counter(log.excluded)
    if store is not None and not request.selects:
        excluded.update(store.count_unlearned())  # of the entire log, regardless of time
    return dict(excluded.most_common())


REFUSED = (
    "The log has no propensities, which {} needs: it weighs what an arm earned by how "
    "likely the arm was drawn. Only --estimator dm works without them. Log the probability of the "
    "drawn arm with each decision (`armwise import --propensity` or `--distribution`), or estimate it from "
    "repeated contexts (`armwise import --estimate-propensities`)."
)

DIRECT = (
    "The log has no propensities, so every figure comes from the direct model, dm, and is right only if the "
    "model is. It assumes that rewards depend on what is on record of the question and on the arm, and that "
    "nothing unobserved chose the arm. Its intervals cover the spread of the predictions, not their error."
)

ESTIMATES = (
    "Propensities of {:,} of {:,} decisions were estimated from frequencies, not recorded: every figure "
    "assumes that the counted context was all that the logging policy saw, and that it never changed. "
    "Intervals leave the error of the estimate out."
)

ALL_ELIGIBLE = "The log does not say which arms were eligible, so every arm counts as always eligible."


def _possible(request: EvaluationRequest, log: Log) -> EvaluationRequest:
    """Return the request, with estimators for a log without propensities if it names none.

    Raises:
        EvaluationError: The requested gate or estimators need propensities.
    """
    if log.estimated and request.gate:
        raise EvaluationError(
            "The gate needs the propensities of the draws, but this log has propensities estimated from "
            "frequencies, which no check can confirm. Remove --gate, or log the drawn arm's probability."
        )
    if log.has_propensities:
        return request
    if request.gate:
        raise EvaluationError(REFUSED.format("the gate"))
    if "estimators" not in request.model_fields_set:
        return request.model_copy(update={"estimators": WITHOUT_PROPENSITIES})
    needing = [name for name in request.estimators if name not in WITHOUT_PROPENSITIES]
    if needing:
        raise EvaluationError(REFUSED.format(" and ".join(needing)))
    return request


def _provenance(log: Log) -> Iterator[str]:
    """Yield the assumptions behind every figure of a log without recorded propensities."""
    if not log.has_propensities:
        yield DIRECT
    if log.estimated:
        yield ESTIMATES.format(log.estimated, len(log))
    if log.p_log is None:
        yield ALL_ELIGIBLE


def read_selection(request: EvaluationRequest) -> Selection:
    """Return the selection of a request."""
    first, last = request.versions or (1, 0)
    prefix, excluded = ("", "") if request.project is None else keys.ids_within(request.project)
    return Selection(
        since=None if request.since is None else request.since.timestamp(),
        until=None if request.until is None else request.until.timestamp(),
        versions=tuple(range(first, last + 1)),
        features=request.selected_features,
        prefix=prefix,
        excluded_id_part=excluded,
    )


def _remarks_on_cluster(request: EvaluationRequest, log: Log) -> Iterator[str]:
    """Yield a remark if no two decisions share a cluster, such as a question or an episode."""
    if request.cluster in ("episode", "user") and log.cluster(request.cluster).n_questions == len(log):
        yield (
            f"No two decisions are on record with the same {request.cluster}: each is an observation by "
            "itself, as with --cluster none."
        )


def _candidates(request: EvaluationRequest, log: Log) -> list[CandidateName]:
    """Return the candidates, the baseline first."""
    fixed = (f"{CandidateKind.FIXED}:{arm}" for arm in log.arms)
    usual = (CandidateKind.UNIFORM, *fixed, CandidateKind.CONFIGURED)
    names = dict.fromkeys((request.baseline, *(request.candidates or usual)))
    return [parse_name(name) for name in names]


def _digest(log: Log) -> str:
    """Return a digest of the rows."""
    digest = hashlib.blake2b("\0".join(log.arms).encode(), digest_size=16)
    for column in (log.seq, log.drawn, log.propensity, log.reward):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _assumptions(candidates: list[CandidateName], checked: RecomputedCheck | None, log: Log) -> Iterator[str]:
    """Yield the assumptions of the estimates."""
    yield (
        "Values are measured on explored turns that succeeded and got feedback. The others are assumed to be "
        "missing at random."
    )
    if log.has_propensities and not log.estimated:
        yield (
            "Arms were drawn with the logged propensities, and rewards depend on the question and the drawn "
            "arm, not on earlier draws."
        )
    if checked is not None:
        again = f"{checked.checked:,} distributions were recomputed, and {checked.mismatched:,} differed"
        yield f"{again}; {checked.lost:,} could not be recomputed." if checked.lost else f"{again}."
    if any(candidate.kind in LEARNERS for candidate in candidates):
        yield (
            "A learning candidate returns its distribution for each decision before it learns from it; "
            "decisions that are not selected, and labels, are only learned from."
        )


def _note_unsettled(settled: Settled, rows: int, wait_time: str) -> Iterator[str]:
    """Yield a note on decisions that estimates leave out because they may still get feedback."""
    if settled.is_whole:
        return
    later = (
        f"Each counts once `reward.wait_time`, {wait_time}, has passed and the service that has learned so "
        "far has read the log since: if it is stopped, start it."
    )
    if settled.n_open:
        share = settled.n_open / (settled.n_open + rows)
        yield (
            f"{settled.n_open:,} decisions since {format_time(settled.before)} ({share:.0%} of all) may "
            f"still get feedback and are not in the estimates. {later}"
        )
    else:
        yield (
            f"Decisions since {format_time(settled.before)} could still get feedback when the log "
            f"was written, and are not in the estimates. {later}"
        )
