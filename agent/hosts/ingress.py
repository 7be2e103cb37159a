"""One replica of the HTTP surface."""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from armwise.agent.access import require_closed
from armwise.agent.api.routes import create_app
from armwise.agent.config import AppConfig, Http
from armwise.agent.hosts.arms import open_here
from armwise.agent.hosts.listener import listening
from armwise.agent.hosts.port import open_socket
from armwise.agent.hosts.replica import keep_what_is_loaded, open_replica
from armwise.agent.run_folder import RUN_FOLDER
from armwise.agent.serving import Backends
from armwise.agent.telemetry import begin
from armwise.arms.deployments import (
    Embedders,
    RemoteArmHost,
    RemoteEmbedder,
    open_generator,
    reach,
)
from armwise.arms.llm import writing
from armwise.feedback.errors import describe_error

STOP_S = 10
"""Seconds that open requests get to finish when the replica stops."""

logger = logging.getLogger(__name__)


@serve.ingress()
class Ingress:
    """A replica of the HTTP interface; it decides, embeds and searches with light arms in its process.

    Args:
        config: The configuration, with absolute paths.
        arms: The deployed hosts of arms, by name.
        embedders: The deployed encoders, by backbone.
        generators: The hosts of the language models that have one, by name.
        learner: The deployment that learns, and runs evaluations and warm starts.
        counters: Folder of the counters of all replicas on a machine.
    """

    def __init__(
        self,
        config: AppConfig,
        arms: Mapping[str, DeploymentHandle[Any]],
        embedders: Mapping[str, DeploymentHandle[Any]],
        generators: Mapping[str, DeploymentHandle[Any]],
        learner: DeploymentHandle[Any],
        counters: str,
    ) -> None:
        begin(config.telemetry)
        del learner  # bound so that it is deployed; it shares only the log
        writers = {name: open_generator(spec, generators.get(name)) for name, spec in config.models.items()}
        encoders = Embedders(
            config.backbones, {name: RemoteEmbedder(handle) for name, handle in embedders.items()}
        )
        hosts = {name: RemoteArmHost(handle) for name, handle in arms.items()}
        folder = Path(counters)
        backends = Backends(
            open_here(config, hosts, encoders, writers[writing.DEFAULT], folder),
            encoders,
            writers,
            partial(reach, [*arms.values(), *embedders.values(), *generators.values()]),
        )
        self._replica = open_replica(config, backends, folder, deployments)
        if RUN_FOLDER not in os.environ:  # else `armwise serve` has looked
            require_closed(listens_on(), is_open=self._replica.keyring.is_open, allowed=config.open)
        self._settled, self._http = False, config.http
        keep_what_is_loaded()

    def __serve_build_asgi_app__(self) -> Any:
        """Build the application of this replica, once Ray Serve has constructed it."""
        app, folder = create_app(self._replica), os.environ.get(RUN_FOLDER)
        return app if folder is None else behind_haproxy(app, Path(folder), self._http)

    async def check_health(self) -> None:
        """Fail if a background task has stopped or the clock jumped, so that the replica is replaced."""
        self._replica.check()
        if self._replica.ready and not self._settled:
            self._settled = True
            keep_what_is_loaded()  # once more: encoders are loaded last


def behind_haproxy(app: FastAPI, folder: Path, http: Http) -> FastAPI:
    """Have an application listen on a socket in a folder while it is started.

    Args:
        app: The application.
        folder: The private folder of the run.
        http: Limits. HAProxy has those of connections, and closes what is idle.
    """
    inner_lifespan = app.router.lifespan_context
    http = http.model_copy(update={"idle_s": 3600.0, "connections": 2 * http.connections})

    @asynccontextmanager
    async def lifespan(starting: FastAPI) -> AsyncIterator[None]:
        with open_socket(folder) as listener:
            async with inner_lifespan(starting), listening(starting, [listener], http, STOP_S):
                yield

    app.router.lifespan_context = lifespan
    return app


def listens_on() -> str:
    """Return the address of Ray Serve's proxy; loopback without a controller."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return "127.0.0.1" if client is None else str(client.http_config.host)


def deployments() -> dict[str, tuple[bool, str]]:
    """Ask Ray Serve whether each deployment of this service is healthy, and for the state of its replicas."""
    try:
        statuses = serve.status().applications[serve.get_replica_context().app_name].deployments
    except (RayError, RayServeException, KeyError) as error:
        return {"Ray Serve": (False, describe_error(error))}
    shown = {}
    for name, status in sorted(statuses.items()):
        replicas = ", ".join(f"{n} {state.lower()}" for state, n in sorted(status.replica_states.items()))
        shown[name] = status.status.value == "HEALTHY", f"{replicas or 'no replica'} {status.message}".strip()
    return shown
