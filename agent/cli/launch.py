"""Start the service on this machine: build what is missing, then run HAProxy and, behind it, Ray Serve.

`armwise serve` runs `serve run` with the same file, without the HTTP proxy of Ray Serve: HAProxy
listens in its place, and the replicas of the ingress answer on sockets of a private folder. Where
RAY_ADDRESS names a cluster, or there is no HAProxy, Ray Serve's own proxy listens.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml
from rich.console import Console

from agent.cli.console import PLAIN
from agent.proxy import RUN_FOLDER, Proxy, ends_with_its_parent, haproxy_binary
from arms.local_ray import QUIET, private_folder

STOP_S = 30.0
"""Time to shut down before the next, stronger signal."""

DRAIN_S = 300.0
"""Longest that requests under way delay the end."""

START_S = 600.0
"""Longest start before readiness is no longer polled; the service continues to start."""


LOOK_S = 0.1
"""Pause between two looks at whether the processes still run."""


class LaunchError(Exception):
    """The service cannot be started; the message says why and what would be right."""


def address_of(config: Path) -> tuple[str, int]:
    """Return the host and the port that a Serve configuration names. Raises LaunchError."""
    http = _document(config).get("http_options") or {}
    try:
        return str(http.get("host", "127.0.0.1")), int(http.get("port", 8000))
    except (AttributeError, TypeError, ValueError):
        raise LaunchError(
            f"{config}: http_options {http!r} is not of the form {{host: 127.0.0.1, port: 8000}}"
        ) from None


def ingress_replicas(config: Path) -> int:
    """Return how many replicas of the ingress a Serve configuration asks for at most."""
    (application,) = _document(config)["applications"]
    for deployment in application.get("deployments") or ():
        if deployment.get("name") == "Ingress":
            autoscaling = deployment.get("autoscaling_config") or {}
            return int(autoscaling.get("max_replicas") or deployment.get("num_replicas") or 1)
    return 1


def logs_json(config: Path) -> bool:
    """Return whether a Serve configuration asks for a log in JSON."""
    (application,) = _document(config)["applications"]
    telemetry = (application.get("args") or {}).get("telemetry") or {}
    return bool(telemetry.get("logs") == "json")


def _document(config: Path) -> dict[str, Any]:
    found = yaml.safe_load(config.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def require_free_port(host: str, port: int) -> None:
    """Check that nothing listens there. Raises LaunchError."""
    from agent.checks import bind_problem  # the process that waits for the service needs none of its imports

    if problem := bind_problem(host, port):
        raise LaunchError(
            f"{problem}: stop what listens there, or change http_options.port in the configuration"
        )


def prepared(config: Path, folder: Path | None = None, *, cold: bool = False) -> int:
    """Build what is missing in a process of its own, which gives back the memory that this takes.

    Args:
        config: A Ray Serve configuration file.
        folder: Where to write the configuration of HAProxy; None for nowhere.
        cold: Whether to leave out the warm start before the first request.

    Returns:
        Its exit code.
    """
    words = ["serve", "--prepare-only", "--config", str(config), *(["--cold"] if cold else [])]
    environment = dict(os.environ) if folder is None else {**os.environ, RUN_FOLDER: str(folder)}
    command = [sys.executable, "-m", "agent.cli", *words]
    return subprocess.run(command, env=environment, check=False, preexec_fn=ends_with_its_parent).returncode


@contextmanager
def run_folder() -> Iterator[Path | None]:
    """Yield the private folder of the run, for sockets and Ray; None where Ray Serve's own proxy listens."""
    if "RAY_ADDRESS" in os.environ or haproxy_binary() is None:
        yield None
        return
    with private_folder() as folder:
        yield folder


def serve(
    config: Path,
    folder: Path | None,
    address: tuple[str, int],
    console: Console,
    once: Callable[[str], None] | None = None,
) -> int:
    """Run the proxy and Ray Serve until interrupted; print when it is ready.

    Args:
        config: A Ray Serve configuration file.
        folder: Folder of the sockets, with the configuration of HAProxy; None for Ray Serve's own proxy.
        address: Host and port that the configuration names.
        console: Where to print.
        once: Called with the address as soon as the service is ready; then the service is stopped.

    Returns:
        The exit code of Ray Serve; 0 after `once`.
    """
    environment = {**QUIET, **os.environ}
    if logs_json(config):  # each line as its process has written it, and every one
        environment |= {"RAY_DISABLE_WORKER_LOG_PREFIX": "1", "RAY_DEDUP_LOGS": "0"}
    # also SIGINT: a background job inherits that it is ignored, and would pass that to its children
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    proxy: Proxy | None = None
    if folder is not None:
        proxy = Proxy(folder / "haproxy.cfg")
        config, environment[RUN_FOLDER] = _without_proxy(config, folder), str(folder)
    command = [sys.executable, "-m", "agent.cli.start_ray", str(config)]
    # a session of its own: Ctrl-C reaches it once, from here, so that it shuts down in order
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=ends_with_its_parent
    )
    base = f"http://{address[0]}:{address[1]}"
    try:
        ready = _wait_until_ready(process, proxy, base)
        if ready and once is not None:
            try:
                once(base)
            finally:
                _stop(process)
            return 0
        if ready:
            console.rule("ready")
            console.print(
                f"ask:     armwise ask 'Which function merges sorted inputs lazily?' --url {base}", **PLAIN
            )
            console.print(f"see:     {base}/console   {base}/docs   {base}/metrics", **PLAIN)
        while _running(process, proxy):
            time.sleep(LOOK_S)
        return process.wait()
    except KeyboardInterrupt:
        console.print("shutting down", **PLAIN)
        if proxy is not None:
            with suppress(KeyboardInterrupt):  # a second one: at once
                proxy.drain(DRAIN_S)
        return _stop(process)
    finally:
        if proxy is not None:
            proxy.stop()


def _without_proxy(config: Path, folder: Path) -> Path:
    """Write the same configuration without Ray Serve's own HTTP proxy; return its path."""
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({**_document(config), "proxy_location": "Disabled"}), encoding="utf-8")
    return path


def _running(process: subprocess.Popen[bytes], proxy: Proxy | None) -> bool:
    """Return whether Ray Serve runs; a proxy that has ended is started again."""
    if proxy is not None:
        proxy.watch()
    return process.poll() is None


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt Ray Serve; terminate, then kill it where it does not stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number) if number is signal.SIGKILL else process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
    return process.wait()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait_until_ready(process: subprocess.Popen[bytes], proxy: Proxy | None, base: str) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and _running(process, proxy):
        try:
            if httpx.get(f"{base}/ready", timeout=5).is_success:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(LOOK_S)
    return False
