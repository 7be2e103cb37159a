"""Start the service on this machine: build what is missing, then run and supervise Ray Serve.

`armwise serve` runs `serve run` with the same file, and adds progress, an error
where the port is in use, and a line when the service is ready.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import httpx
import yaml
from rich.console import Console

from agent.cli.console import PLAIN

STOP_S = 30.0
"""Time to shut down before the next, stronger signal."""

START_S = 600.0
"""Longest start before readiness is no longer polled; the service continues to start."""


class LaunchError(Exception):
    """The service cannot be started; the message says why and what would be right."""


def address_of(config: Path) -> tuple[str, int]:
    """Return the host and the port that a Serve configuration names. Raises LaunchError."""
    http = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("http_options") or {}
    try:
        return str(http.get("host", "127.0.0.1")), int(http.get("port", 8000))
    except (AttributeError, TypeError, ValueError):
        raise LaunchError(
            f"{config}: http_options {http!r} is not of the form {{host: 127.0.0.1, port: 8000}}"
        ) from None


def require_free_port(host: str, port: int) -> None:
    """Check that nothing listens there. Raises LaunchError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            message = (
                f"port {port} of {host} cannot be used ({error.strerror}): stop what listens there, or change"
            )
            raise LaunchError(f"{message} http_options.port in the configuration") from None


def prepared(config: Path) -> int:
    """Build what is missing in a process of its own, which gives back the memory that this takes.

    Returns:
        Its exit code.
    """
    words = ["serve", "--prepare-only", "--config", str(config)]
    return subprocess.run([sys.executable, "-m", "agent.cli", *words], check=False).returncode


def serve(
    config: Path, address: tuple[str, int], console: Console, once: Callable[[str], None] | None = None
) -> int:
    """Run Ray Serve until it is interrupted; print when it is ready.

    Args:
        config: A Ray Serve configuration file.
        address: Host and port that it names.
        console: Where to print.
        once: Called with the address as soon as the service is ready; then the service is stopped.

    Returns:
        The exit code of Ray Serve; 0 after `once`.
    """
    command = [sys.executable, "-m", "agent.cli.start_ray", str(config)]
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **os.environ}
    # also SIGINT: a background job inherits that it is ignored, and would pass that to its children
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # a session of its own: Ctrl-C reaches it once, from here, so that it shuts down in order
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    base = f"http://{address[0]}:{address[1]}"
    try:
        ready = _wait_until_ready(process, base)
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
            console.print(f"see:     {base}/docs   {base}/v1/policy   {base}/metrics", **PLAIN)
        return process.wait()
    except KeyboardInterrupt:
        console.print("shutting down", **PLAIN)
        return _stop(process)


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


def _wait_until_ready(process: subprocess.Popen[bytes], base: str) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{base}/ready", timeout=5).is_success:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    return False
