"""Which processes serve from a home: each holds a mark in it, a hidden file with a lock that ends with it.

By its mark, a new service finds the one whose port it takes over (`armwise serve --replace`).
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from armwise.agent.cli.console import PLAIN, errors
from armwise.agent.cli.serve_config import LaunchError
from armwise.arms.local_ray import UMASK

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

MARK, UNFINISHED = ".serving-", ".begins-"
"""How the names of marks begin: of one that is locked and whole, and of one before that."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves from a home.

    Attributes:
        pid: Process id, on its machine or in its container.
        url: Where it listens, or will once it is ready.
    """

    pid: int
    url: str


@contextmanager
def mark_home(settings: "AppConfig", url: str, replaced: int | None) -> Iterator[None]:
    """Mark the home of a configuration as served, and print which others write the same log file.

    Args:
        settings: The configuration.
        url: Where the service will listen.
        replaced: Process id of the one that is replaced, of which nothing is said; None: none is.
    """
    from armwise.agent.config import HOME_REMEDY

    with mark_served(settings.home_path, url) as others:
        for other in others if settings.log_path is not None else ():
            if other.pid != replaced:
                errors.print(
                    f"Process {other.pid} serves {other.url} from the same home, {settings.home_path}. Both "
                    "would learn from one log, which is usually a mistake. To replace it, use its port and "
                    f"`armwise serve --replace`; {HOME_REMEDY}",
                    style="yellow",
                    **PLAIN,
                )
        yield


@contextmanager
def mark_served(home: Path, url: str) -> Iterator[list[Server]]:
    """Mark a home as served by this process, and yield the others that serve from it.

    Where the home takes no file or no lock, this process has no mark: others do not learn of it.

    Args:
        home: A folder, made where it is missing.
        url: Where the service will listen.
    """
    name = secrets.token_hex(8)
    begun, mark = home / f"{UNFINISHED}{name}", home / f"{MARK}{name}"
    with ExitStack() as stack:
        with suppress(OSError):
            home.mkdir(mode=0o777 & ~UMASK, parents=True, exist_ok=True)
            file = stack.enter_context(begun.open("x", encoding="utf-8"))
            for path in (mark, begun):
                stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(f"{os.getpid()} {url}")
            file.flush()
            begun.rename(mark)  # now: without its lock, it would be taken for one of a process that has ended
        yield find_servers(home, without=mark)


def find_servers(home: Path, without: Path | None = None) -> list[Server]:
    """Return the processes that serve from a home; the marks of those that have ended are removed.

    Args:
        home: A folder, which may be missing.
        without: A mark that is left out.
    """
    servers = []
    for mark in sorted(home.glob(f"{MARK}*")):
        if mark == without:
            continue
        # a mark may be of another user or program, or removed meanwhile
        with suppress(OSError, ValueError), mark.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, _, url = file.read().partition(" ")
                servers.append(Server(int(pid), url))
            else:
                mark.unlink()
    return servers


def require_unserved(home: Path, remedy: str) -> None:
    """Refuse to change what a running service uses.

    Args:
        home: A folder, which may be missing.
        remedy: What to do instead, as the end of the message.

    Raises:
        LaunchError: A process serves from the home.
    """
    for server in find_servers(home):
        raise LaunchError(f"The service at {server.url} (process {server.pid}) runs from {home}: {remedy}")


def find_process(home: Path, url: str) -> psutil.Process | None:
    """Return the process that serves a home at an address, which signals cannot miss; None: there is none."""
    for server in find_servers(home):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(server.pid)
            if server.url == url and server in find_servers(home):  # so it is no later one with its id
                return process
    return None
