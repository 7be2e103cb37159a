"""`/v1/decisions`: what is known of a decision, and whether it can be computed again from the log."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from agent.access import Caller, ForeignIdError
from agent.api import ranking, responses
from agent.api.documented import documented
from agent.api.errors import ApiError
from agent.api.middleware import AppReplica, RequestCaller
from agent.api.replies import decisions as replies
from agent.api.schemas import DecisionId, DecisionQuery
from agent.config import AppConfig
from agent.learning import restore
from agent.learning import verify as learning_verify
from agent.policies import Policy, PolicyError
from agent.serving import Replica, choices
from arms.base import ArmError, Passage
from arms.filters import permits
from feedback.events import (
    LABELS,
    Decision,
    Example,
    Execution,
    Feedback,
    Kind,
    Mode,
    Observation,
    Status,
)
from feedback.fold import DecisionFact, Fold
from feedback.log import Record, listing
from feedback.registry import Version, keys
from feedback.registry import versions as registry_versions

router = APIRouter(tags=["decisions"])

Result = TypeVar("Result")

Fact = TypeVar("Fact", Decision, Feedback)

Run = TypeVar("Run", Execution, Observation)


@router.get("/v1/decisions", **documented("listDecisions", replies.DecisionList, scopes=("decide", "read")))
async def listed(
    replica: AppReplica,
    caller: RequestCaller,
    wanted: Annotated[DecisionQuery, Query()],
) -> JSONResponse:
    """Decisions of the caller's project, newest first; `next` is the `before` of the next page, or null.

    A page looks at a part of the log, and may have fewer decisions than its limit, or none, before the end.
    """
    found, before = await asyncio.to_thread(
        listing.decisions, replica.store, _wanted(replica, caller, wanted), wanted.limit, wanted.before
    )
    rows = [_row(one, replica, caller) for one in found]
    return JSONResponse({"decisions": rows, "next": before or None})


def _wanted(replica: Replica, caller: Caller, query: DecisionQuery) -> listing.Wanted:
    """Return the conditions of a query, of the caller's project. Raises ForeignIdError."""
    return listing.Wanted(
        since=None if query.since is None else query.since.timestamp(),
        until=None if query.until is None else query.until.timestamp(),
        arm=None if replica.ranks else query.arm,
        action=query.arm if replica.ranks else None,
        version=query.version,
        status=query.status,
        metric=query.metric,
        episode=query.episode and caller.stored(query.episode, "episode"),
        key=query.key,
        prefix=caller.prefix or None,
        apart=None if caller.prefix or caller.sees_all else keys.SEPARATOR,
    )


def _row(one: listing.Listed, replica: Replica, caller: Caller) -> dict[str, Any]:
    decision = ranking.by_ids(one.decision) if replica.ranks else one.decision
    served = decision.drawn if replica.ranks and one.served else one.served
    return {
        "decision_id": caller.shown_id(decision.id),
        "episode_id": decision.episode_id and caller.shown_id(decision.episode_id),
        "decided_at": decision.decided_at,
        "question": decision.context.question,
        "mode": decision.mode.value,
        "policy_version": decision.version,
        "arm_drawn": decision.drawn,
        "arm_served": served,
        "propensity": decision.propensity,
        "status": one.status and one.status.value,
        "log_seq": one.seq,
    }


