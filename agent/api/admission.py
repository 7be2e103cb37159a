"""Run a turn if its caller and the replica have room for it, or repeat it, and describe its failure.

A request under an idempotency key that was used before resumes or repeats the earlier turn.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial

import orjson

from agent.access import Caller
from agent.api import errors
from agent.api.errors import ApiError
from agent.serving import Ask, Decided, Finished, Replica, TurnError, choices, messages, paced
from agent.telemetry import log_turn
from arms.base import Retrieval
from feedback.errors import ConflictError
from feedback.events import Cost, Execution, Status
from feedback.log import Record

Open = Callable[[list[messages.Commit]], Awaitable[AsyncGenerator[messages.Event, None]]]
"""Opens a turn; the commit of its decision is added to the list as soon as it is queued."""

LOADING = "the arms, the model or the policy are not loaded yet"

SHARE_OF_A_KEY = 0.75
"""Part of the concurrent requests of a replica that one key may hold: other keys are answered meanwhile."""

CHARACTERS_A_TOKEN, TOKENS_A_WORD = 3, 2
"""Fewest characters of a token, and most tokens of a word, in most texts."""


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
        await replica.quota.book(caller, replica.booking(ask.decision_id), *_most(replica, ask))
        async with aclosing(_placed(replica, ask, partial(open_turn, commits))) as turn:
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
        _release_undecided(replica, ask, commits)


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


def _most(replica: Replica, ask: Ask) -> tuple[int, float]:
    """Return the most tokens, and the most USD, that the language model is likely to take for a turn."""
    if not ask.messages:
        return 0, 0.0
    characters = sum(len(message["content"]) for message in ask.messages)
    characters += len(orjson.dumps((dict(ask.options), [m.get("tool_calls") for m in ask.messages])))
    turns, most, dearest = replica.turns, 0, 0.0
    for name, info in turns.arms.items():
        if name != (ask.forced or name) or (ask.allowed is not None and name not in ask.allowed):
            continue
        how = info.answering
        read = characters // CHARACTERS_A_TOKEN + TOKENS_A_WORD * how.word_budget
        written = (ask.max_tokens or how.max_tokens) * ask.options.get("n", 1)
        most = max(most, read + written)
        dearest = max(dearest, turns.models[how.llm].usd_of(read, written))
    return most, dearest


def _release_undecided(replica: Replica, ask: Ask, commits: list[messages.Commit]) -> None:
    """Return what was reserved for a turn unless it is decided, as its execution is charged then."""

    def release(commit: messages.Commit) -> None:
        if commit.cancelled() or commit.exception() is not None:
            replica.quota.release(replica.booking(ask.decision_id))

    if commits:
        commits[-1].add_done_callback(release)
    else:
        replica.quota.release(replica.booking(ask.decision_id))


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


async def _placed(
    replica: Replica, ask: Ask, open_turn: Callable[[], Awaitable[AsyncGenerator[messages.Event, None]]]
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a turn, which holds a place of the language model where it needs one."""
    async with replica.chats.hold() if ask.messages else nullcontext(), aclosing(await open_turn()) as turn:
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


async def repeated(replica: Replica, ask: Ask, record: Record) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of the earlier turn, as the log has them.

    Raises:
        ApiError: It was another request, has not ended, or has failed.
    """
    execution = _execution_of(replica, ask, record)
    if ask.actions:
        yield Decided(record.decision, Retrieval(steps=0), record.decision.drawn)
    else:
        yield await replica.turns.again(ask, record.decision, execution)
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
