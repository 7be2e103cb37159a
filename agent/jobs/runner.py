"""Work beside the service: evaluations that were asked for, and whatever else falls due.

    with every look, in a thread for each task:   task.due(now) --yes--> task.run(stop)

Nothing here can take the service down. A task that fails is told in the log and asked again later; one that
finds the log away waits for it. The heavy part of a task belongs into a process of its own, at a priority
that leaves serving alone: see `agent.evaluation.job`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from feedback.errors import LogUnavailableError

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""How often a worker says that it is alive: far more often than its lease ends."""

LONGEST_PAUSE_S = 10.0
"""How long a task is left alone at most after it failed, or while the log is away."""

ProgressCallback = Callable[[float], None]
"""Told the share of the work that is done, 0 to 1, every second or so; raises what ends the work early."""


class JobFailedError(Exception):
    """An evaluation cannot be made; the message says why, in the words that are recorded."""


class UndecidedError(Exception):
    """An evaluation that is needed is still under way; the message names it."""


class StoppedError(Exception):
    """The service stops: what is under way is given up."""


class Task(Protocol):
    """Work that falls due by itself. It is made in the thread that runs it, and asked by no other."""

    def due(self, now: float) -> bool:
        """Return whether it is to run now: asked at every look, so it must be cheap.

        Args:
            now: Seconds since the epoch.

        Raises:
            LogUnavailableError: It is asked again later.
        """
        ...

    def run(self, stop: threading.Event) -> None:
        """Do the work, and return soon once `stop` is set.

        Raises:
            LogUnavailableError: Nothing is recorded as failed; it is asked again later whether it is due.
        """
        ...


class Jobs:
    """Runs tasks until it is stopped, each in a thread of its own: one may wait for what another does.

    Args:
        makes: Make the tasks, in their threads; called again where that fails.
        poll_s: Seconds between two looks.
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
        """Raise RuntimeError where a thread is no more, which nothing here ends but `stop`."""
        for thread in self._threads:
            if not thread.is_alive():
                raise RuntimeError(f"{thread.name} has ended")

    def stop(self) -> None:
        """Give up what is under way, and return once that is done."""
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
                logger.exception("a task failed; it is asked again in %.3g s", pause_s)

    def _longer(self, pause_s: float) -> float:
        return min(max(self._poll_s, 2 * pause_s), LONGEST_PAUSE_S)
