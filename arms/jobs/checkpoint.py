"""The checkpoint of a job: its finished blocks of questions, from which a killed job resumes.

    scores.blocks/identity.json   identity of the results
                  000000.block    the first block of questions
                  000001.block    ...
                  notes.json      other results

Files are written under another name and renamed, so they are complete. A folder belongs
to one identity and, while it is open, to one process.
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
    """A job cannot start or continue; finished blocks are kept."""


class BlockFolder:
    """The finished blocks of one job, by number; their content is up to the job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def finished(self) -> set[int]:
        """Return the numbers of the finished blocks."""
        return {int(path.stem) for path in self._folder.glob(f"*{SUFFIX}")}

    def write(self, number: int, content: bytes) -> None:
        """Store a block."""
        self._replace(_name(number), content)

    def read(self, number: int) -> bytes:
        """Return a finished block."""
        return (self._folder / _name(number)).read_bytes()

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        """Store other results."""
        self._replace(NOTES, orjson.dumps(dict(notes)))

    def read_notes(self) -> dict[str, Any] | None:
        """Return the other results, None before they are written."""
        path = self._folder / NOTES
        return orjson.loads(path.read_bytes()) if path.exists() else None

    def delete(self) -> None:
        """Delete the folder, the identity last: a folder without one must hold no block."""
        for number in self.finished():
            (self._folder / _name(number)).unlink()
        shutil.rmtree(self._folder)

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file that is whole or absent, also after a power failure."""
        written = self._folder / f"{name}.part"
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / name)

    def claim(self, identity: Mapping[str, str]) -> None:
        """Start or resume the job of this identity. Raises JobError when blocks have another."""
        if self.finished():
            refuse_other(self._folder / IDENTITY, identity)
        else:
            (self._folder / NOTES).unlink(missing_ok=True)
            self._replace(IDENTITY, orjson.dumps(dict(identity), option=orjson.OPT_INDENT_2))


@contextlib.contextmanager
def open_blocks(output: Path, identity: Mapping[str, str]) -> Iterator[BlockFolder]:
    """Open or create the folder `<output>.blocks`, for this process alone.

    Raises:
        JobError: Another process has it open, or its blocks have another identity.
    """
    folder = output.with_name(f"{output.name}.blocks")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise JobError(f"{folder}: another process is working on it; wait for it") from None
    with lock:
        blocks = BlockFolder(folder)
        blocks.claim(identity)
        yield blocks


def refuse_other(path: Path, identity: Mapping[str, str]) -> None:
    """Compare an identity with the one in a file. Raises JobError naming the first difference."""
    if not path.exists():
        raise JobError(f"{path.parent} exists and is not the output of such a job: choose another output")
    if (fact := build_once.difference(path, identity)) is not None:
        raise JobError(
            f"{path.parent} was made with {fact.name} {fact.kept!r}, but {fact.name} {fact.wanted!r} "
            f"is asked for: choose another output, or delete {path.parent} to start again"
        )


def _name(number: int) -> str:
    return f"{number:06}{SUFFIX}"
