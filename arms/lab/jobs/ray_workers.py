"""Workers of a job as Ray actors, one per processor."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from armwise.arms import local_ray
from armwise.arms.lab.jobs.checkpoint import JobError
from armwise.arms.lab.jobs.worker_pool import Block, BlockJob, Worker, WorkerPool

ATTEMPTS = 3
"""Attempts at a block, each ended by the death of a worker, before the job fails."""

MAX_RESTARTS = 30
"""Most restarts of a worker: a constructor that kills its process would restart for ever."""

FREE_WITHIN_S = 10.0
"""Seconds to wait for a free processor: Ray reports a released processor with a delay."""

OBJECT_STORE_BYTES = 128 * 2**20
"""Size of the object store of a Ray that is started here: it holds the job, and one block per worker."""


class RayWorkers(WorkerPool):
    """Workers as Ray actors. Ray restarts a worker that dies, and repeats its blocks.

    Each worker has one processor and, by OMP_NUM_THREADS, one thread of numeric code.

    Args:
        make: The class of a worker.
        job: The argument of its constructor.
        size: Most workers.
        at_once: Concurrent blocks of a worker, one thread each.
    """

    def __init__(self, make: type[Worker], job: BlockJob, size: int, at_once: int = 1) -> None:
        super().__init__(job)
        self._actor: Any = ray.remote(make).options(
            num_cpus=1,
            max_concurrency=at_once,
            max_restarts=MAX_RESTARTS,
            max_task_retries=ATTEMPTS - 1,
        )
        self._stored_job: Any = ray.put(job)
        self._size = size
        self._at_once = at_once
        self._workers: list[Any] = []

    def _call(self, method: str, *args: Any) -> Any:
        self._start(1)
        return ray.get(getattr(self._workers[0], method).remote(*args))

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:  # garbage collection would release their processors only after a while
            ray.kill(worker)

    def _places(self, needed: int) -> list[Any]:
        self._start(min(self._size, needed))
        return self._workers * self._at_once

    def _submit(self, worker: Any, number: int) -> "Future[Block]":
        future: Future[Block] = worker.block.remote(number).future()
        return future

    def _reason(self, error: Exception) -> str:
        if isinstance(error, RayTaskError):
            return f"{type(error.cause).__name__}: {error.cause}"
        if isinstance(error, RayError):
            return f"a worker died: {str(error).strip().splitlines()[-1]}"
        return super()._reason(error)

    def _start(self, size: int) -> None:
        while len(self._workers) < size:
            self._workers.append(self._actor.remote(self._stored_job))


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
    with local_ray.join_or_start(num_cpus=workers or os.cpu_count(), object_store_memory=OBJECT_STORE_BYTES):
        yield _wait_for_free_processors()


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
