"""Check what a request asks, and run its turn: what every route that decides has in common."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from pydantic import BaseModel

from agent.access import Caller
from agent.api import admission
from agent.api.errors import ApiError
from agent.api.middleware import at_point, caller_at
from agent.api.schemas import AgentOptions
from agent.policies import FeatureSpec
from agent.serving import Ask, Decided, Finished, Replica, choices, messages
from arms import tracing
from arms.filters import GROUPS, Comparison, Compound, comparisons
from arms.llm import Chunk
from feedback.log import erasures

POINT = "point/"
"""What a model begins with that names a decision point; the model there may follow, after a slash."""


def at_model(replica: Replica, caller: Caller, model: str) -> tuple[Replica, Caller]:
    """Return the replica and the caller at the point that a model names, if it names one. Raises ApiError."""
    if model.startswith(POINT):
        replica = at_point(replica, model.removeprefix(POINT).partition("/")[0])
    return replica, caller_at(replica, caller)


class Asking(Protocol):
    """The body of a request that decides."""

    @property
    def model(self) -> str:
        """`auto`, or the arm to force."""
        ...

    @property
    def agent(self) -> AgentOptions:
        """The fields that OpenAI's API does not have."""
        ...

    def model_dump_json(self, *, exclude_defaults: bool, warnings: bool) -> str:
        """Return it as JSON."""
        ...


def ask_of(
    replica: Replica,
    caller: Caller,
    question: str,
    body: Asking,
    key: str | None,
    param: str = "messages",
    where: Comparison | Compound | None = None,
    **rest: Any,
) -> Ask:
    """Check what the routes have in common, and return the question for the turn. Raises ApiError."""
    limit, options = replica.config.limits.question_chars, body.agent
    if not question.strip():
        raise ApiError("invalid_value", "the question is empty", param)
    if len(question) > limit:
        message = f"the question has {len(question)} characters; at most {limit} are read"
        raise ApiError("invalid_value", message, param)
    user = options.user or getattr(body, "user", None)
    groups = _groups(caller, options.groups)
    return Ask(
        decision_id=caller.stored(key) if key else caller.new_id(),
        question=replica.redact(question),
        user_digest=user_digest(replica, caller, user),
        forced=forced_arm(replica, body.model),
        allowed=None if options.allowed_arms is None else frozenset(options.allowed_arms),
        excluded=frozenset(options.excluded_arms),
        explore=options.explore,
        context=_context(options.context, replica),
        cost_weight=_cost_weight(options.cost_weight, replica.config.features),
        episode_id=options.episode_id and caller.stored(options.episode_id, "episode"),
        deferred=options.defer_activation,
        request_digest=digest_of(body, groups) if key else "",
        where=_where(options.filters if where is None else where),
        groups=groups,
        **rest,
    )


def _groups(caller: Caller, wanted: Sequence[str] | None) -> frozenset[str]:
    """Return the groups that a request is made for: those of its key, or fewer. Raises ApiError."""
    if wanted is None:
        return caller.groups
    if foreign := sorted({*wanted} - caller.groups):
        message = (
            f"this key is not of the groups {', '.join(map(repr, foreign))}: some of its own were expected"
        )
        raise ApiError("forbidden", message, "agent.groups")
    return frozenset(wanted)


def _where(where: Comparison | Compound | None) -> Comparison | Compound | None:
    """Return a filter that does not look at who else may see a passage. Raises ApiError."""
    if where is not None and any(one.key == GROUPS for one in comparisons(where)):
        message = f"{GROUPS!r} cannot be filtered by: the key has the groups of its callers"
        raise ApiError("invalid_value", message, "filters")
    return where


def user_digest(replica: Replica, caller: Caller, user: str | None) -> str | None:
    """Return what the log keeps of the end user that a request names; None where it names none."""
    return erasures.user_digest(replica.store, caller.project, user) if user else None


def _context(context: Mapping[str, float | str | bool], replica: Replica) -> Mapping[str, float | str | bool]:
    """Return a context within the limits, its texts redacted. Raises ApiError."""
    limits = replica.config.limits
    if len(context) > limits.context_features:
        message = f"the context has {len(context)} names; at most {limits.context_features} are read"
        raise ApiError("invalid_value", message, "agent.context")
    size = 0
    for name, value in context.items():
        param = f"agent.context.{name[: limits.context_text]}"
        for text in (name, value) if isinstance(value, str) else (name,):
            size += len(text.encode())
            if len(text) > limits.context_text:
                limit = f"at most {limits.context_text} are read"
                message = f"{text[:20]!r} and so on has {len(text)} characters; {limit}"
                raise ApiError("invalid_value", message, param)
        if not isinstance(value, str) and abs(value) > limits.context_number:
            bound = f"{limits.context_number:g}"
            message = (
                f"context {name!r} is {value:g}; a number from -{bound} to {bound} was expected: scale it"
            )
            raise ApiError("invalid_value", message, param)
    if size > limits.context_bytes:
        message = f"the texts of the context have {size} bytes; at most {limits.context_bytes} are read"
        raise ApiError("invalid_value", message, "agent.context")
    return redacted(context, replica)


