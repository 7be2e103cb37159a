"""Start a Ray that is private to its user: on the loopback address, guarded by a token.

The service, the jobs and the tests all start Ray here. By default, Ray opens its temporary folder to all
users of the machine (mode 0777, no sticky bit), listens on all addresses, and writes a token that others can
read. Here folder and token are in a folder of mode 0700, and Ray listens on 127.0.0.1.
"""

import atexit
import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from armwise.arms.own_processes import keep_apart

UMASK = 0o077
"""Permissions that are removed from all files and folders: those of other users."""

PREFIX = "armwise-"
"""Prefix of the name of a private folder."""

SOCKET = f"/{PREFIX}12345678/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below the folder in which private folders are made."""

LONGEST_BASE = 107 - len(SOCKET)
"""Largest length of the path of a folder below which Ray's sockets fit: Linux allows 107 bytes."""

YOUNG_S = 60.0
"""Age of a folder in seconds up to which its process may still have to lock it."""

ATTEMPTS, TIMED_OUT = 3, "timed out during startup"
"""Attempts to start Ray, whose node waits for a fixed half minute, and what it says after that time."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Variables that every Ray gets, also a cluster."""


class RayNotStartedError(Exception):
    """Ray cannot be started; the message says why and what would help."""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter; remove it at the end.

    It is locked while it is used, so that folders of killed processes can be recognised and removed. It is
    below RAY_TMPDIR if that is set, otherwise below the temporary folder of the system, or below `/tmp` if
    the paths of sockets would be too long there.

    Raises:
        ValueError: RAY_TMPDIR is too long.
    """
    base = _base(os.environ.get("RAY_TMPDIR"), tempfile.gettempdir())
    _remove_abandoned(base)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _base(named: str | None, temporary: str) -> Path:
    if named is None:
        short = len(os.fsencode(temporary)) <= LONGEST_BASE
        return Path(temporary if short else "/tmp")  # for a folder of mode 0700 in it # nosec B108
    if len(os.fsencode(named)) > LONGEST_BASE:
        raise ValueError(
            f"RAY_TMPDIR={named} is too long for Ray's sockets: "
            f"{len(os.fsencode(named))} bytes; at most {LONGEST_BASE} are allowed"
        )
    return Path(named)


def _remove_abandoned(base: Path) -> None:
    """Remove the private folders of this user whose process has ended."""
    for folder in base.glob(f"{PREFIX}{'?' * 8}/"):
        with contextlib.suppress(OSError):  # another process removes it, or holds its lock
            about = folder.lstat()
            if about.st_uid != os.getuid() or folder.is_symlink() or time.time() - about.st_mtime < YOUNG_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@cache
def folder_of_this_process() -> Path:
    """Return the private folder of this process, made by the first call and removed at its end.

    All Rays that a process starts share it, since Ray keeps the token of the first.
    """
    opened = contextlib.ExitStack()
    folder = opened.enter_context(private_folder())
    atexit.register(opened.close)
    return folder


def _variables(folder: Path) -> dict[str, str]:
    """Return the environment of a Ray that only this user can use; its token is in a file of the folder."""
    token = {}
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        path = folder / "token"
        if not path.exists():
            with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(secrets.token_hex(32))
        token = {"RAY_AUTH_TOKEN_PATH": str(path)}
    return {
        **QUIET,
        **token,
        # As on a laptop with another system: this node is 127.0.0.1, and so its processes listen there alone.
        # An address given to ray.init does not do this: Ray replaces a loopback one by that of the network.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_enable_metrics_collection": "0",  # its exporter listens on every address, without a token
        "MALLOC_ARENA_MAX": "2",  # each of dozens of threads would keep what it frees
    }


class _Nothing(list[str]):
    """A list that stays empty."""

    def extend(self, paths: Iterable[str], /) -> None:
        """Ignore the paths."""


def job_config() -> Any:
    """Return the settings of a driver whose folder is left out of the import path of its workers."""
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _Nothing()  # noqa: SLF001 - Ray has no setting for it
    return config


def _not_started(*_: object, **__: object) -> None:
    """Replace the start of a process by nothing."""


def start(folder: Path | None = None, **options: Any) -> None:
    """Start a Ray on this machine, which `ray.shutdown` ends.

    Args:
        folder: Folder that only this user can enter; None: that of this process.
        options: Arguments of `ray.init`.
    """
    os.umask(UMASK)  # the processes of Ray inherit it
    keep_apart()
    folder = folder or folder_of_this_process()
    for name, value in _variables(folder).items():
        os.environ.setdefault(name, value)
    import ray
    from ray._private import node, ray_constants
    from ray._raylet import Config  # type: ignore[attr-defined]  # of Cython, without a stub

    # One machine is not scaled, and nobody looks at a dashboard: two processes and 140 MB fewer.
    node.Node.start_monitor = node.Node.start_api_server = _not_started  # type: ignore[method-assign]
    # Where something has imported it before, it has read the environment already: read it again.
    Config.initialize("")
    ray_constants.ENABLE_RAY_CLUSTER = False
    options |= {"address": "local", "include_dashboard": False, "_temp_dir": str(folder / "ray")}
    late = 0
    while True:
        try:
            ray.init(job_config=job_config(), **options)
        except Exception as error:  # Ray has no class of its own for this
            late += 1
            _end_processes(folder)
            if TIMED_OUT not in str(error):
                raise
            if late == ATTEMPTS:
                raise RayNotStartedError(
                    f"Ray did not start in {ATTEMPTS} attempts of 30 s: this machine is too busy or has too "
                    "little memory; try again when it is less busy"
                ) from None
        else:
            return


def _end_processes(folder: Path) -> None:
    """End the processes that a failed start has left; Ray forgets them."""
    import psutil

    left = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if any(str(folder) in word for word in process.cmdline()):
                process.kill()
                left.append(process)
    psutil.wait_procs(left, timeout=10.0)


@contextlib.contextmanager
def join_or_start(**options: Any) -> Iterator[None]:
    """Join the Ray of this process or of RAY_ADDRESS, or start a Ray for the duration.

    Args:
        options: Arguments of `ray.init` for a Ray that is started.

    Raises:
        RayNotStartedError: The cluster does not answer, or no Ray starts here.
    """
    import ray

    ours = not ray.is_initialized()
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if ours and "RAY_ADDRESS" in os.environ:
        connect(**quiet)
    elif ours:  # not the cluster of a service that may run on this machine
        start(**{"num_cpus": os.cpu_count(), **quiet, **options})
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


CLUSTER_S = 5.0
"""Longest time in seconds for a cluster to accept a connection."""


def connect(**options: Any) -> None:
    """Connect to the cluster that RAY_ADDRESS names.

    Args:
        options: Arguments of `ray.init`.

    Raises:
        RayNotStartedError: The cluster does not answer.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    keep_apart()
    if problem := cluster_problem(os.environ["RAY_ADDRESS"]):
        raise RayNotStartedError(
            f"{problem}: unset RAY_ADDRESS to use only this machine, or start that cluster"
        )
    import ray

    ray.init(job_config=job_config(), **options)


def cluster_problem(address: str) -> str | None:
    """Return why a cluster is unreachable; None: it accepts connections, or the address has no port.

    Ray itself would look for it in silence for more than a minute.

    >>> cluster_problem("127.0.0.1:1")
    'no cluster answers at RAY_ADDRESS=127.0.0.1:1 (Connection refused)'
    >>> cluster_problem("auto")
    """
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), CLUSTER_S).close()
    except (OSError, OverflowError) as error:
        return f"no cluster answers at RAY_ADDRESS={address} ({getattr(error, 'strerror', None) or error})"
    return None
