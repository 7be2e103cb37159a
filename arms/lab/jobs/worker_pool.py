"""Workers that go through the blocks of questions of a job.

    blocks of questions -> workers, one Ray actor per processor -> <output>.blocks, one file per block

A single worker works in this process: starting Ray takes longer than most such jobs, and fails on a busy
machine. Only the driver writes, and holds only the blocks in progress. A finished block is kept when the
driver, a worker or the machine is killed.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import cache
from typing import Any, Protocol, TypeVar

from armwise.arms.base import Progress
from armwise.arms.lab.jobs.checkpoint import BlockFolder, JobError
from armwise.arms.questions import Question

T = TypeVar("T")

MAX_FAILED_QUESTIONS = 96
"""Failed questions in a row after which the job stops: a service is probably down."""


class BlockJob(Protocol):
    """A job on questions, in blocks; must be picklable."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        ...

    def list_questions(self, number: int) -> Sequence[Question]:
        """Return the questions of a block."""
        ...


class Block(Protocol):
    """The result of a block; must be picklable."""

    @property
    def problem(self) -> str:
        """Why all questions failed; empty: at least one succeeded."""
        ...

    def pack(self) -> bytes:
        """Return the bytes to keep."""
        ...


class Worker(Protocol):
    """Computes blocks; constructed from the job, once per process."""

    def __init__(self, job: Any) -> None: ...

    def block(self, number: int) -> Block:
        """Compute a block."""
        ...


class WorkerPool(ABC):
    """Workers of a job.

    Args:
        job: The job.
    """

    def __init__(self, job: BlockJob) -> None:
        self._job = job

    def finish(self, folder: BlockFolder, on_progress: Progress, stage: str) -> None:
        """Compute the missing blocks, and write each as it is finished. Raises JobError."""
        missing = list_unfinished(self._job, folder)
        sizes = [len(self._job.list_questions(number)) for number in range(self._job.n_blocks)]
        total = sum(sizes)
        done = total - sum(sizes[number] for number in missing)
        on_progress(stage, done, total)
        limit = min(MAX_FAILED_QUESTIONS, total)
        for number, block in self._hold_back_failures(self._blocks(missing), limit):
            folder.write(number, block.pack())
            done += sizes[number]
            on_progress(stage, done, total)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the first worker, and return its result. Raises JobError."""
        return self._attempt(self._call, method, *args)

    def _attempt(self, work: Callable[..., T], *args: Any) -> T:
        """Return what a function returns. Raises JobError."""
        try:
            return work(*args)
        except Exception as error:
            raise JobError(f"a worker failed: {self._reason(error)}") from error

    @abstractmethod
    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the first worker."""

    def _reason(self, error: Exception) -> str:
        """Return in one line what a worker raised, or how it died."""
        return f"{type(error).__name__}: {error}"

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    @abstractmethod
    def _places(self, needed: int) -> list[Any]:
        """Return the worker of each block that can be computed at the same time, at most the needed."""

    @abstractmethod
    def _submit(self, worker: Any, number: int) -> "Future[Block]":
        """Begin a block."""

    def _blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks by number, as they are finished. Raises JobError."""
        waiting, idle = deque(numbers), deque(self._attempt(self._places, len(numbers)))
        running: dict[Future[Block], tuple[int, Any]] = {}
        while waiting or running:
            while waiting and idle:
                number, worker = waiting.popleft(), idle.popleft()
                running[self._submit(worker, number)] = number, worker
            ready = next(as_completed(running))
            number, worker = running.pop(ready)
            idle.append(worker)
            try:
                block = ready.result()
            except Exception as error:
                ids = [question.id for question in self._job.list_questions(number)]
                raise JobError(f"questions {ids[0]!r} to {ids[-1]!r}: {self._reason(error)}") from error
            yield number, block

    def _hold_back_failures(
        self, blocks: Iterable[tuple[int, Block]], limit: int
    ) -> Iterator[tuple[int, Block]]:
        """Hold back failed blocks until one succeeds, or until the last block.

        All arms may fail on some questions, and such blocks are kept. Many in a row mean that a service is
        down: they are dropped, and computed again by the next run.

        Raises:
            JobError: `limit` questions in a row failed.
        """
        held: list[tuple[int, Block]] = []
        n_held = 0
        for number, block in blocks:
            held.append((number, block))
            n_held += len(self._job.list_questions(number))
            if not block.problem:
                yield from held
                held, n_held = [], 0
            elif n_held >= limit:
                raise JobError(f"{n_held} questions in a row failed: {block.problem}")
        yield from held


class OneWorker(WorkerPool):
    """A worker in this process.

    Args:
        make: The class of the worker.
        job: The argument of its constructor.
        at_once: Concurrent blocks, one thread each.
    """

    def __init__(self, make: type[Worker], job: BlockJob, at_once: int = 1) -> None:
        super().__init__(job)
        self._worker = cache(lambda: make(job))
        self._at_once = at_once
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="block")

    def _call(self, method: str, *args: Any) -> Any:
        return getattr(self._worker(), method)(*args)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown()

    def _places(self, needed: int) -> list[Any]:
        return [self._worker()] * min(needed, self._at_once)

    def _submit(self, worker: Any, number: int) -> "Future[Block]":
        return self._threads.submit(worker.block, number)


def list_unfinished(job: BlockJob, folder: BlockFolder) -> list[int]:
    """Return the numbers of the missing blocks, in order."""
    return sorted(set(range(job.n_blocks)) - folder.list_finished())


@contextlib.contextmanager
def worker_pool(
    make: type[Worker], job: BlockJob, workers: int | None, at_once: int = 1
) -> Iterator[WorkerPool]:
    """Open a pool of workers for a job.

    Args:
        make: The class of a worker.
        job: The argument of its constructor.
        workers: Most workers; 1: in this process; None: one per free processor. A cluster of `RAY_ADDRESS`
            must see the same folders, and its free processors limit the workers.
        at_once: Concurrent blocks of a worker, one thread each.

    Raises:
        JobError: No processor is free.
    """
    if workers == 1:
        with contextlib.closing(OneWorker(make, job, at_once)) as pool:
            yield pool
        return
    from armwise.arms.lab.jobs.ray_workers import RayWorkers, cluster  # loads Ray

    with (
        cluster(workers) as free,
        contextlib.closing(RayWorkers(make, job, min(workers or free, free), at_once)) as pool,
    ):
        yield pool
