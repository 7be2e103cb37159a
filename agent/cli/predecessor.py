"""The running service whose port a new one takes over (`armwise serve --replace`).

new service   prepares, loads, is ready, and then listens on the port as well (`agent/hosts/port.py`)
old service   gets `HAND_OVER`: it accepts what was queued for it, finishes its requests, and ends

The mark of the old one, in the home that both use, says which process it is.
"""

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.cli.served_home import find_servers
from armwise.agent.run_folder import HAND_OVER

TAKEN = ".replacing-"
"""How the name of a file in a home begins that the successor of a process locks; its id follows."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A running `armwise serve`.

    Attributes:
        pid: Process id, for messages. Linux may give it to another process once this one has ended.
        descriptor: Linux's file descriptor of the process (`pidfd_open`), which never means another one.
    """

    pid: int
    descriptor: int

    def runs(self) -> bool:
        """Return whether it has not ended yet."""
        poll = select.poll()  # select() refuses descriptors above 1,023
        poll.register(self.descriptor, select.POLLIN)
        return not poll.poll(0)

    def retire(self) -> None:
        """Have it finish its requests and end; nothing happens if it has ended already."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, HAND_OVER)


@contextmanager
def claim_port(home: Path, url: str) -> Iterator[Predecessor | None]:
    """Reserve the port of the service of a home for this process; yield that service, or None without one.

    Args:
        home: A folder, which may be missing.
        url: Where it listens.

    Raises:
        LaunchError: Another process is taking the port over.
    """
    if (found := find_predecessor(home, url)) is None:
        yield None
        return
    path = home / f"{TAKEN}{found.pid}"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(
                f"another `armwise serve --replace` is taking the port over from process {found.pid}: "
                "wait until it is ready, then start this one again; or stop that one"
            ) from None
        yield found
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)
        os.close(found.descriptor)


def find_predecessor(home: Path, url: str) -> Predecessor | None:
    """Return the process that serves a home at an address; None: there is none."""
    for server in find_servers(home):
        if server.url == url:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(server.pid)
                if server in find_servers(home):  # so it is not another process with its id
                    return Predecessor(server.pid, descriptor)
                os.close(descriptor)
    return None
