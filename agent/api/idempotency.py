"""Idempotency keys: a request under a key that was used before resumes or repeats the earlier turn."""

import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated

from fastapi import Header

from agent.api.admission import in_progress
from agent.api.errors import ApiError
from agent.api.schemas import Identifier
from agent.serving import Ask, Finished, Replica, messages
from arms.llm import Chunk
from feedback.events import Execution, Status
from feedback.log import Record

IdempotencyKey = Annotated[Identifier | None, Header(alias="Idempotency-Key")]


def new_id() -> str:
    """Return an id that sorts by time: 12 hexadecimal digits of milliseconds, 20 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{next(_DIGITS)}"


def _digits(at_once: int = 256) -> Iterator[str]:
    """Yield 20 random hexadecimal digits; each call of the system gives up the lock of the interpreter."""
    while True:
        random = secrets.token_hex(10 * at_once)
        yield from (random[i : i + 20] for i in range(0, len(random), 20))


_DIGITS = _digits()


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
    yield await replica.turns.again(ask, record.decision, execution)
    if execution.answer:
        yield Chunk(execution.answer)
    # The log holds no finish reason: an answer of the greatest length allowed was cut.
    cut = bool(ask.messages) and execution.cost.completion_tokens >= ask.max_tokens
    yield Finished(execution, "length" if cut else "stop")


def _execution_of(replica: Replica, ask: Ask, record: Record) -> Execution:
    """Return the execution that answered the same request before. Raises ApiError."""
    execution = record.execution
    if record.decision.request_digest != ask.request_digest:
        raise _conflict(f"id {ask.decision_id!r} was used for another request")
    if execution is None:
        raise in_progress(ask, max(1, math.ceil(_remaining_s(replica, record))))
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
