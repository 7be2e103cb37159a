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
from uuid import uuid4

import ray
from ray import serve
from ray.serve import Application, Deployment
from ray.serve.context import _get_global_client

from armwise.agent.checks import describe_owner, require_libraries
from armwise.agent.config import AppConfig, ConfigError, parse_with_environment
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
        ConfigError: The settings are invalid, or another service has the port.
    """
    in_ray = ray.is_initialized()  # elsewhere, as in a test, what is asked of Ray would start another one
    if in_ray and RUN_FOLDER not in os.environ:  # in a run folder, `armwise serve` has looked
        _require_own_port()
    if (named := os.environ.get(CONFIG_FOLDER)) is not None:
        return assemble(parse_with_environment(args, folder=Path(named)).resolve_places())
    config = parse_with_environment(args).resolve_places()
    logger.warning("relative paths are in the current folder, %s; the home is %s", Path.cwd(), config.home)
    if in_ray and os.environ.get("RAY_AUTH_MODE") == "token":  # which Ray's own message does not name
        logger.warning(
            "to deploy a changed file while requests are answered, run: RAY_AUTH_MODE=token "
            "RAY_DASHBOARD_ADDRESS=http://%s serve deploy FILE",
            ray._private.worker.get_dashboard_url(),  # type: ignore[no-untyped-call]  # noqa: SLF001
        )
    return assemble(config)


def _require_own_port() -> None:
    """Check that no other Ray listens on the port of Ray Serve's proxy, which shares it without a word.

    Raises:
        ConfigError: Another one does.
    """
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:  # nothing is served yet
        return
    port, ours = client.http_config.port, f"--gcs-address={ray.get_runtime_context().gcs_address}"
    if owner := describe_owner(port, client.http_config.host, ours):
        raise ConfigError(
            f"port {port} is taken{owner}. Each of the two services would get some of the requests: stop "
            "one of them (Ctrl-C where it runs, or `serve shutdown`), or change http_options.port"
        )


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
    """Return a new folder for the counters of this service; remove those of services that have ended.

    It is outside the home, which machines may share, because its files are named by process ids of a machine.
    """
    if RUN_FOLDER in os.environ:  # the run folder is removed with its content
        folder = Path(os.environ[RUN_FOLDER]) / "metrics"
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder = Path(tempfile.gettempdir()) / f"armwise-metrics-{uuid4().hex}"
        for other in folder.parent.glob("armwise-metrics-*/"):
            writers = {file.stem.rpartition("_")[2] for file in other.glob("*.db")}
            ended = not any(Path("/proc", pid).exists() for pid in writers)
            if ended and other.stat().st_uid == os.getuid():
                shutil.rmtree(other, ignore_errors=True)
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
