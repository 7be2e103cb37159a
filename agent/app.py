"""The wiring of the service: a configuration becomes deployments.

`serve run serve_config.yaml`, `serve deploy serve_config.yaml` and `armwise
serve` all call `build`.
"""

import logging
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application, Deployment

from armwise.agent.config import AppConfig, parse_with_environment
from armwise.agent.doctor import require_libraries
from armwise.agent.hosts import arms as hosted
from armwise.agent.hosts.ingress import Ingress
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.routers import saved
from armwise.agent.run_folder import CONFIG_FOLDER, RUN_FOLDER
from armwise.agent.telemetry import begin
from armwise.arms.deployments import ArmReplica, EmbedderHost, GeneratorHost
from armwise.arms.llm import writing
from armwise.arms.retrievers import ArmGraph

logger = logging.getLogger(__name__)

CPUS_A_REPLICA = 0.1
"""CPUs that Ray reserves for a replica: few, so that the service starts on one small machine."""


STOP_LOOK_S = 0.2
"""Pause in seconds between two looks at whether a replica that stops still answers."""

SURGE_PERCENT = 25
"""Extra replicas while a deployment is replaced, rounded up: a new one answers before an old one stops."""


def build(args: dict[str, Any]) -> Application:
    """Build the application from the `args` of a Serve configuration.

    `armwise serve` says where the file is. Ray's own commands do not, so that relative paths are relative to
    the current folder, which is logged.

    Raises:
        ConfigError: The settings are invalid.
    """
    if (named := os.environ.get(CONFIG_FOLDER)) is not None:
        return assemble(parse_with_environment(args, folder=Path(named)).resolve_places())
    config = parse_with_environment(args).resolve_places()
    logger.warning("relative paths are in the current folder, %s; the home is %s", Path.cwd(), config.home)
    return assemble(config)


def assemble(config: AppConfig) -> Application:
    """Build the application from a configuration with absolute paths; warn of arms its router lacks.

    Raises:
        ConfigError: A library that the configuration needs is not installed.
    """
    require_libraries(config)
    if config.router is not None:
        saved.warn_of_unknown(saved.read_about(config.router.path), config.actions)
    prepare = partial(begin, config.telemetry)
    embedders = {
        name: _deployment(EmbedderHost, f"Embedder-{name}", 128).bind(backbone, prepare)
        for name, backbone in config.backbones.items()
        if backbone.host == "own"
    }
    at_once = 4 * config.limits.in_flight
    generators = {
        name: _deployment(GeneratorHost, deploy_generator(name), at_once).bind(spec, prepare)
        for name, spec in config.models.items()
        if spec.hosted
    }
    placed = ArmGraph(config.arms).deployments()
    hosts = {
        host: _deployment(ArmReplica, host, at_once).bind(
            hosted.read_settings(config),
            hosted.arms_on(host, config.arms, placed),
            partial(hosted.live_on, host, config),
            embedders,
            config.models[writing.DEFAULT],
            generators.get(writing.DEFAULT),
        )
        for host in placed
    }
    ingress = _deployment(Ingress, "Ingress", at_once)
    return ingress.options(health_check_period_s=0.25).bind(
        config,
        hosts,
        embedders,
        generators,
        _deployment(JobsHost, "Learner", 1).options(health_check_period_s=2).bind(config),
        str(metrics_folder()),
    )


def metrics_folder() -> Path:
    """Return an empty folder for the counters of this service.

    It is outside the home, which machines may share, because its files are named by process ids of a machine.
    """
    if RUN_FOLDER not in os.environ:
        return Path(tempfile.mkdtemp(prefix="armwise-metrics-"))
    folder = Path(os.environ[RUN_FOLDER]) / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def deploy_generator(model: str) -> str:
    """Return the name of the deployment of a language model."""
    return "Generator" if model == writing.DEFAULT else f"Generator-{model}"


def _deployment(host: type, name: str, at_once: int) -> Deployment:
    """Return a deployment of a class.

    Args:
        host: The class.
        name: Name of the deployment in the configuration file.
        at_once: Concurrent calls of one replica, waiting ones included.
    """
    return serve.deployment(
        name=name,
        max_ongoing_requests=at_once,
        graceful_shutdown_timeout_s=10,
        graceful_shutdown_wait_loop_s=STOP_LOOK_S,
        max_surge_percent=SURGE_PERCENT,
        ray_actor_options={"num_cpus": CPUS_A_REPLICA},
    )(host)
