"""`/v1/decisions`: what is known of a decision, and whether it can be computed again from the log."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from pydantic import Field

from armwise.agent.access import Caller, ForeignIdError
from armwise.agent.api import answer_ids
from armwise.agent.api.documented import document_route
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson, describe_choice
from armwise.agent.api.schemas import DecisionId, DecisionQuery
from armwise.agent.learning import BusyError, Verification
from armwise.agent.learning import verify as verify_decision
from armwise.agent.policies import Policy, PolicyError, compute_served_distribution
from armwise.agent.replies import (
    Chosen,
    DecisionVerification,
    DrawMode,
    MadeCall,
    Reply,
    Time,
    among,
    construct,
)
from armwise.agent.serving import Replica
from armwise.agent.turn import BUILT_IN, Choices, Finished, is_text, weigh_arms
from armwise.arms.base import ArmError, Passage
from armwise.arms.filters import permits
from armwise.feedback.events import (
    ARM_FAILURES,
    INCUMBENT,
    LABELS,
    OBSERVED,
    Decision,
    Example,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Observation,
    Status,
    count_cache_written,
    type_of_error,
    without_quotations,
)
from armwise.feedback.log import LoggedDecision, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.registry import Version, keys
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import (
    LoggedFeedback,
    TurnFacts,
    find_deadline,
    find_last_counted,
    find_rating_end,
)

router = APIRouter(tags=["decisions"])

Result = TypeVar("Result")

Fact = TypeVar("Fact", Decision, Feedback)

Run = TypeVar("Run", Execution, Observation)

SHOWN_STEPS = tuple(name for name in BUILT_IN if name != "groups")
"""Steps whose records are shown: groups are those of others, and a step of your own may quote passages."""

Ending = Annotated[str, among("ok", "fell_back", "arm_failed", "llm_failed", "llm_timeout", "cancelled")]


class Item(Reply):
    """An item of feedback."""

    feedback_id: str
    kind: Annotated[str, among("value", "retraction", "activation", "passage")]
    episode_id: str | None
    metric_name: str | None
    value: float | None
    content: dict[str, Any] = Field(
        description="Values that are not numbers: `comment`, `demonstration`, `label`, and preferences."
    )
    received_at: Time
    event_time: Time | None
    tags: dict[str, str]
    counts: bool = Field(
        description="Whether it counts in `metrics`: it was in time, was not taken back, came before the "
        "decision was learned, is about the answer that was sent, and is a value that the metric's "
        "`aggregation` uses: with `last`, a later value replaces it."
    )
    source: str | None = Field(description="Who judged: user, judge or operator.")
    key: str | None = Field(description="Public id of the key that sent it.")


class RawCost(Reply):
    """A cost vector, before prices."""

    steps: int
    prompt_tokens: int
    completion_tokens: int
    retrieval_s: float
    llm_s: float
    usd: float


class Observed(Reply):
    """What was found out about an arm on the same question, beside the reward."""

    source: Annotated[str, among("shadow", "judge")]
    arm: str
    share: float = Field(description="Probability with which the decision was sampled.")
    propensity: float = Field(description="Probability with which the arm was taken.")
    value: float | None
    answer: str | None
    passage_ids: list[str]
    cost: RawCost
    judge: str | None
    judge_cost: RawCost
    swapped: bool
    error: str | None
    observed_at: Time


class DecisionRow(Reply):
    """A decision of a list."""

    decision_id: str
    episode_id: str | None
    decided_at: Time
    question: str
    mode: DrawMode
    policy_version: int
    arm_drawn: str
    arm_served: str | None
    policy: str = Field(description="Kind of the policy; `observed` where another system decided.")
    propensity: float | None = Field(description="Null where another system decided and it is not known.")
    status: Ending | None
    log_seq: int = Field(description="Position in the log.")


class DecisionList(Reply):
    """Decisions, newest first."""

    decisions: list[DecisionRow]
    next: int | None = Field(description="The `before` of the next page; null at the end.")


class WrittenChoice(Reply):
    """One of the answers of a turn."""

    text: str
    tool_calls: list[MadeCall]
    logprobs: list[dict[str, Any]]
    finish_reason: str | None


class ModelTokens(Reply):
    """What a language model read and wrote in a turn."""

    prompt: int
    completion: int
    cached: int = Field(description="Prompt tokens that the engine had cached.")
    cache_written: int = Field(description="Prompt tokens that the engine has cached now.")


class DecisionRecord(Chosen):
    """Everything known about a decision."""

    question: str
    erased: bool = Field(description="Whether its texts were erased.")
    features: dict[str, float]
    embedding: list[float]
    arm_features: dict[str, dict[str, float]]
    masked: dict[str, str] = Field(description="The live arms that could not be drawn, and why.")
    policy: str
    draw_id: str | None = Field(
        description="The draw whose arm the conversation keeps: this or an earlier decision; null for none."
    )
    decided_at: Time
    floor: float | None
    deferred: bool
    activated: bool
    steps: dict[str, dict[str, Any]] = Field(
        description="What each optional step did in the draw, by its name, such as `budget` or `guard`."
    )
    shadow: dict[str, float] | None
    status: Ending | None
    error: str | None
    finish_reason: str | None = Field(
        description="Why the language model stopped: `stop`, `length`, `tool_calls`, `content_filter`, "
        "`refusal`, or another word of its provider; null where it did not say."
    )
    answer: str | None
    choices: list[WrittenChoice] | None = Field(description="All answers, where they are more than a text.")
    passage_ids: list[str]
    stages: Sequence[Mapping[str, Any]]
    index_version: str | None = Field(description="Version of the index that answered; null if unknown.")
    cached: bool = Field(description="Whether the passages were kept from an earlier search.")
    tokens_by_model: dict[str, ModelTokens] | None = Field(
        description="Tokens of each language model that was asked; null if none was asked."
    )
    feedback: list[Item]
    observations: list[Observed]
    metrics: dict[str, float]
    reward: float | None
    example_seq: int | None = Field(description="Position in the training log.")
    state: Annotated[str, among("running", "open", "learned", "closed")]
    closes_at: Time | None = Field(
        description="Until when feedback counts, as things are. A complete rating can be changed for "
        "`reward.correction_time`. Null once the decision is learned or closed."
    )
    withheld: bool = Field(
        description="Whether passages that the key may not see are left out, and what may quote them."
    )


@router.get("/v1/decisions", **document_route("listDecisions", DecisionList, scopes=("decide", "read")))
async def list_decisions(
    replica: AppReplica,
    caller: RequestCaller,
    wanted: Annotated[DecisionQuery, Query()],
) -> StdlibJson[DecisionList]:
    """List decisions of the caller's project, newest first; `next` is the next page's `before`, or null.

    A page looks at a part of the log, and may have fewer decisions than its limit, or none, before the end.
    """
    criteria = await find_criteria(replica, caller, wanted)
    page = await asyncio.to_thread(
        listing.decisions, replica.store, replica.config.reward, criteria, wanted.limit, wanted.before
    )
    rows = [show_row(row, caller) for row in page.decisions]
    return StdlibJson(construct(DecisionList, decisions=rows, next=page.following))


def build_filter(caller: Caller, query: DecisionQuery) -> listing.DecisionFilter:
    """Return the conditions of a query, of the caller's project. Raises ForeignIdError."""
    return listing.DecisionFilter(
        since=None if query.since is None else query.since.timestamp(),
        until=None if query.until is None else query.until.timestamp(),
        arm=query.arm,
        version=query.version,
        status=query.status,
        metric=query.metric,
        episode=query.episode and caller.to_stored_id(query.episode, "episode"),
        key=query.key,
        prefix=caller.prefix or None,
        excluded_id_part=None if caller.prefix or caller.sees_all else keys.SEPARATOR,
    )


