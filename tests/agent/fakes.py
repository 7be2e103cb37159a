"""Stand-ins at our own seams: a log in memory, arms that do as they are told, a counting encoder."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arms.base import ArmError, Passage, Query, Retrieval
from arms.embedding import HashingEmbedder
from feedback.events import Context, Decision, Execution
from feedback.store import LogUnavailableError

DIM = 16
"""Of every fake backbone."""

Facts = Decision | Execution


class MemoryLog:
    """A log in memory.

    Attributes:
        committed: What is durable, in order.
        waiting: What was appended while the log is held.
        refuse: Facts of this type fail to be committed.
    """

    def __init__(self) -> None:
        self.committed: list[Facts] = []
        self.waiting: list[tuple[tuple[Facts, ...], asyncio.Future[Any]]] = []
        self.held = False
        self.refuse: type[Facts] | None = None

    def append(self, *facts: Facts) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((facts, future))
        if not self.held:
            self.release()
        return future

    def release(self) -> None:
        """Commit what was held back."""
        self.held = False
        for facts, future in self.waiting:
            if self.refuse is not None and isinstance(facts[0], self.refuse):
                if not future.done():
                    future.set_exception(LogUnavailableError("the disk is full"))
                continue
            self.committed += facts
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    @property
    def decision(self) -> Decision:
        """The one decision."""
        (found,) = (fact for fact in self.committed if isinstance(fact, Decision))
        return found

    @property
    def execution(self) -> Execution:
        """The one execution."""
        (found,) = (fact for fact in self.committed if isinstance(fact, Execution))
        return found


Search = Callable[[Query, int], Awaitable[Retrieval]]


class FakeArms:
    """Arms that find `<arm>-1`, `<arm>-2` and so on, unless told otherwise.

    Attributes:
        calls: The arm, the query and k of each search.
        behaviour: What an arm does instead, by name.
    """

    def __init__(self, behaviour: Mapping[str, Search] | None = None) -> None:
        self.calls: list[tuple[str, Query, int]] = []
        self.behaviour = dict(behaviour or {})

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        self.calls.append((arm, query, k))
        if arm in self.behaviour:
            return await self.behaviour[arm](query, k)
        passages = tuple(Passage(f"{arm}-{i}", f"title {i}", f"text {i}", 1.0 / i) for i in range(1, k + 1))
        return Retrieval(passages, steps=0 if arm == "none" else 1)

    @property
    def asked(self) -> list[str]:
        """The arms that were run, in order."""
        return [arm for arm, _, _ in self.calls]


async def failing(query: Query, k: int) -> Retrieval:
    """An arm that is down."""
    raise ArmError("the index is gone")


async def hanging(query: Query, k: int) -> Retrieval:
    """An arm that never answers."""
    return await asyncio.Event().wait() or Retrieval()


class FakeEmbedders:
    """Hashes words into vectors.

    Attributes:
        calls: The backbones of each call.
        error: Raised by each call when set.
    """

    def __init__(self) -> None:
        self.calls: list[frozenset[str]] = []
        self.error: Exception | None = None
        self._embedder = HashingEmbedder(DIM)

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        self.calls.append(backbones)
        if self.error is not None:
            raise self.error
        return {name: self._embedder.encode_queries([question])[0] for name in sorted(backbones)}


class Preferring:
    """A policy that gives each arm its weight."""

    kind = "preferring"
    resumes_exactly = True

    def __init__(self, **weights: float) -> None:
        self.weights = weights

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        p = np.array([self.weights[arm] for arm in arms])
        return p / p.sum()

    def learn(self, decision: Decision, reward: float) -> None:
        raise AssertionError("serving does not learn")

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes) -> "Preferring":
        return self
