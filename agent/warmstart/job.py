"""Warm starts as a task of the service: each run in a process of its own, at a low priority.

    task.due    the newest run, the open alarm and the schedule say when
    task.run    takes the run, starts the child, and says that it is alive for as long as it is

So a run is on record whatever becomes of the child. What the child starts, such as the workers that ask arms,
has the priority that it has, and it ends with whoever started it. A run that was cut short like that is begun
again once its lease is over.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import orjson
from rich.console import Console

from agent.config import AppConfig, parse
from agent.jobs import environment_of_a_child, this_process
from agent.learning import Recipe
from agent.warmstart.journal import BEAT_S
from agent.warmstart.schedule import look
from feedback.drift import read_alarms
from feedback.errors import LogUnavailableError, SupersededError, UnderWayError
from feedback.log import Store
from feedback.registry import active_policy, runs

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at the log."""

POLL_S = 0.2
"""Seconds between two looks at a child."""

END_S = 5.0
"""How long a child that is to end may take until it is killed."""

CHILD = "agent.warmstart"


class WarmStarts:
    """Does the runs that fall due. Implements `agent.jobs.Task`.

    Args:
        store: The log.
        config: Settled; a warm start is configured.
        since: From when on a cron line counts where there was no run, seconds since the epoch.
        begin: Starts a child that is handed the configuration and the number of its run.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        since: float,
        begin: "Callable[[AppConfig, int], subprocess.Popen[bytes]] | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert config.warm_start is not None
        self._store, self._config, self._spec, self._since = store, config, config.warm_start, since
        self._begin, self._clock = begin or begin_child, clock
        self._configured = Recipe.configured(config).digest
        self._next_look = 0.0
        self._trigger = runs.Trigger.SCHEDULE

    def due(self, now: float) -> bool:
        """Look at the schedule once a second."""
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        said = active_policy(self._store, self._configured)
        alarms = read_alarms(self._store, self._config.reward.join, said)
        found = look(self._store, self._spec, self._configured, alarms, self._since)
        if found is None or found.at > now:
            return False
        self._trigger = found.trigger
        return True

    def run(self, stop: threading.Event) -> None:
        """Do a run; it ends early where the service stops, or where the run was taken for dead."""
        try:
            mine = runs.claim(self._store, self._configured, self._trigger, this_process(), self._clock())
        except UnderWayError as error:
            logger.info("%s", error)
            return
        logger.info("warm start %d begins, by %s", mine.seq, mine.trigger)
        child, told_at = self._begin(self._config, mine.seq), self._clock()
        try:
            while child.poll() is None:
                if stop.wait(POLL_S):
                    return
                if self._clock() >= told_at + BEAT_S:
                    told_at = self._clock()
                    with suppress(LogUnavailableError):  # the lease is longer than most of that
                        runs.renew(self._store, mine, told_at)
            if child.returncode:
                told = f"its process ended with status {child.returncode}: see its output"
                runs.finish(self._store, mine, runs.State.FAILED, self._clock(), told)
        except SupersededError as error:
            logger.warning("%s", error)
        finally:
            _end(child)


def begin_child(config: AppConfig, number: int) -> "subprocess.Popen[bytes]":
    """Start a child that does a run; what it says goes where this process says things."""
    child = subprocess.Popen(
        [sys.executable, "-m", CHILD],
        stdin=subprocess.PIPE,  # kept open: its end tells the child that nobody waits for it any more
        env=environment_of_a_child(),
        start_new_session=True,
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it is gone already, which its status tells
        task = {"config": config.model_dump(mode="json"), "run": number}
        child.stdin.write(orjson.dumps(task, option=orjson.OPT_APPEND_NEWLINE))
        child.stdin.flush()
    return child


def _end(child: "subprocess.Popen[bytes]") -> None:
    """See to it that a child is gone, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        with suppress(BrokenPipeError):
            child.stdin.close()


def be_the_child(descriptor: int) -> None:
    """Do the run that a line tells of; how it went is in the log, and failures are no failure of the child.

    Args:
        descriptor: Of what gives the line, and then nothing for as long as somebody waits for this process.
    """
    from agent.warmstart.run import (
        RunFailedError,  # brings in all that learns and is judged
        carry_out,
    )

    logging.basicConfig(level=logging.INFO)
    with open(descriptor, "rb", buffering=0, closefd=False) as given:
        task = orjson.loads(given.readline())
    threading.Thread(target=_end_with_the_parent, args=(descriptor,), daemon=True).start()
    console = Console(file=sys.stderr, width=120)
    try:
        carry_out(parse(task["config"]), task["run"], console, lambda *_: None)
    except RunFailedError:
        logger.exception("a warm start failed")


def _end_with_the_parent(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
