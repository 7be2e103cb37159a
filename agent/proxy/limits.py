"""What this machine lets a process hold: open files, and an address."""

import resource
import socket
from math import inf

OTHER_HANDLES = 200
"""Files and sockets of HAProxy beside its connections."""

ENOUGH_FILES = 65_536
"""Open files that no process of a service exceeds: a soft limit is raised to this, where it may be."""


def hard_limit_of_files() -> float:
    """Return how many files a process may open at most; inf for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return inf if hard == resource.RLIM_INFINITY else hard


def most_connections() -> float:
    """Return how many connections HAProxy can hold, each of which is two sockets; inf for no limit."""
    files = hard_limit_of_files()
    return inf if files == inf else max(0, int(files) - OTHER_HANDLES) // 2


def raise_limit_of_files() -> None:
    """Let this process, and those that it starts, open as many files as a service needs, where they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind_problem(host: str, port: int) -> str | None:
    """Return why nothing can listen at an address; None where something can."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return f"port {port} of {host} cannot be used ({error.strerror})"
    return None
