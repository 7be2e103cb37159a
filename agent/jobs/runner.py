"""Background tasks: requested evaluations, and scheduled work.

    polled in a thread per task:   task.due(now) --yes--> task.run(stop)

A failing task never stops the service: the failure is logged and the task polled again later; one that finds
the log unavailable waits for it. The heavy part of a task belongs into a process of its own with a low
priority: see `agent.evaluation.job`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from feedback.errors import LogUnavailableError

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""Seconds between two heartbeats of a worker, a small part of its lease."""

MAX_PAUSE_S = 10.0
"""Longest pause after a failure, or while the log is unavailable."""

ProgressCallback = Callable[[float], None]
"""Called every second or so with the share of the work that is done, 0 to 1; raises to end the work early."""


class JobFailedError(Exception):
    """An evaluation failed; the message is recorded."""


class UndecidedError(Exception):
    """A required evaluation is still under way; the message names it."""


class StoppedError(Exception):
    """The service stops; work under way is cancelled."""


class Task(Protocol):
    """Scheduled work. Constructed and called in one thread."""

    def due(self, now: float) -> bool:
        """Return whether to run now. Called at every poll, so it must be cheap.

        Args:
            now: Seconds since the epoch.

        Raises:
            LogUnavailableError: It is called again later.
        """
        ...

    def run(self, stop: threading.Event) -> None:
        """Do the work; return soon once `stop` is set.

        Raises:
            LogUnavailableError: Nothing is recorded as failed; `due` is called again later.
        """
        ...


class Jobs:
    """Runs tasks until it is stopped, each in a thread of its own, as one may wait for another.

    Args:
        makes: Construct the tasks, in their threads; called again where that fails.
        poll_s: Seconds between two polls.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], Task]],
        poll_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._poll_s, self._clock = poll_s, clock
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(make,), name=f"task-{number}", daemon=True)
            for number, make in enumerate(makes)
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise RuntimeError where a thread has ended, which only `stop` should cause."""
        for thread in self._threads:
            if not thread.is_alive():
                raise RuntimeError(f"{thread.name} has ended")

    def stop(self) -> None:
        """Cancel work under way, and return once the threads have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, make: Callable[[], Task]) -> None:
        task: Task | None = None
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                task = task or make()
                if task.due(self._clock()):
                    task.run(self._stop)
                    pause_s = 0.0  # there may be more
                else:
                    pause_s = self._poll_s
            except LogUnavailableError as error:
                pause_s = self._longer(pause_s)
                logger.warning("a task waits %.3g s for the log: %s", pause_s, error)
            except Exception:
                pause_s = self._longer(pause_s)
                logger.exception("a task failed; the next attempt is in %.3g s", pause_s)

    def _longer(self, pause_s: float) -> float:
        return min(max(self._poll_s, 2 * pause_s), MAX_PAUSE_S)
