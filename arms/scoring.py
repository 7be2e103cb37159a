"""Score every arm of a pool on every question: a Ray job that goes on after a kill.

    blocks of questions -> workers, an actor a processor -> <output>.blocks -> <output>
                           all arms, then the scorer         a file a block    a score matrix

The driver alone writes, and holds as many blocks as there are workers. What is finished
is not done again, whatever was killed: the driver, a worker or the machine.
"""

import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from arms.blocking import LateWriter
from arms.blocks import Block, BlockFolder, open_blocks, refuse_other
from arms.catalog import backbones_of, features, prepare, validate_specs
from arms.corpus import Progress
from arms.indexes import MANIFEST
from arms.kinds import Resources
from arms.matrix import ArmTable, read_matrix, write_matrix
from arms.scorers import ScoringError, check_questions
from arms.scoring_job import Job, Report, Worker

ATTEMPTS = 3
"""How often a worker may die over one block before the job gives up."""

TIMED_AT_ONCE = 10
"""Arms that are timed between two words of progress."""

PATIENCE = 96
"""Questions in a row of which no score is known, after which something must be away."""

FREE_WITHIN_S = 10.0
"""How long a cluster may take to have a processor free: one that was let go of is told of late."""

OBJECT_STORE_BYTES = 128 * 2**20
"""Of a Ray of our own: the job, and a block for each worker, are all that passes through it."""


def score(job: Job, output: Path, *, workers: int | None = None, progress: Progress | None = None) -> Report:
    """Score all arms on all questions into a matrix, or return at once when that has been done.

    Args:
        job: What is scored.
        output: The folder of the matrix; `<output>.blocks` holds what is finished until all of it is.
        workers: Processes; None for one a processor. Where `RAY_ADDRESS` names a cluster,
            no more than it has processors free; it must see the same folders.
        progress: Told what is being done, and how much of it is done.

    Raises:
        ScoringError: The questions cannot be scored, the output holds other scores, no
            processor is free, no score is known of many questions in a row, or workers
            failed; what is finished is kept.
        ArmSpecError: An arm is described wrongly.
        MatrixError: There is no arm, or one has a name that no column can have.
        ModelNotFoundError: The model of a backbone is not where its name says.
    """
    tell = progress or (lambda *_: None)
    scorer = job.scorer(LateWriter(None))
    check_questions(job.questions, scorer, job.corpus)
    validate_specs(job.specs, job.backbones)
    needed = frozenset[str]().union(*(backbones_of(name, job.specs) for name in job.specs))
    job = replace(job, backbones={name: one for name, one in job.backbones.items() if name in needed})
    identity = job.identity(scorer)
    table = ArmTable(job.specs, job.backbones, {}, scorer.measure, identity)
    if output.exists():
        return _report_of(output, identity)
    with open_blocks(output.with_name(f"{output.name}.blocks"), identity) as blocks:
        resumed = sum(len(job.questions_of(number)) for number in blocks.finished())
        write = LateWriter(job.llm)  # an index may be made of what it reads in the passages
        prepare(Resources(job.corpus, job.indexes, job.backbones, job.specs, write=write), progress=tell)
        _finish(job, blocks, workers, tell)
        costs, unknown, problems = _summed(job, blocks)
        scores = ((job.questions_of(number), blocks.read(number).scores) for number in range(job.n_blocks))
        write_matrix(output, replace(table, costs=costs), scores)
        blocks.delete()
    return Report(scorer.measure, len(job.questions), resumed, unknown, problems)


def _finish(job: Job, blocks: BlockFolder, workers: int | None, tell: Progress) -> None:
    """Score the blocks that are missing and time the arms, where that is not done. Raises ScoringError."""
    missing = sorted(set(range(job.n_blocks)) - blocks.finished())
    untimed = list(job.specs) if job.timed and blocks.read_seconds() is None else []
    if not missing and not untimed:
        return
    total = len(job.questions)
    done = total - sum(len(job.questions_of(number)) for number in missing)
    with cluster(workers) as free, contextlib.closing(_Crew(job, min(workers or free, free))) as crew:
        tell("scoring questions", done, total)
        for number, block in _trusted(crew.blocks(missing), min(PATIENCE, total)):
            blocks.write(number, block)
            done += len(block.scores)
            tell("scoring questions", done, total)
        if untimed:
            seconds: dict[str, float] = {}
            for some in crew.seconds(untimed):
                seconds |= some
                tell("timing arms", len(seconds), len(untimed))
            blocks.write_seconds(seconds)


def _trusted(found: Iterable[tuple[int, Block]], patience: int) -> Iterator[tuple[int, Block]]:
    """Hold back blocks in which no score is known until one comes in which one is, or the last.

    Some questions are beyond every arm, and such blocks are kept. Many of them in a row say
    that something is away: they are dropped, and done again by the next run.

    Raises:
        ScoringError: Not one score is known of `patience` questions in a row.
    """
    held: list[tuple[int, Block]] = []
    for number, block in found:
        held.append((number, block))
        if not np.isnan(block.scores).all():
            yield from held
            held.clear()
        elif (unknown := sum(len(block.scores) for _, block in held)) >= patience:
            problem = next(iter(block.problems.values()))
            raise ScoringError(f"no arm has a score on any of {unknown} questions in a row; {problem}")
    yield from held


