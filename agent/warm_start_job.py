"""Warm starts as a task of the service: each run in a process of its own, at the lowest priority there is.

    task.due    the newest run, the open alarm and the schedule say when
    task.run    starts the child, and waits for it: the run is on record as the child does it

The child has what it starts, such as the workers that ask arms, run at the priority that it has, and ends
with whoever started it. A run that was cut short like that is begun again once its lease is over.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import orjson
from rich.console import Console

from agent.config import AppConfig, parse
from agent.evaluation_job import ONE_CORE
from agent.jobs import JobFailedError
from agent.schedule import planned
from feedback.alarms import standing_alarms
from feedback.errors import UnderWayError
from feedback.runs import Trigger, page
from feedback.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at the log."""

POLL_S = 0.2
"""Seconds between two looks at a child."""

END_S = 5.0
"""How long a child that is to end may take until it is killed."""

CHILD = "agent.warm_start_child"


class WarmStarts:
    """Does the runs that fall due. Implements `agent.jobs.Task`.

    Args:
        store: The log.
        config: Settled; a warm start is configured.
        since: From when on a cron line counts where there was no run, seconds since the epoch.
        begin: Starts a child that was handed the configuration and what it is started by.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        since: float,
        begin: "Callable[[AppConfig, Trigger], subprocess.Popen[bytes]] | None" = None,
    ) -> None:
        assert config.warm_start is not None
        self._store, self._config, self._spec, self._since = store, config, config.warm_start, since
        self._begin = begin or begin_child
        self._next_look = 0.0
        self._trigger = Trigger.SCHEDULE

    def due(self, now: float) -> bool:
        """Look at the schedule once a second."""
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        alarms = standing_alarms(self._store)
        alarm_at = alarms.newest.at if alarms.newest is not None and alarms.warm_start_open else None
        last = next(iter(page(self._store, 1)), None)
        found = planned(self._spec, last, alarm_at, self._since)
        if found is None or found.at > now:
            return False
        self._trigger = found.trigger
        return True

    def run(self, stop: threading.Event) -> None:
        """Do a run; it ends early where the service stops.

        Raises:
            JobFailedError: The child ended before it had recorded how the run went.
        """
        logger.info("a warm start begins, by %s", self._trigger)
        child = self._begin(self._config, self._trigger)
        try:
            while child.poll() is None:
                if stop.wait(POLL_S):
                    return
        finally:
            _end(child)
        if child.returncode:
            raise JobFailedError(f"the process of a warm start ended with status {child.returncode}")


def begin_child(config: AppConfig, trigger: Trigger) -> "subprocess.Popen[bytes]":
    """Start a child that does a run; what it says goes where this process says things."""
    child = subprocess.Popen(
        [sys.executable, "-m", CHILD],
        stdin=subprocess.PIPE,  # kept open: its end tells the child that nobody waits for it any more
        env={**os.environ, **ONE_CORE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it is gone already, which its status tells
        task = {"config": config.model_dump(mode="json"), "trigger": trigger.value}
        child.stdin.write(orjson.dumps(task, option=orjson.OPT_APPEND_NEWLINE))
        child.stdin.flush()
    return child


def _end(child: "subprocess.Popen[bytes]") -> None:
    """See to it that a child is gone, and all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
            break
    if child.stdin is not None:
        with suppress(BrokenPipeError):
            child.stdin.close()


def be_the_child(descriptor: int) -> None:
    """Do the run that a line tells of; how it went is in the log, and failures are no failure of the child.

    Args:
        descriptor: Of what gives the line, and then nothing for as long as somebody waits for this process.
    """
    from agent.warm_start_run import RunFailedError, warm_start  # brings in all that learns and is judged

    logging.basicConfig(level=logging.INFO)
    with open(descriptor, "rb", buffering=0, closefd=False) as given:
        task = orjson.loads(given.readline())
    threading.Thread(target=_end_with_the_parent, args=(descriptor,), daemon=True).start()
    console = Console(file=sys.stderr, width=120)
    try:
        warm_start(parse(task["config"]), Trigger(task["trigger"]), console, lambda *_: None)
    except RunFailedError:
        logger.exception("a warm start failed")
    except UnderWayError as error:
        logger.info("%s", error)


def _end_with_the_parent(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


__all__ = ["WarmStarts", "be_the_child", "begin_child"]
