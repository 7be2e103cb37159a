"""The private folder of a run of `armwise serve`: sockets, Ray, and the progress of a background build.

RUN_FOLDER  the environment variable that names it
Building    the progress of what a first start builds while the service answers
"""

import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import orjson

RUN_FOLDER = "ARMWISE_RUN"
"""Environment variable with the folder of the sockets; if unset, Ray Serve's proxy is in front."""

CONFIG_FOLDER = "ARMWISE_CONFIG_FOLDER"
"""Environment variable with the folder of the configuration file, which Ray Serve does not know."""

HAND_OVER = signal.SIGUSR1
"""Signal to a service whose port another process has taken over."""

COLD = "ARMWISE_COLD"
"""Environment variable that, when set, keeps the service from doing the first warm start by itself."""

UNDER_WAY = "first_start"
"""File in the home during a first start, with the position of the last set of arms that it made live."""

QUESTION = "question.txt"
"""File with a question that the corpus answers, to begin with."""

NO_QUESTION = "YOUR QUESTION"
"""Stands for a question where no corpus suggests one."""

PROGRESS = "building.json"

WRITE_S = 0.5
"""Pause between two writes of the same piece of work."""


def read_question(folder: Path | None) -> str:
    """Return the question to begin with, of the folder of a run; a placeholder where it has none."""
    if folder is None or not (file := folder / QUESTION).exists():
        return NO_QUESTION
    return file.read_text(encoding="utf-8")


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
        done = "" if self.total is None and not self.done else f": {self.done:,}"
        of = "" if self.total is None else f" of {self.total:,}"
        left = "" if self.left_s is None else f", about {self.left_s:,.0f} s left"
        return f"{self.what}{done}{of}{left}"

    @classmethod
    def read(cls) -> Self | None:
        """Return the progress of the build behind this service; None: everything is built."""
        if (folder := os.environ.get(RUN_FOLDER)) is None:
            return None
        try:
            return cls(**orjson.loads((Path(folder) / PROGRESS).read_bytes()))
        except FileNotFoundError:
            return None


class Pace:
    """Expects how long the piece of work under way will take, from the time of its steps so far."""

    def __init__(self) -> None:
        self._what, self._began, self._first = "", 0.0, 0

    def expect(self, what: str, done: int, total: int | None) -> float | None:
        """Return the seconds that a piece of work has left; None while that is unknown."""
        now = time.monotonic()
        if what != self._what:  # steps of an earlier run took none of this run's time
            self._what, self._began, self._first = what, now, done
        steps = done - self._first
        return None if total is None or not steps else (now - self._began) / steps * (total - done)


class BuildingProgress:
    """Writes progress into the folder of the run, for the processes of the service.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._pace = folder / PROGRESS, Pace()
        self._what, self._next = "", 0.0

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> Building:
        """Write and return the progress of a piece of work."""
        building = Building(what, done, total, self._pace.expect(what, done, total))
        now = time.monotonic()
        if now >= self._next or what != self._what:
            self._what = what
            self._next = now + WRITE_S
            unfinished = self._path.with_suffix(".next")
            unfinished.write_bytes(orjson.dumps(asdict(building)))
            unfinished.replace(self._path)  # atomic
        return building

    def end(self) -> None:
        """Mark that everything is built."""
        self._path.unlink(missing_ok=True)
