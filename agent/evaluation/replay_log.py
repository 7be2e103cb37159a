"""Replay: candidates decide every logged decision, then learn from it. One table, one loop, one document.

    request --> candidates
    blocks of the log --> the rows that can be evaluated; candidates decide these, then learn the block
    all rows --> estimates, intervals, diagnostics, verdicts --> the document (`replay_document`)

A candidate that learns decides before it learns (progressive validation). Those without a context (`served`,
`uniform`, `fixed:<arm>`) are computed from the table; contexts are read only if something needs them.
"""

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np
import orjson

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.candidate_names import (
    CandidateError,
    CandidateKind,
    CandidateName,
    DoubtfulLogError,
    EvaluationError,
    parse_name,
)
from armwise.agent.evaluation.candidates import Candidate, CandidateService, build_candidate
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.recompute import RecomputedCheck, recompute
from armwise.agent.evaluation.replay_document import (
    CandidateResult,
    ReplayDocument,
    add_estimates,
    list_assumptions,
)
from armwise.agent.reporting import format_counts
from armwise.agent.wings import FIND_DOUBT, load
from armwise.arms.base import Progress
from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Growing,
    Integers,
    Matrix,
    Spool,
    select_rows,
    split,
)
from armwise.feedback.decisions import Selection
from armwise.feedback.events import Example
from armwise.feedback.log import Store, without_password
from armwise.feedback.logged_draws import UNSETTLED, DrawFilter, EmptyLogError, LoggedDraws
from armwise.feedback.ope import (
    ESTIMATORS,
    WITHOUT_PROPENSITIES,
    Predictions,
    Verdict,
    evaluate_each,
    featurize,
    judge,
    stack,
)
from armwise.feedback.registry import arm_sets, keys, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import TrainingLog
from armwise.feedback.training_log import examples as training_log_examples

BLOCK = 256
"""Examples that are learned and described at once. No context is kept afterwards; a source may read more."""

BEFORE = "before the canary began"
"""Why decisions are left out that are not read, as only canaries are evaluated."""

WITHOUT_CONTEXT = {
    CandidateKind.SERVED: "The distribution that decided when the log was written.",
    CandidateKind.UNIFORM: "Every eligible arm, with the same probability; judged where each could be drawn.",
    CandidateKind.FIXED: "Always {}; judged on decisions for which it was eligible.",
}
"""Candidates without a context, with their descriptions."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What a candidate would have drawn from.

    Attributes:
        name: Name of the candidate.
        about: Description, in a sentence.
        p: The distribution of each row, shape (n, n_arms); without meaning in rows outside `kept`.
        kept: Whether it is evaluated on a row, shape (n,).
        left_out: Number of rows that it is not evaluated on, by reason.
        notes: Remarks; a sentence each.
        unsupported: Arms that it brings and that were never eligible in the log.
        share: Largest share that it had as a canary; 0: it had none.
    """

    name: str
    about: str
    p: Floats | Matrix
    kept: Flags
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    share: float = 0.0


# -- the loop ----------------------------------------------------------------------------------------


