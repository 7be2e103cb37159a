"""`POST /v1/decisions`: choose among actions that come with the request, or among arms of another system.

In the log, the arms of such a decision are the positions of its actions: `action-1`, `action-2` and so on.
Ids may be new in every request; positions are few, so neither a policy nor an evaluation grows with the ids.
The question of the decision is what was asked, as JSON: the ids in their order, and the context.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Response

from armwise.agent.access import Caller
from armwise.agent.api import responses
from armwise.agent.api.documented import TURN, documented, link
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppService, ServiceCaller, caller_at, find_point
from armwise.agent.api.schemas import (
    Action,
    ChoiceRequest,
    DecisionRequest,
    IdempotencyKey,
    RankRequest,
    Timeout,
    storable,
)
from armwise.agent.config import ACTION_PREFIX, Limits
from armwise.agent.policies import FeatureError, describe_action, flattened
from armwise.agent.replies import ActionChoice, ActionProbability, construct
from armwise.agent.serving import DecisionPoint, Service
from armwise.agent.serving import ask as asking
from armwise.agent.turn import Ask
from armwise.feedback.events import Decision
from armwise.feedback.log import LoggedDecision

router = APIRouter(tags=["decisions"])


@router.post(
    "/v1/decisions",
    **documented(
        "decide",
        ActionChoice,
        *TURN,
        scopes=("decide",),
        success={
            "headers": responses.DECISION_HEADERS,
            **link("getDecision", decision_id="$response.body#/decision_id"),
        },
        example={
            "point": "news",
            "context": {"user": {"tier": "free"}},
            "actions": [
                {"id": "a-1", "features": {"topic": "sport"}},
                {"id": "a-2", "features": {"topic": "opera"}},
            ],
        },
    ),
)
async def rank(
    service: AppService,
    caller: ServiceCaller,
    body: DecisionRequest,
    key: IdempotencyKey = None,
    timeout_s: Timeout = None,
) -> Response:
    """Choose among the actions of the request; nothing is retrieved, and nothing generated.

    Without `actions`, with a `question`: choose among the arms of a point that its callers carry out, beside
    the caller's own choice. How that ended is reported by `POST /v1/observations` with the decision's id.
    """
    if isinstance(body, ChoiceRequest):
        point = find_point(service, body.point)
        decision = await choose(point, caller_at(point, caller), body, key, timeout_s)
    else:
        point = ranking_at(service, body.point)
        decision = await decide(point, caller_at(point, caller), body, key, timeout_s)
    reply = construct(
        ActionChoice,
        object="decision",
        point=point.name,
        decision_id=decision.id,
        episode_id=decision.episode_id,
        policy_version=decision.version,
        mode=decision.mode.value,
        chosen=decision.drawn,
        propensity=decision.propensity,
        ranking=ranked(decision),
        pmf=dict(zip(decision.arms, decision.probabilities, strict=True)),
        reward_deadline=decision.deadline,
    )
    return responses.Json(reply, headers=responses.headers(decision, None))


def ranking_at(service: Service, name: str) -> DecisionPoint:
    """Return a point whose actions come with the request. Raises ApiError."""
    point = find_point(service, name)
    if not point.ranks:
        there = ", ".join(other.name for other in service.points.values() if other.ranks) or "none"
        message = f"point {name!r} has arms of its own; those whose actions come with a request: {there}"
        raise ApiError("invalid_value", message, "point")
    return point


async def decide(
    point: DecisionPoint, caller: Caller, body: RankRequest, key: str | None, timeout_s: float | None
) -> Decision:
    """Return the decision among the actions of a request, by their ids. Raises ApiError."""
    ask = read_ask(point, caller, body, key)
    decided, _, _ = await asking.whole(asking.stream_turn(point, caller, ask, key, timeout_s))
    return by_ids(decided.decision)


async def choose(
    point: DecisionPoint, caller: Caller, body: ChoiceRequest, key: str | None, timeout_s: float | None
) -> Decision:
    """Return the decision among the arms of a point, which the caller carries out. Raises ApiError."""
    if not point.external:
        there = ", ".join(other.name for other in point.service.points.values() if other.external) or "none"
        message = f"the arms of point {point.name!r} answer here; those whose callers carry them out: {there}"
        raise _refused(message, "point")
    question = asking.checked_question(body.question, point, "question")
    incumbent, tap = asking.read_incumbent(point, body.incumbent, "incumbent"), point.config.tap
    if incumbent is None and tap is not None and tap.incumbent is None and tap.share < 1.0:
        message = (
            f'the caller\'s own choice was expected, as `tap.share` is {tap.share:g}: {{"arm": "<name>"}}'
        )
        raise _refused(message, "incumbent")
    ask = Ask(
        decision_id=caller.stored(key) if key else caller.new_id(),
        question=question,
        allowed=None if body.allowed_arms is None else frozenset(body.allowed_arms),
        excluded=frozenset(body.excluded_arms),
        explore=body.explore,
        context=asking.checked_context(body.context, point, "context"),
        episode_id=body.episode_id and caller.stored(body.episode_id, "episode"),
        deferred=body.defer_activation,
        request_digest=asking.digest_request(body) if key else "",
        user_digest=asking.user_digest(point, caller, body.user),
        incumbent=incumbent,
        external=True,
    )
    events = asking.stream_turn(point, caller, ask, key, timeout_s)
    async with aclosing(events):
        return (await asking.begun(events)).decision


def read_ask(point: DecisionPoint, caller: Caller, body: RankRequest, key: str | None) -> Ask:
    """Check a request, and return it for the turn. Raises ApiError."""
    limits, ids = point.config.limits, [action.id for action in body.actions]
    if len(ids) > limits.actions:
        raise _refused(f"{len(ids)} actions were sent; at most {limits.actions} are read", "actions")
    if len(set(ids)) < len(ids):
        twice = next(name for n, name in enumerate(ids) if name in ids[:n])
        raise _refused(f"{twice!r} is the id of two actions", "actions")
    names = {action.id: f"{ACTION_PREFIX}{n}" for n, action in enumerate(body.actions, 1)}
    if unknown := [name for name in body.excluded if name not in names]:
        raise _refused(f"{unknown[0]!r} is not one of the actions", "excluded")
    reader = _Reader(limits)
    context = asking.redacted(reader.read(body.context, "context"), point)
    described = {
        names[action.id]: describe_action(action.id, reader.read_action(action, f"actions.{n}.features"))
        for n, action in enumerate(body.actions)
    }
    if set(body.excluded) == set(ids):
        raise ApiError("no_eligible_arm", "every action is excluded", "excluded")
    return Ask(
        decision_id=caller.stored(key) if key else caller.new_id(),
        question=write_question(ids, context),
        excluded=frozenset(names[name] for name in body.excluded),
        explore=body.explore,
        context=context,
        episode_id=body.episode_id and caller.stored(body.episode_id, "episode"),
        deferred=body.defer_activation,
        request_digest=asking.digest_request(body) if key else "",
        user_digest=asking.user_digest(point, caller, body.user),
        actions=described,
        ids={slot: name for name, slot in names.items()},
    )


@dataclass(slots=True)
class _Reader:
    """Reads features within the limits of a request.

    Attributes:
        limits: The limits.
        size: Bytes of the names and texts so far.
    """

    limits: Limits
    size: int = 0

    def read_action(self, action: Action, param: str) -> Mapping[str, float | str | bool]:
        """Return the features of an action by flat names. Raises ApiError."""
        self._count(action.id, param)
        return self.read(action.features, param)

    def read(self, nested: Mapping[str, Any], param: str) -> Mapping[str, float | str | bool]:
        """Return features by flat names. Raises ApiError."""
        try:
            flat = flattened(nested, self.limits.action_features)
        except FeatureError as error:
            raise _refused(f"{param}: {error}", param) from None
        bound = self.limits.context_number
        for name, value in flat.items():
            where = f"{param}.{name}"[:300]
            for text in (name, value) if isinstance(value, str) else (name,):
                if len(text) > self.limits.context_text:
                    limit = f"at most {self.limits.context_text} are read"
                    raise _refused(f"{text[:20]!r} and so on has {len(text)} characters; {limit}", where)
                self._count(text, where)
            if isinstance(value, str):
                continue
            if not isinstance(value, int | float) or not -bound <= value <= bound:  # refuses NaN, too
                raise _refused(
                    f"{where} is {value!r:.40}; a number from -{bound:g} to {bound:g} was expected", where
                )
        return flat

    def _count(self, text: str, param: str) -> None:
        try:
            self.size += len(storable(text).encode())
        except ValueError as error:
            raise _refused(str(error), param) from None
        if self.size > self.limits.action_bytes:
            raise _refused(f"names and texts have more than {self.limits.action_bytes} bytes", "actions")


def _refused(message: str, param: str) -> ApiError:
    return ApiError("invalid_value", message, param)


def write_question(ids: Sequence[str], context: Mapping[str, float | str | bool]) -> str:
    """Return what was asked, as one text: equal for equal ids and contexts.

    >>> write_question(["b", "a"], {"x": 1})
    '{"actions":["b","a"],"context":{"x":1}}'
    """
    document = {"actions": list(ids), "context": dict(context)}
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def by_ids(decision: Decision) -> Decision:
    """Return a decision with the ids of the actions in the place of their positions, unless it was erased."""
    if decision.erased:
        return decision
    ids = dict(enumerate(json.loads(decision.context.question)["actions"], 1))

    def name(arm: str) -> str:
        return str(ids[int(arm.removeprefix(ACTION_PREFIX))])

    described = {name(arm): features for arm, features in decision.context.arms.items()}
    return replace(
        decision,
        context=replace(decision.context, arms=described),
        arms=tuple(map(name, decision.arms)),
        drawn=name(decision.drawn),
        masked={name(arm): why for arm, why in decision.masked.items()},
    )


def record_by_ids(found: LoggedDecision) -> LoggedDecision:
    """Return a record with the ids of the actions in the place of their positions."""
    decision, execution = by_ids(found.decision), found.execution
    return replace(
        found, decision=decision, execution=execution and replace(execution, served=decision.drawn)
    )


def ranked(decision: Decision) -> list[ActionProbability]:
    """Return the probability of each action: the chosen one first, the others by falling probability."""
    p = dict(zip(decision.arms, decision.probabilities, strict=True))
    order = sorted(p, key=lambda name: (name != decision.drawn, -p[name]))
    return [construct(ActionProbability, id=name, probability=p[name]) for name in order]
