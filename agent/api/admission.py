"""Run a turn if its caller and the replica have room for it, or repeat it, and describe its failure.

A request under an idempotency key that was used before resumes or repeats the earlier turn.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from agent.access import Caller, RateLimitedError
from agent.api import errors
from agent.api.errors import ApiError
from agent.serving import Ask, Decided, Finished, Most, Replica, TurnError, choices, messages, paced
from agent.telemetry import log_turn
from arms.base import Retrieval
from arms.filters import permits
from arms.llm import UNPROMPTED
from feedback.errors import ConflictError
from feedback.events import Cost, Execution, Status
from feedback.log import Record


@dataclass(frozen=True, slots=True)
class Opening:
    """A turn that is about to begin.

    Attributes:
        events: Events.
        most: The most that it may cost; None where it costs nothing, and is answered from the log.
    """

    events: AsyncGenerator[messages.Event, None]
    most: Most | None


Open = Callable[[list[messages.Commit]], Awaitable[Opening]]
"""Opens a turn; the commit of its decision is added to the list as soon as it is queued."""

LOADING = "the arms, the model or the policy are not loaded yet"

SHARE_OF_A_KEY = 0.75
"""Part of the concurrent requests of a replica that one key may hold: other keys are answered meanwhile."""


async def admitted(
    replica: Replica, caller: Caller, ask: Ask, key: str | None, timeout_s: float | None, open_turn: Open
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a turn; refuse it before the log is read where the replica has no room.

    Args:
        replica: Runs the turn.
        caller: Whose limits and budgets it counts against.
        ask: The question.
        key: The idempotency key of the request; None where it has none.
        timeout_s: How long the turn may take, the wait for the language model included.
        open_turn: Opens a new turn, or the earlier one under the same key.

    Raises:
        ApiError: The turn was refused or failed.
    """
    _require_room(replica, caller, ask.decision_id)
    started = time.perf_counter()
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    commits: list[messages.Commit] = []
    served, log = "", partial(log_turn, replica.config.telemetry, replica.point, caller.key)
    replica.under_way[ask.decision_id] = caller.key
    try:
        async with asyncio.timeout_at(deadline):
            opened = await _booked(replica, caller, ask, partial(open_turn, commits))
        async with aclosing(_placed(replica, ask, opened)) as turn:
            async for event in paced(turn, deadline) if deadline else turn:
                if isinstance(event, Decided):
                    served = event.served
                elif isinstance(event, Finished):
                    execution, seconds = event.execution, time.perf_counter() - started
                    replica.telemetry.took(execution, seconds)
                    log(seconds, arm=execution.served, status=execution.status.value)
                elif served and event.text:
                    replica.telemetry.began(served, time.perf_counter() - started)
                    served = ""  # the first text alone
                yield event
    except Exception as error:
        failure = errors.translate(error)
        if isinstance(error, TimeoutError):
            failure = ApiError("deadline_exceeded", f"{timeout_s:g} s have passed")
        elif isinstance(error, ConflictError):  # another replica was faster
            failure = in_progress(ask.decision_id)
        replica.telemetry.failed(failure.code)
        log(time.perf_counter() - started, status=failure.code)
        if failure.status == 429:
            replica.telemetry.refused(failure.code)
        if failure.code == "internal_error":
            raise
        # Once an execution is recorded, or will be, a retry under the key can only repeat it.
        final = key is not None and bool(commits) and isinstance(error, TimeoutError | TurnError)
        kept = ask.decision_id if any(map(_durable, commits)) else None
        raise replace(failure, decision_id=kept, final=final) from error
    finally:
        replica.under_way.pop(ask.decision_id, None)
        replica.quota.release(replica.booking(ask.decision_id))  # unless it was charged


async def admit(replica: Replica, caller: Caller, requests: int) -> None:
    """Count further requests of a caller, for one that makes several decisions: all of them, or none.

    Raises:
        ApiError: The key has sent too many this minute; nothing was decided.
    """
    try:
        await replica.quota.admit(caller, requests)
    except RateLimitedError as error:
        failure = errors.translate(error)
        replica.telemetry.refused(failure.code)
        raise failure from error