class _Crew:
    """Workers as Ray actors; one that dies is replaced, and its block begun again.

    Ray gives an actor of one processor one thread (OMP_NUM_THREADS), so that workers do
    not fight over processors.
    """

    def __init__(self, job: Job, size: int) -> None:
        self._job = job
        self._kept: Any = ray.put(job)
        self._size = size
        self._alive: list[Any] = []

    def blocks(self, numbers: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks by number, as they are finished. Raises ScoringError."""
        waiting = deque(numbers)
        died: Counter[int] = Counter()
        running: dict[Any, tuple[int, Any]] = {}

        def employ(worker: Any) -> None:
            if waiting:
                number = waiting.popleft()
                running[worker.score.remote(number)] = number, worker

        for _ in range(min(self._size, len(waiting))):
            employ(self._hire())
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            number, worker = running.pop(ready)
            try:
                block: Block = ray.get(ready)
            except RayTaskError as error:
                raise self._failed(number, error) from error
            except RayError as error:
                died[number] += 1
                if died[number] == ATTEMPTS or getattr(error, "actor_init_failed", False):
                    raise self._failed(number, error) from error
                waiting.appendleft(number)
                self._alive.remove(worker)
                worker = self._hire()
            else:
                yield number, block
            employ(worker)

    def seconds(self, names: Sequence[str]) -> Iterator[dict[str, float]]:
        """Yield how long a search of each arm takes, some arms at a time. Raises ScoringError."""
        worker = self._alive[0] if self._alive else self._hire()
        for first in range(0, len(names), TIMED_AT_ONCE):
            try:
                found: dict[str, float] = ray.get(worker.seconds.remote(names[first : first + TIMED_AT_ONCE]))
            except RayError as error:
                raise ScoringError(f"the arms cannot be timed: {_reason(error)}") from error
            yield found

    def close(self) -> None:
        """Dismiss all workers at once: left to themselves, they keep their processors for a while."""
        for worker in self._alive:
            ray.kill(worker)

    def _hire(self) -> Any:
        worker = ray.remote(Worker).options(num_cpus=1).remote(self._kept)
        self._alive.append(worker)
        return worker

    def _failed(self, number: int, error: RayError) -> ScoringError:
        questions = self._job.questions_of(number)
        return ScoringError(f"questions {questions[0].id!r} to {questions[-1].id!r}: {_reason(error)}")


def _reason(error: RayError) -> str:
    """Say in a line what a worker raised, or how it died."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return str(cause) if isinstance(cause, ScoringError) else f"{type(cause).__name__}: {cause}"
    return str(error).strip().splitlines()[-1]


@contextlib.contextmanager
def cluster(workers: int | None = None) -> Iterator[int]:
    """Join the Ray that this process has or `RAY_ADDRESS` names, or start one of our own while it is needed.

    Args:
        workers: Processors of a Ray of our own; None for all of this machine's.

    Yields:
        How many processors are free, at least 1.

    Raises:
        ScoringError: None is.
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
    """Return how many processors of the cluster are free, at least 1. Raises ScoringError."""
    deadline = time.monotonic() + FREE_WITHIN_S
    while True:
        resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        if (free := int(resources.get("CPU", 0))) >= 1:
            return free
        if time.monotonic() >= deadline:
            address = ray.get_runtime_context().gcs_address
            raise ScoringError(
                f"the Ray cluster at {address} has no free processor: wait until it has one, "
                "or unset RAY_ADDRESS to score on this machine alone"
            )
        time.sleep(0.1)


def _summed(
    job: Job, blocks: BlockFolder
) -> tuple[dict[str, dict[str, float]], dict[str, int], dict[str, str]]:
    """Return the costs of the arms, on how many questions each has no score, and why."""
    names = list(job.specs)
    answered, steps, tokens, unknown = np.zeros((4, len(names)))
    problems: dict[str, str] = {}
    for number in range(job.n_blocks):
        block = blocks.read(number)
        answered += block.answered
        steps += block.steps
        tokens += block.tokens
        unknown += np.isnan(block.scores).sum(axis=0)
        for column, problem in block.problems.items():
            problems.setdefault(names[column], problem)
    # one that never answered costs what its kind is expected to
    expected = np.array([features(name, spec)["steps"] for name, spec in job.specs.items()])
    some = np.maximum(answered, 1.0)
    means = {"steps": np.where(answered > 0, steps / some, expected), "tokens": tokens / some}
    costs = {cost: dict(zip(names, values.tolist(), strict=True)) for cost, values in means.items()}
    seconds = blocks.read_seconds()
    return (
        costs if seconds is None else {**costs, "seconds": seconds},
        dict(zip(names, unknown.astype(int).tolist(), strict=True)),
        problems,
    )


def _report_of(output: Path, identity: Mapping[str, str]) -> Report:
    """Tell of a matrix that is there. Raises ScoringError when it follows from something else."""
    refuse_other(output / MANIFEST, identity)
    matrix = read_matrix(output)
    unknown = dict(zip(matrix.arms, np.isnan(matrix.scores).sum(axis=1).tolist(), strict=True))
    n = len(matrix.questions)
    return Report(matrix.table.measure, n, n, unknown, {})


__all__ = ["cluster", "score"]
