"""Rank, reward and activate: an event is a decision of the point, and its id is the decision's."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, StrictBool

from armwise.agent.access import Caller
from armwise.agent.api import feedback, ranking, responses, schemas
from armwise.agent.api.errors import ApiError
from armwise.agent.api.personalizer.protocol import (
    Body,
    EventId,
    EventPath,
    PointCaller,
    ProtocolPoint,
    route,
)
from armwise.agent.replies import ActionProbability
from armwise.agent.serving import DecisionPoint
from armwise.agent.serving import ask as asking
from armwise.feedback.events import Decision
from armwise.feedback.log import listing

router = APIRouter()

FeatureList = Annotated[list[dict[str, Any]] | None, Field(max_length=1024)]


class RankableAction(Body):
    """An action with its features, in one object or several."""

    id: str = Field(min_length=1, max_length=128)
    features: FeatureList = None


class RankRequest(Body):
    """`POST /rank`."""

    context_features: FeatureList = None
    actions: list[RankableAction] = Field(min_length=1, max_length=200)
    excluded_actions: list[str] | None = Field(default=None, max_length=200)
    event_id: EventId | None = None
    defer_activation: StrictBool | None = None


class Slot(Body):
    """A place that shows one action."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    baseline_action: str
    features: FeatureList = None
    excluded_actions: list[str] | None = Field(default=None, max_length=200)


class MultiSlotRequest(RankRequest):
    """`POST /multislot/rank`."""

    slots: list[Slot] = Field(min_length=1, max_length=50)


class Reward(Body):
    """`POST /events/{eventId}/reward`."""

    value: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class SlotReward(Reward):
    """The reward of a slot."""

    slot_id: str = Field(max_length=64)


class SlotRewards(Body):
    """`POST /multislot/events/{eventId}/reward`."""

    reward: list[SlotReward] = Field(min_length=1, max_length=50)


class Ranking(Body):
    """The action that was chosen: the first of the ranking."""

    ranking: Sequence[ActionProbability]
    event_id: str
    reward_action_id: str


class SlotChoice(Body):
    """The action of a slot."""

    id: str
    reward_action_id: str


class SlotChoices(Body):
    """The actions of all slots, in the order of the request."""

    event_id: str
    slots: Sequence[SlotChoice]


@route(router, "POST", "/rank", 201, "decide")
async def rank(point: ProtocolPoint, caller: PointCaller, body: RankRequest) -> Response:
    """Choose among the actions; the first that is not excluded is the baseline."""
    excluded = set(body.excluded_actions or ())
    decision = await _ranked(
        point, caller, body, body.event_id, body.context_features, body.actions, excluded
    )
    reply = Ranking(
        ranking=ranking.ranked(decision),
        event_id=_event_of(decision, point),
        reward_action_id=decision.drawn,
    )
    return responses.Json(reply, 201)


@route(router, "POST", "/events/{event_id}/reward", 204, "feedback")
async def reward(point: ProtocolPoint, caller: PointCaller, event_id: EventPath, body: Reward) -> Response:
    """Keep a reward: a value of the first metric of the point."""
    await _rewarded(point, caller, event_id, body.value)
    return Response(status_code=204)


@route(router, "POST", "/events/{event_id}/activate", 204, "feedback")
async def activate(point: ProtocolPoint, caller: PointCaller, event_id: EventPath) -> Response:
    """Record that the action of a deferred event was shown."""
    await feedback.keep(feedback.activation(point, caller, _named(point, event_id)))
    return Response(status_code=204)


