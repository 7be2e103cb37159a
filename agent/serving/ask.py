"""Ask the service: check a question, reserve room for it, and run its turn.

This is the part that all deciding routes share, independent of HTTP. A request under an idempotency key that
was used before resumes or repeats the earlier turn.
"""

import asyncio
import hashlib
import json
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from pydantic import BaseModel

from armwise.agent.access import Caller, RateLimitedError, SpentError
from armwise.agent.policies import FeatureSpec
from armwise.agent.serving import outage
from armwise.agent.serving.replica import Replica
from armwise.agent.telemetry import log_turn
from armwise.agent.turn import (
    Ask,
    Choices,
    Commit,
    CostBound,
    Decided,
    Event,
    Finished,
    OverloadedError,
    TurnError,
    paced,
)
from armwise.arms import tracing
from armwise.arms.base import ArmError, Retrieval
from armwise.arms.filters import GROUPS, Comparison, Compound, comparisons, permits
from armwise.arms.llm import UNPROMPTED, Chunk
from armwise.feedback.arrays import TOLERANCE
from armwise.feedback.errors import LOG_UNUSABLE, ConflictError
from armwise.feedback.events import INCUMBENT, Execution, Status
from armwise.feedback.log import LoggedDecision, erasures

Context = Mapping[str, float | str | bool]

LOADING = "the arms, the model or the policy are not loaded yet"

CONTEXT_NAMES, CONTEXT_CHARS, CONTEXT_BYTES = 32, 200, 4096
"""Most names in the context of a request, characters of a name or text, and bytes of all of them."""

CONTEXT_NUMBER = 1e6
"""Largest magnitude of a number in the context. Policies see numbers beyond 1 by their logarithm."""

SHARE_OF_A_KEY = 0.75
"""Largest share of a replica's concurrent requests that one key may hold, so that others get answers."""


UNEXPECTED = "internal_error"
"""Code of an unexpected exception, which is raised unchanged."""