def decide_log(
    candidates: Sequence[Candidate],
    source: TrainingLog,
    rule: RewardRule,
    selection: Selection,
    on_progress: Progress,
    *,
    describes: bool = False,
    cluster: str = "question",
) -> tuple[LoggedDraws, list[Target], Any]:
    """Let candidates decide the rows of a log that can be evaluated, and learn its examples.

    Args:
        candidates: Candidates in their state before the first example.
        source: The log.
        rule: The rule of rewards.
        selection: Which decisions are rows; candidates learn from the others too.
        on_progress: Called with the progress.
        describes: Whether to compute features of the rows.
        cluster: What rows of an observation share.

    Returns:
        The rows, the target of each candidate, and the features of the rows if they were asked for.

    A row whose example is needed, but cannot be read, is left out of the log.

    Raises:
        EmptyLogError: No decision can be evaluated.
        CandidateError: A candidate cannot decide, or cannot learn.
    """
    rows = DrawFilter(selection, source.settled.before, cluster)
    reads, readable, features = bool(candidates) or describes, Growing(), []
    deciders = [_Decider(candidate) for candidate in candidates]
    for table, examples in source.blocks(rule, selection, on_progress, contexts=reads):
        row_of = {seq: row for row, seq in enumerate(rows.add(table).tolist())}
        was_read = np.full(len(row_of), not reads)
        for decider in deciders:
            decider.begin(len(row_of), rows.column)
        rest = iter(examples)
        while block := list(islice(rest, BLOCK)):
            rewards = [_find_learned_reward(rule, example) for example in block]
            for decider in deciders:
                decider.take(block, rewards, row_of)
            found = [example for example in block if example.seq in row_of]
            was_read[[row_of[example.seq] for example in found]] = True
            if found and describes:
                features.append(featurize([example.decision.context for example in found]))
        for decider in deciders:
            decider.end()
        readable.append(was_read)
    usable = readable.take()
    log, kept = rows.take(usable)
    described = stack(features)[kept[usable]] if describes else None
    return log, [decider.target(log, kept) for decider in deciders], described


def _find_learned_reward(rule: RewardRule, example: Example) -> float | None:
    """Return the reward that a learner learns; None: it does not learn the example."""
    if training_log_examples.find_run(example.decision) is not None:
        return None
    return rule.compute_learned_reward(example)


