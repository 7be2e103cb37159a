"""Answers while the log is away (`log_away: answer`): the fallback answers, and nothing is drawn or logged.

    closed -- a request waits for the log, which fails or takes `SLOW_S` --> open (`GroupCommit.trouble`)
    open   -- the replica probes the log in the background -------> closed

While the circuit is open, no request waits for the log.

With `log_away: refuse`, the default, requests wait for the log and fail with its errors.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from armwise.agent.access import Caller, make_unlogged_id
from armwise.agent.background import Work, WorkFailure
from armwise.agent.serving.telemetry import Telemetry
from armwise.agent.turn import Ask, CountedLog, FactLog, TurnLoop
from armwise.feedback.errors import LOG_UNUSABLE, LogUnavailableError
from armwise.feedback.events import Decision, Execution
from armwise.feedback.log import SLOW_S, GroupCommit, Receipt

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between two looks at whether a log that is waited for is known to be away."""

T = TypeVar("T")


class LogOutage:
    """Whether the log is away, and who answers then.

    Args:
        log: Commits facts, and knows whether it can.
        answers: Whether questions are answered while it cannot; False: they are refused.
        clock: Seconds since the epoch.
    """

    def __init__(self, log: GroupCommit, answers: bool, clock: Callable[[], float]) -> None:
        self.answers = answers
        self._log, self._clock = log, clock
        self._since: float | None = None

    @property
    def since(self) -> float | None:
        """When the log was found to be away, seconds since the epoch.

        None while it can be written, and always if questions are refused.
        """
        trouble = self._log.trouble if self.answers else ""
        if trouble and self._since is None:
            self._since = self._clock()
            logger.warning(
                "the log is unavailable, so the fallback arm answers and nothing is logged: %s", trouble
            )
        elif not trouble and self._since is not None:
            logger.warning("the log is available again after %.0f s", self._clock() - self._since)
            self._since = None
        return self._since

    @property
    def failure(self) -> WorkFailure | None:
        """The outage as work in the background that fails; None: there is no outage to answer through."""
        if (since := self.since) is None:
            return None
        at = datetime.fromtimestamp(since, UTC).isoformat(sep=" ", timespec="seconds")
        why = f"away since {at}: {self._log.trouble}"
        return WorkFailure(Work.LOG, why, 1, self._clock())

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what the log answers to a call; it is not called while the log is known to be away.

        Raises:
            LogUnavailableError: The log is away, or has not answered in time.
        """
        if self.since is not None:
            raise LogUnavailableError(self._log.trouble)
        return await self.limit(call())

    async def limit(self, answer: Awaitable[T]) -> T:
        """Return an answer of the log, but stop waiting once the log is known to be away.

        What was asked goes on.

        Raises:
            LogUnavailableError: The log is away, or has not answered in time.
        """
        if not self.answers:
            return await answer
        task, loop = asyncio.ensure_future(answer), asyncio.get_running_loop()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # if it ends too late
        deadline = loop.time() + SLOW_S
        while not task.done():
            await asyncio.wait({task}, timeout=TICK_S)
            if not task.done():
                if loop.time() >= deadline:
                    self._log.suspect(f"the log does not respond: it was asked {SLOW_S:g} s ago")
                if trouble := self._log.trouble:
                    raise LogUnavailableError(trouble)
        try:
            return task.result()
        except LOG_UNUSABLE as error:
            self._log.suspect(str(error))
            raise

    def limit_commits(self, log: FactLog) -> FactLog:
        """Return a log whose commits are waited for only while it is not known to be away."""
        return _LimitedLog(log, self) if self.answers else log


def stand_in(turns: TurnLoop, ask: Ask, caller: Caller, telemetry: Telemetry) -> tuple[TurnLoop, Ask]:
    """Return turns that log nothing, and the question for them.

    The fallback answers, or the arm that the question names. The decision has an id that takes no feedback.
    Its cost is charged to the booking of the question.

    Args:
        turns: The turns of the replica.
        ask: The question.
        caller: Who asked.
        telemetry: Counts turns.

    Raises:
        LogUnavailableError: The fallback may not answer this question.
    """
    arm = ask.forced or turns.fallback
    if arm is None or arm not in turns.list_eligible(ask):
        raise LogUnavailableError(
            f"the log is unavailable, and the fallback arm {arm!r} may not answer this question: it is "
            "switched off, excluded, or lacks what the question needs"
        )
    unlogged = replace(
        turns,
        log=CountedLog(_Nowhere(), lambda _: telemetry.count_unlogged(), telemetry.count_execution),
        charge=lambda _, cost: turns.charge(ask.decision_id, cost),
        is_followed=False,
    )
    # without an episode: no signal reads the turns before it, and none is added to it
    return unlogged, replace(ask, decision_id=caller.prefix + make_unlogged_id(), forced=arm, episode_id=None)


class _Nowhere:
    """Takes facts as if they were logged, and drops them."""

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[list[Receipt]]":
        """Return receipts at once."""
        done = asyncio.get_running_loop().create_future()
        done.set_result([Receipt(-1)] * len(facts))
        return done


class _LimitedLog:
    """See `LogOutage.limit_commits`."""

    def __init__(self, log: FactLog, outage: LogOutage) -> None:
        self._log, self._outage = log, outage

    def append(self, *facts: Decision | Execution) -> "asyncio.Future[list[Receipt]]":
        """Queue facts; the future fails once the log is known to be away. They may be written even so."""
        return asyncio.ensure_future(self._outage.limit(self._log.append(*facts)))
