"""The private folder of a run of `armwise serve`: sockets, Ray, and how far what is built behind it has come.

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
"""Environment variable: the folder of the sockets; without it, Ray Serve's own proxy is in front."""

RAY_STARTED = "ray-started"
"""File that says that Ray runs: from then on, none of its processes is started again."""

BEHIND = "build-behind"
"""File that says that something is left to be built; with `cold` in it, without the warm start."""

GO_ON = "prepared\n"
"""Line to the process that has started Ray: all is built that Ray Serve needs."""

PROGRESS = "building.json"

WRITE_S = 0.5
"""Pause between two writes of the same piece of work."""


@dataclass(frozen=True, slots=True)
class Building:
    """How far the piece of work has come that is under way.

    Attributes:
        what: The piece of work.
        done: Steps that are done.
        total: Steps in all; None where that is not known.
        left_s: Seconds that it is expected to take from now on; None where that is not known.
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
        """Return what is being built behind this service; None where everything is built."""
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
        """Write and return how far a piece of work has come."""
        now = time.monotonic()
        if what != self._what:  # what an earlier run has done took none of this one's time
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
        """Say that everything is built."""
        self._path.unlink(missing_ok=True)
