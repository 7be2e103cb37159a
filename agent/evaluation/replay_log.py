"""Replay: candidates decide every logged decision, then learn from it. One table, one loop, one document.

    request --> candidates
    blocks of the log --> the rows that can be evaluated; candidates decide these, then learn the block
    all rows --> estimates, intervals, diagnostics, verdicts --> the document (`replay_document`)

A candidate that learns decides before it learns (progressive validation). Those without a context (`served`,
`uniform`, `fixed:<arm>`) are computed from the table; contexts are read only if something needs them.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import orjson

from armwise.agent.config import AppConfig
from armwise.agent.evaluation.blocks import (
    BlockTarget,
    BlockTask,
    LogBlock,
    MapBlocks,
    ReplayedBlock,
    replay_block,
    replay_there,
)
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
    Flags,
    Floats,
    Growing,
    Integers,
    Matrix,
    Spool,
    select_rows,
    split,
)
from armwise.feedback.decisions import Decisions, Selection
from armwise.feedback.events import LABELS, Example
from armwise.feedback.log import Store, without_password
from armwise.feedback.logged_draws import UNSETTLED, DrawFilter, EmptyLogError, LoggedDraws
from armwise.feedback.ope import (
    ESTIMATORS,
    WITHOUT_PROPENSITIES,
    Predictions,
    Verdict,
    evaluate_each,
    judge,
    stack,
)
from armwise.feedback.registry import arm_sets, keys, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import TrainingLog

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


Elsewhere = Callable[[Sequence[Candidate], bool, Iterable[LogBlock]], Iterator[ReplayedBlock]]
"""Replays blocks in other processes, in order: for some candidates, and whether rows are described."""


def decide_log(
    candidates: Sequence[Candidate],
    source: TrainingLog,
    rule: RewardRule,
    selection: Selection,
    on_progress: Progress,
    *,
    describes: bool = False,
    cluster: str = "question",
    elsewhere: Elsewhere | None = None,
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
        elsewhere: Replays blocks for those that `needs_no_order`, and describes rows; None: all is here.

    Returns:
        The rows, the target of each candidate, and the features of the rows if they were asked for.

    A row whose example is needed, but cannot be read, is left out of the log.

    Raises:
        EmptyLogError: No decision can be evaluated.
        CandidateError: A candidate cannot decide, or cannot learn.
    """
    rows = DrawFilter(selection, source.settled.before, cluster)
    reads, readable, features = bool(candidates) or describes, Growing(), []
    played = {candidate.name: _Played(candidate) for candidate in candidates}
    # What learns decides here, block after block; what needs no order, wherever the block goes.
    in_order = [candidate for candidate in candidates if elsewhere is None or not candidate.needs_no_order]
    mapped = [candidate for candidate in candidates if elsewhere is None or candidate.needs_no_order]

    def keep(deciders: Sequence[Candidate], decided: Sequence[BlockTarget]) -> None:
        for candidate, one in zip(deciders, decided, strict=True):
            played[candidate.name].add(one)

    def replay_first(part: LogBlock) -> LogBlock:
        """Replay a block by those who need the order, before it is replayed elsewhere.

        The others note its labels here, since a process that has one block knows no earlier ones.
        """
        if in_order or part.labelled:
            keep(in_order, replay_block(part, in_order, rule, decided_elsewhere=mapped).decided)
        return replace(part, examples=(), label_times=tuple(dict(one.label_times) for one in mapped))

    parts = _list_parts(source.blocks(rule, selection, on_progress, contexts=reads), rows)
    if elsewhere is None:
        replay_here = partial(replay_block, candidates=candidates, rule=rule, describes=describes)
        blocks: Iterator[ReplayedBlock] = map(replay_here, parts)
    else:
        blocks = elsewhere(mapped, describes, map(replay_first, parts))
    for replayed in blocks:
        keep(mapped, replayed.decided)
        readable.append(replayed.was_read | (not reads))
        if replayed.X is not None:
            features.append(replayed.X)
    was_read = readable.take()
    log, kept = rows.take(was_read)
    described = stack(features)[kept[was_read]] if describes else None
    return log, [each.target(log, kept) for each in played.values()], described


def _list_parts(
    blocks: Iterable[tuple[Decisions, Iterable[Example]]], rows: DrawFilter
) -> Iterator[LogBlock]:
    for table, examples in blocks:
        seq = rows.add(table)
        first, last = (int(table.seq[0]), int(table.seq[-1])) if len(table) else (0, 0)
        labelled = bool(table.draw.each(lambda key: key.policy == LABELS).any())
        yield LogBlock(first, last, seq, tuple(rows.column), labelled, examples=examples)


class _Played:
    """A candidate, with its distributions so far."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate, self._share = candidate, 0.0
        self._reasons = {"": 0}  # why rows are left out, with the codes of the reasons
        self._p, self._why = Spool(), Growing()

    def add(self, decided: BlockTarget) -> None:
        """Append what it decided in the next block."""
        codes = [self._reasons.setdefault(reason, len(self._reasons)) for reason in decided.reasons]
        self._p.append(decided.p)
        self._why.append(np.array(codes, dtype=np.int8)[decided.reason_code])
        self._share = max(self._share, decided.share)

    def target(self, log: LoggedDraws, rows: Flags) -> Target:
        """Return the target on a log, given which of the rows that were decided are in it."""
        candidate = self._candidate
        why = self._why.take()[rows]
        counts = np.bincount(why, minlength=len(self._reasons)).tolist()
        left_out = Counter({reason: counts[code] for reason, code in self._reasons.items() if code})
        return Target(
            candidate.name,
            candidate.about,
            select_rows(self._p.read(len(log.arms)), rows),
            why == 0,
            {reason: n for reason, n in left_out.most_common() if n},
            (*_notes(candidate.arms, log.arms), *candidate.notes()),
            tuple(sorted(candidate.brought - log.column.keys())),
            self._share,
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
    map_blocks: MapBlocks | None = None,
) -> ReplayDocument:
    """Replay a log, and return what candidates would have earned.

    Args:
        config: Has the reward, the configured policy, the arms, the floor and the gate.
        request: Candidates, selection and estimators.
        source: The training log, or an export.
        store: The log, for its versions; None if there is only an export.
        progress: Called with the progress.
        map_blocks: Replays blocks of `store` in other processes, where their order does not matter; None:
            this process replays all.

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

    def replay_elsewhere(
        candidates: Sequence[Candidate], describes: bool, parts: Iterable[LogBlock]
    ) -> Iterator[ReplayedBlock]:
        assert map_blocks is not None
        task = BlockTask(
            orjson.dumps(config.model_dump(mode="json")),
            request.model_dump_json(),
            service.arms,
            tuple(candidate.name for candidate in candidates),
            describes,
        )
        return map_blocks(partial(replay_there, task), parts)

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
            elsewhere=replay_elsewhere
            if map_blocks and (predicts or any(candidate.needs_no_order for candidate in built))
            else None,
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
