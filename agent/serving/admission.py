"""Admit a request: reserve room and budget for it, and run its turn.

This is the part that all deciding routes share, independent of HTTP. A request under an idempotency key that
was used before resumes or repeats the earlier turn.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from armwise.agent.access import Caller, RateLimitedError, SpentError
from armwise.agent.serving import outage
from armwise.agent.serving.replica import Replica
from armwise.agent.telemetry import log_turn
from armwise.agent.turn import (
    FREE,
    SHARE_OF_A_KEY,
    Ask,
    Choices,
    Commit,
    CostBound,
    Decided,
    Event,
    Finished,
    OverloadedError,
    TurnError,
    TurnLoop,
    read_until,
)
from armwise.arms import tracing
from armwise.arms.base import ArmError, Retrieval
from armwise.arms.filters import permits
from armwise.arms.llm import UNPROMPTED, Chunk
from armwise.feedback.errors import LOG_UNUSABLE, ConflictError
from armwise.feedback.events import Execution, Status
from armwise.feedback.log import LoggedDecision

LOADING = "the arms, the model or the policy are not loaded yet"


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
        async with AsyncExitStack() as held:
            async with asyncio.timeout_at(deadline):
                opening = await _open_turn(replica, caller, ask, key, commits)
                if (most := opening.most) is not None:
                    await replica.quota.book(caller, ask.decision_id, most.tokens, most.usd)
                if ask.messages:  # a place of the language model
                    await held.enter_async_context(replica.chats.hold(caller.key))
            turn = await held.enter_async_context(aclosing(opening.events))
            async for event in read_until(turn, deadline) if deadline else turn:
                if isinstance(event, Decided):
                    served = event.served
                elif isinstance(event, Finished):
                    execution, seconds = event.execution, time.perf_counter() - started
                    replica.telemetry.time_turn(execution, seconds, logged=event.logged)
                    log(seconds, arm=execution.served, status=execution.status.value)
                elif served and event.text:
                    replica.telemetry.time_first_text(served, time.perf_counter() - started)
                    served = ""  # only the first text is timed
                yield _strip_prefix(event, caller) if caller.prefix else event
    except Exception as error:
        failure = _reason(error, ask, timeout_s)
        code = replica.choose_code(failure)
        replica.telemetry.count_failure(code)
        log(time.perf_counter() - started, status=code)
        if isinstance(error, RateLimitedError | SpentError):
            replica.telemetry.count_refusal(code)
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


async def _open_turn(
    replica: Replica, caller: Caller, ask: Ask, key: str | None, commits: list[Commit]
) -> Opening:
    """Open a new turn, or the earlier one under the same key; without the log, if it is away.

    The commit of its decision is added to `commits` as soon as it is queued.
    """
    if replica.outage.since is not None:
        return _open_unlogged(replica, caller, ask)
    try:
        look_up = partial(asyncio.to_thread, replica.store.record, ask.decision_id)
        record = None if key is None else await replica.outage.ask(look_up)
    except LOG_UNUSABLE:
        if not replica.outage.answers:
            raise
        return _open_unlogged(replica, caller, ask)
    if record is not None:
        return await Retry(replica, ask, record).open(commits.append)
    require_eligible(replica, ask)
    events, most = replica.turns.turn(ask, commits.append), _bound(replica.turns, caller, ask)
    if replica.outage.answers:
        events = _or_unlogged(replica, caller, ask, events, commits)
    return Opening(events, most)


def _bound(turns: TurnLoop, caller: Caller, ask: Ask) -> CostBound:
    """Return the most that a turn may cost; `FREE` for a key that has no limit of tokens or dollars."""
    return turns.bound_cost(ask) if caller.limits.counts_tokens else FREE


def _open_unlogged(replica: Replica, caller: Caller, ask: Ask) -> Opening:
    """Open a turn that is answered without the log. Raises AskError, LogUnavailableError."""
    require_eligible(replica, ask)
    turns, ask = outage.stand_in(replica.turns, ask, caller, replica.telemetry)
    return Opening(turns.turn(ask), _bound(turns, caller, ask))


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
    opening = _open_unlogged(replica, caller, ask)
    replica.quota.release(ask.decision_id)  # unless the turn was charged
    if (most := opening.most) is not None:
        await replica.quota.book(caller, ask.decision_id, most.tokens, most.usd)
    async with aclosing(opening.events) as unlogged:
        async for event in unlogged:
            yield event


def _strip_prefix(event: Event, caller: Caller) -> Event:
    """Return an event with ids as the caller knows them: without the project."""
    match event:
        case Decided(decision):
            episode_id = decision.episode_id and caller.strip_prefix(decision.episode_id)
            shown = replace(decision, id=caller.strip_prefix(decision.id), episode_id=episode_id)
            return replace(event, decision=shown)
    return event


async def read_decided(events: AsyncGenerator[Event, None]) -> Decided:
    """Read a turn up to its committed decision."""
    first = await anext(events)
    assert isinstance(first, Decided)
    return first


async def read_to_end(events: AsyncGenerator[Event, None]) -> tuple[Decided, Choices, Finished]:
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
        replica.telemetry.count_shed()
        raise OverloadedError(f"{len(in_flight)} requests are in progress already")
    if caller.key is not None:
        requests = in_flight.count(caller.key)
        if requests >= math.ceil(SHARE_OF_A_KEY * replica.config.limits.in_flight):
            replica.telemetry.count_shed()
            raise OverloadedError(f"{requests} requests of this key are in progress already")
    if name in replica.under_way:
        raise in_progress(name)


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
        return Opening(turns.repeat(ask, decision, on_commit=on_commit), turns.bound_cost(ask, decision))

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
            else self.replica.turns.bound_cost(replace(ask, messages=()), self.record.decision, served)
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
        ranked = (
            passages[name].replace_score(1 / rank) for rank, name in enumerate(execution.passages, start=1)
        )
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
                    decided = await read_decided(events)
                    async for _ in events:  # to its end, which charges it
                        pass
            except TurnError as error:
                raise ArmError(str(error)) from error
        yield decided
        answered = Choices.parse(execution.answer or "", execution.finish_reason or "stop")
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
