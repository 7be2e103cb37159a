"""Workers that do a job a block of questions at a time: a Ray job that goes on after a kill.

    blocks of questions -> workers, an actor a processor -> <output>.blocks
                                                            a file a block

The driver alone writes, and holds as many blocks as are being worked on. What is finished
is not done again, whatever was killed: the driver, a worker or the machine.
"""

import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from arms.base import Progress
from arms.jobs.checkpoint import BlockFolder, JobError
from arms.questions import Question

ATTEMPTS = 3
"""How often a worker may die over one block before the job gives up."""

MAX_FAILED_QUESTIONS = 96
"""Questions in a row of which nothing comes, after which something must be away."""

FREE_WITHIN_S = 10.0
"""How long a cluster may take to have a processor free: one that was let go of is told of late."""

OBJECT_STORE_BYTES = 128 * 2**20
"""Of a Ray of our own: the job, and a block for each worker, are all that passes through it."""


class BlockJob(Protocol):
    """What is done to questions, a block of them at a time; must be picklable."""

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        ...

    def questions_of(self, number: int) -> Sequence[Question]:
        """Return the questions of a block."""
        ...


class Block(Protocol):
    """What came of a block; must be picklable."""

    @property
    def problem(self) -> str:
        """Why nothing at all came of it; empty when anything did."""
        ...

    def pack(self) -> bytes:
        """Return what is kept of it."""
        ...


class Worker(Protocol):
    """Does blocks; made from the job, once in each process. `WorkerPool.ask` calls what else it can do."""

    def __init__(self, job: Any) -> None: ...

    def block(self, number: int) -> Block:
        """Do a block."""
        ...


@dataclass(slots=True)
class _Slot:
    """A place in the crew: of those who died there, another has come after each."""

    worker: Any


