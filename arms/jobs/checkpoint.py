"""What a job has finished, a block of its questions at a time: what a killed job goes on from.

    scores.blocks/identity.json   what the results follow from
                  000000.block    the first block of questions
                  000001.block    ...
                  notes.json      what else the job found out

A block is written under another name and renamed, so a file that is there is whole. A
folder belongs to one identity and, while it is open, to one process.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from arms.indexes import build_once

IDENTITY, NOTES, LOCK, SUFFIX = "identity.json", "notes.json", "lock", ".block"


class JobError(ValueError):
    """A job cannot begin or go on; the message says why, what is finished is kept."""


class BlockFolder:
    """The finished blocks of one job, by number; what is in them is the job's own matter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def finished(self) -> set[int]:
        """Return the numbers of the blocks that are there."""
        return {int(path.stem) for path in self._folder.glob(f"*{SUFFIX}")}

    def write(self, number: int, content: bytes) -> None:
        """Keep a block."""
        self._replace(_name(number), content)

    def read(self, number: int) -> bytes:
        """Return a block that is there."""
        return (self._folder / _name(number)).read_bytes()

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        """Keep what else the job found out."""
        self._replace(NOTES, orjson.dumps(dict(notes)))

    def read_notes(self) -> dict[str, Any] | None:
        """Return what else the job found out; None as long as nothing was written."""
        path = self._folder / NOTES
        return orjson.loads(path.read_bytes()) if path.exists() else None

    def delete(self) -> None:
        """Delete all of it, the identity last: a folder without one must hold no block."""
        for number in self.finished():
            (self._folder / _name(number)).unlink()
        shutil.rmtree(self._folder)

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file that is there whole, also after a power cut, or not at all."""
        written = self._folder / f"{name}.part"
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / name)

    def claim(self, identity: Mapping[str, str]) -> None:
        """Begin with this identity, or go on with it. Raises JobError when blocks are of another."""
        if self.finished():
            refuse_other(self._folder / IDENTITY, identity)
        else:
            (self._folder / NOTES).unlink(missing_ok=True)
            self._replace(IDENTITY, orjson.dumps(dict(identity), option=orjson.OPT_INDENT_2))


@contextlib.contextmanager
def open_blocks(output: Path, identity: Mapping[str, str]) -> Iterator[BlockFolder]:
    """Open the blocks of a job, `<output>.blocks`, or begin them; no other process can meanwhile.

    Raises:
        JobError: Another process has them open, or there are blocks of another identity.
    """
    folder = output.with_name(f"{output.name}.blocks")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise JobError(f"{folder}: another process is at work on it; wait for it") from None
    with lock:
        blocks = BlockFolder(folder)
        blocks.claim(identity)
        yield blocks


def refuse_other(path: Path, identity: Mapping[str, str]) -> None:
    """Compare an identity with the one in a file. Raises JobError that names the first difference."""
    if not path.exists():
        raise JobError(f"{path.parent} exists, and is no output of such a job: choose another output")
    if (fact := build_once.difference(path, identity)) is not None:
        raise JobError(
            f"{path.parent} was made with {fact.name} {fact.kept!r}, but {fact.name} {fact.wanted!r} "
            f"is asked for: choose another output, or delete {path.parent} to begin anew"
        )


def _name(number: int) -> str:
    return f"{number:06}{SUFFIX}"
