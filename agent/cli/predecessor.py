"""The running service whose port a new one takes over, without a moment in which nobody listens.

new service   prepares, loads, is ready on its own sockets
new HAProxy   takes the listening sockets of the old one (`-x`), so that no connection is lost between them
old service   gets `HAND_OVER`: its HAProxy accepts nothing more, its requests end, and then it does
"""

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.proxy import ADMIN_SOCKET, CONFIGURATION

HAND_OVER = signal.SIGUSR1
"""Signal to an `armwise serve` whose port another one has taken over."""

TAKEN = "taken-over"
"""File in the folder of a run, locked by the `armwise serve` that takes its port over."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A running `armwise serve`.

    Attributes:
        pid: Process id, to name it in messages. Linux may give it to another process once this one has ended.
        admin: Admin socket of HAProxy, which hands out the listening sockets.
        descriptor: Linux's file descriptor of the process (`pidfd_open`), which never means another one.
    """

    pid: int
    admin: Path
    descriptor: int

    @contextmanager
    def claim_port(self) -> Iterator[None]:
        """Reserve its port for this process meanwhile. Raises LaunchError if another process has done so."""
        lock = os.open(self.admin.with_name(TAKEN), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LaunchError(
                    f"another `armwise serve --replace` is taking the port over from process {self.pid}: "
                    "wait until it is ready, then start this one again; or stop that one"
                ) from None
            yield
        finally:
            os.close(lock)

    def has_ended(self) -> bool:
        """Return whether it has ended, before anybody took its port over or after."""
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def retire(self) -> None:
        """Have it finish its requests and end; nothing happens if it has ended already."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, HAND_OVER)


def find_predecessor(port: int) -> Predecessor | None:
    """Return the `armwise serve` of this user that listens on a port; None: there is none."""
    for process in psutil.process_iter():
        try:
            words, parent = process.cmdline(), process.parent()
            if parent is None or process.uids().real != os.getuid() or "-f" not in words:
                continue
            configuration = Path(words[words.index("-f") + 1])
            listening = {
                place.laddr.port
                for place in process.net_connections(kind="tcp")
                if place.status == psutil.CONN_LISTEN
            }
            if configuration.name != CONFIGURATION or port not in listening:
                continue
            descriptor = os.pidfd_open(parent.pid)
            # only now: if the process id was reused before, the parent is no longer the same
            if process.parent() == parent and "serve" in parent.cmdline():
                return Predecessor(parent.pid, configuration.with_name(ADMIN_SOCKET), descriptor)
            os.close(descriptor)
        except (psutil.Error, ProcessLookupError, IndexError):  # it has ended, or is no HAProxy
            continue
    return None
