"""The wiring, and the only one: a configuration becomes deployments.

`serve run serve_config.yaml`, `serve deploy serve_config.yaml` and `armwise
serve` all come through `build`.
"""

import gc
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property, partial
from typing import Any, TypeVar

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.handle import DeploymentHandle

from agent.api import create_app
from agent.config import AppConfig, ConfigError, parse
from agent.evaluation import Evaluations, evaluate_apart, verdict
from agent.jobs import Jobs, Task, this_process
from agent.learning import DIGEST_CHARS, Learner, LearnerThread, Recipe, active_recipe, configuration_of
from agent.routers import open_selector, saved
from agent.serving import Replica, Telemetry
from agent.serving import arms as serving_arms
from agent.warmstart import WarmStarts
from arms.deployments import (
    ArmHost,
    EmbedderHost,
    GeneratorHost,
    RemoteArms,
    RemoteEmbedders,
    RemoteGenerator,
    reach,
)
from arms.retrievers import DEFAULT_HOST, ArmSpec, closure
from feedback.clock import SteadyClock
from feedback.errors import LogUnavailableError
from feedback.log import Store, open_log
from feedback.registry import active_policy, arm_sets
from feedback.training_log import lag, take_epoch

CPUS_A_REPLICA = 0.1
"""What Ray sets aside for a replica: little, so that the whole service starts on one small machine."""

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

OPENING_S = 1.0
"""Pause between two attempts of a replica to open a log that is away."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@serve.ingress()
class Ingress:
    """One replica of the HTTP surface; it decides by itself, without a hop.

    Args:
        config: The settled configuration.
        arms: The hosts of the arms, by the name that an arm calls its host.
        embedders: The host of each backbone.
        generator: The host of the language model.
        learner: The learner.
        jobs: What works beside it.
    """

    def __init__(
        self,
        config: AppConfig,
        arms: Mapping[str, DeploymentHandle[Any]],
        embedders: Mapping[str, DeploymentHandle[Any]],
        generator: DeploymentHandle[Any],
        learner: DeploymentHandle[Any],
        jobs: DeploymentHandle[Any],
    ) -> None:
        del learner, jobs  # named so that they are deployed with the application: the log is the only road
        self._replica = once_the_log_answers(
            partial(
                open_replica,
                config,
                RemoteArms(arms, config.arms),
                RemoteEmbedders(embedders),
                RemoteGenerator(config.llm.engine, generator),
                partial(reach, [*arms.values(), *embedders.values(), generator]),
            )
        )

    def __serve_build_asgi_app__(self) -> Any:
        """Build the application of this replica, once Ray Serve has constructed it."""
        return create_app(self._replica)

    async def check_health(self) -> None:
        """Fail when versions are no longer looked for or the clock jumped: the replica is replaced."""
        self._replica.check()


class LearnerHost:
    """The one learner. It takes an epoch once; a replacement takes a newer one, and the old one stops."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._clock = SteadyClock()
        self._word = ""  # the recipe that was said, which may not be the one that is active
        gc.freeze()  # what is loaded stays; to look at it again and again takes a tenth of a replay
        self._thread = LearnerThread(self._learner, config.learning.interval_s)

    @cached_property
    def _store(self) -> Store:
        return open_log(self._config.database_url, self._config.reward, self._clock)

    @cached_property
    def _epoch(self) -> int:
        return take_epoch(self._store, this_process(), self._clock())

    @cached_property
    def _succession(self) -> lag.SuccessorCheck:
        return lag.SuccessorCheck(self._store)

    def _learner(self, running: Learner | None = None) -> Learner:
        """Return the learner that is to go on: the one that runs, unless another recipe is active now."""
        config = self._config
        said = active_policy(self._store, Recipe.configured(config).digest)
        if running is not None and said.recipe == self._word:
            return running
        recipe, self._word = active_recipe(self._store, config, said), said.recipe
        if running is not None and running.recipe == recipe:
            return running
        if running is not None:
            logger.info("learning goes on with recipe %s", recipe.digest[:DIGEST_CHARS])
        arms = list(config.actions)
        return Learner(self._store, recipe, arms, self._epoch, self._clock, drift=config.drift)

    def check_health(self) -> None:
        """Fail when learning has failed or the clock jumped, so that the learner is replaced.

        One that was superseded fails once its successor learns no more.
        """
        self._clock.check()
        self._thread.check()
        if self._thread.superseded:
            self._succession.check()


