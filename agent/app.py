"""The wiring of the service: a configuration becomes deployments.

`serve run serve_config.yaml`, `serve deploy serve_config.yaml` and `armwise
serve` all call `build`.
"""

import shutil
from functools import partial
from typing import Any

from ray import serve
from ray.serve import Application, Deployment

from agent.config import AppConfig, parse
from agent.hosts import METRICS_FOLDER, Ingress, JobsHost, LearnerHost
from agent.hosts import arms as hosted
from agent.routers import open_selector, saved
from arms.deployments import ArmHost, EmbedderHost, GeneratorHost
from arms.retrievers import DEFAULT_HOST

CPUS_A_REPLICA = 0.1
"""CPUs that Ray reserves for a replica: few, so that the whole service starts on one small machine."""


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `args` of a Serve configuration. Raises ConfigError."""
    return assemble(parse(args).settled())


def assemble(config: AppConfig) -> Application:
    """Build the application from a configuration with absolute paths; warn of arms unknown to its router."""
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
            hosted.arms_on(host, config.arms),
            partial(hosted.live_on, host, config),
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


def _deployment(host: type, name: str, at_once: int, **actor: Any) -> Deployment:
    """Return a deployment of a class.

    Args:
        host: The class.
        name: Its name in `deployments` of the configuration file.
        at_once: Concurrent calls of one replica, waiting ones included.
        actor: More options of the Ray actor of each replica.
    """
    options = {"num_cpus": CPUS_A_REPLICA, **actor}
    return serve.deployment(
        name=name, max_ongoing_requests=at_once, graceful_shutdown_timeout_s=10, ray_actor_options=options
    )(host)