@asynccontextmanager
async def place(replica: Replica, caller: Caller, tokens: int) -> AsyncIterator[Callable[[Cost], None]]:
    """Hold a place of the replica for work that decides nothing; what is yielded charges its cost.

    Args:
        replica: Does the work.
        caller: Whose limits it counts against.
        tokens: Most tokens that it reads.

    Raises:
        ApiError: The replica has no room.
        RateLimitedError: The key has used too many tokens.
    """
    name = caller.new_id()
    _require_room(replica, caller, name)
    replica.under_way[name] = caller.key
    try:
        await replica.quota.book(caller, name, tokens, 0.0)
        yield partial(replica.quota.charge, name)
    finally:
        replica.under_way.pop(name, None)
        replica.quota.release(name)


def _require_room(replica: Replica, caller: Caller, name: str) -> None:
    """Refuse a turn, or other work, for which the replica has no room. Raises ApiError."""
    if not replica.decides:
        raise ApiError("not_ready", LOADING)
    in_flight = replica.in_flight
    if len(in_flight) >= replica.config.limits.in_flight:
        replica.telemetry.shed()
        raise ApiError("overloaded", f"{len(in_flight)} requests are in progress already")
    if caller.key is not None:
        own = in_flight.count(caller.key)
        if own >= math.ceil(SHARE_OF_A_KEY * replica.config.limits.in_flight):
            replica.telemetry.shed()
            raise ApiError("overloaded", f"{own} requests of this key are in progress already")
    if name in replica.under_way:
        raise in_progress(name)


async def _booked(
    replica: Replica, caller: Caller, ask: Ask, open_turn: Callable[[], Awaitable[Opening]]
) -> AsyncGenerator[messages.Event, None]:
    """Open a turn, reserve the most that it may cost, and return its events."""
    opening = await open_turn()
    if (most := opening.most) is not None:
        await replica.quota.book(caller, replica.booking(ask.decision_id), most.tokens, most.usd)
    return opening.events


