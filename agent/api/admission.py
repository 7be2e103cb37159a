"""Run a turn if the replica has room for it, and describe its failure to the client."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial

from agent.api import errors
from agent.api.errors import ApiError
from agent.serving import Ask, Finished, Replica, TurnError, messages, paced
from feedback.errors import ConflictError

Open = Callable[[list[messages.Commit]], Awaitable[AsyncGenerator[messages.Event, None]]]
"""Opens a turn; the commit of its decision is added to the list as soon as it is queued."""


async def admitted(
    replica: Replica, ask: Ask, key: str | None, timeout_s: float | None, open_turn: Open
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a turn; refuse it before the log is read where the replica has no room.

    Args:
        replica: Runs the turn.
        ask: The question.
        key: The idempotency key of the request; None where it has none.
        timeout_s: How long the turn may take, the wait for the language model included.
        open_turn: Opens a new turn, or the earlier one under the same key.

    Raises:
        ApiError: The turn was refused or failed.
    """
    _require_room(replica, ask)
    started = time.perf_counter()
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    commits: list[messages.Commit] = []
    replica.under_way.add(ask.decision_id)
    try:
        async with aclosing(_placed(replica, ask, partial(open_turn, commits))) as turn:
            async for event in paced(turn, deadline) if deadline else turn:
                if isinstance(event, Finished):
                    replica.telemetry.took(event.execution.served, time.perf_counter() - started)
                yield event
    except Exception as error:
        failure = errors.translate(error)
        if isinstance(error, TimeoutError):
            failure = ApiError("deadline_exceeded", f"{timeout_s:g} s have passed")
        elif isinstance(error, ConflictError):  # another replica was faster
            failure = in_progress(ask)
        replica.telemetry.failed(failure.code)
        if failure.code == "internal_error":
            raise
        # Once an execution is recorded, or will be, a retry under the key can only repeat it.
        final = key is not None and bool(commits) and isinstance(error, TimeoutError | TurnError)
        kept = ask.decision_id if any(map(_durable, commits)) else None
        raise replace(failure, decision_id=kept, final=final) from error
    finally:
        replica.under_way.discard(ask.decision_id)


def _require_room(replica: Replica, ask: Ask) -> None:
    """Refuse a turn for which the replica has no room. Raises ApiError."""
    if not replica.decides:
        raise ApiError("not_ready", "the arms, the model or the policy are not loaded yet")
    if len(replica.under_way) >= replica.config.limits.in_flight:
        replica.telemetry.shed()
        raise ApiError("overloaded", f"{len(replica.under_way)} requests are in progress already")
    if ask.decision_id in replica.under_way:
        raise in_progress(ask)


async def _placed(
    replica: Replica, ask: Ask, open_turn: Callable[[], Awaitable[AsyncGenerator[messages.Event, None]]]
) -> AsyncGenerator[messages.Event, None]:
    """Yield the events of a turn, which holds a place of the language model where it needs one."""
    async with replica.chats.hold() if ask.messages else nullcontext(), aclosing(await open_turn()) as turn:
        async for event in turn:
            yield event


def in_progress(ask: Ask, retry_after_s: int = 1) -> ApiError:
    """Return the error for a request whose key another request is using."""
    message = f"{ask.decision_id!r} is in progress, or was cut off; retry in {retry_after_s} s"
    return ApiError("in_progress", message, "Idempotency-Key", retry_after_s=retry_after_s)


def _durable(commit: messages.Commit) -> bool:
    return commit.done() and not commit.cancelled() and commit.exception() is None
