"""`/v1/observations`: decisions of another system are checked and stored item by item.

    item            checked field by field, its arms mapped to the names of the service
    decision        with the shadow distribution of the version that serves now
    execution       its cost and status; in one commit with the decision and its metrics

An item with the id of a decision that was made here for its caller to carry out reports the execution.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from armwise.agent.access import Caller, ForbiddenError, ForeignIdError, require_scope
from armwise.agent.api import batches, errors, request_fields
from armwise.agent.api.documented import document_route
from armwise.agent.api.doors import Door
from armwise.agent.api.errors import ApiError
from armwise.agent.api.feedback import REFUSALS
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import IdempotencyKey, ObservationBatch, ObservationItem
from armwise.agent.policies import FeatureError, PolicyError
from armwise.agent.replies import ObservationReceipt, ObservationReceipts, construct
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Ask, ObservedDecision
from armwise.arms.base import ArmError
from armwise.feedback.clock import AHEAD_S
from armwise.feedback.errors import ConflictError, StoreError
from armwise.feedback.events import LEAST_PROPENSITY, OBSERVED, Cost, Decision, Execution, Feedback, Status
from armwise.feedback.reward import RewardError

router = APIRouter(tags=["decisions"], route_class=Door)

REFUSED = (
    *(RewardError, ApiError, admission.AskError, ForeignIdError, ForbiddenError),
    *(ArmError, FeatureError, PolicyError, StoreError),
)
"""Errors for which a single item is refused, while the others are stored."""

TOGETHER = 50
"""Items after which other requests get a turn, as each item takes about as long as a decision."""


@dataclass(frozen=True, slots=True)
class CheckedDecision:
    """A checked item.

    Attributes:
        replica: Keeps it.
        caller: The sender.
        ask: The question, and its id in the log.
        observed: The decision.
        execution: The outcome.
        metrics: Checked values of metrics.
    """

    replica: Replica
    caller: Caller
    ask: Ask
    observed: ObservedDecision
    execution: Execution
    metrics: Sequence[Feedback]

    def receipt(self, status: str, seq: int, *, evaluable: bool) -> ObservationReceipt:
        """Count the item, and return the reply to its sender."""
        self.replica.telemetry.count_tapped(self.observed.drawn, status)
        return construct(
            ObservationReceipt,
            decision_id=self.caller.strip_prefix(self.ask.decision_id),
            arm=self.observed.drawn,
            status=status,
            evaluable=evaluable,
            log_seq=seq,
        )


@router.post(
    "/v1/observations",
    **document_route(
        "sendObservations",
        ObservationReceipts,
        *(*REFUSALS, "unknown_arm", "arm_failed"),
        scopes=("decide",),
        status=202,
        example={
            "items": [
                {
                    "id": "call-1",
                    "question": "Who wrote Faust?",
                    "arm": "none",
                    "propensity": 0.9,
                    "cost": {"usd": 0.002, "seconds": 1.4},
                }
            ]
        },
    ),
)
async def observations(
    replica: AppReplica, caller: RequestCaller, body: ObservationBatch, key: IdempotencyKey = None
) -> Response:
    """Record decisions that another system made, each with a status; nothing is decided, and none is changed.

    An item is the same one when it is sent again under its `id`; one without gets the idempotency key of
    the request as its id, with its index from 0: `<key>:<index>`. Metrics may come at once, for which the
    key needs the scope `feedback` too, or later by `POST /v1/feedback`. If no item was kept, the whole batch
    is refused, and `reasons` has the error of each item.
    """
    async with admission.place(replica, caller):
        rows = await keep_each(replica, caller, body.items, batches.name_items(body.items, key))
    return StdlibJson(construct(ObservationReceipts, items=batches.replies(rows)), 202)


async def keep_each(
    replica: Replica, caller: Caller, items: Sequence[object], names: Sequence[str | None]
) -> list[ObservationReceipt | ApiError]:
    """Store items independently, and return the reply to each, or its error.

    Args:
        replica: Keeps the items.
        caller: The sender.
        items: The items as JSON, in the form of `ObservationItem`.
        names: Default id of each item.

    Raises:
        ApiError: No item was stored.
    """
    checked = [_item_or_error(replica, caller, *pair) for pair in zip(items, names, strict=True)]
    ids = [item.ask.decision_id for item in checked if isinstance(item, CheckedDecision)]
    stored_decisions = await asyncio.to_thread(replica.store.decisions, ids)
    begun = list[ObservationReceipt | Exception | asyncio.Task[ObservationReceipt]]()
    for n, item_or_error in enumerate(checked, start=1):
        if n % TOGETHER == 0:
            await asyncio.sleep(0)
        begun.append(
            await _begin_commit(item_or_error, stored_decisions)
            if isinstance(item_or_error, CheckedDecision)
            else item_or_error
        )
    if commits := [task for task in begun if isinstance(task, asyncio.Task)]:
        await asyncio.wait(commits)
    return batches.some_kept(
        [
            outcome if isinstance(outcome, ObservationReceipt) else errors.translate(outcome).show_to(caller)
            for outcome in map(_outcome, begun)
        ]
    )


def _outcome(
    begun: "ObservationReceipt | Exception | asyncio.Task[ObservationReceipt]",
) -> ObservationReceipt | Exception:
    """Return the receipt or the error of an item. Raises unexpected exceptions."""
    if not isinstance(begun, asyncio.Task):
        return begun
    try:
        return begun.result()
    except REFUSED as error:
        return error


Known = Mapping[str, tuple[Decision, int]]
"""Decisions that are in the log already, with their positions, by id."""


async def _begin_commit(
    item: CheckedDecision, stored_decisions: Known
) -> "ObservationReceipt | Exception | asyncio.Task[ObservationReceipt]":
    """Queue the commit of an item, and return it; or its receipt or error, if it needs none."""
    try:
        if row := stored_decisions.get(item.ask.decision_id):
            return await _again(item, *row)
        decision = await item.replica.turns.build_observed(item.ask, item.observed)
        future = item.replica.log.append(decision, item.execution, *item.metrics)
    except REFUSED as error:
        return error
    return asyncio.ensure_future(_await_commit(item, decision, future))


async def _await_commit(
    item: CheckedDecision, decision: Decision, commit: "asyncio.Future[Any]"
) -> ObservationReceipt:
    """Return the receipt of an item once it is durable; another request may have been faster."""
    try:
        receipts = await commit
    except ConflictError:
        row = (await asyncio.to_thread(item.replica.store.decisions, [decision.id])).get(decision.id)
        if row is None:  # it is the id of a metric that is taken
            raise
        return await _again(item, *row)
    for fact, receipt in zip(item.metrics, receipts[2:], strict=True):
        item.replica.telemetry.count_feedback(fact, receipt)
    return item.receipt("accepted", receipts[-1].seq, evaluable=bool(decision.probabilities))


async def _again(item: CheckedDecision, logged: Decision, seq: int) -> ObservationReceipt:
    """Return the receipt of an item whose id is in the log: a repeat, or the execution of a decision.

    Raises:
        AskError: The logged decision is a different one.
        StoreError: The item cannot be committed.
    """
    shown, evaluable = item.caller.strip_prefix(logged.id), bool(logged.probabilities)
    if logged.policy == OBSERVED:
        if not logged.erased and logged.request_digest != item.ask.request_digest:
            raise admission.KeyReusedError(f"id {shown!r} was used for another observation", "id")
        return item.receipt("duplicate", seq, evaluable=evaluable)
    if not item.replica.config.external:
        raise admission.KeyReusedError(
            f"id {shown!r} belongs to a decision that this service made and served", "id"
        )
    if logged.drawn != item.observed.drawn:
        message = f"{shown!r} fell on arm {logged.drawn!r}, and not on {item.observed.drawn!r}"
        raise admission.KeyReusedError(message, "arm")
    done, *fed = await item.replica.log.append(item.execution, *item.metrics)
    for fact, receipt in zip(item.metrics, fed, strict=True):
        item.replica.telemetry.count_feedback(fact, receipt)
    last = max(receipt.seq for receipt in (done, *fed))
    return item.receipt("completed" if done.seq else "duplicate", last or seq, evaluable=evaluable)


_ITEM = TypeAdapter(ObservationItem)


def _item_or_error(
    replica: Replica, caller: Caller, item: object, name: str | None
) -> CheckedDecision | Exception:
    try:
        return check_decision(replica, caller, _ITEM.validate_python(item), name)
    except ValidationError as error:
        return RequestValidationError(error.errors())
    except REFUSED as error:
        return error


def check_decision(
    replica: Replica, caller: Caller, item: ObservationItem, key: str | None = None
) -> CheckedDecision:
    """Check an item.

    Raises:
        AskError: A field is out of its range, or names an arm that is not live.
        RewardError: A metric is not declared, or its value is out of range.
        ForeignIdError: An id names the project of another caller.
        ForbiddenError: It has metrics, and the key may not send feedback.
        ApiError: The service takes no observations.
    """
    if replica.config.tap is None:
        raise ApiError("invalid_value", "this service takes no observations: set `tap` in its configuration")
    question, now = request_fields.check_question(item.question, replica, "question"), replica.clock()
    name = item.id or key
    decision_id = caller.to_stored_id(name) if name else caller.new_id()
    ask = Ask(
        decision_id=decision_id,
        question=question,
        context=request_fields.check_context(item.features, replica, "features"),
        episode_id=item.episode_id and caller.to_stored_id(item.episode_id, "episode"),
        request_digest=request_fields.digest_request(item) if name else "",
        user_digest=request_fields.user_digest(replica, caller, item.user),
        asked_by=caller.identify(replica.store.draw_secret),
    )
    observed = _read_decision(replica, item, now)
    failed, spent = item.status == "failed", item.cost
    execution = Execution(
        decision_id,
        None if failed else observed.drawn,
        Status.ARM_FAILED if failed else Status.OK,
        Cost(spent.steps, spent.prompt_tokens, spent.completion_tokens, 0.0, spent.seconds, spent.usd),
        finished_at=now,
    )
    return CheckedDecision(
        replica, caller, ask, observed, execution, _metrics(replica, caller, item, decision_id, now)
    )


def _read_decision(replica: Replica, item: ObservationItem, now: float) -> ObservedDecision:
    """Return the decision of an item, on live arms. Raises AskError."""
    drawn = request_fields.find_arm(replica, item.arm, "arm")
    named = item.arms and dict.fromkeys(request_fields.find_arm(replica, name, "arms") for name in item.arms)
    if item.distribution is not None:
        if item.propensity is not None:
            raise admission.InvalidAskError("give either propensity or distribution, not both", "propensity")
        p = request_fields.validate_distribution(replica, item.distribution, "distribution")
        if (chance := p.get(drawn, 0.0)) < LEAST_PROPENSITY:
            least = f"at least {LEAST_PROPENSITY:g} was expected"
            message = f"arm {item.arm!r} was chosen, and has the probability {chance:g}: {least}"
            raise admission.InvalidAskError(message, "distribution")
        if named and (others := [arm for arm in p if arm not in named]):
            message = f"arm {others[0]!r} has a probability, and is not among: {', '.join(named)}"
            raise admission.InvalidAskError(message, "distribution")
        arms = tuple(named or p)
        return ObservedDecision(arms, tuple(p.get(arm, 0.0) for arm in arms), drawn, _at(replica, item, now))
    if named and drawn not in named:
        raise admission.InvalidAskError(f"arm {item.arm!r} is not among: {', '.join(named)}", "arms")
    live = [name for name, info in replica.turns.arms.items() if info.enabled or name == drawn]
    first = (drawn, *(arm for arm in named or live if arm != drawn))
    probabilities = _probabilities(item.propensity, len(first))
    return ObservedDecision(first, probabilities, drawn, _at(replica, item, now))


def _probabilities(propensity: float | None, n_arms: int) -> tuple[float, ...]:
    """Return the distribution as far as the propensity of the first arm determines it.

    >>> _probabilities(0.75, 2), _probabilities(1.0, 3), _probabilities(0.5, 3), _probabilities(None, 3)
    ((0.75, 0.25), (1.0, 0.0, 0.0), (0.5,), ())

    Raises:
        AskError: A single arm was not chosen for certain.
    """
    if propensity is None:
        return ()
    if n_arms == 1 and propensity < 1.0:
        message = f"propensity is {propensity:g}, and no other arm could be chosen: 1 was expected"
        raise admission.InvalidAskError(message, "propensity")
    if propensity == 1.0 or n_arms == 2:
        return (propensity, 1.0 - propensity, *(0.0,) * (n_arms - 2))[:n_arms]
    return (propensity,)


def _at(replica: Replica, item: ObservationItem, now: float) -> float:
    """Return the checked time of the decision: in the past, while feedback still counts. Raises AskError."""
    if item.at is None:
        return now
    at, wait_s = item.at.timestamp(), replica.config.reward.wait_s
    if at > now + AHEAD_S:
        message = f"at is {at - now:.0f} s in the future: {AHEAD_S:g} s at most were expected"
        raise admission.InvalidAskError(message, "at")
    if at + wait_s < now:
        message = (
            f"at is {now - at:.0f} s ago, and feedback counts for {wait_s:g} s (`reward.wait_time`): "
            "`armwise import` reads older logs"
        )
        raise admission.InvalidAskError(message, "at")
    return min(at, now)


def _metrics(
    replica: Replica, caller: Caller, item: ObservationItem, decision_id: str, now: float
) -> list[Feedback]:
    """Return the metrics that come with an item as facts. Raises RewardError, AskError, ForbiddenError."""
    rule, values = replica.config.reward, dict(item.metrics)
    if item.reward is not None:
        if len(rule.metrics) != 1:
            there = ", ".join(rule.metrics)
            message = f"several metrics are configured, so name one in `metrics`: {there}"
            raise admission.InvalidAskError(message, "reward")
        (only,) = rule.metrics
        if only in values:
            raise admission.InvalidAskError(
                f"`metrics` already has a value for {only!r}: leave `reward` out", "reward"
            )
        values[only] = item.reward
    if values:
        require_scope(caller, ("feedback",))
    facts = []
    for name, value in values.items():
        shown = caller.strip_prefix(decision_id)
        fact = Feedback(
            caller.to_stored_id(f"{shown}:{name}", "feedback"),
            decision_id,
            name,
            rule.metric(name).parse(value, name),
            now,
            source=caller.source,
            key=caller.key,
            content={"label": value} if isinstance(value, str) else {},
            rater=caller.find_rater(replica.store.draw_secret),
        )
        facts.append(fact)
    return facts
