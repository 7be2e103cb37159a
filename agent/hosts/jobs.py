"""What the service does besides answering: it learns, evaluates, trains routers and builds indexes."""

import gc
import os
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from armwise.agent.background import Work
from armwise.agent.config import AppConfig
from armwise.agent.evaluation import Evaluations, evaluate_apart
from armwise.agent.hosts.learner import Learning
from armwise.agent.jobs import POLL_S, JobFailedError, Jobs, Task, this_process
from armwise.agent.learning import digest_configuration
from armwise.agent.low_priority import (
    begin_child,
    end_child,
    environment_of_a_child,
    lower_priority_of_a_builder,
)
from armwise.agent.run_folder import RUN_FOLDER, UNDER_WAY, BuildingProgress
from armwise.agent.telemetry import begin
from armwise.agent.wings import CANARIES, DIGESTS, WARM_STARTS, load
from armwise.feedback.clock import SteadyClock
from armwise.feedback.log import ChangeWatch, Store, open_log

BUILDER = "armwise.agent.cli.first_start", "follow"
"""Where the child of a first start begins; by name, since the service loads no verbs."""

MOST_SAID = 4096
"""Bytes of what a child says that are kept."""


class FirstStart:
    """Builds in a child what a first start has left. Implements `armwise.agent.jobs.Task`.

    Args:
        config: The configuration, with absolute paths.
    """

    def __init__(self, config: AppConfig) -> None:
        self._config = config

    def due(self, now: float) -> bool:
        """Return whether a first start is under way."""
        del now
        return (self._config.home_path / UNDER_WAY).exists()

    def run(self, stop: threading.Event) -> None:
        """Build, and let all arms enter. Raises JobFailedError."""
        task = self._config.model_dump(mode="json")
        environment = environment_of_a_child()
        del environment["OMP_NUM_THREADS"]  # it embeds on all processors
        with TemporaryFile() as said:  # no pipe: a child that says much would wait for ever
            child = begin_child(
                *BUILDER, task, lower=lower_priority_of_a_builder, env=environment, stdout=said
            )
            try:
                while child.poll() is None:
                    if stop.wait(POLL_S):
                        return
                if child.returncode:
                    said.seek(0)
                    why = said.read(MOST_SAID).decode(errors="replace").strip()
                    raise JobFailedError(
                        why or f"the process that builds ended with status {child.returncode}"
                    )
            finally:
                end_child(child)
                if folder := os.environ.get(RUN_FOLDER):
                    BuildingProgress(Path(folder)).end()


class JobsHost:
    """Tasks in a thread each: all work of the background that is configured.

    Two replicas may coexist.

    A task that fails is tried again here, and its failure stays in the folder of the run until it succeeds.

    Args:
        config: The configuration, with absolute paths.
        works: What this one does of them.
        poll_s: Seconds between two looks at whether a task is due.
    """

    def __init__(
        self, config: AppConfig, works: Collection[Work] = tuple(Work), poll_s: float = POLL_S
    ) -> None:
        begin(config.telemetry)
        gc.freeze()  # loaded modules stay; collecting them repeatedly takes a tenth of a replay
        self._config, self._clock, self._opened = config, SteadyClock(), ExitStack()
        tasks: dict[Work, Callable[[], Task]] = {
            Work.LEARNER: self._learning,
            Work.FIRST_START: partial(FirstStart, config),
            Work.EVALUATION: self._evaluations,
        }
        if config.warm_start is not None:
            tasks[Work.WARM_START] = partial(self._warm_starts, self._clock())
        if config.automatic_canaries:
            tasks[Work.CANARY] = self._canaries
        if config.digest is not None:
            tasks[Work.DIGEST] = self._digests
        self._jobs = Jobs({work: tasks[work] for work in tasks if work in works}, poll_s, self._clock)

    def stop(self) -> None:
        """Cancel what runs."""
        self._jobs.stop()
        self._opened.close()

    __del__ = stop  # Ray Serve calls it when it stops the replica

    def _on_log(self, make: Callable[[Store], Task], store: Store | None = None) -> Task:
        """Return a task on a store of its own, which is closed with this host, or at once if it fails."""
        with ExitStack() as opened:
            store = store or Store(self._config.database_url, self._config.reward.join, self._clock)
            opened.enter_context(closing(store))
            task = make(store)
            self._opened.push(opened.pop_all())
        return task

    def _learning(self) -> Task:
        store = open_log(self._config.database_url, self._config.reward, self._clock)
        return self._on_log(lambda store: Learning(store, self._config, self._clock), store)

    def _evaluations(self) -> Task:
        config, evaluate = self._config, partial(evaluate_apart, self._config)
        return self._on_log(
            lambda store: Evaluations(
                store,
                digest_configuration(config),
                this_process(),
                evaluate,
                self._clock,
                changed=ChangeWatch(store).is_due,
            )
        )

    def _warm_starts(self, since: float) -> Task:
        make = partial(load(WARM_STARTS), config=self._config, since=since, clock=self._clock)
        return self._on_log(lambda store: make(store, changed=ChangeWatch(store).is_due))

    def _canaries(self) -> Task:
        make = load(CANARIES)
        return self._on_log(lambda store: make(store, self._config, self._clock, ChangeWatch(store).is_due))

    def _digests(self) -> Task:
        make = load(DIGESTS)
        return self._on_log(lambda store: make(store, self._config, self._clock))

    def check_health(self) -> None:
        """Fail if the clock jumped or a thread has ended, so that the process is replaced."""
        self._clock.check()
        self._jobs.check()