class _Decider:
    """A candidate, with its distributions so far."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._reasons = {"": 0}  # why rows are left out, with the codes of the reasons
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}  # which arms it knows, by those of a row
        self._all_p, self._all_why = Spool(), Growing()

    def begin(self, n: int, column: Mapping[str, int]) -> None:
        """Begin the next `n` rows, whose distributions have these columns."""
        self._column = column
        self._p, self._why = np.zeros((n, len(column))), np.zeros(n, dtype=np.int8)

    def take(
        self, block: Sequence[Example], rewards: Sequence[float | None], row_of: Mapping[int, int]
    ) -> None:
        """Decide the examples that are rows, and learn each after it was decided. Raises CandidateError."""
        candidate = self._candidate
        rows = [row_of.get(example.seq, -1) for example in block]
        arms = [
            () if row < 0 else self._list_arms(row, example) for row, example in zip(rows, block, strict=True)
        ]
        found = defaultdict[tuple[str, ...], list[tuple[int, Floats]]](list)
        try:
            for row, eligible, p in zip(rows, arms, candidate.replay(block, arms, rewards), strict=True):
                if not eligible:
                    continue
                if isinstance(p, str):
                    self._why[row] = self._find_code(p)
                else:
                    found[eligible].append((row, p))
        except (ArithmeticError, LookupError, ValueError) as error:
            raise CandidateError(
                f"candidate {candidate.name!r} cannot decide or learn a logged decision: {error}"
            ) from error
        for eligible, some in found.items():
            alike, distributions = zip(*some, strict=True)
            columns = [self._column[arm] for arm in eligible]
            self._p[np.array(alike)[:, np.newaxis], columns] = np.array(distributions)

    def _list_arms(self, row: int, example: Example) -> tuple[str, ...]:
        """Return the arms among which the candidate decides a row; none if it is left out."""
        candidate, decision = self._candidate, example.decision
        if example.seq <= candidate.after:
            self._why[row] = self._find_code(candidate.reason)
            return ()
        certain = len(decision.probabilities) < len(decision.arms) and decision.propensity >= 1.0 - TOLERANCE
        possible = (decision.drawn,) if certain else decision.arms
        if (arms := self._known.get(possible)) is None:
            arms = self._known[possible] = tuple(arm for arm in possible if arm in candidate.arms)
        if not arms:
            self._why[row] = self._find_code("none of the arms that it knows was eligible")
        return arms

    def _find_code(self, reason: str) -> int:
        return self._reasons.setdefault(reason, len(self._reasons))

    def end(self) -> None:
        """Keep what it decided since `begin`."""
        self._all_p.append(self._p)
        self._all_why.append(self._why)

    def target(self, log: LoggedDraws, rows: Flags) -> Target:
        """Return the target on a log, given which of the rows that were decided are in it."""
        candidate, why = self._candidate, self._all_why.take()[rows]
        counts = np.bincount(why, minlength=len(self._reasons)).tolist()
        left_out = Counter({reason: counts[code] for reason, code in self._reasons.items() if code})
        return Target(
            candidate.name,
            candidate.about,
            select_rows(self._all_p.read(len(log.arms)), rows),
            why == 0,
            {reason: n for reason, n in left_out.most_common() if n},
            (*_notes(candidate.arms, log.arms), *candidate.notes()),
            tuple(sorted(candidate.brought - log.column.keys())),
            candidate.share,
        )


def plain_target(log: LoggedDraws, named: CandidateName) -> Target:
    """Return the target of a candidate without a context. Raises CandidateError."""
    shape, about = (len(log), len(log.arms)), WITHOUT_CONTEXT[named.kind].format(named.argument)

    def share_evenly(rows: slice | Integers) -> Floats:
        possible = log.possible(rows)
        shares: Floats = possible / possible.sum(axis=1, keepdims=True)
        return shares  # of all that were eligible, in the rows that are kept

    p: Floats | Matrix
    if named.kind is CandidateKind.SERVED:
        kept, p, reason = (
            log.whole,
            log.p_log,
            (
                "only the probability of the drawn arm is on record"
                if log.has_propensities
                else "no propensity is on record"
            ),
        )
    elif named.kind is CandidateKind.FIXED:
        if named.argument not in log.arms:
            raise CandidateError(
                f"candidate {named.name!r}: that arm was never eligible; the log has: {', '.join(log.arms)}"
            )
        column, reason = log.column[named.argument], "the arm could not have been drawn"
        kept = np.concatenate([log.possible(rows)[:, column] for rows in split(len(log))])
        always = np.eye(len(log.arms))[column]
        p = Matrix(lambda rows: np.tile(always, (len(log.drawn[rows]), 1)), shape)
    else:
        n_possible = np.concatenate([log.possible(rows).sum(axis=1) for rows in split(len(log))])
        kept, p = n_possible == log.n_eligible, Matrix(share_evenly, shape)
        reason = "an eligible arm could not have been drawn"
    return Target(named.name, about, p, kept, {} if kept.all() else {reason: int((~kept).sum())})


def _notes(arms: frozenset[str], logged: Sequence[str]) -> Iterator[str]:
    """Yield remarks on arms that the candidate or the log lacks."""
    if new := sorted(arms - set(logged)):
        yield f"Never eligible in the log, so nothing is known about it here: {', '.join(new)}."
    if gone := [arm for arm in logged if arm not in arms]:
        yield f"Unknown to the candidate, which never draws it: {', '.join(gone)}."


# -- the document ------------------------------------------------------------------------------------


def replay(
    config: AppConfig,
    request: EvaluationRequest,
    source: TrainingLog,
    store: Store | None,
    progress: Progress,
) -> ReplayDocument:
    """Replay a log, and return what candidates would have earned.

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
    if request.gate and store is None:
        raise EvaluationError(
            "--gate: the gate recomputes draws from the versions of a log, which a file lacks: leave it out, "
            "or replay the log of the service itself."
        )
    rule, settled = request.apply_prices(config.reward), source.settled
    service = CandidateService.from_config(config, rule, store, request.ceiling)
    asked = [parse_name(name) for name in dict.fromkeys((request.baseline, *_list_candidates(request, ())))]
    built = [build_candidate(named, service) for named in asked if named.kind not in WITHOUT_CONTEXT]
    selection = read_selection(request, service)

    doubt: str = load(FIND_DOUBT)(source, rule, selection, progress, missing=False)
    if doubt:
        raise DoubtfulLogError(doubt)
    predicts = any(ESTIMATORS[name].predictions is not Predictions.NONE for name in request.estimators)
    try:
        log, played, features = decide_log(
            built,
            source,
            rule,
            selection,
            progress,
            describes=predicts and request.reward_model == "ridge",
            cluster=request.cluster,
        )
    except EmptyLogError as error:
        wait = f"; these count once `reward.wait_time`, {rule.wait_time}, has passed"
        kind = EvaluationError if request.selects else DoubtfulLogError
        raise kind(f"{error}{wait if UNSETTLED in str(error) else ''}") from None
    request = _possible(request, log)
    names = dict.fromkeys((request.baseline, *_list_candidates(request, log.arms)))
    results, checked = _estimate(log, played, features, names, config, rule, request, store, progress)
    excluded = Counter(log.excluded)
    if selection.after:
        excluded[BEFORE] += selection.after
    if store is not None and not request.selects:
        excluded.update(store.count_unlearned())  # of the entire log, regardless of time
    drawn = np.bincount(log.drawn, minlength=len(log.arms)) / len(log)
    return ReplayDocument(
        request=request.model_dump(mode="json"),
        source="an export" if store is None else without_password(config.database_url),
        made_at=time.time(),
        armwise=version("armwise"),
        reward=rule.model_dump(mode="json"),
        floor=config.explores.among(len(config.actions)),
        rows=len(log),
        observations=log.n_groups,
        first_at=float(log.at.min()),
        last_at=float(log.at.max()),
        positions=[int(log.seq[0]), int(log.seq[-1])],
        digest=_digest(log),
        excluded=dict(excluded.most_common()),
        earned=float(log.reward.mean()),
        drawn=dict(zip(log.arms, drawn.tolist(), strict=True)),
        arm_colours={arm: at for at, arm in enumerate(() if store is None else arm_sets.list_defined(store))},
        candidates=results,
        assumptions=[
            *source.remarks(rule),
            *list_assumptions(log, checked, settled, rule),
        ],
    )


