"""Corpora of any size from real passages: the real ones first, then passages made of their sentences.

A corpus of a size is the beginning of every larger one. A made passage takes its title from a real passage
that answers no question, and its sentences from that one and two of its neighbours in the file, often of the
same article; it has as many sentences as another real passage. So the statistics of words stay those of the
source, all passages that answer a question are there, and none of their sentences is there twice.

Some of the real passages are embedded, or all: the answers of the questions that are asked, and others evenly
spaced. The vector of any other passage is synthetic: a random mean of the vectors of three embedded passages
that answer nothing and are near in the file, plus normal noise of norm `NOISE`, scaled to length one.
"""

import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

BLOCK = 10_000
"""Made passages that share a generator of random numbers."""

NEIGHBOURS = 8
"""How far from the first the two other passages are, at most."""

NOISE = 0.4

SEED = 20261122

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class Source:
    """Real passages and questions.

    Attributes:
        rows: Objects with id, title and text.
        questions: Objects with a question and the ids of the passages that answer it, gold_ids.
        free: Positions of the passages that answer no question, shape (n_free,).
    """

    rows: Sequence[dict[str, Any]]
    questions: Sequence[dict[str, Any]]
    free: NDArray[np.intp]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `corpus.jsonl.gz` and `queries.jsonl.gz`."""
        rows, questions = list(_lines(folder / "corpus.jsonl.gz")), list(_lines(folder / "queries.jsonl.gz"))
        return cls.of(rows, questions)

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], questions: Sequence[dict[str, Any]]) -> Self:
        """Wrap passages and questions. Raises ValueError if every passage answers one."""
        gold = {name for question in questions for name in question["gold_ids"]}
        free = np.flatnonzero([row["id"] not in gold for row in rows])
        if not len(free):
            raise ValueError(f"all of the {len(rows)} passages answer a question: none is left to recombine")
        return cls(rows, questions, free)

    def parents(self, size: int) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield the first position of each block of made passages, their three parents, and their models.

        Yields:
            The position; shape (n, 3), positions of real passages; shape (n,), of those whose number of
            sentences they have.
        """
        for first in range(len(self.rows), size, BLOCK):
            n = min(BLOCK, size - first)
            rng = np.random.default_rng([SEED, first])
            donors = rng.integers(len(self.free), size=BLOCK)
            steps = rng.integers(1, NEIGHBOURS + 1, size=(BLOCK, 2))
            around = np.column_stack([donors, donors + steps[:, 0], donors - steps[:, 1]]) % len(self.free)
            yield first, self.free[around[:n]], rng.integers(len(self.rows), size=BLOCK)[:n]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path) as file:
        yield from map(orjson.loads, file)


def passages(source: Source, size: int) -> Iterator[dict[str, str]]:
    """Yield the passages of a corpus, each with id, title and text; fewer are the first of the real ones."""
    for row in source.rows[:size]:
        yield {name: row[name] for name in ("id", "title", "text")}
    sentences = [_SENTENCE.split(row["text"]) for row in source.rows]
    for first, parents, models in source.parents(size):
        rng = np.random.default_rng([SEED, first, 1])
        for n, (three, model) in enumerate(zip(parents.tolist(), models.tolist(), strict=True)):
            parent_sentences = [sentence for parent in three for sentence in sentences[parent]]
            taken = rng.permutation(len(parent_sentences))[: len(sentences[model])]
            text = " ".join(parent_sentences[at] for at in taken.tolist())
            yield {"id": f"made/{first + n:07d}", "title": source.rows[three[0]]["title"], "text": text}


def write_passages(
    source: Source, size: int, target: Path, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write a corpus as JSON lines; the file is whole or absent."""
    unfinished = target.with_suffix(".part")
    with unfinished.open("wb") as file:
        for done, row in enumerate(passages(source, size), start=1):
            file.write(orjson.dumps(row) + b"\n")
            if done % BLOCK == 0 or done == size:
                progress(done)
    unfinished.replace(target)


def embedded_places(source: Source, asked: Sequence[dict[str, Any]], n: int | None) -> NDArray[np.intp]:
    """Return the positions of the real passages to embed, ascending.

    Args:
        source: The real passages.
        asked: Questions whose answers are all embedded.
        n: How many passages; None for all.
    """
    total = len(source.rows)
    if n is None or n >= total:
        return np.arange(total)
    gold = {name for question in asked for name in question["gold_ids"]}
    answers = np.flatnonzero([row["id"] in gold for row in source.rows])
    others = source.free[np.linspace(0, len(source.free) - 1, max(3, n - len(answers))).astype(np.intp)]
    return np.union1d(answers, others)


def fill_vectors(
    source: Source, places: NDArray[np.intp], real: NDArray[np.float32], into: NDArray[np.float32]
) -> None:
    """Fill the vectors of a corpus.

    Args:
        source: The real passages.
        places: Positions of those that are embedded, ascending, shape (n,).
        real: Their unit vectors, shape (n, dim).
        into: Shape (size, dim); may be memory-mapped.
    """
    size, total = len(into), len(source.rows)
    anchors = np.flatnonzero(np.isin(places, source.free))

    def made(first: int, near: NDArray[np.intp]) -> NDArray[np.float32]:
        rng = np.random.default_rng([SEED, first, 2])
        steps = rng.integers(1, NEIGHBOURS + 1, size=(BLOCK, 2))[: len(near)]
        weights = rng.dirichlet((2.0, 1.0, 1.0), BLOCK)[: len(near)].astype(np.float32)
        noise = rng.standard_normal((BLOCK, real.shape[1]), dtype=np.float32)[: len(near)]
        at = np.searchsorted(places[anchors], near)
        around = np.column_stack([at, at + steps[:, 0], at - steps[:, 1]]) % len(anchors)
        mean = np.einsum("nw,nwd->nd", weights, real[anchors[around]])
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        mean += noise * np.float32(NOISE / np.sqrt(real.shape[1]))
        unit: NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return unit

    for first in range(0, min(size, total), BLOCK):
        end = min(first + BLOCK, size, total)
        into[first:end] = made(first, np.arange(first, end))
    kept = places < size
    into[places[kept]] = real[kept]
    for first, parents, _ in source.parents(size):
        into[first : first + len(parents)] = made(first, parents[:, 0])
