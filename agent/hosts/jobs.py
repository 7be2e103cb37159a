"""The background jobs of the service: evaluations, warm starts and the canaries that they begin."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from armwise.agent.background import Work
from armwise.agent.config import AppConfig
from armwise.agent.evaluation import RETRIES_S, Evaluations, evaluate_apart
from armwise.agent.jobs import Jobs, Task, this_process
from armwise.agent.learning import digest_configuration
from armwise.agent.telemetry import begin
from armwise.agent.wings import CANARIES, WARM_STARTS, load
from armwise.feedback.clock import SteadyClock
from armwise.feedback.log import ChangeWatch, Store


class JobsHost:
    """Evaluations, scheduled warm starts and canaries; two replicas may coexist."""

    def __init__(self, config: AppConfig) -> None:
        begin(config.telemetry)
        self._clock = SteadyClock()
        self._opened = ExitStack()
        tasks: dict[Work, Callable[[], Task]] = {Work.EVALUATION: partial(self._evaluations, config)}
        if config.warm_start is not None:
            tasks[Work.WARM_START] = partial(self._warm_starts, config, self._clock())
        if config.automatic_canaries:
            tasks[Work.CANARY] = partial(self._canaries, config)
        self._jobs = Jobs(tasks, clock=self._clock)

    def __del__(self) -> None:
        """Stop running jobs: Ray Serve calls this when it stops the replica."""
        self._jobs.stop()
        self._opened.close()

    def _open(self, config: AppConfig) -> tuple[Store, Callable[[], bool]]:
        """Open the log for a task; return it, and what says whether it may have changed."""
        store = Store(config.database_url, config.reward.join, self._clock)
        return self._opened.enter_context(closing(store)), ChangeWatch(store).is_due

    def _evaluations(self, config: AppConfig) -> Task:
        digest, evaluate = digest_configuration(config), partial(evaluate_apart, config)
        store, changed = self._open(config)
        known = store, digest, this_process(), evaluate, self._clock
        return Evaluations(*known, pauses_s=RETRIES_S, changed=changed)

    def _warm_starts(self, config: AppConfig, since: float) -> Task:
        store, changed = self._open(config)
        task: Task = load(WARM_STARTS)(store, config, since, clock=self._clock, changed=changed)
        return task

    def _canaries(self, config: AppConfig) -> Task:
        store, changed = self._open(config)
        task: Task = load(CANARIES)(store, config, self._clock, changed)
        return task

    def check_health(self) -> None:
        """Fail if the clock jumped or the polling thread has stopped, so that the replica is replaced."""
        self._clock.check()
        self._jobs.check()