async def _placed(
    replica: Replica, ask: Ask, events: AsyncGenerator[messages.Event, None]
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a turn, which holds a place of the language model where it needs one."""
    async with replica.chats.hold() if ask.messages else nullcontext(), aclosing(events) as turn:
        async for event in turn:
            yield event


def in_progress(name: str, retry_after_s: int = 1) -> ApiError:
    """Return the error for a request whose key another request is using."""
    message = f"{name!r} is in progress, or was cut off; retry in {retry_after_s} s"
    return ApiError("in_progress", message, "Idempotency-Key", retry_after_s=retry_after_s)


def _durable(commit: messages.Commit) -> bool:
    return commit.done() and not commit.cancelled() and commit.exception() is None


def was_cut_off(replica: Replica, ask: Ask, record: Record) -> bool:
    """Return whether the same request was decided, and no replica can still be answering it."""
    same = record.decision.request_digest == ask.request_digest
    return same and record.execution is None and _remaining_s(replica, record) <= 0


def _remaining_s(replica: Replica, record: Record) -> float:
    """Return for how many seconds another replica may still be answering a decision."""
    return record.decision.decided_at + replica.config.limits.answer_s - replica.decider.clock()


async def repeated(replica: Replica, ask: Ask, record: Record) -> Opening:
    """Return the earlier turn, as the log has it.

    Where a search may cost something, its passages are looked up by the ids in the log. They are searched
    again, and that is charged, where the corpus lacks one or the request reads the scores of the arm.

    Raises:
        ApiError: It was another request, has not ended, or has failed.
        ArmError: The corpus cannot be read.
    """
    execution = _execution_of(replica, ask, record)
    served = execution.served or record.decision.drawn
    if ask.actions:
        kept: Retrieval | None = Retrieval(steps=0)
    else:
        kept = await _kept(replica, ask, served, execution)
    decided = None if kept is None else Decided(record.decision, kept, served)
    most = None if decided else replica.turns.most_again(ask, served)
    return Opening(_repeating(replica, ask, record, execution, decided), most)


async def _kept(replica: Replica, ask: Ask, served: str, execution: Execution) -> Retrieval | None:
    """Return the passages of an earlier turn from the corpus; None where they are to be searched again.

    Their scores are not in the log: a passage has 1 / rank.
    """
    if ask.by_score or replica.turns.known[served].bound == UNPROMPTED:
        return None
    found = {passage.id: passage for passage in await replica.passages(execution.passages)}
    if not found.keys() >= {*execution.passages}:
        return None
    ranked = (found[name].scored(1 / rank) for rank, name in enumerate(execution.passages, start=1))
    permitted = tuple(one for one in ranked if permits(ask.where, ask.groups, one.metadata))
    return Retrieval(permitted, steps=0, index_version=execution.index_version)


async def _repeating(
    replica: Replica, ask: Ask, record: Record, execution: Execution, decided: Decided | None
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of an earlier turn, whose passages are searched again where they were not kept."""
    yield decided or await replica.turns.again(ask, record.decision, execution)
    # The log holds no finish reason of a text: one of the greatest length allowed was cut.
    how = replica.turns.known[execution.served or record.decision.drawn].answering
    cut = bool(ask.messages) and execution.cost.completion_tokens >= (ask.max_tokens or how.max_tokens)
    answered = choices.Choices.of(execution.answer or "", "length" if cut else "stop")
    for chunk in answered.chunks():
        yield chunk
    yield Finished(execution, tuple(choice.finish_reason or "stop" for choice in answered.all))


def _execution_of(replica: Replica, ask: Ask, record: Record) -> Execution:
    """Return the execution that answered the same request before. Raises ApiError."""
    execution = record.execution
    if record.decision.request_digest != ask.request_digest:
        raise _conflict(f"id {ask.decision_id!r} was used for another request")
    if execution is None:
        raise in_progress(ask.decision_id, max(1, math.ceil(_remaining_s(replica, record))))
    if execution.status not in (Status.OK, Status.FELL_BACK):
        raise _conflict(f"{ask.decision_id!r} was decided but not answered; ask again under another id")
    require_known(replica, ask, execution.served, "answered by")
    return execution


def require_known(replica: Replica, ask: Ask, arm: str | None, what: str) -> None:
    """Refuse to continue with an arm that has been removed. Raises ApiError."""
    if arm not in replica.turns.known:
        raise _conflict(f"{ask.decision_id!r} was {what} arm {arm!r}, which is gone")


def _conflict(message: str) -> ApiError:
    return ApiError("idempotency_conflict", message, "Idempotency-Key")


def require_eligible(replica: Replica, ask: Ask) -> None:
    """Refuse names of arms that are not live, and a forced arm that cannot be drawn. Raises ApiError."""
    for option, names in (("allowed_arms", ask.allowed or ()), ("excluded_arms", ask.excluded)):
        for name in sorted(names):
            require_arm(replica, name, f"agent.{option}")
    if ask.forced is not None:
        require_model(replica, ask.forced)
        allowed = ask.allowed is None or ask.forced in ask.allowed
        left_out = ask.forced in ask.excluded or not allowed
        if left_out or not replica.turns.arms[ask.forced].enabled:
            why = "excluded, or not allowed" if left_out else "switched off"
            raise ApiError("no_eligible_arm", f"arm {ask.forced!r} is {why}", "model")


def require_model(replica: Replica, arm: str) -> None:
    """Refuse a model that names an arm which is not live. Raises ApiError."""
    if arm not in replica.turns.arms:
        known = ", ".join(f"arm/{name}" for name in replica.turns.arms)
        raise ApiError("model_not_found", f"there is no model 'arm/{arm}'; there are: auto, {known}", "model")


def require_arm(replica: Replica, arm: str, param: str) -> None:
    """Refuse the name of an arm that is not live. Raises ApiError, which names `param`."""
    if arm not in replica.turns.arms:
        raise ApiError("unknown_arm", not_live(replica, arm), param)


def not_live(replica: Replica, arm: str) -> str:
    """Return the message for the name of an arm that is not live."""
    return f"arm {arm!r} is not configured; there are: {', '.join(replica.turns.arms)}"