class AskError(Exception):
    """A question that is refused.

    Attributes:
        param: The field at fault, if a field is.
        retry_after_s: Seconds after which a retry may succeed.
    """

    def __init__(self, message: str, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.param, self.retry_after_s = param, retry_after_s


class InvalidAskError(AskError):
    """A field has an invalid value."""


class ForeignGroupError(AskError):
    """The question is asked for a group that the caller's key lacks."""


class UnknownModelError(AskError):
    """The model is neither `auto`, nor an alias, nor `arm/<name>` of a live arm."""


class UnknownArmError(AskError):
    """A field names an arm that is not live."""


class ArmExcludedError(AskError):
    """The arm that the question names is excluded or switched off."""


class NotReadyError(AskError):
    """The replica is still loading."""


class InProgressError(AskError):
    """Another request under the same idempotency key is in progress, or was cut off recently."""


class KeyReusedError(AskError):
    """The idempotency key was used for another question, or its turn failed."""


class DeadlineExceededError(AskError):
    """The turn took longer than its time limit."""


class UnansweredError(Exception):
    """A turn that was refused or failed after it began; `__cause__` has the reason.

    Attributes:
        caller: Who asked; decides how ids are shown.
        decision_id: Id of the decision, if one is in the log.
        final: Whether a retry under the same idempotency key will be refused.
    """

    def __init__(self, caller: Caller, decision_id: str | None, *, final: bool) -> None:
        super().__init__(decision_id)
        self.caller, self.decision_id, self.final = caller, decision_id, final


class Named(Protocol):
    """The incumbent's choice in a request: an arm, or a distribution to draw from."""

    @property
    def arm(self) -> str | None:
        """The chosen arm."""
        ...

    @property
    def distribution(self) -> Mapping[str, float] | None:
        """Arm to probability."""
        ...


class _Options(Protocol):
    """The fields of a request beyond OpenAI's API."""

    @property
    def user(self) -> str | None: ...
    @property
    def groups(self) -> Sequence[str] | None: ...
    @property
    def allowed_arms(self) -> Sequence[str] | None: ...
    @property
    def excluded_arms(self) -> Sequence[str]: ...
    @property
    def explore(self) -> bool: ...
    @property
    def context(self) -> Context: ...
    @property
    def cost_weight(self) -> float | None: ...
    @property
    def episode_id(self) -> str | None: ...
    @property
    def defer_activation(self) -> bool: ...
    @property
    def filters(self) -> Comparison | Compound | None: ...
    @property
    def incumbent(self) -> Named | None: ...


class Asking(Protocol):
    """A request that asks for a decision."""

    @property
    def model(self) -> str:
        """`auto`, `arm/<name>` to force an arm, or an alias of either or of a language model."""
        ...

    @property
    def agent(self) -> _Options:
        """The fields beyond OpenAI's API."""
        ...


def check_ask(
    replica: Replica,
    caller: Caller,
    question: str,
    body: Asking,
    key: str | None,
    param: str = "messages",
    *,
    sent: BaseModel | bytes,
    **rest: Any,
) -> Ask:
    """Check the fields that all deciding routes share, and return the input of the turn. Raises AskError.

    Args:
        replica: Answers the question.
        caller: Who asks.
        question: The question.
        body: The request.
        key: Idempotency key of the request.
        param: The field that holds the question.
        sent: The request, of which another one under the same key differs.
        **rest: Further fields of the turn.
    """
    options = body.agent
    if not question.strip():
        raise InvalidAskError("the question is empty", param)
    question = checked_question(question, replica, param)
    user = options.user or getattr(body, "user", None)
    groups = _groups(caller, options.groups)
    forced, of_model = find_model(replica, body.model)
    allowed = None if options.allowed_arms is None else frozenset(options.allowed_arms)
    if of_model is not None:
        # arms that are not live stay, so that they are refused by name
        allowed = of_model if allowed is None else allowed - (replica.turns.arms.keys() - of_model)
    return Ask(
        decision_id=caller.stored(key) if key else caller.new_id(),
        question=question,
        user_digest=user_digest(replica, caller, user),
        forced=forced,
        allowed=allowed,
        excluded=frozenset(options.excluded_arms),
        explore=options.explore,
        context=checked_context(options.context, replica, "agent.context"),
        steps=read_incumbent(replica, options.incumbent, "agent.incumbent"),
        cost_weight=_cost_weight(options.cost_weight, replica.config.features),
        episode_id=_episode(replica, caller, body),
        deferred=options.defer_activation,
        request_digest=digest_request(sent, groups) if key else "",
        where=_where(options.filters),
        groups=groups,
        **rest,
    )


SESSION = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Form of session names that serve as episode ids unchanged; other names are hashed."""


def _episode(replica: Replica, caller: Caller, body: Asking) -> str | None:
    """Return the stored episode id of a request.

    A session counts as an episode if it keeps its arm, or if what engines have cached of it has a price.
    """
    name, config = body.agent.episode_id, replica.config
    if name is None and (config.sticky == "session" or replica.prices_caches):
        # many conversations may share a prefix of the prompt: one that keeps its arm asks for it
        key = getattr(body, "prompt_cache_key", None) if config.sticky == "session" else None
        name = find_session(getattr(body, "metadata", None), key)
    return name and caller.stored(name, "episode")


def find_session(metadata: Mapping[str, Any] | None, prompt_cache_key: str | None) -> str | None:
    """Return the id of the session that a request names, if it names one.

    Args:
        metadata: Pairs that the client attached; `session_id` names the session.
        prompt_cache_key: Names it otherwise: requests with the same key share a prefix of the prompt.

    >>> find_session({"session_id": "talk-17"}, "other"), find_session({}, None)
    ('talk-17', None)
    """
    named = (metadata or {}).get("session_id")
    name = named if isinstance(named, str) and named else prompt_cache_key
    if not name or SESSION.fullmatch(name):
        return name or None
    return f"session-{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _groups(caller: Caller, groups: Sequence[str] | None) -> frozenset[str]:
    """Return the groups that a request is made for: all or some of its key's. Raises AskError."""
    if groups is None:
        return caller.groups
    if foreign := sorted({*groups} - caller.groups):
        named = ", ".join(map(repr, foreign))
        message = f"this key does not have the groups {named}: some of its own were expected"
        raise ForeignGroupError(message, "agent.groups")
    return frozenset(groups)


def _where(where: Comparison | Compound | None) -> Comparison | Compound | None:
    """Return a filter; one on the groups of passages is refused. Raises AskError."""
    if where is not None and any(comparison.key == GROUPS for comparison in comparisons(where)):
        message = f"{GROUPS!r} cannot be filtered by: the key has the groups of its callers"
        raise InvalidAskError(message, "filters")
    return where


def user_digest(replica: Replica, caller: Caller, user: str | None) -> str | None:
    """Return the digest that the log stores for the end user of a request, if it names one."""
    return erasures.user_digest(replica.store, caller.project, user) if user else None


def read_incumbent(replica: Replica, named: Named | None, param: str) -> Mapping[str, Mapping[str, float]]:
    """Return the distribution of the caller's own decider by arm, for its step; empty if it names none.

    Args:
        replica: Has the `tap`, which maps names of arms.
        named: The arm or the distribution that the request names.
        param: The field that `named` comes from.

    Raises:
        AskError: `named` is not a choice among live arms, or `tap` is not configured.
    """
    if named is None:
        return {}
    if replica.config.tap is None:
        message = "no incumbent has a place here: `tap` is not configured"
        raise InvalidAskError(message, param)
    if (named.arm is None) == (named.distribution is None):
        raise InvalidAskError("give either arm, or distribution to have an arm drawn from it", param)
    given = {named.arm: 1.0} if named.arm is not None else named.distribution or {}
    p = validate_distribution(replica, given, param)
    total = math.fsum(p.values())
    return {INCUMBENT: {arm: share / total for arm, share in p.items()}}


def find_arm(replica: Replica, name: str, param: str) -> str:
    """Return the live arm that `tap` maps another system's name to. Raises AskError."""
    tap = replica.config.tap
    live = replica.turns.arms
    arm = name if tap is None else tap.map_arm(name)
    if arm not in live and tap is not None:
        arm = tap.names.get("*", arm)
    if arm not in live:
        hint = "; `tap.names` can map another name to one of them"
        raise UnknownArmError(f"arm {name!r} is not configured; available: {', '.join(live)}{hint}", param)
    return arm


def validate_distribution(replica: Replica, given: Mapping[str, float], param: str) -> dict[str, float]:
    """Return a distribution by live arm, in the order of the request. Raises AskError."""
    distribution: dict[str, float] = {}
    for name, p in given.items():
        if not 0.0 <= p <= 1.0:
            message = f"the probability of arm {name!r} is {p:g}; a number from 0 to 1 was expected"
            raise InvalidAskError(message, param)
        arm = find_arm(replica, name, param)
        distribution[arm] = distribution.get(arm, 0.0) + p
    if abs((total := math.fsum(distribution.values())) - 1.0) > TOLERANCE:
        raise InvalidAskError(f"the probabilities sum to {total:.9g}; they must sum to 1", param)
    return distribution


def checked_question(question: str, replica: Replica, param: str) -> str:
    """Check the length of a question, and return it redacted; `param` is its field. Raises AskError."""
    limit = replica.config.limits.question_chars
    if len(question) > limit:
        message = f"the question has {len(question)} characters; at most {limit} are read"
        raise InvalidAskError(message, param)
    return replica.redact(question)


def checked_context(
    context: Mapping[str, float | str | bool], replica: Replica, within: str
) -> Mapping[str, float | str | bool]:
    """Check a context against the limits, and return it redacted; `within` is its field. Raises AskError."""
    if len(context) > CONTEXT_NAMES:
        message = f"the context has {len(context)} names; at most {CONTEXT_NAMES} are read"
        raise InvalidAskError(message, within)
    size = 0
    for name, value in context.items():
        param = f"{within}.{name[:CONTEXT_CHARS]}"
        for text in (name, value) if isinstance(value, str) else (name,):
            size += len(text.encode())
            if len(text) > CONTEXT_CHARS:
                size_of = f"has {len(text)} characters; at most {CONTEXT_CHARS} are read"
                message = f"{text[:20]!r} and so on {size_of}"
                raise InvalidAskError(message, param)
        if not isinstance(value, str) and abs(value) > CONTEXT_NUMBER:
            expected = f"a number from -{CONTEXT_NUMBER:g} to {CONTEXT_NUMBER:g} was expected"
            message = f"context {name!r} is {value:g}; {expected}: scale it"
            raise InvalidAskError(message, param)
    if size > CONTEXT_BYTES:
        message = f"the texts of the context have {size} bytes; at most {CONTEXT_BYTES} are read"
        raise InvalidAskError(message, within)
    return redacted(context, replica)


def redacted(context: Mapping[str, float | str | bool], replica: Replica) -> Mapping[str, float | str | bool]:
    """Return a context with its text values redacted."""
    return {key: replica.redact(value) if isinstance(value, str) else value for key, value in context.items()}


def _cost_weight(weight: float | None, features: FeatureSpec) -> float | None:
    """Check that a cost weight is in the configured range, and return it. Raises AskError."""
    if weight is None:
        return None
    if features.cost_weights is None:
        message = "no request may name a cost weight here: `features.cost_weights` has no range"
        raise InvalidAskError(message, "agent.cost_weight")
    low, high = features.cost_weights
    if not low <= weight <= high:
        message = f"cost_weight is {weight:g}; a number from {low:g} to {high:g} was expected"
        raise InvalidAskError(message, "agent.cost_weight")
    return weight


def digest_request(body: BaseModel | bytes, groups: frozenset[str] = frozenset()) -> str:
    """Return a hash of a request without the fields at their default, so that new fields keep old hashes.

    The groups are part of it, because an answer is written from the passages that they may see.
    """
    if isinstance(body, BaseModel):
        body = body.model_dump_json(
            exclude_defaults=True, warnings=False
        ).encode()  # numbers in the context warn
    if groups:
        body += json.dumps(sorted(groups)).encode()
    return hashlib.sha256(body).hexdigest()


def find_model(replica: Replica, model: str) -> tuple[str | None, frozenset[str] | None]:
    """Return the arm that a model's name forces, and the arms that the policy may draw for it.

    Either is None where the name does not restrict the choice. The forced arm is the one of that name, or
    while a first start still builds that one, the part of it that is live.

    Raises:
        AskError: It is no name of a model, or no live arm answers with the language model that it means.
    """
    if replica.external:
        message = "the caller carries out the arms: POST /v1/decisions"
        raise InvalidAskError(message, "model")
    alias = replica.config.find_alias(model)
    name = model if alias is None else alias
    if name in ("auto", ""):
        return None, None
    if name.startswith("arm/") and (arm := name.removeprefix("arm/")):
        return (arm if arm in replica.turns.arms else replica.arms.stand_ins().get(arm, arm)), None
    if alias is None:
        raise UnknownModelError(
            f"model {model!r}: 'auto' or 'arm/<name>' was expected. To accept this name, add it to `aliases` "
            "in the configuration",
            "model",
        )
    arms = frozenset(
        arm
        for arm, info in replica.turns.arms.items()
        if info.answering.llm == alias and (info.checked is None or info.checked.answering.llm == alias)
    )
    if not arms:
        message = f"model {model!r} is an alias of the language model {alias!r}: no live arm answers with it"
        raise UnknownModelError(message, "model")
    return None, arms


def forced_arm(replica: Replica, model: str) -> str | None:
    """Return the arm that a model's name forces; None if the policy chooses. Raises AskError."""
    return find_model(replica, model)[0]


@dataclass(frozen=True, slots=True)
class Opening:
    """A turn that is about to begin.

    Attributes:
        events: The events of the turn.
        most: The most that it may cost; None: it is answered from the log for free.
    """

    events: AsyncGenerator[Event, None]
    most: CostBound | None


async def stream_turn(
    replica: Replica, caller: Caller, ask: Ask, key: str | None, timeout_s: float | None
) -> AsyncGenerator[Event, None]:
    """Yield the events of a new turn, or of the earlier turn under the same idempotency key.

    Overload is checked before the log is read. Ids are shown as the caller knows them.

    Args:
        replica: Runs the turn.
        caller: The caller, whose limits and budgets apply.
        ask: The question.
        key: The idempotency key of the request.
        timeout_s: Most seconds for the turn, including the wait for the language model; None: no limit.

    Raises:
        AskError, OverloadedError: There is no room.
        UnansweredError: The turn was refused or failed.
    """
    _require_room(replica, caller, ask.decision_id)
    tracing.TURN.set(tracing.TracedTurn(ask.decision_id, ask.episode_id or "", ask.question))
    started = time.perf_counter()
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    commits: list[Commit] = []
    served, log = "", partial(log_turn, replica.config.telemetry, caller.key)
    replica.under_way[ask.decision_id] = caller.key
    ask = replace(ask, asked_by=caller.identify(replica.store.draw_secret))
    try:
        async with asyncio.timeout_at(deadline):
            opening = await _opened(replica, caller, ask, key, commits)
            if (most := opening.most) is not None:
                await replica.quota.book(caller, ask.decision_id, most.tokens, most.usd)
        async with aclosing(_placed(replica, ask, opening.events)) as turn:
            async for event in paced(turn, deadline) if deadline else turn:
                if isinstance(event, Decided):
                    served = event.served
                elif isinstance(event, Finished):
                    execution, seconds = event.execution, time.perf_counter() - started
                    replica.telemetry.took(execution, seconds, logged=event.logged)
                    log(seconds, arm=execution.served, status=execution.status.value)
                elif served and event.text:
                    replica.telemetry.began(served, time.perf_counter() - started)
                    served = ""  # only the first text is timed
                yield _shown(event, caller) if caller.prefix else event
    except Exception as error:
        failure = _reason(error, ask, timeout_s)
        code = replica.choose_code(failure)
        replica.telemetry.failed(code)
        log(time.perf_counter() - started, status=code)
        if isinstance(error, RateLimitedError | SpentError):
            replica.telemetry.refused(code)
        if code == UNEXPECTED:
            raise
        # Once the failure is recorded, or will be, a retry under the key is refused.
        final = key is not None and bool(commits) and isinstance(error, TimeoutError | TurnError)
        kept = ask.decision_id if any(map(_durable, commits)) else None
        raise UnansweredError(caller, kept, final=final) from failure
    finally:
        replica.under_way.pop(ask.decision_id, None)
        replica.quota.release(ask.decision_id)  # unless it was charged


def _reason(error: Exception, ask: Ask, timeout_s: float | None) -> Exception:
    """Return the exception that the caller sees for a failed turn."""
    match error:
        case TimeoutError():
            return DeadlineExceededError(f"no answer within {timeout_s:g} s")
        case ConflictError():  # another replica was faster
            return in_progress(ask.decision_id)
    return error


async def _opened(
    replica: Replica, caller: Caller, ask: Ask, key: str | None, commits: list[Commit]
) -> Opening:
    """Open a new turn, or the earlier one under the same key; without the log, if it is away.

    The commit of its decision is added to `commits` as soon as it is queued.
    """
    if replica.outage.since is not None:
        return _unlogged(replica, caller, ask)
    try:
        look_up = partial(asyncio.to_thread, replica.store.record, ask.decision_id)
        record = None if key is None else await replica.outage.ask(look_up)
    except LOG_UNUSABLE:
        if not replica.outage.answers:
            raise
        return _unlogged(replica, caller, ask)
    if record is not None:
        return await Retry(replica, ask, record).open(commits.append)
    require_eligible(replica, ask)
    events, most = replica.turns.turn(ask, commits.append), replica.turns.bound(ask)
    return Opening(
        _or_unlogged(replica, caller, ask, events, commits) if replica.outage.answers else events, most
    )


def _unlogged(replica: Replica, caller: Caller, ask: Ask) -> Opening:
    """Open a turn that is answered without the log. Raises AskError, LogUnavailableError."""
    require_eligible(replica, ask)
    turns, ask = outage.stand_in(replica.turns, ask, caller, replica.telemetry)
    return Opening(turns.turn(ask), turns.bound(ask))


async def _or_unlogged(
    replica: Replica,
    caller: Caller,
    ask: Ask,
    events: AsyncGenerator[Event, None],
    commits: list[Commit],
) -> AsyncGenerator[Event, None]:
    """Yield the events of a turn, or of one without the log if that turns out to be away before any event."""
    begun = False
    try:
        async with aclosing(events):
            async for event in events:
                begun = True
                yield event
    except LOG_UNUSABLE:
        if begun:
            raise
    else:
        return
    commits.clear()
    opening = _unlogged(replica, caller, ask)
    replica.quota.release(ask.decision_id)  # unless the turn was charged
    if (most := opening.most) is not None:
        await replica.quota.book(caller, ask.decision_id, most.tokens, most.usd)
    async with aclosing(opening.events) as unlogged:
        async for event in unlogged:
            yield event


def _shown(event: Event, caller: Caller) -> Event:
    """Return an event with ids as the caller knows them: without the project."""
    match event:
        case Decided(decision):
            episode_id = decision.episode_id and caller.shown(decision.episode_id)
            shown = replace(decision, id=caller.shown(decision.id), episode_id=episode_id)
            return replace(event, decision=shown)
    return event


async def begun(events: AsyncGenerator[Event, None]) -> Decided:
    """Read a turn up to its committed decision."""
    first = await anext(events)
    assert isinstance(first, Decided)
    return first


async def whole(events: AsyncGenerator[Event, None]) -> tuple[Decided, Choices, Finished]:
    """Read a turn to its end."""
    decided: Decided | None = None
    finished: Finished | None = None
    written = Choices()
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


@asynccontextmanager
async def place(replica: Replica, caller: Caller) -> AsyncIterator[None]:
    """Reserve room for work other than a turn.

    Args:
        replica: Does the work.
        caller: The caller, whose limits apply.

    Raises:
        AskError, OverloadedError: There is no room.
        RateLimitedError: The key has used too many tokens.
    """
    name = caller.new_id()
    _require_room(replica, caller, name)
    replica.under_way[name] = caller.key
    try:
        await replica.quota.book(caller, name, 0, 0.0)
        yield
    finally:
        replica.under_way.pop(name, None)
        replica.quota.release(name)


def _require_room(replica: Replica, caller: Caller, name: str) -> None:
    """Check that there is room for a turn or other work. Raises AskError, OverloadedError."""
    if not replica.decides:
        raise NotReadyError(LOADING)
    in_flight = [*replica.under_way.values()]
    if len(in_flight) >= replica.config.limits.in_flight:
        replica.telemetry.shed()
        raise OverloadedError(f"{len(in_flight)} requests are in progress already")
    if caller.key is not None:
        requests = in_flight.count(caller.key)
        if requests >= math.ceil(SHARE_OF_A_KEY * replica.config.limits.in_flight):
            replica.telemetry.shed()
            raise OverloadedError(f"{requests} requests of this key are in progress already")
    if name in replica.under_way:
        raise in_progress(name)


async def _placed(
    replica: Replica, ask: Ask, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """Yield the events of a turn, holding a place of the language model if it writes an answer."""
    async with replica.chats.hold() if ask.messages else nullcontext(), aclosing(events) as turn:
        async for event in turn:
            yield event


def in_progress(name: str, retry_after_s: int = 1) -> AskError:
    """Return the error for a request whose key another request is using."""
    message = f"{name!r} is in progress, or was cut off; retry in {retry_after_s} s"
    return InProgressError(message, "Idempotency-Key", retry_after_s=retry_after_s)


def _durable(commit: Commit) -> bool:
    return commit.done() and not commit.cancelled() and commit.exception() is None


@dataclass(frozen=True, slots=True)
class Retry:
    """A question under the idempotency key of an earlier turn.

    Attributes:
        replica: Answers both.
        ask: The question.
        record: The earlier turn in the log.
    """

    replica: Replica
    ask: Ask
    record: LoggedDecision

    async def open(self, on_commit: Callable[[Commit], None]) -> Opening:
        """Return the earlier turn: resumed if it was cut off, else repeated from the log.

        Args:
            on_commit: Called with each commit of a resumed turn as soon as it is queued.

        Raises:
            AskError: The earlier request was a different one, is still in progress, or failed.
            ArmError: The corpus cannot be read.
        """
        ask, decision, execution = self.ask, self.record.decision, self.record.execution
        if decision.request_digest != ask.request_digest:
            raise _conflict(f"id {ask.decision_id!r} was used for another request")
        if ask.external:
            return Opening(self._hand_over(), None)
        if execution is not None:
            return await self._reopen(execution)  # even if its arm was switched off since
        ends_at = decision.decided_at + self.replica.config.limits.answer_s
        if (
            left_s := ends_at - self.replica.decider.clock()
        ) > 0:  # another replica may still be answering it
            raise in_progress(ask.decision_id, max(1, math.ceil(left_s)))
        self._require_known(decision.drawn, "decided on")
        turns = self.replica.turns
        return Opening(turns.repeat(ask, decision, on_commit=on_commit), turns.bound(ask, decision))

    async def _hand_over(self) -> AsyncGenerator[Event, None]:
        """Yield a decision that the caller carries out, with or without a reported execution."""
        yield Decided(self.record.decision, Retrieval(steps=0), self.record.decision.drawn)

    async def _reopen(self, execution: Execution) -> Opening:
        """Return a turn that has ended.

        If a search of its arm may cost something, the passages are looked up by their logged ids. They are
        searched again, which is charged, if the corpus lacks one.
        """
        ask = self.ask
        if execution.status not in (Status.OK, Status.FELL_BACK):
            raise _conflict(f"{ask.decision_id!r} was decided but never answered; ask again with another id")
        self._require_known(execution.served, "answered by")
        served = execution.served or self.record.decision.drawn
        kept = await self._look_up(served, execution)
        decided = None if kept is None else Decided(self.record.decision, kept, served)
        most = (
            None
            if decided
            else self.replica.turns.bound(replace(ask, messages=()), self.record.decision, served)
        )
        return Opening(self._repeat(execution, decided), most)

    async def _look_up(self, served: str, execution: Execution) -> Retrieval | None:
        """Return the passages of the turn from the corpus; None: search again.

        Scores are not logged, so a passage gets the score 1 / rank.
        """
        ask = self.ask
        if self.replica.turns.known[served].bound == UNPROMPTED:
            return None
        passages = {passage.id: passage for passage in await self.replica.passages(execution.passages)}
        if not passages.keys() >= {*execution.passages}:
            return None
        ranked = (passages[name].scored(1 / rank) for rank, name in enumerate(execution.passages, start=1))
        permitted = tuple(passage for passage in ranked if permits(ask.where, ask.groups, passage.metadata))
        return Retrieval(permitted, steps=0, index_version=execution.index_version)

    async def _repeat(self, execution: Execution, decided: Decided | None) -> AsyncGenerator[Event, None]:
        """Yield the events of the turn; without `decided`, its passages are searched again."""
        ask, turns = self.ask, self.replica.turns
        if decided is None:
            served = execution.served or self.record.decision.drawn
            again = turns.repeat(replace(ask, messages=()), self.record.decision, served)
            try:
                async with aclosing(again) as events:
                    decided = await begun(events)
                    async for _ in events:  # to its end, which charges it
                        pass
            except TurnError as error:
                raise ArmError(str(error)) from error
        yield decided
        answered = Choices.of(execution.answer or "", execution.finish_reason or "stop")
        for chunk in answered.chunks():
            yield chunk
        yield Finished(execution, tuple(choice.finish_reason or "stop" for choice in answered.all))

    def _require_known(self, arm: str | None, what: str) -> None:
        """Refuse to continue with an arm that was removed. Raises AskError."""
        if arm not in self.replica.turns.known:
            raise _conflict(f"{self.ask.decision_id!r} was {what} arm {arm!r}, which is gone")


def _conflict(message: str) -> AskError:
    return KeyReusedError(message, "Idempotency-Key")


def require_eligible(replica: Replica, ask: Ask) -> None:
    """Check that all named arms are live, and that a forced arm can be drawn. Raises AskError."""
    for option, names in (("allowed_arms", ask.allowed or ()), ("excluded_arms", ask.excluded)):
        for name in sorted(names):
            require_arm(replica, name, f"agent.{option}")
    if ask.forced is not None:
        require_model(replica, ask.forced)
        allowed = ask.allowed is None or ask.forced in ask.allowed
        left_out = ask.forced in ask.excluded or not allowed
        if left_out or not replica.turns.arms[ask.forced].enabled:
            why = "excluded, or not allowed" if left_out else "switched off"
            raise ArmExcludedError(f"arm {ask.forced!r} is {why}", "model")


def require_model(replica: Replica, arm: str) -> None:
    """Check that the arm of a model is live. Raises AskError."""
    if arm not in replica.turns.arms:
        models = ", ".join(f"arm/{name}" for name in replica.turns.arms)
        raise UnknownModelError(f"there is no model 'arm/{arm}'; available: auto, {models}", "model")


def require_arm(replica: Replica, arm: str, param: str) -> None:
    """Check that an arm is live. Raises AskError, which names `param`."""
    if arm not in replica.turns.arms:
        raise UnknownArmError(not_live(replica, arm), param)


def not_live(replica: Replica, arm: str) -> str:
    """Return the error message for an arm that is not live."""
    return f"arm {arm!r} is not configured; available: {', '.join(replica.turns.arms)}"
