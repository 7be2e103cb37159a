"""Warm starts as a background task: each run in a child process with a low priority.

    task.due    decides from the newest run, the open alarm and the schedule
    task.run    claims the run, starts the child, and renews the lease while it lives

So a run is in the log whatever happens to the child. Processes that the child starts, such as workers that
run arms, have its priority, and all of them end with this process. An interrupted run is started again once
its lease has expired.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from armwise.agent import low_priority
from armwise.agent.cli.console import RAY_LOG, native_messages_in, progress
from armwise.agent.config import AppConfig, parse
from armwise.agent.jobs import Planned, RunFailedError, next_run, this_process
from armwise.agent.lab.warmstart.journal import HEARTBEAT_S
from armwise.agent.lab.warmstart.run import carry_out, is_first
from armwise.agent.learning import Recipe
from armwise.agent.low_priority import (
    end_child,
    lower_priority,
    lower_priority_of_a_builder,
    read_task,
)
from armwise.agent.reporting import Terminal, log_plainly
from armwise.agent.run_folder import COLD, UNDER_WAY
from armwise.feedback.drift import read_alarms
from armwise.feedback.errors import LogUnavailableError, SupersededError, UnderWayError
from armwise.feedback.log import Store
from armwise.feedback.registry import active_policy, runs

logger = logging.getLogger(__name__)

READ_S = 1.0
"""Seconds between two reads of the log."""

POLL_S = 0.2
"""Seconds between two polls of a child."""


class WarmStarts:
    """Does the warm starts that are due. Implements `armwise.agent.jobs.Task`.

    Args:
        store: The log.
        config: Configuration with defaults resolved, with a warm start.
        since: Start of a cron schedule before the first run, seconds since the epoch.
        begin: Starts a child process for the configuration and the number of its run; see `begin_child`.
        clock: Seconds since the epoch.
        changed: Whether the log is worth a look.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        since: float,
        begin: "Callable[[AppConfig, int, bool], subprocess.Popen[bytes]] | None" = None,
        clock: Callable[[], float] = time.time,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        assert config.warm_start is not None
        self._store, self._config, self._spec, self._since = store, config, config.warm_start, since
        self._begin, self._clock, self._changed = begin or begin_child, clock, changed
        self._configured, self._join = Recipe.from_config(config).digest, config.reward.join
        last = runs.newest(store, self._configured)
        self._again = last is not None and last.too_little is not None  # documents may have changed
        self._next_read = 0.0
        self._trigger = runs.Trigger.SCHEDULE

    def due(self, now: float) -> bool:
        """Read schedule and log, at most once a second; never while a first start still builds arms."""
        builds = (self._config.home_path / UNDER_WAY).exists()
        if now < self._next_read or builds or not self._changed():
            return False
        self._next_read = now + READ_S
        active = active_policy(self._store, self._configured)
        alarms = read_alarms(self._store, self._join, active)
        planned = next_run(self._store, self._spec, self._configured, self._join, alarms, self._since)
        if self._again and self._spec.first == "promote" and COLD not in os.environ:
            planned = Planned(now, runs.Trigger.FIRST)
        if planned is None or planned.at > now:
            return False
        self._trigger, self._again = planned.trigger, False
        return True

    def run(self, stop: threading.Event) -> None:
        """Do a run; it ends early if the service stops, or if the run was abandoned."""
        try:
            mine = runs.claim(self._store, self._configured, self._trigger, this_process(), self._clock())
        except UnderWayError as error:
            logger.info("%s", error)
            return
        logger.info("warm start %d begins, by %s", mine.seq, mine.trigger)
        child, renewed_at = self._begin(self._config, mine.seq, is_first(self._store, mine)), self._clock()
        try:
            while child.poll() is None:
                if stop.wait(POLL_S):
                    return
                if self._clock() >= renewed_at + HEARTBEAT_S:
                    renewed_at = self._clock()
                    with suppress(LogUnavailableError):  # most outages are shorter than the lease
                        runs.renew(self._store, mine, renewed_at)
            if child.returncode:
                ended = f"its process ended with status {child.returncode}: see its output"
                runs.finish(self._store, mine, runs.RunState.FAILED, self._clock(), ended)
        except SupersededError as error:
            there = runs.find(self._store, mine.seq)
            if there is None or there.status not in runs.ENDED:  # else its child has just ended it
                logger.warning("%s", error)
        finally:
            end_child(child)


def begin_child(config: AppConfig, number: int, awaited: bool = False) -> "subprocess.Popen[bytes]":
    """Start a child process that does a run; it writes to the standard error of this process.

    Args:
        config: The configuration.
        number: The run.
        awaited: Whether somebody waits for it, as for a first run: then its priority is higher.
    """
    task = {"config": config.model_dump(mode="json"), "run": number}
    lower = lower_priority_of_a_builder if awaited else lower_priority
    return low_priority.begin_child(__name__, run_child.__name__, task, lower=lower)


def run_child() -> None:
    """Do the run that the task names; a failure is recorded in the log, with exit status 0."""
    task = read_task()
    config = parse(task["config"])
    config.home_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with native_messages_in(config.home_path / RAY_LOG):
        logging.basicConfig(level=logging.INFO)
        log_plainly()
        console = Terminal(file=sys.stderr, width=120)
        try:
            with progress(console) as on_progress:
                carry_out(config, task["run"], console, on_progress)
        except RunFailedError:
            logger.exception("a warm start failed")
