"""Checks of what this machine has for the service: memory, file handles, its port, a cluster of Ray."""

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from agent.checks.finding import Finding
from agent.checks.machine import process_name
from agent.config import AppConfig

LEAST_MEMORY = 2**30
"""Bytes in which a service without models starts."""

USUAL_MEMORY = 5 * 2**29
"""Bytes in which the default service starts; docs/benchmarks/speed.md has what its processes take."""

SHARED_MEMORY = 256 * 2**20
"""Bytes of Ray's object store."""

OTHER_HANDLES = 200
"""Files and sockets of HAProxy beside its connections."""

PATIENCE_S = 3.0
"""How long a service, or a cluster, has to answer."""


def resource_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield whether memory and file handles suffice."""
    free = available_memory()
    what = f"{free / 2**20:,.0f} MiB of memory are available, {os.cpu_count()} processors"
    if free < USUAL_MEMORY:
        remedy = f"leave {USUAL_MEMORY / 2**20:,.0f} MiB for the default service, and more for larger models"
        yield Finding(what, remedy, serious=free < LEAST_MEMORY)
    else:
        yield Finding(what)
    shared = Path("/dev/shm")  # only its size is looked at # nosec B108
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < SHARED_MEMORY:
        what = f"{shared} has {size / 2**20:,.0f} MiB, and Ray keeps its objects there"
        yield Finding(
            what, "give a container more: `docker run --shm-size=512m`, or a volume of `medium: Memory`"
        )
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = 2 * config.http.connections + OTHER_HANDLES
    if handles != resource.RLIM_INFINITY and handles < needed:
        what = f"a process may open {handles:,} files, and http.connections {config.http.connections:,} need"
        remedy = "raise the hard limit (`ulimit -Hn`, LimitNOFILE=), or lower http.connections"
        yield Finding(f"{what} {needed:,}", remedy)
    else:
        yield Finding("file handles suffice for http.connections")


def available_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that new processes may take, by the machine and by a control group."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((group / "memory.max").read_text())
        return min(free, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # there is none, or it is `max`
        return free


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


def address_findings(host: str, port: int) -> Iterator[Finding]:
    """Yield whether the service can listen there, or listens already; and whether its cluster answers."""
    if (problem := bind_problem(host, port)) is None:
        yield Finding(f"port {port} of {host} is free")
    elif _is_ours(host, port):
        yield Finding(f"a service answers on port {port} of {host}")
    else:
        remedy = "stop what listens there, or change http_options.port in the configuration"
        yield Finding(problem + _owner(port), remedy)
    cluster = os.environ.get("RAY_ADDRESS", "")
    head, _, number = cluster.rpartition("//")[2].rpartition(":")
    if head and number.isdecimal():
        try:
            socket.create_connection((head, int(number)), PATIENCE_S).close()
        except OSError as error:
            what = f"no Ray answers at RAY_ADDRESS {cluster} ({error.strerror or error})"
            yield Finding(what, "start it with `ray start --head`, or unset RAY_ADDRESS for one of its own")
        else:
            yield Finding(f"RAY_ADDRESS {cluster} answers")


def _is_ours(host: str, port: int) -> bool:
    """Return whether a service of this kind answers, ready or not."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nothing is bound # nosec B104
    try:
        found = httpx.get(
            f"http://{f'[{name}]' if ':' in name else name}:{port}/health/decides", timeout=PATIENCE_S
        ).json()
        return bool(found.get("status") == "decides" or found["error"]["code"] == "not_ready")
    except (httpx.HTTPError, ValueError, AttributeError, KeyError, TypeError):
        return False


def _owner(port: int) -> str:
    """Return the process that listens on a port, if this user may know."""
    try:
        for place in psutil.net_connections(kind="tcp"):
            if place.status == psutil.CONN_LISTEN and place.laddr.port == port and place.pid:
                return f", {process_name(psutil.Process(place.pid).cmdline())} (process {place.pid}) has it"
    except (psutil.Error, IndexError):
        pass
    return ""