def redacted(context: Mapping[str, float | str | bool], replica: Replica) -> Mapping[str, float | str | bool]:
    """Return a context with its texts redacted; numbers and names stay."""
    return {key: replica.redact(one) if isinstance(one, str) else one for key, one in context.items()}


def _cost_weight(weight: float | None, features: FeatureSpec) -> float | None:
    """Return a cost weight within its range. Raises ApiError."""
    if weight is None:
        return None
    if features.cost_weights is None:
        message = "no request may name a cost weight here: `features.cost_weights` has no range"
        raise ApiError("invalid_value", message, "agent.cost_weight")
    low, high = features.cost_weights
    if not low <= weight <= high:
        message = f"cost_weight is {weight:g}; a number from {low:g} to {high:g} was expected"
        raise ApiError("invalid_value", message, "agent.cost_weight")
    return weight


def digest_of(body: Asking | BaseModel, groups: frozenset[str] = frozenset()) -> str:
    """Return a hash of a request; a field at its default is left out, so that a new field changes none.

    Callers of other groups make another request: an answer was written from what its callers may see.
    """
    explicit = body.model_dump_json(exclude_defaults=True, warnings=False)  # of numbers in the context
    if groups:
        explicit += json.dumps(sorted(groups))
    return hashlib.sha256(explicit.encode()).hexdigest()


def forced_arm(replica: Replica, model: str) -> str | None:
    """Return the arm that a model names; None for `auto`, or for the point alone. Raises ApiError."""
    if replica.ranks:
        message = f"the actions of point {replica.point!r} come with a request: POST /v1/decisions"
        raise ApiError("invalid_value", message, "model")
    if model.startswith(POINT):
        point, _, model = model.removeprefix(POINT).partition("/")
        if point != replica.point:
            message = f"this route takes no point by its model: ?point={point} was expected"
            raise ApiError("invalid_value", message, "model")
    if model in ("auto", ""):
        return None
    prefix, _, arm = model.partition("/")
    if prefix != "arm" or not arm:
        message = f"model {model!r}: 'auto' or 'arm/<name>' was expected, or 'point/<name>' before it"
        raise ApiError("model_not_found", message, "model")
    return arm


async def events_of(
    replica: Replica, caller: Caller, ask: Ask, key: str | None, timeout_s: float | None
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a new turn, or of the earlier turn under the same key, where there is room.

    Ids are shown as the caller knows them.
    """

    async def opened(commits: list[messages.Commit]) -> admission.Opening:
        loop = replica.turns
        record = None if key is None else await asyncio.to_thread(replica.store.record, ask.decision_id)
        if record is None:
            admission.require_eligible(replica, ask)
            turn = loop.rank if ask.actions else loop.turn
            return admission.Opening(turn(ask, commits.append), loop.most(ask))
        if admission.was_cut_off(replica, ask, record):
            admission.require_known(replica, ask, record.decision.drawn, "decided on")
            resumed = loop.resume(ask, record.decision, commits.append)
            return admission.Opening(resumed, loop.most_to_resume(ask, record.decision))
        return await admission.repeated(replica, ask, record)  # also where an arm was switched off since

    tracing.TURN.set(tracing.Turn(ask.decision_id, ask.episode_id or "", ask.question))
    try:
        async with aclosing(admission.admitted(replica, caller, ask, key, timeout_s, opened)) as events:
            async for event in events:
                yield _shown(event, caller) if caller.prefix or caller.point else event
    except ApiError as error:
        raise error.shown_to(caller) from error.__cause__


def _shown(event: messages.Event, caller: Caller) -> messages.Event:
    """Return an event with ids as its caller knows them: without the project, with the point."""
    match event:
        case Decided(decision):
            episode_id = decision.episode_id and caller.shown_id(decision.episode_id)
            shown = replace(decision, id=caller.shown_id(decision.id), episode_id=episode_id)
            return replace(event, decision=shown)
        case Chunk() if event.tool_calls:
            calls = (
                {**call, "id": _shown_call(call["id"], caller)} if "id" in call else call
                for call in event.tool_calls
            )
            return replace(event, tool_calls=tuple(calls))
    return event


def _shown_call(name: str, caller: Caller) -> str:
    """Return the id of a call of a function, which ends in that of its decision."""
    decision_id = choices.decision_of_call(name) or ""
    return name.removesuffix(decision_id) + caller.shown_id(decision_id) if decision_id else name


async def begun(events: AsyncGenerator[messages.Event, None]) -> Decided:
    """Read a turn up to its decision, which is committed then."""
    first = await anext(events)
    assert isinstance(first, Decided)
    return first


async def whole(events: AsyncGenerator[messages.Event, None]) -> tuple[Decided, choices.Choices, Finished]:
    """Read a turn to its end."""
    decided: Decided | None = None
    finished: Finished | None = None
    written = choices.Choices()
    async with aclosing(events):
        async for event in events:
            match event:
                case Decided():
                    decided = event
                case Chunk():
                    written.add(event)
                case Finished():
                    finished = event
    assert decided is not None
    assert finished is not None
    for choice, reason in zip(written.all, finished.finish_reasons, strict=False):
        choice.finish_reason = reason
    return decided, written, finished
