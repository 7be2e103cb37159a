"""The running service whose port a new one takes over, without a moment in which nobody listens.

new service   prepares, loads, is ready on its own sockets
new HAProxy   takes the listening sockets of the old one (`-x`), so that no connection is lost between them
old service   gets `HAND_OVER`: its HAProxy accepts nothing more, its requests end, and then it does
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from armwise.agent.proxy import ADMIN_SOCKET, CONFIGURATION

HAND_OVER = signal.SIGUSR1
"""Signal to an `armwise serve` whose port another one has taken over."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A running `armwise serve`.

    Attributes:
        pid: Process id.
        admin: Admin socket of HAProxy, which hands out the listening sockets.
    """

    pid: int
    admin: Path

    def retire(self) -> None:
        """Have it finish its requests and end."""
        os.kill(self.pid, HAND_OVER)


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
            if configuration.name == CONFIGURATION and port in listening and "serve" in parent.cmdline():
                return Predecessor(parent.pid, configuration.with_name(ADMIN_SOCKET))
        except (psutil.Error, IndexError):  # it has ended, or is no HAProxy
            continue
    return None
