"""Search with every arm of a pool for the same question, and share work between them.

Arms whose kind has batches run as batches, others one by one. The result is the distinct
rankings, and which arm returned which.
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
"""Number of the ranking of an arm that failed."""


@dataclass(frozen=True, slots=True)
class Found:
    """The rankings of all arms for one question.

    Attributes:
        rankings: The distinct ones.
        which: Number of each arm's ranking, or `FAILED`, shape (n_arms,).
        steps: Rounds of retrieval, 0 for an arm that failed, shape (n_arms,).
        tokens: Tokens of a language model, 0 for an arm that failed, shape (n_arms,).
        problems: Error of each arm that failed, by its column.
    """

    rankings: tuple[scorers.Ranking, ...]
    which: NDArray[np.intp]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    problems: dict[int, str]


class Sweep:
    """Arms that search together.

    Args:
        resources: With indexes that are prepared.
        names: The arms, in the order of their columns; None for all of `resources.specs`.

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
        """Return at most `k` passages from every arm, or its error."""
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
        """Return the columns that succeeded, their positions, shape (n, k), and the errors of the others."""
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
        """Return the passages of the distinct rows, and the number of each row's ranking."""
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        wanted = np.unique(distinct[distinct >= 0])
        passages = dict(zip(wanted.tolist(), self._corpus.passages(wanted), strict=True))
        return [tuple(passages[p] for p in row if p >= 0) for row in distinct.tolist()], which.reshape(-1)


class Stopwatch:
    """Times arms one by one, on the calling thread.

    Caches are cleared before each search, so that an arm pays for its own first stage. The
    embedding of the question is not timed: the service makes it once, whichever arm is drawn.

    Args:
        resources: With indexes that are prepared.
        queries: With the embeddings that the arms need; used in turn.
        k: Passages to find.
        timed: Searches per arm, at least 1.
    """

    def __init__(self, resources: Resources, queries: Sequence[Query], k: int, timed: int) -> None:
        self._resources = resources
        self._turns = itertools.cycle(queries)
        self._k = k
        self._timed = timed
        self._warm: set[tuple[str, frozenset[str]]] = set()

    def seconds(self, name: str) -> float:
        """Return the mean seconds of a search, failed ones included."""
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
        with contextlib.suppress(ArmError, GeneratorError):  # a failed search is timed, too
            arm.search(query, self._k)
        return time.perf_counter() - started