@route(router, "POST", "/multislot/rank", 201, "decide")
async def rank_slots(point: ProtocolPoint, caller: PointCaller, body: MultiSlotRequest) -> Response:
    """Choose an action for each slot, one after the other, among those that no slot before has.

    Each slot is a decision of its own, `<eventId>:<slot>`, and its baseline action comes first in it. The
    request counts as one for each slot.
    """
    if len({slot.id for slot in body.slots}) < len(body.slots):
        raise ApiError("invalid_value", "two slots have the same id", "slots")
    if len(body.slots) > len(body.actions):
        raise ApiError("invalid_value", "there are more slots than actions", "slots")
    await asking.admit(point, caller, len(body.slots) - 1)  # the request was counted as one
    event = body.event_id or caller.shown(caller.new_id())
    taken, choices = list[str](), list[SlotChoice]()
    for slot in body.slots:
        if slot.baseline_action not in {action.id for action in body.actions}:
            raise ApiError(
                "invalid_value", f"{slot.baseline_action!r} is not one of the actions", "slots.baselineAction"
            )
        first = slot.baseline_action
        actions = [
            *(action for action in body.actions if action.id == first),
            *(action for action in body.actions if action.id != first),
        ]
        excluded = {*taken, *(body.excluded_actions or ()), *(slot.excluded_actions or ())}
        context = [*(body.context_features or ()), {"slot": _merged(slot.features)}]
        decision = await _ranked(
            point, caller, body, f"{event}:{slot.id}", context, actions, excluded, episode=event
        )
        taken.append(decision.drawn)
        choices.append(SlotChoice(id=slot.id, reward_action_id=decision.drawn))
    return responses.Json(SlotChoices(event_id=event, slots=choices), 201)


@route(router, "POST", "/multislot/events/{event_id}/reward", 204, "feedback")
async def reward_slots(
    point: ProtocolPoint, caller: PointCaller, event_id: EventPath, body: SlotRewards
) -> Response:
    """Keep the rewards of slots."""
    for slot_reward in body.reward:
        await _rewarded(point, caller, f"{event_id}:{slot_reward.slot_id}", slot_reward.value)
    return Response(status_code=204)


@route(router, "POST", "/multislot/events/{event_id}/activate", 204, "feedback")
async def activate_slots(point: ProtocolPoint, caller: PointCaller, event_id: EventPath) -> Response:
    """Record that the actions of all slots of an event were shown."""
    stored = caller.stored(_named(point, event_id), "episode")
    criteria = listing.DecisionFilter(episode=stored)
    rule = point.config.reward
    page = await asyncio.to_thread(listing.decisions, point.store, rule, criteria, 50)
    for row in page.decisions:
        item = feedback.activation(point, caller, caller.shown_id(row.decision.id))
        await feedback.keep(item)
    return Response(status_code=204)


async def _ranked(
    point: DecisionPoint,
    caller: Caller,
    body: RankRequest,
    event: str | None,
    context: Sequence[Mapping[str, Any]] | None,
    actions: Iterable[RankableAction],
    excluded: set[str],
    *,
    episode: str | None = None,
) -> Decision:
    """Return the decision of an event, or of one of its slots, by the ids of the actions. Raises ApiError."""
    # excluded ones come last, so that the first position is the baseline
    ordered = sorted(actions, key=lambda action: action.id in excluded)
    action_ids = {action.id for action in ordered}
    request = schemas.RankRequest(
        point=point.name,
        context=_merged(context),
        actions=[schemas.Action(id=action.id, features=_merged(action.features)) for action in ordered],
        excluded=[name for name in excluded if name in action_ids],
        episode_id=episode,
        defer_activation=bool(body.defer_activation),
    )
    key = None if event is None else _named(point, event)
    return await ranking.decide(point, caller, request, key, None)


def _merged(features: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return the features of several objects in one.

    >>> _merged([{"user": {"tier": "free"}, "hour": 9}, {"device": {"os": "linux"}}])
    {'user': {'tier': 'free'}, 'hour': 9, 'device': {'os': 'linux'}}
    """
    return {name: value for part in features or () for name, value in part.items()}


def _named(point: DecisionPoint, event: str) -> str:
    """Return the id of an event as /v1 knows it: after the name of the point."""
    return f"{point.name}:{event}"


def _event_of(decision: Decision, point: DecisionPoint) -> str:
    return decision.id.removeprefix(f"{point.name}:")


async def _rewarded(point: DecisionPoint, caller: Caller, event: str, value: float) -> None:
    metric = next(iter(point.config.reward.metrics))
    item = schemas.FeedbackItem(decision_id=_named(point, event), metric_name=metric, value=value)
    await feedback.keep(feedback.item_of(point, caller, item))
