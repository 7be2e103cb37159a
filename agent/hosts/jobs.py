"""What the service does besides answering: it learns, evaluates, warms up routers and tries candidates."""

import gc
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from functools import partial

from armwise.agent.background import Work
from armwise.agent.config import AppConfig
from armwise.agent.evaluation import RETRIES_S, Evaluations, evaluate_apart
from armwise.agent.hosts.learner import Learning
from armwise.agent.jobs import POLL_S, Jobs, Task, this_process
from armwise.agent.learning import digest_configuration
from armwise.agent.telemetry import begin
from armwise.agent.wings import CANARIES, WARM_STARTS, load
from armwise.feedback.clock import SteadyClock
from armwise.feedback.log import ChangeWatch, Store, open_log


class JobsHost:
    """Tasks in a thread each: learning, evaluations, warm starts and canaries. Two replicas may coexist.

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
            Work.EVALUATION: self._evaluations,
        }
        if config.warm_start is not None:
            tasks[Work.WARM_START] = partial(self._warm_starts, self._clock())
        if config.automatic_canaries:
            tasks[Work.CANARY] = self._canaries
        self._jobs = Jobs({work: tasks[work] for work in tasks if work in works}, poll_s, self._clock)

    def stop(self) -> None:
        """Cancel what runs."""
        self._jobs.stop()
        self._opened.close()

    __del__ = stop  # Ray Serve calls it when it stops the replica

    def _open(self) -> tuple[Store, Callable[[], bool]]:
        """Open the log for a task; return it, and what says whether it may have changed."""
        store = Store(self._config.database_url, self._config.reward.join, self._clock)
        return self._opened.enter_context(closing(store)), ChangeWatch(store).is_due

    def _learning(self) -> Task:
        store = open_log(self._config.database_url, self._config.reward, self._clock)
        return Learning(self._opened.enter_context(closing(store)), self._config, self._clock)

    def _evaluations(self) -> Task:
        config, (store, changed) = self._config, self._open()
        known = store, digest_configuration(config), this_process(), partial(evaluate_apart, config)
        return Evaluations(*known, self._clock, pauses_s=RETRIES_S, changed=changed)

    def _warm_starts(self, since: float) -> Task:
        store, changed = self._open()
        task: Task = load(WARM_STARTS)(store, self._config, since, clock=self._clock, changed=changed)
        return task

    def _canaries(self) -> Task:
        store, changed = self._open()
        task: Task = load(CANARIES)(store, self._config, self._clock, changed)
        return task

    def check_health(self) -> None:
        """Fail if the clock jumped or a thread has ended, so that the process is replaced."""
        self._clock.check()
        self._jobs.check()