async def find_criteria(replica: Replica, caller: Caller, query: DecisionQuery) -> listing.DecisionFilter:
    """Return the conditions of a query whose episode may be named by an answer. Raises ForeignIdError."""
    criteria = build_filter(caller, query)
    if query.episode is None:
        return criteria
    return replace(criteria, episode=await answer_ids.find_episode(replica, caller, query.episode))


def show_row(row: listing.ListedDecision, caller: Caller) -> DecisionRow:
    """Return a decision of a page as a caller sees it."""
    decision = row.decision
    return construct(
        DecisionRow,
        decision_id=caller.strip_prefix(decision.id),
        episode_id=decision.episode_id and caller.strip_prefix(decision.episode_id),
        decided_at=decision.decided_at,
        question=decision.context.question,
        mode=decision.mode.value,
        policy_version=decision.version,
        arm_drawn=decision.drawn,
        arm_served=row.served,
        policy=decision.policy,
        propensity=decision.propensity if decision.probabilities else None,
        status=row.status and row.status.value,
        log_seq=row.seq,
    )


@router.get(
    "/v1/decisions/{decision_id}",
    **document_route("getDecision", DecisionRecord, "decision_not_found", scopes=("decide", "read")),
)
async def decision(
    replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> StdlibJson[DecisionRecord]:
    """Return everything known about a decision; observations need scope `read`."""
    decision_record = _show_ids(await record(replica, caller, decision_id), caller)
    if "read" not in caller.scopes:
        decision_record = replace(decision_record, observations=())
    decision_record, withheld = await _withhold(replica, caller, decision_record)
    # in a thread: a decision may have thousands of items of feedback
    shown = await asyncio.to_thread(
        document, decision_record, replica.config.reward, replica.clock(), withheld=withheld
    )
    return StdlibJson(shown)


async def read_permitted(replica: Replica, caller: Caller, ids: Iterable[str]) -> dict[str, Passage]:
    """Return those of passages that are in the corpus, and that the groups of a key permit, by id.

    Raises:
        ArmError: The corpus is not at hand.
    """
    passages = await replica.passages([*ids])
    return {passage.id: passage for passage in passages if permits(None, caller.groups, passage.metadata)}


async def _withhold(
    replica: Replica, caller: Caller, decision_record: LoggedDecision
) -> tuple[LoggedDecision, bool]:
    """Return a decision without passages that a key may not see, and without what may quote them.

    What is not in the corpus any more counts as such, where any passage is for some groups alone.
    """
    if not replica.turns.searcher.restricted:
        return decision_record, False
    execution, observations = decision_record.execution, decision_record.observations
    read = {name for run in (execution, *observations) if run is not None for name in run.passages}
    try:
        permitted_ids = (await read_permitted(replica, caller, read)).keys()
    except ArmError:
        permitted_ids = {}.keys()
    quoted = decision_record.decision.steps.get("groups", {}).get("quoted", ())
    of_earlier_turns = not caller.groups >= {*quoted}

    def strip_run(run: Run) -> Run:
        if of_earlier_turns or not permitted_ids >= {*run.passages}:
            kept = tuple(name for name in run.passages if name in permitted_ids)
            return replace(without_quotations(run), passages=kept)
        # what failed had read other passages: those of the arm before a fallback, or more than it returned
        of_others = not run.passages or (isinstance(run, Execution) and run.status is Status.FELL_BACK)
        return replace(run, error=type_of_error(run.error)) if run.error and of_others else run

    less = replace(
        decision_record,
        execution=execution and strip_run(execution),
        observations=tuple(map(strip_run, observations)),
    )
    if of_earlier_turns or not permitted_ids >= read:  # who rates has read them
        less = replace(less, feedback=tuple(map(without_quotations, less.feedback)))
    return less, less != decision_record


class DecisionNow(Reply):
    """What the policy would do now with the question of a decision."""

    decision_id: str
    arm_drawn: str
    policy_version: int = Field(description="The version that made the decision.")
    before: dict[str, float] = Field(description="Probability of each arm when the decision was made.")
    served_version: int = Field(description="The version that decides now.")
    now: dict[str, float] | None = Field(
        description="Probability of each of these arms now; null if another recipe decides, which scores "
        "questions otherwise."
    )
    learned: bool = Field(description="Whether the version that decides now has learned this decision.")
    closes_at: Time = Field(
        description="Until when feedback on the decision counts, as things are; see `getDecision`."
    )


@router.get(
    "/v1/decisions/{decision_id}/now",
    **document_route(
        "compareDecision",
        DecisionNow,
        *("decision_not_found", "not_drawn", "version_unavailable"),
        scopes=("decide", "read"),
    ),
)
async def now(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> StdlibJson[DecisionNow]:
    """Compare the arms' probabilities in a decision with the current version's.

    Shows what a rating has changed: poll it until `learned`. Shares of canaries are left out of both.
    """
    decision_record = await record(replica, caller, decision_id)
    logged, served = decision_record.decision, replica.versions.version
    name = caller.strip_prefix(logged.id)
    if logged.mode is not Mode.EXPLORE or logged.policy in (LABELS, OBSERVED, INCUMBENT) or logged.erased:
        message = (
            f"{name!r} was not drawn by the policy itself, or was erased, so there is nothing to compare"
        )
        raise ApiError("not_drawn", message, "decision_id")
    decided = await asyncio.to_thread(registry_versions.find, replica.store, logged.version)
    if decided is None or served is None:
        raise ApiError("version_unavailable", f"the version that made {name!r} is gone", "decision_id")

    def distributions(*policies: Policy) -> list[dict[str, float]]:
        penalty = weigh_arms(logged.steps, replica.decider.steps, logged.arms)
        case = logged.context, logged.arms, logged.floor or 0.0, penalty
        return [
            dict(zip(logged.arms, compute_served_distribution(p, *case).tolist(), strict=True))
            for p in policies
        ]

    comparable = decided.recipe == served.recipe
    versions = [decided, *([served] if comparable else ())]
    before, *after = await with_policies(replica, versions, distributions, "decision_id")
    example_seq = decision_record.example_seq
    reply = construct(
        DecisionNow,
        decision_id=name,
        arm_drawn=logged.drawn,
        policy_version=logged.version,
        before=before,
        served_version=served.version,
        now=after[0] if after else None,
        learned=example_seq is not None and example_seq <= served.examples_seq,
        closes_at=find_rating_end(
            _read_turn(decision_record, replica.config.reward), replica.config.reward, replica.clock()
        ),
    )
    return StdlibJson(reply)


@router.get(
    "/v1/decisions/{decision_id}/verify",
    **document_route(
        "verifyDecision",
        DecisionVerification,
        *("decision_not_found", "not_drawn", "version_unavailable"),
        scopes=("operate",),
    ),
)
async def verify(
    replica: AppReplica, caller: RequestCaller, decision_id: DecisionId
) -> StdlibJson[DecisionVerification]:
    """Recompute a decision from the log, and compare its distribution and its draw.

    Probabilities count as equal up to `tolerance`, or to the bit if the same BLAS kernel computes them.
    `why` says what differs. The draw uses the secret of the log. A policy whose bytes were
    pruned is learned again from the log, which may take a while: such calls run one at a time, and get
    503 if too many wait. If another system made the decision, only `shadow` is compared.
    """
    decision_record = await record(replica, caller, decision_id)
    logged = decision_record.decision
    decision_id = caller.strip_prefix(logged.id)
    salt = replica.store.draw_secret.salt

    draw, versions = None, list[Version]()
    if logged.mode is Mode.CONTINUED and logged.draw_id is not None:
        of_draw = await asyncio.to_thread(replica.store.record, logged.draw_id)
        draw = None if of_draw is None else of_draw.decision

    own = [step for step in replica.decider.steps if step.name not in BUILT_IN]

    def recompute(*policies: Policy) -> Verification:
        by_version = {version.version: policy for version, policy in zip(versions, policies, strict=True)}
        return verify_decision(logged, by_version, salt, decision_record.propensity, draw, own)

    if logged.policy == LABELS:
        raise ApiError("not_drawn", f"no policy drew {decision_id!r}: it is a label", "decision_id")
    if logged.mode in (Mode.FORCED, Mode.CONTINUED):  # no policy took part
        return StdlibJson(recompute().reply(decision_id))
    for number in (logged.version, logged.candidate) if logged.share else (logged.version,):
        version = await asyncio.to_thread(registry_versions.find, replica.store, number)
        if version is None:
            message = f"there is no version {number}, which decision {decision_id!r} names"
            raise ApiError("version_unavailable", message, "decision_id")
        versions.append(version)
    verification = await with_policies(replica, versions, recompute, "decision_id")
    return StdlibJson(verification.reply(decision_id))


async def with_policies(
    replica: Replica, versions: Sequence[Version], compute: Callable[..., Result], param: str
) -> Result:
    """Restore the policies of versions and return what a function computes from them.

    Raises:
        ApiError: Too many calls wait, or a policy cannot be restored; the latter names `param`.
    """
    try:
        return await asyncio.wrap_future(replica.versions.history.submit(versions, compute))
    except BusyError as error:
        raise ApiError("overloaded", str(error)) from None
    except PolicyError as error:
        raise ApiError("version_unavailable", str(error), param) from None


async def record(replica: Replica, caller: Caller, decision_id: str) -> LoggedDecision:
    """Return a decision that the caller may read, by its id or by that of its answer. Raises ApiError."""
    with suppress(ForeignIdError):  # not distinguished from one that does not exist
        stored = caller.to_stored_id(decision_id)
        for name in (stored, caller.find_answered(stored)):
            if name is not None and (row := await asyncio.to_thread(replica.store.record, name)):
                return row
    raise ApiError("decision_not_found", f"there is no decision {decision_id!r}", "decision_id")


def _show_ids(decision_record: LoggedDecision, caller: Caller) -> LoggedDecision:
    """Return a record with ids as the caller knows them."""

    def rename_fact(fact: Fact, name: str) -> Fact:
        return replace(fact, id=name, episode_id=fact.episode_id and caller.strip_prefix(fact.episode_id))

    def rename_feedback(item: Feedback) -> Feedback:
        over = {name: caller.strip_prefix(other) for name, other in item.content.items() if name == "over"}
        return replace(rename_fact(item, caller.strip_prefix(item.id)), content={**item.content, **over})

    decision = rename_fact(decision_record.decision, caller.strip_prefix(decision_record.decision.id))
    return replace(
        decision_record,
        decision=replace(decision, draw_id=decision.draw_id and caller.strip_prefix(decision.draw_id)),
        feedback=tuple(map(rename_feedback, decision_record.feedback)),
    )


def document(
    record: LoggedDecision, rule: RewardRule, now: float, *, withheld: bool = False
) -> DecisionRecord:
    """Return everything known about a decision at a time, in seconds since the epoch."""
    logged, execution = record.decision, record.execution
    served = execution.served if execution else None
    turn, metrics = _read_turn(record, rule), record.metrics
    upto = max(record.feedback_seqs, default=0)
    if record.joined_by:
        upto = find_last_counted(turn, rule, record.joined_by)
    values = turn.list_values(upto)
    if metrics is None:
        metrics = rule.aggregate(values)
    counting = {id(item) for item in rule.select(values) if item.metric in metrics and turn.counts_at(upto)}
    reward = None
    if execution:
        failed = execution.status in ARM_FAILURES
        cost, tokens, n = log_rows.read_spending(record.turns, execution.cost, execution.tokens_by_model)
        example = Example(0, logged, cost, metrics, failed, tokens_by_model=tokens, turns=n)
        reward = rule.compute_reward(example)
    answer, answers = _answer(None if execution is None else execution.answer)
    return construct(
        DecisionRecord,
        **describe_choice(logged, served, Finished(execution, ()) if execution else None, rule.cost),
        question=logged.context.question,
        erased=logged.erased,
        features=dict(logged.context.features),
        embedding=list(logged.context.embedding),
        arm_features={name: dict(features) for name, features in logged.context.arms.items()},
        masked=dict(logged.masked),
        policy=logged.policy,
        draw_id=logged.draw_id,
        decided_at=logged.decided_at,
        floor=logged.floor,
        deferred=logged.deferred,
        activated=any(item.kind is FeedbackKind.ACTIVATION for item in record.feedback),
        steps={name: dict(logged.steps[name]) for name in SHOWN_STEPS if name in logged.steps},
        shadow=dict(zip(logged.arms, logged.shadow, strict=False)) or None,
        status=execution.status.value if execution else None,
        error=execution.error if execution else None,
        finish_reason=(execution and execution.finish_reason) or None,
        answer=answer,
        choices=answers,
        passage_ids=list(execution.passages) if execution else [],
        stages=execution.stages if execution else (),
        index_version=(execution and execution.index_version) or None,
        cached=execution is not None and execution.cached,
        tokens_by_model=_tokens(execution),
        feedback=[_item(item, counts=id(item) in counting) for item in record.feedback],
        observations=list(map(_describe_observation, record.observations)),
        metrics=dict(metrics),
        reward=reward,
        example_seq=record.example_seq,
        state=(state := _state(record, now <= turn.closing)),
        closes_at=find_rating_end(turn, rule, now) if state in ("running", "open") else None,
        withheld=withheld,
    )


def _item(item: Feedback, *, counts: bool) -> Item:
    return construct(
        Item,
        feedback_id=item.id,
        kind=item.kind.value,
        episode_id=item.episode_id,
        metric_name=item.metric,
        value=item.value,
        content=dict(item.content),
        received_at=item.received_at,
        event_time=item.event_time,
        tags=dict(item.tags),
        counts=counts,
        source=item.source,
        key=item.key,
    )


def _describe_observation(observation: Observation) -> Observed:
    return construct(
        Observed,
        source=observation.source.value,
        arm=observation.arm,
        share=observation.share,
        propensity=observation.propensity,
        value=observation.value,
        answer=observation.answer,
        passage_ids=list(observation.passages),
        cost=construct(RawCost, **asdict(observation.cost)),
        judge=observation.judge or None,
        judge_cost=construct(RawCost, **asdict(observation.judge_cost)),
        swapped=observation.swapped,
        error=observation.error or None,
        observed_at=observation.observed_at,
    )


def _tokens(execution: Execution | None) -> dict[str, ModelTokens] | None:
    """Return what each language model of a turn has read and written; None where none was asked."""
    if execution is None:
        return None
    return {
        model: construct(
            ModelTokens,
            prompt=read,
            completion=written,
            cached=cached,
            cache_written=count_cache_written(tokens),
        )
        for model, tokens in execution.tokens_by_model.items()
        for read, written, cached in [tokens[:3]]
        if read or written  # a search with a price may stand there alone
    } or None


def _answer(recorded: str | None) -> tuple[str | None, list[WrittenChoice] | None]:
    """Return the text of an answer, and all choices where they are more than one text."""
    if recorded is None or is_text(recorded):
        return recorded, None
    answer = Choices.parse(recorded)
    return answer.text, [construct(WrittenChoice, **choice.recorded) for choice in answer.all]


def _read_turn(record: LoggedDecision, rule: RewardRule) -> TurnFacts:
    """Return a decision with its feedback as the join reads it; one that is running counts as answered."""
    decision, execution = record.decision, record.execution
    return TurnFacts(
        record.seq,
        decision.id,
        decision.decided_at,
        record.logged_at,
        find_deadline(decision.decided_at, rule.wait_s, decision.policy),
        decision.mode,
        decision.draw_id,
        is_deferred=decision.deferred,
        is_past=decision.policy == LABELS,
        executed=0,
        status=execution.status if execution else Status.OK,
        feedback=[
            LoggedFeedback(seq, item, logged_at=at)
            for seq, item, at in zip(
                record.feedback_seqs, record.feedback, record.feedback_times, strict=True
            )
        ],
    )


def _state(record: LoggedDecision, waits: bool) -> str:
    """Return whether a decision is learned, open to feedback, or closed without being learned."""
    if record.example_seq is not None:
        return "learned"
    if not waits:
        return "closed"
    return "running" if record.execution is None else "open"