class JobsHost:
    """What works beside the service: evaluations, and what falls due by itself. Two do no harm."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._clock = SteadyClock()
        self._worker = this_process()
        self._opened = ExitStack()
        tasks: list[Callable[[], Task]] = [self._evaluations]
        if config.warm_start is not None:
            tasks.append(partial(self._warm_starts, self._clock()))
        self._jobs = Jobs(tasks, config.learning.poll_s, self._clock)

    def __del__(self) -> None:
        """Give up what is under way: Ray Serve calls this when it stops the replica."""
        self._jobs.stop()
        self._opened.close()

    def _store(self) -> Store:
        """Open the log for a task."""
        store = Store(self._config.database_url, self._config.reward.join, self._clock)
        return self._opened.enter_context(closing(store))

    def _evaluations(self) -> Task:
        configured, evaluate = configuration_of(self._config), partial(evaluate_apart, self._config)
        return Evaluations(self._store(), configured, self._worker, evaluate, self._clock)

    def _warm_starts(self, since: float) -> Task:
        return WarmStarts(self._store(), self._config, since, clock=self._clock)

    def check_health(self) -> None:
        """Fail when the clock jumped, or when nobody looks for work any more: the replica is replaced."""
        self._clock.check()
        self._jobs.check()


def open_replica(
    config: AppConfig,
    arms: RemoteArms,
    embedders: RemoteEmbedders,
    generator: RemoteGenerator,
    reach_hosts: Callable[[], Awaitable[None]],
) -> Replica:
    """Open the log and wire a replica to it. Raises LogUnavailableError."""
    clock = SteadyClock()
    store = open_log(config.database_url, config.reward, clock)
    return Replica(
        config,
        store,
        arms,
        embedders,
        generator,
        gate=partial(verdict, store, configuration_of(config), clock=clock),
        telemetry=Telemetry(os.environ.get(METRICS_FOLDER)),
        clock=clock,
        reach=reach_hosts,
    )


def once_the_log_answers(make: Callable[[], T], pause_s: float = OPENING_S) -> T:
    """Return what is made with the log, however long that is away.

    Ray Serve gives a deployment up whose replicas fail a few times while they start, and does not
    try again by itself.

    Args:
        make: Opens the log.
        pause_s: Seconds between two attempts.
    """
    while True:
        try:
            return make()
        except LogUnavailableError as error:
            logger.warning("a replica waits for the log: %s", error)
            time.sleep(pause_s)


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `args` of a Serve configuration. Raises ConfigError."""
    return assemble(parse(args).settled())


def assemble(config: AppConfig) -> Application:
    """Build the application from a settled configuration; warn of arms that its router does not know."""
    if config.router is not None:
        saved.warn_of_unknown(saved.read_about(config.router.path), config.actions)
    metrics = config.home_path / "metrics"
    shutil.rmtree(metrics, ignore_errors=True)  # the counters of the processes of an earlier start
    metrics.mkdir(parents=True)
    embedders = {
        name: _deployment(EmbedderHost, f"Embedder-{name}", 128).bind(backbone)
        for name, backbone in config.backbones.items()
    }
    at_once = 4 * config.limits.in_flight
    generator = _deployment(GeneratorHost, "Generator", at_once).bind(config.llm)
    hosts = {
        host: _deployment(ArmHost, host, at_once).bind(
            config.corpus.source,
            config.corpus_path,
            config.indexes_path,
            config.backbones,
            arms_on(host, config.arms),
            partial(live_on, host, config),
            embedders,
            generator,
            config.limits.arm_timeout_s,
            saved.looked_at(config.router) if host == DEFAULT_HOST else frozenset(),
            open_selector,
        )
        for host in dict.fromkeys([DEFAULT_HOST, *(spec.host for spec in config.arms.values())])
    }
    environment = {"env_vars": {METRICS_FOLDER: str(metrics)}}
    return _deployment(Ingress, "Ingress", at_once, runtime_env=environment).bind(
        config,
        hosts,
        embedders,
        generator,
        _deployment(LearnerHost, "Learner", 1).options(health_check_period_s=2).bind(config),
        _deployment(JobsHost, "Jobs", 1).bind(config),
    )


def arms_on(host: str, arms: Mapping[str, ArmSpec]) -> dict[str, dict[str, ArmSpec]]:
    """Return the arms that a host runs, each with its members."""
    return {
        name: closure(name, arms)
        for name, spec in arms.items()
        if spec.host == host and spec.action and spec.kind != "none"
    }


def live_on(host: str, config: AppConfig) -> dict[str, dict[str, ArmSpec]]:
    """Return the arms of a host that are live now; those of the configuration where the log is away."""
    try:
        store = Store(config.database_url)
        try:
            arms = config.with_arms(arm_sets.at_start(store, serving_arms.documents(config.arms))).arms
        finally:
            store.close()
    except (LogUnavailableError, ConfigError):
        arms = config.arms
    return arms_on(host, arms)


def _deployment(host: type, name: str, at_once: int, **actor: Any) -> Deployment:
    """Return a deployment of a class.

    Args:
        host: The class.
        name: How the configuration file calls it, to give it more replicas.
        at_once: Calls that one replica takes; bounds what waits inside it.
        actor: Further options of the Ray actor of each replica.
    """
    options = {"num_cpus": CPUS_A_REPLICA, **actor}
    return serve.deployment(
        name=name, max_ongoing_requests=at_once, graceful_shutdown_timeout_s=10, ray_actor_options=options
    )(host)
