"""The digest as a background task: each attempt in a child process with a low priority.

task.due    plans from the schedule, the newest attempt and the newest fall in the log
task.run    claims an attempt, and starts a child that reads the log and sends
"""

import logging
import subprocess
import threading
import time
from collections.abc import Callable

from armwise.agent.config import AppConfig
from armwise.agent.jobs import DIGEST_LEASE_S, RETRIES_S, plan_digest
from armwise.agent.low_priority import begin_child, end_child
from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store
from armwise.feedback.registry import Digest, DigestState, digests, guards

logger = logging.getLogger(__name__)

LOOK_S = 30.0
"""Time between two reads of the log, as another process may have begun an attempt."""

POLL_S = 0.2
"""Seconds between two polls of a child."""

SENDER = "armwise.agent.console.digest", "run_child"
"""Where the child begins; by name, since it imports what the service does not need."""


class Digests:
    """Sends the digests that are due. Implements `armwise.agent.jobs.Task`.

    Args:
        store: The log.
        config: Configuration with defaults resolved, with a digest.
        clock: Seconds since the epoch.
        begin: Starts a child process for the configuration and the number of its attempt.
        lease_s: Seconds that a child gets.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        clock: Callable[[], float] = time.time,
        begin: "Callable[[AppConfig, int], subprocess.Popen[bytes]] | None" = None,
        lease_s: float = DIGEST_LEASE_S,
    ) -> None:
        assert config.digest is not None
        self._store, self._config, self._spec, self._clock = store, config, config.digest, clock
        self._begin, self._lease_s = begin or begin_sender, lease_s
        self._plan = plan_digest(self._spec, digests.begin(store, clock()), clock())
        self._next_look = 0.0

    def due(self, now: float) -> bool:
        """Plan from the log, at most every `LOOK_S`, and when an attempt seems due."""
        if now < min(self._plan.at, self._next_look):
            return False
        self._next_look = now + LOOK_S
        last = digests.newest(self._store) or digests.begin(self._store, now)
        fall = next(iter(guards.newest_falls(self._store, 1)), None)
        self._plan = plan_digest(self._spec, last, now, None if fall is None else fall.at)
        return now >= self._plan.at

    def run(self, stop: threading.Event) -> None:
        """Do an attempt; it ends early if the service stops."""
        plan = self._plan
        mine = digests.claim(self._store, plan.since, plan.until, plan.attempt, self._clock())
        if mine is None:
            return  # another process has begun it
        child, end = self._begin(self._config, mine.seq), self._clock() + self._lease_s
        try:
            while child.poll() is None and self._clock() < end:
                if stop.wait(POLL_S):
                    break
        finally:
            end_child(child)
        stopped = "the service stopped before it was sent"
        ended = f"its process ended with status {child.returncode}: the log of the service says why"
        self._settle(mine, stopped if stop.is_set() else ended)

    def _settle(self, mine: Digest, ended: str) -> None:
        """Record how a child ended that did not do so itself, and log a failure."""
        last = digests.newest(self._store)
        if last is None or last.seq != mine.seq:
            return
        state, why = last.state, last.why
        if state is DigestState.SENDING:
            state, why = DigestState.FAILED, digests.INTERRUPTED
        elif state is DigestState.READING:
            why = ended
            state = DigestState.FAILED if mine.attempt > len(RETRIES_S) else DigestState.REFUSED
        if state is not last.state:
            try:
                digests.advance(self._store, mine, state, self._clock(), why)
            except SupersededError as error:
                logger.info("%s", error)
                return
        if state is not DigestState.SENT:
            logger.warning("the digest was not sent: %s", why)


def begin_sender(config: AppConfig, number: int) -> "subprocess.Popen[bytes]":
    """Start a child process that does an attempt; it writes to the standard error of this process.

    Args:
        config: The configuration.
        number: The attempt.
    """
    return begin_child(*SENDER, {"config": config.model_dump(mode="json"), "digest": number})