@router.get(
    "/v1/decisions/{decision_id}",
    **documented("getDecision", replies.DecisionRecord, "decision_not_found", scopes=("decide", "read")),
)
async def decision(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> JSONResponse:
    """Everything known about a decision of the caller's project; observations with scope `read` only."""
    found = _shown(await record(replica, caller, decision_id), caller)
    if replica.ranks:
        found = ranking.record_by_ids(found)
    if "read" not in caller.scopes:
        found = replace(found, observations=())
    found, withheld = await _permitted(replica, caller, found)
    # in a thread: a decision may have thousands of items of feedback
    shown = await asyncio.to_thread(document, found, replica.config, replica.clock())
    return JSONResponse(shown | {"withheld": withheld})


async def permitted(replica: Replica, caller: Caller, ids: Iterable[str]) -> dict[str, Passage]:
    """Return those of passages that are in the corpus, and that the groups of a key permit, by id.

    Raises:
        ArmError: The corpus is not at hand.
    """
    found = await replica.passages([*ids])
    return {one.id: one for one in found if permits(None, caller.groups, one.metadata)}


async def _permitted(replica: Replica, caller: Caller, found: Record) -> tuple[Record, bool]:
    """Return a decision without passages that a key may not see, and without what was written from them.

    What is not in the corpus any more counts as such, where any passage is for some groups alone.
    """
    if not replica.turns.restricted or replica.ranks:
        return found, False
    runs = [one for one in (found.execution, *found.observations) if one is not None]
    try:
        seen = (await permitted(replica, caller, {name for one in runs for name in one.passages})).keys()
    except ArmError:
        seen = {}.keys()

    def shown(one: Run) -> Run:
        if seen >= {*one.passages}:
            return one
        return replace(one, answer=None, passages=tuple(name for name in one.passages if name in seen))

    execution = found.execution and shown(found.execution)
    less = replace(found, execution=execution, observations=tuple(map(shown, found.observations)))
    return less, less != found


@router.get(
    "/v1/decisions/{decision_id}/verify",
    **documented(
        "verifyDecision",
        replies.DecisionVerification,
        *("decision_not_found", "not_drawn", "not_recorded", "version_unavailable"),
        scopes=("operate",),
    ),
)
async def verify(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> JSONResponse:
    """Compute a decision again from the log, and compare its distribution and its draw.

    Probabilities count as equal up to `tolerance`; on the same machine they are equal to the bit.
    `why` says what differs. The draw uses the secret of the log and the salt of today: if the salt has
    changed since, the draw does not agree although the log was not changed. A policy whose bytes were
    pruned is learned again from the log, which may take a while: such calls run one at a time, and get
    503 if too many wait.
    """
    found = await record(replica, caller, decision_id)
    logged = found.decision
    salt = replica.store.draw_secret.salt(replica.config.salt, found.seq)

    def recompute(policy: Policy | None, candidate: Policy | None = None) -> learning_verify.Verification:
        return learning_verify.verify(logged, policy, salt, found.propensity, candidate)

    if logged.policy == LABELS:
        raise ApiError("not_drawn", f"{decision_id!r} is a label: no policy drew it", "decision_id")
    if logged.mode is Mode.FORCED:  # no policy took part
        return JSONResponse({**recompute(None).document(), "decision_id": decision_id})
    if logged.floor is None:
        message = f"decision {decision_id!r} is of a log that did not keep which floor was mixed in"
        raise ApiError("not_recorded", message, "decision_id")
    versions = []
    for number in (logged.version, logged.candidate) if logged.share else (logged.version,):
        version = await asyncio.to_thread(registry_versions.find, replica.store, number)
        if version is None:
            message = f"there is no version {number}, which decision {decision_id!r} names"
            raise ApiError("version_unavailable", message, "decision_id")
        versions.append(version)
    verification = await with_policies(replica, versions, recompute, "decision_id")
    return JSONResponse({**verification.document(), "decision_id": decision_id})


async def with_policies(
    replica: Replica, versions: Sequence[Version], compute: Callable[..., Result], param: str
) -> Result:
    """Restore the policies of versions and return what a function computes from them.

    Raises:
        ApiError: Too many calls wait, or a policy cannot be restored; the latter names `param`.
    """
    try:
        return await asyncio.wrap_future(replica.history.submit(versions, compute))
    except restore.BusyError as error:
        raise ApiError("overloaded", str(error)) from None
    except PolicyError as error:
        raise ApiError("version_unavailable", str(error), param) from None


async def record(replica: Replica, caller: Caller, decision_id: str) -> Record:
    """Return a decision that the caller may read. Raises ApiError."""
    with suppress(ForeignIdError):  # not distinguished from one that does not exist
        if found := await asyncio.to_thread(replica.store.record, caller.stored(decision_id)):
            return found
    raise ApiError("decision_not_found", f"there is no decision {decision_id!r}", "decision_id")


def _shown(found: Record, caller: Caller) -> Record:
    """Return a record with ids as the caller knows them."""

    def shown(fact: Fact, name: str) -> Fact:
        return replace(fact, id=name, episode_id=fact.episode_id and caller.shown_id(fact.episode_id))

    def rated(item: Feedback) -> Feedback:
        over = {name: caller.shown_id(other) for name, other in item.content.items() if name == "over"}
        return replace(shown(item, caller.shown(item.id)), content={**item.content, **over})

    return replace(
        found,
        decision=shown(found.decision, caller.shown_id(found.decision.id)),
        feedback=tuple(map(rated, found.feedback)),
    )


def document(found: Record, config: AppConfig, now: float) -> dict[str, Any]:
    """Return everything known about a decision at a time, in seconds since the epoch."""
    logged, execution = found.decision, found.execution
    served = execution.served if execution else None
    fold, fact = Fold(config.reward), _fact(found)
    metrics = found.metrics
    if metrics is None:
        metrics = fold.metrics(fact, execution.status if execution else Status.OK)
    reward = None
    if execution:
        failed = execution.status in (Status.ARM_FAILED, Status.FELL_BACK)
        reward = config.reward.reward_of(Example(0, logged, execution.cost, metrics, failed))
    return responses.agent(logged, served, execution.cost if execution else None, config) | {
        "question": logged.context.question,
        "erased": logged.erased,
        "features": dict(logged.context.features),
        "embedding": list(logged.context.embedding),
        "arm_features": {name: dict(features) for name, features in logged.context.arms.items()},
        "masked": dict(logged.masked),
        "policy": logged.policy,
        "decided_at": logged.decided_at,
        "floor": logged.floor,
        "cost_weight": logged.cost_weight,
        "deferred": logged.deferred,
        "activated": any(item.kind is Kind.ACTIVATION for item in found.feedback),
        "budget": {"price": logged.price, "expected_costs": dict(zip(logged.arms, logged.costs, strict=True))}
        if logged.costs
        else None,
        "shadow": dict(zip(logged.arms, logged.shadow, strict=False)) or None,
        "canary": {"version": logged.candidate, "share": logged.share} if logged.share else None,
        "status": execution.status.value if execution else None,
        "error": execution.error if execution else None,
        **_answer(None if execution is None else execution.answer),
        "passage_ids": list(execution.passages) if execution else [],
        "stages": list(execution.stages) if execution else [],
        **_sources(execution),
        "feedback": [
            {
                "feedback_id": item.id,
                "kind": item.kind.value,
                "episode_id": item.episode_id,
                "metric_name": item.metric,
                "value": item.value,
                "content": dict(item.content),
                "received_at": item.received_at,
                "event_time": item.event_time,
                "tags": dict(item.tags),
                "source": item.source,
                "key": item.key,
            }
            for item in found.feedback
        ],
        "observations": [
            {
                "source": one.source.value,
                "arm": one.arm,
                "share": one.share,
                "propensity": one.propensity,
                "value": one.value,
                "answer": one.answer,
                "passage_ids": list(one.passages),
                "cost": asdict(one.cost),
                "judge": one.judge or None,
                "judge_cost": asdict(one.judge_cost),
                "swapped": one.swapped,
                "error": one.error or None,
                "observed_at": one.observed_at,
            }
            for one in found.observations
        ],
        "metrics": dict(metrics),
        "reward": reward,
        "example_seq": found.example_seq,
        "state": _state(found, now <= fold.closing(fact)),
    }


def _sources(execution: Execution | None) -> dict[str, Any]:
    """Return which index and which language models a turn has used."""
    if execution is None:
        return {"index_version": None, "cached": False, "tokens_by_model": None}
    tokens = {
        model: {"prompt": read, "completion": written, "cached": cached}
        for model, (read, written, cached) in execution.tokens_by_model.items()
    }
    return {
        "index_version": execution.index_version or None,
        "cached": execution.cached,
        "tokens_by_model": tokens or None,
    }


def _answer(recorded: str | None) -> dict[str, Any]:
    """Return the text of an answer, and all choices where they are more than one text."""
    if recorded is None or choices.is_text(recorded):
        return {"answer": recorded, "choices": None}
    found = choices.Choices.of(recorded)
    return {"answer": found.text, "choices": list(map(asdict, found.all))}


def _fact(found: Record) -> DecisionFact:
    """Return a decision with its feedback, as the fold reads it."""
    one = found.decision
    labelled = one.policy == LABELS
    columns = one.id, one.decided_at, found.logged_at, one.mode, one.episode_id, one.deferred, labelled
    return DecisionFact(found.seq, *columns, found.feedback)


def _state(found: Record, waits: bool) -> str:
    """Return whether a decision is learned, open to feedback, or closed without being learned."""
    if found.example_seq is not None:
        return "learned"
    if not waits:
        return "closed"
    return "running" if found.execution is None else "open"
