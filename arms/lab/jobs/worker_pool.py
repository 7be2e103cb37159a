"""Ray actors that work through the blocks of questions of a job.

    blocks of questions -> workers, one actor per processor -> <output>.blocks, one file per block

Only the driver writes, and holds only the blocks in progress. A finished block is kept when the driver, a
worker or the machine is killed.
"""

import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from armwise.arms import local_ray
from armwise.arms.base import Progress
from armwise.arms.lab.jobs.checkpoint import BlockFolder, JobError
from armwise.arms.questions import Question

ATTEMPTS = 3
"""Attempts at a block, each ended by the death of a worker, before the job fails."""

MAX_RESTARTS = 30
"""Most restarts of a worker: a constructor that kills its process would restart for ever."""

MAX_FAILED_QUESTIONS = 96
"""Failed questions in a row after which the job stops: a service is probably down."""

FREE_WITHIN_S = 10.0
"""Seconds to wait for a free processor: Ray reports a released processor with a delay."""

OBJECT_STORE_BYTES = 128 * 2**20
"""Size of the object store of a Ray that is started here: it holds the job, and one block per worker."""


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


class WorkerPool:
    """Workers as Ray actors. Ray restarts a worker that dies, and repeats its blocks.

    Each worker has one processor and, by OMP_NUM_THREADS, one thread of numeric code.

    Args:
        make: The class of a worker.
        job: The argument of its constructor.
        size: Most workers.
        at_once: Concurrent blocks of a worker, one thread each.
    """

    def __init__(self, make: type[Worker], job: BlockJob, size: int, at_once: int = 1) -> None:
        self._actor: Any = ray.remote(make).options(
            num_cpus=1,
            max_concurrency=at_once,
            max_restarts=MAX_RESTARTS,
            max_task_retries=ATTEMPTS - 1,
        )
        self._job = job
        self._stored_job: Any = ray.put(job)
        self._size = size
        self._at_once = at_once
        self._workers: list[Any] = []

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
        self._start(1)
        try:
            return ray.get(getattr(self._workers[0], method).remote(*args))
        except RayError as error:
            raise JobError(f"a worker failed: {_reason(error)}") from error

    def close(self) -> None:
        """Kill all workers: garbage collection would release their processors only after a while."""
        for worker in self._workers:
            ray.kill(worker)

    def _blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks by number, as they are finished. Raises JobError."""
        waiting = deque(numbers)
        self._start(min(self._size, len(waiting)))
        idle = deque(self._workers * self._at_once)
        running: dict[Any, tuple[int, Any]] = {}
        while waiting or running:
            while waiting and idle:
                number, worker = waiting.popleft(), idle.popleft()
                running[worker.block.remote(number)] = number, worker
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number, worker = running.pop(ready)
            idle.append(worker)
            try:
                block: Block = ray.get(ready)
            except RayError as error:
                ids = [question.id for question in self._job.list_questions(number)]
                raise JobError(f"questions {ids[0]!r} to {ids[-1]!r}: {_reason(error)}") from error
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

    def _start(self, size: int) -> None:
        while len(self._workers) < size:
            self._workers.append(self._actor.remote(self._stored_job))


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
        workers: Most workers; None: one per free processor. A cluster of `RAY_ADDRESS` must see the same
            folders, and its free processors limit the workers.
        at_once: Concurrent blocks of a worker, one thread each.

    Raises:
        JobError: No processor is free.
    """
    with (
        cluster(workers) as free,
        contextlib.closing(WorkerPool(make, job, min(workers or free, free), at_once)) as pool,
    ):
        yield pool


def _reason(error: RayError) -> str:
    """Return in one line the exception that a worker raised, or how it died."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    return f"a worker died: {str(error).strip().splitlines()[-1]}"


@contextlib.contextmanager
def cluster(workers: int | None = None) -> Iterator[int]:
    """Join the Ray of this process or of `RAY_ADDRESS`, or start a Ray for the duration.

    Args:
        workers: Processors of a Ray that is started; None: all of this machine.

    Yields:
        Number of free processors, at least 1.

    Raises:
        JobError: All processors are in use.
    """
    ours = not ray.is_initialized()
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if ours and "RAY_ADDRESS" in os.environ:
        local_ray.connect(**quiet)
    elif ours:  # not the cluster of a service that may run on this machine
        local_ray.start(num_cpus=workers or os.cpu_count(), object_store_memory=OBJECT_STORE_BYTES, **quiet)
    try:
        yield _wait_for_free_processors()
    finally:
        if ours:
            ray.shutdown()


def _wait_for_free_processors() -> int:
    """Return how many processors of the cluster are free, at least 1. Raises JobError."""
    none_free = retry_if_result(lambda free: free < 1)
    try:
        return Retrying(retry=none_free, stop=stop_after_delay(FREE_WITHIN_S), wait=wait_fixed(0.1))(
            _free_processors
        )
    except RetryError:
        raise JobError(
            f"the Ray cluster at {ray.get_runtime_context().gcs_address} has no free processor: wait until "
            "it has one, or unset RAY_ADDRESS to work on this machine only"
        ) from None


def _free_processors() -> int:
    resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 0))
