"""The private folder of a run of `armwise serve`: sockets, Ray, and the progress of a background build.

RUN_FOLDER  the environment variable that names it
Building    the progress of what a first start builds while the service answers
"""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import orjson

RUN_FOLDER = "ARMWISE_RUN"
"""Environment variable with the folder of the sockets; if unset, Ray Serve's proxy is in front."""

RAY_STARTED = "ray-started"
"""File that marks that Ray runs: from then on, its processes are no longer restarted."""

RAY_ENDS = "ray-ends"
"""File that marks that Ray ends in order: its processes may be missing."""

BEHIND = "build-behind"
"""File that marks that something is left to build; with the content `cold`, the warm start is left out."""

GO_ON = "prepared\n"
"""Line to the process that has started Ray: everything that Ray Serve needs is built."""

PROGRESS = "building.json"

WRITE_S = 0.5
"""Pause between two writes of the same piece of work."""


@dataclass(frozen=True, slots=True)
class Building:
    """The progress of a build.

    Attributes:
        what: The piece of work under way.
        done: Steps done.
        total: Steps in total, if known.
        left_s: Expected seconds from now, if known.
    """

    what: str
    done: int = 0
    total: int | None = None
    left_s: float | None = None

    def __str__(self) -> str:
        """Return a line for people."""
        of = "" if self.total is None else f": {self.done:,} of {self.total:,}"
        return f"{self.what}{of}" + ("" if self.left_s is None else f", about {self.left_s:,.0f} s left")

    @classmethod
    def read(cls) -> Self | None:
        """Return the progress of the build behind this service; None: everything is built."""
        if (folder := os.environ.get(RUN_FOLDER)) is None:
            return None
        try:
            return cls(**orjson.loads((Path(folder) / PROGRESS).read_bytes()))
        except FileNotFoundError:
            return None


class BuildingProgress:
    """Writes progress into the folder of the run, for the processes of the service.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._what, self._began, self._first, self._next = "", 0.0, 0, 0.0

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> Building:
        """Write and return the progress of a piece of work."""
        now = time.monotonic()
        if what != self._what:  # steps of an earlier run took none of this run's time
            self._what, self._began, self._first, self._next = what, now, done, 0.0
        worked, steps = now - self._began, done - self._first
        left_s = None if total is None or not steps else worked / steps * (total - done)
        building = Building(what, done, total, left_s)
        if now >= self._next:
            self._next = now + WRITE_S
            unfinished = self._path.with_suffix(".next")
            unfinished.write_bytes(orjson.dumps(asdict(building)))
            unfinished.replace(self._path)  # atomic
        return building

    def end(self) -> None:
        """Mark that everything is built."""
        self._path.unlink(missing_ok=True)
