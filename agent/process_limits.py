"""Limits of this machine on a process: open files, and addresses that it can bind."""

import resource
import socket
from math import inf

OTHER_HANDLES = 200
"""Files and sockets that HAProxy needs besides its connections."""

ENOUGH_FILES = 65_536
"""Open files that suffice for every process of a service; the target for raising the soft limit."""


def hard_limit_of_files() -> float:
    """Return how many files a process may open; inf: unlimited."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return inf if hard == resource.RLIM_INFINITY else hard


def most_connections() -> float:
    """Return how many connections HAProxy can hold, at two sockets each; inf: unlimited."""
    files = hard_limit_of_files()
    return inf if files == inf else max(0, int(files) - OTHER_HANDLES) // 2


def raise_limit_of_files() -> None:
    """Raise the soft limit of open files to `ENOUGH_FILES`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind_problem(host: str, port: int, *, shared: bool = False) -> str | None:
    """Return why binding an address fails; None: it succeeds.

    Args:
        host: A name or an address.
        port: The port.
        shared: Whether a process that listens there, and that shares its port, is no obstacle.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            for option in (socket.SO_REUSEADDR, *((socket.SO_REUSEPORT,) if shared else ())):
                probe.setsockopt(socket.SOL_SOCKET, option, 1)
            probe.bind(address)
    except OSError as error:
        return f"port {port} of {host} cannot be used ({error.strerror})"
    return None
