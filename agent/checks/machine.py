"""Checks of this machine: permissions of files, disk space, and sockets that others can reach."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from agent.access import is_loopback
from agent.checks.finding import Finding
from agent.config import AppConfig

LEAST_FREE = 2**30
"""Bytes that the disk of the log needs: a full one makes the service answer 503."""

PROGRAMS = (
    "raylet",
    "gcs_server",
    "ray::",
    "ray/_private",
    "ray/dashboard",
    "agent.cli",
    "armwise",
    "haproxy",
)
"""Parts of the command lines of this service's processes."""


def file_findings(config: AppConfig) -> Iterator[Finding]:
    """Yield files that others can read or change, and a disk that is nearly full."""
    logs = (one.log_path for one in config.by_point.values())
    for place in filter(None, (config.home_path, *logs)):
        mode = _mode(place)
        if mode & 0o022:
            yield Finding(f"others can change {place} (mode {mode:o})", f"chmod go-rwx {place}")
        elif mode & 0o055:
            what = f"other users of this machine can read {place} (mode {mode:o}), which holds questions"
            yield Finding(what, f"chmod go-rwx {place}", serious=False)
    for place in secret_files(os.environ):
        mode = _mode(place)
        if mode & 0o077:
            yield Finding(f"others can read {place} (mode {mode:o})", f"chmod 600 {place}")
    there = next((each for each in (config.home_path, *config.home_path.parents) if each.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE:
        what = f"{there} has {free / 2**20:,.0f} MiB left"
        yield Finding(
            what, f"free {LEAST_FREE / 2**20:,.0f} MiB or more: a log that is full refuses requests"
        )


def secret_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files of secrets that the service reads, whether they are there or not.

    A Ray of its own has a token of its own, in a private folder; that in the home of the user is a cluster's.
    """
    home = Path.home()
    found = [Path(environment.get("PGPASSFILE") or home / ".pgpass")]
    if token := environment.get("RAY_AUTH_TOKEN_PATH"):
        found.append(Path(token))
    elif "RAY_ADDRESS" in environment:
        found.append(home / ".ray/auth_token")
    return found


def _mode(place: Path) -> int:
    """Return the permissions of a file; 0 where it is not there, or cannot be looked at."""
    try:
        return place.stat().st_mode & 0o777
    except OSError:
        return 0


def socket_findings(own: tuple[str, int]) -> Iterator[Finding]:
    """Yield the sockets of this service's processes that listen on more than the loopback address.

    Args:
        own: Host and port that the configuration names, which is meant to be reached.
    """
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if not any(program in word for word in words[:3] for program in PROGRAMS):
                continue
            guarded = _asks_for_a_token(process)
            listening = {
                (place.laddr.ip, place.laddr.port)
                for place in process.net_connections(kind="tcp")
                if place.status == psutil.CONN_LISTEN
            }
        except psutil.Error:  # it has ended, or belongs to another user
            continue
        for ip, port in sorted(listening):
            if is_loopback(ip) or port == own[1]:
                continue
            yield Finding(
                f"{process_name(words)} (process {process.pid}) listens on {ip}:{port}"
                + (", and answers to its token alone" if guarded else ", and asks for no token"),
                "let no other machine reach it" if guarded else "set RAY_AUTH_MODE=token, and close the port",
                serious=not guarded,
            )


def _asks_for_a_token(process: psutil.Process) -> bool:
    """Return whether a process of Ray was started with tokens, its parent was, or a child.

    Its own environment is not enough: one process sets it for the others, and some overwrite theirs.
    """
    related = (process, *process.parents()[:1], *process.children())
    return any(one.environ().get("RAY_AUTH_MODE") == "token" for one in related)


def process_name(words: list[str]) -> str:
    """Return a short name of a process from its command line.

    >>> process_name(["/opt/ray/core/gcs_server", "--port=6379"]), process_name(["python", "-m", "agent.cli"])
    ('gcs_server', 'agent.cli')
    """
    program = Path(words[0]).name
    return words[2] if program.startswith("python") and words[1:2] == ["-m"] else program
