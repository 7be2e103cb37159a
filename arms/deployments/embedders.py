"""Sentence encoders: the host of an encoder, and the client of all, wherever they run.

Concurrent calls are batched without a timer: those that arrive while a batch is encoded form the next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from armwise.arms import tracing
from armwise.arms.base import ArmError
from armwise.arms.deployments import spans
from armwise.arms.models import Backbone, build_embedder

In = TypeVar("In")

Out = TypeVar("Out")


class Batches(Generic[In, Out]):
    """Calls a function with the items of concurrent callers, in a separate thread.

    Callers may be in different event loops. An item whose caller is cancelled before its batch begins is
    left out.

    Args:
        work: Returns a result for each item, in order.
        at_most: Largest number of items in a batch.
        name: Name of the thread.
    """

    def __init__(self, work: Callable[[list[In]], Sequence[Out]], at_most: int, name: str) -> None:
        self._work = work
        self._at_most = at_most
        self._waiting: deque[tuple[In, Future[Out]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, item: In) -> Out:
        """Return the result of an item. Raises what the work of its batch raised."""
        result: Future[Out] = Future()
        self._waiting.append((item, result))
        self._thread.submit(self._next)  # one call an item: those of a batch find nothing left to do
        return await asyncio.wrap_future(result)

    def _next(self) -> None:
        batch: list[tuple[In, Future[Out]]] = []
        while self._waiting and len(batch) < self._at_most:
            item, result = self._waiting.popleft()
            if result.set_running_or_notify_cancel():
                batch.append((item, result))
        if not batch:
            return
        try:
            results = self._work([item for item, _ in batch])
            answered = list(zip(batch, results, strict=True))
        except Exception as error:  # noqa: BLE001  # it is the callers'
            for _, result in batch:
                result.set_exception(error)
        else:
            for (_, result), output in answered:
                result.set_result(output)


AT_ONCE = 32
"""Largest number of questions in a batch."""


class QuestionEmbedder(Protocol):
    """Embeds questions with one backbone: an `EmbedderHost`, or the handle of one."""

    async def embed(self, question: str) -> NDArray[np.float32]:
        """Return a unit vector of shape (dim,). Raises ArmError."""
        ...


class EmbedderHost:
    """Embeds questions with one backbone, in one thread; concurrent questions share a batch.

    Args:
        backbone: The backbone, whose model is loaded.
        prepare: Prepares the process, before that.

    Raises:
        ModelNotFoundError: The model cannot be found.
    """

    def __init__(self, backbone: Backbone, prepare: Callable[[], object] = lambda: None) -> None:
        prepare()
        self._model = backbone.model
        encode = build_embedder(backbone).encode_queries
        self._batches: Batches[str, NDArray[np.float32]] = Batches(
            lambda questions: list(encode(questions)), AT_ONCE, "encoder"
        )

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def embed(self, question: str, carried: str = "") -> NDArray[np.float32]:
        """Return a unit vector of shape (dim,), for the turn of `tracing.carry`. Raises ArmError."""
        tracing.enter(carried, question)
        with spans.embeddings(self._model, question):
            try:
                return await self._batches.run(question)
            except Exception as error:
                raise ArmError(f"{type(error).__name__}: {error}") from error


class Embedders:
    """Embeds a question with any backbone by name: in its deployment, or else in this process.

    Encoders of this process are loaded by `open` and `load`, or by the first question.

    Args:
        backbones: Every backbone by name.
        deployed: Deployed encoders by name.

    Attributes:
        expected: Encoders that arms need, to be loaded once the process answers.
    """

    def __init__(
        self, backbones: Mapping[str, Backbone], deployed: Mapping[str, QuestionEmbedder] | None = None
    ) -> None:
        self._backbones = backbones
        self._hosts: dict[str, QuestionEmbedder] = dict(deployed or {})
        self.expected: frozenset[str] = frozenset()
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="encoder-opener")

    @property
    def loaded(self) -> frozenset[str]:
        """The encoders that are deployed or loaded."""
        return frozenset(self._hosts)

    @property
    def loading(self) -> frozenset[str]:
        """The encoders that arms wait for."""
        return self.expected - self.loaded

    def open(self, names: frozenset[str]) -> None:
        """Load encoders, and wait for it. Raises ArmError."""
        if names - self.loaded:
            self._opener.submit(self._open, names).result()

    async def load(self, names: frozenset[str]) -> None:
        """Load encoders. Raises ArmError."""
        if names - self.loaded:
            await asyncio.get_running_loop().run_in_executor(self._opener, self._open, names)

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        """Return a unit vector of shape (dim,) for each backbone. Raises ArmError."""
        await self.load(backbones)
        names = sorted(backbones)
        vectors = await asyncio.gather(*(self._hosts[name].embed(question) for name in names))
        return dict(zip(names, vectors, strict=True))

    def _open(self, names: frozenset[str]) -> None:
        for name in sorted(names - self.loaded):
            try:
                self._hosts[name] = EmbedderHost(self._backbones[name])
            except Exception as error:  # libraries raise what they like
                raise ArmError(f"backbone {name!r} cannot be loaded: {error}") from error