class WorkerPool:
    """Workers as Ray actors; one that dies is replaced, and its blocks begun again.

    Ray gives an actor of one processor one thread (OMP_NUM_THREADS), so that workers do
    not fight over processors.

    Args:
        make: What a worker is.
        job: What it is made from.
        size: Most workers.
        at_once: Blocks that a worker has at the same time, each on a thread of its own.
    """

    def __init__(self, make: type[Worker], job: BlockJob, size: int, at_once: int = 1) -> None:
        self._actor: Any = ray.remote(make).options(num_cpus=1, max_concurrency=at_once)
        self._job = job
        self._kept: Any = ray.put(job)
        self._size = size
        self._at_once = at_once
        self._places: list[_Slot] = []

    def finish(self, folder: BlockFolder, tell: Progress, what: str) -> None:
        """Do the blocks that are missing, and keep each as it is done. Raises JobError."""
        missing = unfinished(self._job, folder)
        sizes = [len(self._job.questions_of(number)) for number in range(self._job.n_blocks)]
        total = sum(sizes)
        done = total - sum(sizes[number] for number in missing)
        tell(what, done, total)
        for number, block in self._trusted(self._blocks(missing), min(MAX_FAILED_QUESTIONS, total)):
            folder.write(number, block.pack())
            done += sizes[number]
            tell(what, done, total)

    def ask(self, method: str, *given: Any) -> Any:
        """Return what a method of one of the workers returns. Raises JobError."""
        if not self._places:
            self._hire(1)
        try:
            return ray.get(getattr(self._places[0].worker, method).remote(*given))
        except RayError as error:
            raise JobError(f"a worker fails: {_reason(error)}") from error

    def close(self) -> None:
        """Dismiss all workers at once: left to themselves, they keep their processors for a while."""
        for place in self._places:
            ray.kill(place.worker)

    def _blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks by number, as they are finished. Raises JobError."""
        waiting = deque(numbers)
        died: Counter[int] = Counter()
        running: dict[Any, tuple[int, _Slot, Any]] = {}

        def employ(place: _Slot) -> None:
            if waiting:
                number = waiting.popleft()
                running[place.worker.block.remote(number)] = number, place, place.worker

        self._hire(min(self._size, len(waiting)))
        for _ in range(self._at_once):
            for place in self._places:
                employ(place)
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number, place, worker = running.pop(ready)
            block = self._block_of(ready, number, died)
            if block is not None:
                yield number, block
            else:
                waiting.appendleft(number)
                if place.worker is worker:  # else another block of the dead worker was told of before
                    place.worker = self._actor.remote(self._kept)
            employ(place)

    def _block_of(self, ready: Any, number: int, died: Counter[int]) -> Block | None:
        """Return a block that is done, None where its worker died and it is to be tried again."""
        try:
            block: Block = ray.get(ready)
        except RayTaskError as error:
            raise self._failed(number, error) from error
        except RayError as error:
            died[number] += 1
            if died[number] == ATTEMPTS or getattr(error, "actor_init_failed", False):
                raise self._failed(number, error) from error
            return None
        return block

    def _trusted(self, found: Iterable[tuple[int, Block]], patience: int) -> Iterator[tuple[int, Block]]:
        """Hold back blocks of which nothing came until one comes of which something did, or the last.

        Some questions are beyond every arm, and such blocks are kept. Many of them in a row say
        that something is away: they are dropped, and done again by the next run.

        Raises:
            JobError: Nothing came of `patience` questions in a row.
        """
        held: list[tuple[int, Block]] = []
        n_held = 0
        for number, block in found:
            held.append((number, block))
            n_held += len(self._job.questions_of(number))
            if not block.problem:
                yield from held
                held, n_held = [], 0
            elif n_held >= patience:
                raise JobError(f"nothing came of {n_held} questions in a row: {block.problem}")
        yield from held

    def _hire(self, size: int) -> None:
        while len(self._places) < size:
            self._places.append(_Slot(self._actor.remote(self._kept)))

    def _failed(self, number: int, error: RayError) -> JobError:
        questions = self._job.questions_of(number)
        return JobError(f"questions {questions[0].id!r} to {questions[-1].id!r}: {_reason(error)}")


def unfinished(job: BlockJob, folder: BlockFolder) -> list[int]:
    """Return the numbers of the blocks that are missing, in order."""
    return sorted(set(range(job.n_blocks)) - folder.finished())


@contextlib.contextmanager
def worker_pool(
    make: type[Worker], job: BlockJob, workers: int | None, at_once: int = 1
) -> Iterator[WorkerPool]:
    """Have a crew at work on a job.

    Args:
        make: What a worker is.
        job: What it is made from.
        workers: Most of them; None for one a processor. Where `RAY_ADDRESS` names a cluster,
            no more than it has processors free; it must see the same folders.
        at_once: Blocks that a worker has at the same time, each on a thread of its own.

    Raises:
        JobError: No processor is free.
    """
    with (
        cluster(workers) as free,
        contextlib.closing(WorkerPool(make, job, min(workers or free, free), at_once)) as crew,
    ):
        yield crew


def _reason(error: RayError) -> str:
    """Say in a line what a worker raised, or how it died."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    return str(error).strip().splitlines()[-1]


@contextlib.contextmanager
def cluster(workers: int | None = None) -> Iterator[int]:
    """Join the Ray that this process has or `RAY_ADDRESS` names, or start one of our own while it is needed.

    Args:
        workers: Processors of a Ray of our own; None for all of this machine's.

    Yields:
        How many processors are free, at least 1.

    Raises:
        JobError: None is.
    """
    ours = not ray.is_initialized()
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if ours and "RAY_ADDRESS" in os.environ:
        ray.init(**quiet)
    elif ours:  # not the cluster of a service that may run on this machine
        ray.init(
            address="local",
            num_cpus=workers or os.cpu_count(),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **quiet,
        )
    try:
        yield _free_processors()
    finally:
        if ours:
            ray.shutdown()


def _free_processors() -> int:
    """Return how many processors of the cluster are free, at least 1. Raises JobError."""
    deadline = time.monotonic() + FREE_WITHIN_S
    while True:
        resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        if (free := int(resources.get("CPU", 0))) >= 1:
            return free
        if time.monotonic() >= deadline:
            address = ray.get_runtime_context().gcs_address
            raise JobError(
                f"the Ray cluster at {address} has no free processor: wait until it has one, "
                "or unset RAY_ADDRESS to work on this machine alone"
            )
        time.sleep(0.1)
