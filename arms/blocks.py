"""Blocks of scores that are finished, kept until all of them are: what a killed job goes on from.

    scores.blocks/identity.json   what the scores follow from
                  000000.npz      the first block of questions
                  000001.npz      ...
                  seconds.json    how long a search of each arm takes

A block is written under another name and renamed, so a file that is there is whole. A
folder belongs to one identity and, while it is open, to one process.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from arms.indexes import difference
from arms.scorers import ScoringError

IDENTITY, SECONDS, LOCK = "identity.json", "seconds.json", "lock"


@dataclass(frozen=True, slots=True)
class Block:
    """The scores of all arms on some questions, and what they took.

    Attributes:
        scores: In [0, 1], NaN where unknown, shape (n_questions, n_arms), float32.
        answered: Questions that each arm did not fail on, shape (n_arms,).
        steps: Rounds of retrieval over those questions, summed, shape (n_arms,).
        tokens: Tokens that the arm spent over those questions, summed, shape (n_arms,).
        problems: The first reason why a score of an arm is unknown, by its column.
    """

    scores: NDArray[np.float32]
    answered: NDArray[np.float64]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    problems: Mapping[int, str]


class BlockFolder:
    """The finished blocks of one job, by number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def finished(self) -> set[int]:
        """Return the numbers of the blocks that are there."""
        return {int(path.stem) for path in self._folder.glob("*.npz")}

    def write(self, number: int, block: Block) -> None:
        """Keep a block."""
        file = BytesIO()
        told = np.frombuffer(orjson.dumps(block.problems, option=orjson.OPT_NON_STR_KEYS), dtype=np.uint8)
        np.savez(
            file,
            scores=block.scores,
            answered=block.answered,
            steps=block.steps,
            tokens=block.tokens,
            problems=told,
        )
        self._replace(f"{number:06}.npz", file.getvalue())

    def read(self, number: int) -> Block:
        """Return a block that is there."""
        with np.load(self._folder / f"{number:06}.npz") as file:
            told = orjson.loads(file["problems"].tobytes())
            problems = {int(column): problem for column, problem in told.items()}
            return Block(file["scores"], file["answered"], file["steps"], file["tokens"], problems)

    def write_seconds(self, seconds: Mapping[str, float]) -> None:
        """Keep how long a search of each arm takes."""
        self._replace(SECONDS, orjson.dumps(dict(seconds)))

    def read_seconds(self) -> dict[str, float] | None:
        """Return how long a search of each arm takes; None as long as that is not measured."""
        path = self._folder / SECONDS
        return orjson.loads(path.read_bytes()) if path.exists() else None

    def delete(self) -> None:
        """Delete all of it, the identity last: a folder without one must hold no block."""
        for number in self.finished():
            (self._folder / f"{number:06}.npz").unlink()
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
        """Begin with this identity, or go on with it. Raises ScoringError when blocks are of another."""
        if self.finished():
            refuse_other(self._folder / IDENTITY, identity)
        else:
            (self._folder / SECONDS).unlink(missing_ok=True)
            self._replace(IDENTITY, orjson.dumps(dict(identity), option=orjson.OPT_INDENT_2))


@contextlib.contextmanager
def open_blocks(folder: Path, identity: Mapping[str, str]) -> Iterator[BlockFolder]:
    """Open the folder of a job, or begin it; no other process can meanwhile.

    Raises:
        ScoringError: Another process has it open, or it holds blocks of another identity.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lets go of it when the process dies
        except BlockingIOError:
            raise ScoringError(f"{folder}: another process is scoring into it; wait for it") from None
        blocks = BlockFolder(folder)
        blocks.claim(identity)
        yield blocks


def refuse_other(path: Path, identity: Mapping[str, str]) -> None:
    """Compare an identity with the one in a file. Raises ScoringError that names the first difference."""
    if not path.exists():
        raise ScoringError(f"{path.parent} exists, and holds no scores: choose another output")
    if (fact := difference(path, identity)) is not None:
        raise ScoringError(
            f"{path.parent} holds scores with {fact.name} {fact.kept!r}, but {fact.name} {fact.wanted!r} "
            f"is asked for: choose another output, or delete {path.parent} to begin anew"
        )


__all__ = ["Block", "BlockFolder", "open_blocks", "refuse_other"]
