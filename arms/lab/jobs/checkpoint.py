"""The checkpoint of a job: its finished blocks of questions, from which a killed job resumes.

    scores.blocks/identity.json   identity of the results
                  000000.block    the first block of questions
                  000001.block    ...
                  notes           other results

Files are written under another name and renamed, so they are complete. Blocks and notes begin with a digest
of their content: a damaged file is deleted when the folder is opened, and computed again. A folder belongs
to one identity and, while it is open, to one process.
"""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from armwise.arms import manifest
from armwise.arms.indexes import build_once
from armwise.arms.manifest import DamagedFileError, Identity

IDENTITY, NOTES, LOCK, SUFFIX = "identity.json", "notes", "lock", ".block"

DIGEST_BYTES = 32
"""Length of the SHA-256 digest at the start of a file."""

logger = logging.getLogger(__name__)


class JobError(ValueError):
    """A job cannot start or continue; finished blocks are kept."""


class BlockFolder:
    """The finished blocks of a job by number, as bytes that the job packs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list_finished(self) -> set[int]:
        """Return the numbers of the finished blocks."""
        return {int(path.stem) for path in self._folder.glob(f"*{SUFFIX}")}

    def write(self, number: int, content: bytes) -> None:
        """Store a block."""
        self._replace(_name(number), _digest(content) + content)

    def read(self, number: int) -> bytes:
        """Return a finished block. Raises JobError if it was damaged since the folder was opened."""
        return self._content(_name(number))

    def write_notes(self, notes: Mapping[str, Any]) -> None:
        """Store the job's other results, such as timings."""
        content = orjson.dumps(dict(notes))
        self._replace(NOTES, _digest(content) + content)

    def read_notes(self) -> dict[str, Any] | None:
        """Return the job's other results, once they are written."""
        return orjson.loads(self._content(NOTES)) if (self._folder / NOTES).exists() else None

    def delete(self) -> None:
        """Delete the folder, the blocks first: blocks must always have an identity."""
        for number in self.list_finished():
            (self._folder / _name(number)).unlink()
        shutil.rmtree(self._folder)

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file atomically: even after a power failure it is complete or absent."""
        written = self._folder / f"{name}.part"
        with written.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / name)

    def claim(self, identity: Mapping[str, str]) -> None:
        """Start or resume the job with this identity, and delete damaged files.

        Raises:
            JobError: The folder has finished blocks of another identity.
        """
        self._delete_damaged()
        if self.list_finished():
            refuse_other(self._folder, self._identity(), identity)
        else:
            (self._folder / NOTES).unlink(missing_ok=True)
            self._replace(IDENTITY, orjson.dumps(dict(identity), option=orjson.OPT_INDENT_2))

    def _delete_damaged(self) -> None:
        for name in (*map(_name, sorted(self.list_finished())), NOTES):
            if (self._folder / name).exists():
                try:
                    self._content(name)
                except JobError as error:
                    logger.warning("%s: it is made again", error)
                    (self._folder / name).unlink()

    def _content(self, name: str) -> bytes:
        """Return the content of a file after its digest. Raises JobError if the digest differs."""
        path = self._folder / name
        saved = path.read_bytes()
        digest, content = saved[:DIGEST_BYTES], saved[DIGEST_BYTES:]
        if digest != _digest(content):
            raise JobError(f"{path} is damaged: its digest does not match its {len(content):,} bytes")
        return content

    def _identity(self) -> Identity:
        """Return the identity of the blocks. Raises JobError."""
        path = self._folder / IDENTITY
        try:
            return dict(orjson.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise JobError(
                f"{path} is missing or damaged ({error}): delete {self._folder} to start again"
            ) from None


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
        raise JobError(f"{folder}: another process is working on it; wait until it has finished") from None
    with lock:
        blocks = BlockFolder(folder)
        blocks.claim(identity)
        yield blocks


def refuse_other_output(output: Path, identity: Identity) -> None:
    """Refuse a finished output of another identity. Raises JobError naming the first difference."""
    if not (output / manifest.MANIFEST).exists():
        raise JobError(f"{output} exists and was not written by such a job: choose another output")
    try:
        kept = manifest.identify(output)
    except DamagedFileError as error:
        raise JobError(f"{output}: {error}; choose another output, or delete it to start again") from None
    refuse_other(output, kept, identity)


def refuse_other(place: Path, kept: Identity, identity: Identity) -> None:
    """Refuse results of another identity. Raises JobError naming the first difference."""
    if (fact := build_once.differing(kept, identity)) is not None:
        raise JobError(
            f"{place} was made with {fact.name} {fact.kept!r}, but you ask for {fact.name} {fact.wanted!r}"
            f": choose another output, or delete {place} to start again"
        )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _name(number: int) -> str:
    return f"{number:06}{SUFFIX}"