def _estimate(
    log: LoggedDraws,
    played: Iterable[Target],
    features: Any,
    names: Iterable[str],
    config: AppConfig,
    rule: RewardRule,
    request: EvaluationRequest,
    store: Store | None,
    progress: Progress,
) -> tuple[list[CandidateResult], RecomputedCheck | None]:
    """Return the results of candidates, and for the gate what was recomputed. Raises EvaluationError."""
    by_name = {target.name: target for target in played}
    targets = [by_name.get(name) or plain_target(log, parse_name(name)) for name in names]
    baseline = None if targets[0].name == CandidateKind.SERVED else request.baseline
    if baseline is not None and not targets[0].kept.any():
        reasons = format_counts(targets[0].left_out)
        raise EvaluationError(f"no decision can be used to evaluate the baseline {baseline!r}: {reasons}")
    rng, checked = np.random.default_rng(request.seed), None
    known = None
    if request.gate and store is not None:
        checked = recompute(store, config, log, rng, progress)
        numbers = np.unique(log.version)
        positions = versions.positions(store, rule.join, set(numbers.tolist()))
        upto = [positions.get(number, 0) for number in numbers.tolist()]
        known = np.array(upto, dtype=np.min_scalar_type(max(upto)))[np.searchsorted(numbers, log.version)]
    results = {}
    for target in targets:
        verdict = None
        if checked is not None and target is not targets[0]:
            verdict = _verdict(config, rule, log, target, checked, known)
        results[target.name] = CandidateResult(
            name=target.name,
            about=target.about,
            rows=0,
            excluded=dict(target.left_out),
            notes=list(target.notes),
            estimates=[],
            weights=None,
            shares={},
            verdict=verdict,
        )
    for name, found in evaluate_each(
        log,
        {target.name: target.p for target in targets if target.kept.any()},
        np.random.default_rng(request.seed),
        kept={target.name: target.kept for target in targets},
        baseline=baseline,
        estimators=request.estimators,
        interval=request.interval,
        reward_range=rule.reward_range,
        reward_model=request.reward_model,
        features=features,
        progress=progress,
    ):
        add_estimates(results[name], found, served=name == CandidateKind.SERVED)
        del found  # its columns are as long as the log, and so are the next candidate's
    return list(results.values()), checked


