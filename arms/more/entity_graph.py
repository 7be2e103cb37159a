"""A graph of entities and passages, and the walk from the entities of a question.

An entity is linked to every passage that names it. Odd hops go from entities to passages,
even hops from passages to entities. Both directions of the links are stored as memory-mapped columns.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import Progress
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes.build_once import build, check, folder
from armwise.arms.manifest import Identity
from armwise.arms.models import digest_file
from armwise.arms.more.entities import Titles, mark_names
from armwise.arms.tokenizer import VERSION

FORMAT = 3
"""Version of the files and of the extraction."""

REPORTED = 2_000
"""Passages between two reports of progress."""

ROOM = 4
"""Links that are followed at a time per missing passage, since many lead to the same passage."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links from each source to its targets, in order.

    Attributes:
        starts: Start of each source's targets, and the end of the last, shape (n_sources + 1,).
        targets: Targets of all sources, shape (n_links,).
    """

    starts: NDArray[np.int64]
    targets: NDArray[np.int32]

    def counts(self, sources: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the number of targets of each source."""
        return self.starts[sources + 1] - self.starts[sources]

    def follow(self, sources: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the targets of the first source, then of the next, and so on.

        >>> Links(np.array([0, 2, 2, 3]), np.array([7, 5, 9])).follow(np.array([2, 0])).tolist()
        [9, 7, 5]
        """
        counts = self.counts(sources)
        before = np.cumsum(counts) - counts
        places = np.repeat(self.starts[sources] - before, counts) + np.arange(counts.sum())
        targets: NDArray[np.int32] = self.targets[places]
        return targets


@dataclass(frozen=True, slots=True)
class Walk:
    """The passages of a walk; a shorter walk from the same entities gives a prefix of them.

    Attributes:
        passages: Positions in order of discovery, shape (n,).
        ends: Number of passages after each odd hop.
    """

    passages: NDArray[np.intp]
    ends: tuple[int, ...]

    def count_reached(self, max_hops: int, max_candidates: int) -> int:
        """Return the number of passages of a walk with these limits.

        >>> Walk(np.array([5, 2, 9]), ends=(1, 3)).count_reached(max_hops=2, max_candidates=10)
        1
        """
        odd_hops = min((max_hops + 1) // 2, len(self.ends))
        return min(self.ends[odd_hops - 1], max_candidates)


class Graph:
    """Entities and the passages that name them.

    Entities are numbered in order of a 64-bit hash of their names, and only the hashes are
    stored: with a million entities, the chance of a collision is about one in 37 million.
    """

    def __init__(self, keys: NDArray[np.uint64], passages: Links, entities: Links) -> None:
        """Wrap the arrays of a graph.

        Args:
            keys: Hash of the name of each entity, ascending, shape (n_entities,).
            passages: Links from an entity to the positions of its passages, ascending.
            entities: Links from a passage to its entities, in order.
        """
        self._keys = keys
        self._passages = passages
        self._entities = entities

    @classmethod
    def build(cls, named: Iterable[Sequence[str]]) -> Self:
        """Build the graph from the distinct names in each passage."""
        all_keys, counts = array("Q"), array("q")
        for names in named:
            all_keys.extend(map(_key, names))
            counts.append(len(names))
        keys, entities = np.unique(np.array(all_keys, dtype=np.uint64), return_inverse=True)
        passages = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[
            np.argsort(entities, kind="stable")
        ]
        return cls(
            keys,
            Links(_starts(np.bincount(entities, minlength=len(keys))), passages),
            Links(_starts(np.array(counts, dtype=np.int64)), entities.astype(np.int32)),
        )

    @classmethod
    def prepare(
        cls, corpus: Corpus, indexes: Path, progress: Progress | None = None, ner: Path | None = None
    ) -> None:
        """Build the graph of the corpus if it is missing.

        Args:
            corpus: The corpus.
            indexes: The folder of the indexes.
            progress: Called with the progress.
            ner: spaCy pipeline that finds the names; None: titles of the corpus are the names.

        Raises:
            ModelNotFoundError: The pipeline marks no names.
            ModuleNotFoundError: spaCy is not installed.
        """
        identity = _identity(corpus, ner)

        def write(unfinished: Path) -> None:
            cls.build(_list_names(corpus, progress, ner)).save(unfinished)

        build(folder(indexes, "graph", identity), identity, write)

    @classmethod
    def open(cls, corpus: Corpus, indexes: Path, ner: Path | None = None) -> Self:
        """Map the graph that `prepare` built into memory. Raises IndexMismatchError."""
        identity = _identity(corpus, ner)
        target = folder(indexes, "graph", identity)
        check(target, identity)
        # asarray: an access to a memmap costs microseconds more than to an array
        keys, *links = (np.asarray(np.load(target / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS)
        return cls(keys, Links(*links[:2]), Links(*links[2:]))

    def save(self, target: Path) -> None:
        """Write the graph into a folder."""
        arrays: tuple[NDArray[Any], ...] = (
            self._keys,
            self._passages.starts,
            self._passages.targets,
            self._entities.starts,
            self._entities.targets,
        )
        for name, values in zip(_ARRAYS, arrays, strict=True):
            np.save(target / f"{name}.npy", values)

    def counts(self, permitted: Permitted | None = None) -> NDArray[np.int64]:
        """Return how many permitted passages name each entity, shape (n_entities,); None permits all."""
        if permitted is None:
            return np.diff(self._passages.starts)
        before = np.concatenate(([0], np.cumsum(permitted.mask[self._passages.targets])))
        return np.diff(before[self._passages.starts])

    def has_entities(
        self, names: Sequence[str], counts: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Return whether each name is an entity, shape (n_names,); with `counts`, whose count is above 0."""
        places, is_entity = self._look_up(names)
        if counts is not None:
            is_entity[is_entity] = counts[places[is_entity]] > 0
        return is_entity

    def numbers(self, names: Sequence[str]) -> NDArray[np.intp]:
        """Return the numbers of those names that are entities, in order."""
        places, is_entity = self._look_up(names)
        return places[is_entity]

    def walk(
        self,
        entities: NDArray[np.intp],
        max_entity_df: int,
        max_hops: int,
        max_candidates: int,
        permitted: Permitted | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> Walk:
        """Gather passages hop by hop, in order of discovery: by entity, then by position.

        The graph is restricted to the permitted passages.

        Args:
            entities: The start, distinct.
            max_entity_df: Most passages of an entity that is expanded.
            max_hops: At least 1; only odd hops add passages.
            max_candidates: Most passages.
            permitted: The passages that may be found; None: all.
            counts: The result of `counts(permitted)`; None: it is computed here.

        Source: Retriever Portfolios, 2026, arXiv:2605.31176 (GraphDense).
        """
        if permitted is None:
            seen_passages = np.zeros(len(self._entities.starts) - 1, dtype=np.bool_)
        else:
            seen_passages = ~permitted.mask
            counts = self.counts(permitted) if counts is None else counts
        seen_entities = np.zeros(len(self._keys), dtype=np.bool_)
        seen_entities[entities] = True
        gathered, ends, total = [], [], 0
        for _ in range(0, max_hops, 2):
            named = self._passages.counts(entities) if counts is None else counts[entities]
            expanded = entities[named <= max_entity_df]
            passages = self._discover(expanded, seen_passages, max_candidates - total)
            total += len(passages)
            gathered.append(passages)
            ends.append(total)
            if not len(passages) or total == max_candidates:
                break
            entities = _unseen(self._entities.follow(passages), seen_entities)
        return Walk(np.concatenate(gathered), tuple(ends))

    def _discover(
        self, entities: NDArray[np.intp], visited: NDArray[np.bool_], most: int
    ) -> NDArray[np.intp]:
        """Return at most `most` new passages of these entities, and mark them as visited."""
        reached = np.cumsum(self._passages.counts(entities))
        parts, followed = [np.empty(0, dtype=np.intp)], 0
        while followed < len(entities) and most > 0:
            before = reached[followed - 1] if followed else 0
            end = max(followed + 1, int(np.searchsorted(reached, before + ROOM * most, side="right")))
            parts.append(_unseen(self._passages.follow(entities[followed:end]), visited)[:most])
            most -= len(parts[-1])
            followed = end
        return np.concatenate(parts)

    def _look_up(self, names: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the insertion index of each name among the entities, and whether it is an entity."""
        keys = np.fromiter(map(_key, names), np.uint64, len(names))
        places = np.searchsorted(self._keys, keys)
        is_entity = places < len(self._keys)
        is_entity[is_entity] = self._keys[places[is_entity]] == keys[is_entity]
        return places, is_entity


_ARRAYS = ("keys", "passage_starts", "passages", "entity_starts", "entities")


def _list_names(corpus: Corpus, progress: Progress | None, ner: Path | None) -> Iterator[list[str]]:
    """Yield the names in each passage."""
    names = map(Titles(corpus).find_names, corpus) if ner is None else mark_names(corpus, ner)
    for done, found in enumerate(names, start=1):
        yield found
        if progress is not None and (done % REPORTED == 0 or done == len(corpus)):
            progress("finding entities", done, len(corpus))


def _unseen(targets: NDArray[np.int32], visited: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the distinct unvisited targets, and mark them as visited."""
    new = targets[~visited[targets]]
    _, first = np.unique(new, return_index=True)
    unseen = new[np.sort(first)].astype(np.intp)
    visited[unseen] = True
    return unseen


def _starts(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _identity(corpus: Corpus, ner: Path | None) -> Identity:
    of_names = {} if ner is None else {"ner": digest_file(ner)}
    return {"format": FORMAT, "words": VERSION, "corpus": corpus.digest, **of_names}
