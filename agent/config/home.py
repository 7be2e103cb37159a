"""The home of a service: its folder and its logs, which its user alone can read."""

import os
from collections.abc import Iterator
from pathlib import Path

from agent.config.app_config import AppConfig
from arms.local_ray import UMASK

OWN = ("corpora", "indexes", "routers", "warm_starts")
"""Folders of the home that the service makes; others in it are reached through the home alone."""

SQLITE_SUFFIXES = ("", "-wal", "-shm")
"""What SQLite appends to the name of a database for the files beside it."""


def make_home(config: AppConfig) -> list[str]:
    """Make the home, and take from other users what they may do with it, its content and its logs.

    Links are not followed, and files of other users stay as they are.

    Returns:
        A line that counts what was repaired, with an example; nothing where there was nothing to repair.
    """
    config.home_path.mkdir(mode=0o777 & ~UMASK, parents=True, exist_ok=True)
    repaired = [(place, mode) for place in _places(config) if (mode := _repair(place))]
    if not repaired:
        return []
    (place, mode), more = repaired[0], len(repaired) - 1
    beside = f", and {more:,} more files and folders" if more else ""
    return [f"closed to other users of this machine: {place} (mode {mode:o}){beside}"]


def _places(config: AppConfig) -> Iterator[Path]:
    """Yield the home, what it contains that the service made, and the SQLite files of logs elsewhere."""
    yield config.home_path
    for name in OWN:
        yield from _below(config.home_path / name)
    for point in config.by_point.values():
        if point.log_path is not None:
            yield from (point.log_path.with_name(point.log_path.name + end) for end in SQLITE_SUFFIXES)


def _below(place: Path) -> Iterator[Path]:
    yield place
    if place.is_dir() and not place.is_symlink():
        for folder, folders, files in os.walk(place):
            yield from (Path(folder, name) for name in (*folders, *files))


def _repair(place: Path) -> int:
    """Return the permissions that a place had where they were too wide; 0 where there is nothing to do."""
    try:
        about = place.lstat()
        if place.is_symlink() or about.st_uid != os.getuid() or not about.st_mode & UMASK:
            return 0
        place.chmod(about.st_mode & 0o777 & ~UMASK)
    except FileNotFoundError:
        return 0
    return about.st_mode & 0o777