def _list_candidates(request: EvaluationRequest, arms: Sequence[str]) -> tuple[str, ...]:
    """Return the requested candidates; by default a uniform choice, each arm, and the configured policy."""
    fixed = (f"{CandidateKind.FIXED}:{arm}" for arm in arms)
    return request.candidates or (CandidateKind.UNIFORM.value, *fixed, CandidateKind.CONFIGURED.value)


def read_selection(request: EvaluationRequest, service: CandidateService) -> Selection:
    """Return the selection of a request. Raises CandidateError for an unknown version."""
    first, last = request.versions or (1, 0)
    prefix, excluded = ("", "") if request.project is None else keys.ids_within(request.project)
    names = [parse_name(name) for name in request.candidates]
    after = 0
    plain = parse_name(request.baseline).kind in WITHOUT_CONTEXT
    if names and plain and all(name.kind is CandidateKind.CANARY for name in names):
        # nothing earlier can matter
        after = min(service.version(name)[1].examples_seq for name in names)
    return Selection(
        since=None if request.since is None else request.since.timestamp(),
        until=None if request.until is None else request.until.timestamp(),
        versions=tuple(range(first, last + 1)),
        features=request.selected_features,
        prefix=prefix,
        excluded_id_part=excluded,
        after=after,
    )


def _verdict(
    config: AppConfig,
    rule: RewardRule,
    log: LoggedDraws,
    target: Target,
    checked: RecomputedCheck,
    known: Any,
) -> dict[str, Any]:
    """Return the verdict of the gate on a candidate.

    What was served includes a canary's share, so its gain over what was served is (1 - share) times its gain
    over the other policy. A negative margin is scaled by the same factor.
    """
    reason, kept = None, target.kept
    if target.unsupported:
        # the log has no rewards of these arms; a share of the traffic would give some
        reason = (
            f"It brings {', '.join(target.unsupported)}, which no decision of the log could have drawn: "
            "nothing is known of what it earns. Make it live first (`armwise policy apply`), or use --force."
        )
    elif not kept.any():
        reason = f"No decision is left to judge it by: {format_counts(target.left_out)}."
    if reason is not None:
        verdict = Verdict(False, (reason,), None, (), undecided=not target.unsupported)
    else:
        spec = config.judging_gate
        if spec.margin < 0.0:
            spec = spec.model_copy(update={"margin": spec.margin * (1.0 - target.share)})
        verdict = judge(
            spec,
            log if kept.all() else log.where(kept),
            select_rows(target.p, kept),
            reward_range=rule.reward_range,
            known=None if known is None else known[kept],
            checked=checked.checked,
            mismatched=checked.mismatched,
        )
    document: dict[str, Any] = orjson.loads(orjson.dumps(verdict.document()))
    return {**document, "canary_share": target.share} if target.share else document


REFUSED = (
    "The log has no propensities, which {} needs: it weighs what an arm earned by how "
    "likely the arm was drawn. Only --estimator dm works without them. Log the probability of the "
    "drawn arm with each decision (`armwise import --propensity` or `--distribution`), or estimate it from "
    "repeated contexts (`armwise import --estimate-propensities`)."
)


def _possible(request: EvaluationRequest, log: LoggedDraws) -> EvaluationRequest:
    """Return the request, with estimators for a log without propensities if it names none.

    Raises:
        EvaluationError: The requested gate or estimators need propensities.
    """
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


def _digest(log: LoggedDraws) -> str:
    """Return a digest of the rows."""
    digest = hashlib.blake2b("\0".join(log.arms).encode(), digest_size=16)
    for column in (log.seq, log.drawn, log.propensity, log.reward):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
