"""Ask every arm of a pool the same question, with the work shared that can be shared.

Arms whose kind knows batches run as batches; any other arm is asked by itself. What
comes out are the distinct rankings, and which arm returned which.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arms.base import Arm, ArmError, Query
from arms.llm import GeneratorError
from arms.retrievers import Resources, build_arm, catalog
from arms.retrievers import kind as retriever_kind
from arms.scoring import scorers

MakeBatches = Callable[[Mapping[str, Any], Resources], Sequence[retriever_kind.Batch]]

FAILED = -1
"""In place of the number of a ranking, where an arm failed."""


@dataclass(frozen=True, slots=True)
class Found:
    """What all arms returned for one question.

    Attributes:
        rankings: The distinct ones.
        which: Number of each arm's ranking, or `FAILED`, shape (n_arms,).
        steps: Rounds of retrieval of each arm, 0 where it failed, shape (n_arms,).
        tokens: Tokens that each arm spent on a language model, 0 where it failed, shape (n_arms,).
        problems: What each arm that failed said, by its column.
    """

    rankings: tuple[scorers.Ranking, ...]
    which: NDArray[np.intp]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    problems: dict[int, str]


class Sweep:
    """Arms of `resources.specs`, which are asked together.

    Args:
        resources: What the arms are built from; their indexes must be there.
        names: The arms, in the order of their columns; None for all, the rest are only parts of these.

    Raises:
        ArmSpecError: An arm cannot be built.
        IndexMismatchError: An index is missing: call `arms.retrievers.catalog.prepare` first.
    """

    def __init__(self, resources: Resources, names: Sequence[str] | None = None) -> None:
        self._corpus = resources.corpus
        self._column = {name: at for at, name in enumerate(resources.specs if names is None else names)}
        self._expected_steps = np.zeros(len(self._column))
        self._batches = [
            (batch, np.array([self._column[name] for name in batch.names]))
            for batch in self._batched(resources)
        ]
        batched = {name for batch, _ in self._batches for name in batch.names}
        self._alone = {
            column: build_arm(name, resources) for name, column in self._column.items() if name not in batched
        }

    def _batched(self, resources: Resources) -> Iterable[retriever_kind.Batch]:
        groups: dict[str, tuple[MakeBatches, dict[str, Any]]] = {}
        for name in self._column:
            spec = resources.specs[name]
            kind, params = catalog.described(name, spec)
            if kind.batch is not None:
                _, group = groups.setdefault(spec.kind, (kind.batch, {}))
                group[name] = params
                self._expected_steps[self._column[name]] = kind.steps(params)
        for make, group in groups.values():
            yield from make(group, resources)

    def search(self, query: Query, k: int) -> Found:
        """Return at most `k` passages from every arm; what an arm could not answer is told and left out."""
        n_arms = len(self._column)
        which = np.full(n_arms, FAILED, dtype=np.intp)
        steps, tokens = np.zeros((2, n_arms))
        columns, rows, problems = self._search_batches(query, k)
        rankings, which[columns] = self._read(rows)
        steps[columns] = self._expected_steps[columns]
        number = {tuple(passage.id for passage in ranking): at for at, ranking in enumerate(rankings)}
        for column, arm in self._alone.items():
            try:
                answer = arm.search(query, k)
            except (ArmError, GeneratorError) as error:
                problems[column] = str(error)
                continue
            ranking = answer.passages[:k]
            which[column] = number.setdefault(tuple(passage.id for passage in ranking), len(rankings))
            if which[column] == len(rankings):
                rankings.append(ranking)
            steps[column], tokens[column] = answer.steps, answer.tokens
        return Found(tuple(rankings), which, steps, tokens, problems)

    def _search_batches(
        self, query: Query, k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], dict[int, str]]:
        """Return the columns that answered, what each found, shape (n, k), and what the others said."""
        columns, rows = [np.empty(0, dtype=np.intp)], [np.empty((0, k), dtype=np.intp)]
        problems: dict[int, str] = {}
        for batch, own in self._batches:
            try:
                rows.append(batch.positions(query, k))
            except ArmError as error:
                problems.update(dict.fromkeys(own.tolist(), str(error)))
            else:
                columns.append(own)
        return np.concatenate(columns), np.concatenate(rows), problems

    def _read(self, rows: NDArray[np.intp]) -> tuple[list[scorers.Ranking], NDArray[np.intp]]:
        """Return the distinct rows as passages, each read once, and which of them each row is."""
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        wanted = np.unique(distinct[distinct >= 0])
        passages = dict(zip(wanted.tolist(), self._corpus.passages(wanted), strict=True))
        return [tuple(passages[p] for p in row if p >= 0) for row in distinct.tolist()], which.reshape(-1)


class Stopwatch:
    """Times arms one by one, each alone and on the thread that asks.

    What arms share forgets before each search what it knows of former questions, so that
    an arm pays for its own first stage. The embedding of the question is not part of it:
    every turn of the service makes it once, whichever arm is drawn.

    Args:
        resources: What the arms are built from; their indexes must be there.
        queries: Asked in turn; with the embeddings that the arms need.
        k: Passages that are asked for.
        timed: Searches for each arm, at least 1.
    """

    def __init__(self, resources: Resources, queries: Sequence[Query], k: int, timed: int) -> None:
        self._resources = resources
        self._turns = itertools.cycle(queries)
        self._k = k
        self._timed = timed
        self._warm: set[tuple[str, frozenset[str]]] = set()

    def seconds(self, name: str) -> float:
        """Return the mean time of a search; one that fails counts for as long as it took."""
        arm = build_arm(name, self._resources)
        kin = (self._resources.specs[name].kind, arm.backbones)
        if kin not in self._warm:  # the first search reads the index from the disk
            self._search(arm)
            self._warm.add(kin)
        return sum(self._search(arm) for _ in range(self._timed)) / self._timed

    def _search(self, arm: Arm) -> float:
        query = next(self._turns)
        self._resources.forget()
        started = time.perf_counter()
        with contextlib.suppress(ArmError, GeneratorError):  # what it costs to fail is a cost, too
            arm.search(query, self._k)
        return time.perf_counter() - started
