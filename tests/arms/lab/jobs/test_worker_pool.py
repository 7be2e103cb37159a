"""The worker pool: a worker that dies is restarted, and failures in a row stop the job."""

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import ray

from armwise.arms.lab.jobs import ray_workers
from armwise.arms.lab.jobs import worker_pool as pool
from armwise.arms.lab.jobs.checkpoint import BlockFolder, JobError, open_blocks
from armwise.arms.questions import Question

Step = int | Literal["fail", "bug"]
"""What a block does: kill its worker so many times before it succeeds, fail, or raise."""


@dataclass(frozen=True)
class ScriptedJob:
    """A job of one question per block."""

    folder: Path
    steps: tuple[Step, ...]

    @property
    def n_blocks(self) -> int:
        return len(self.steps)

    def list_questions(self, number: int) -> tuple[Question, ...]:
        return (Question(f"q{number}", "?"),)

    def begun(self) -> Counter[int]:
        """Count how often each block was begun."""
        return Counter(map(int, (self.folder / "begun").read_text().split()))


@dataclass(frozen=True)
class NumberBlock:
    """Keeps its number."""

    number: int
    problem: str = ""

    def pack(self) -> bytes:
        return str(self.number).encode()


class ScriptedWorker:
    def __init__(self, job: ScriptedJob) -> None:
        self._job = job

    def block(self, number: int) -> NumberBlock:
        with (self._job.folder / "begun").open("a") as file:
            file.write(f"{number} ")
        match self._job.steps[number]:
            case "fail":
                return NumberBlock(number, f"q{number} is away")
            case "bug":
                raise KeyError(number)
            case int() as deaths if self._job.begun()[number] <= deaths:
                os.kill(os.getpid(), signal.SIGKILL)
        return NumberBlock(number)


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[BlockFolder]:
    with open_blocks(tmp_path / "job", {"job": "scripted"}) as folder:
        yield folder


def finish(job: ScriptedJob, blocks: BlockFolder, at_once: int = 1, workers: int | None = None) -> list[int]:
    """Run a job, and return the progress that it reported."""
    done: list[int] = []
    with pool.worker_pool(ScriptedWorker, job, workers, at_once) as workers:
        workers.finish(blocks, lambda _what, n, _total: done.append(n), "counting")
    return done


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_a_block_that_kills_three_workers_ends_the_job(tmp_path: Path, blocks: BlockFolder) -> None:
    job = ScriptedJob(tmp_path, (0, 0, 3, 0))
    with pytest.raises(JobError, match="questions 'q2' to 'q2': a worker died: "):
        finish(job, blocks)
    assert job.begun() == {0: 1, 1: 1, 2: 3}
    assert blocks.list_finished() == {0, 1}
    assert finish(job, blocks) == [2, 3, 4], "what was finished is kept"
    assert job.begun() == {0: 1, 1: 1, 2: 4, 3: 1}


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_a_worker_that_dies_does_its_blocks_again(tmp_path: Path, blocks: BlockFolder) -> None:
    assert finish(ScriptedJob(tmp_path, (1, 0, 0)), blocks, at_once=2) == [0, 1, 2, 3]
    assert [blocks.read(number) for number in range(3)] == [b"0", b"1", b"2"]


@pytest.fixture(params=["here", pytest.param("Ray", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest) -> int | None:
    """One worker in this process, or those of Ray."""
    if request.param == "here":
        return 1
    request.getfixturevalue("cluster")
    return None


def test_failures_in_a_row_stop_the_job_and_fewer_are_kept(
    tmp_path: Path, blocks: BlockFolder, monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    job = ScriptedJob(tmp_path, (0, "fail", 0, "fail", "fail"))
    monkeypatch.setattr(pool, "MAX_FAILED_QUESTIONS", 2)
    with pytest.raises(JobError, match="2 questions in a row failed: q4 is away"):
        finish(job, blocks, workers=workers)
    assert blocks.list_finished() == {0, 1, 2}
    monkeypatch.setattr(pool, "MAX_FAILED_QUESTIONS", 3)
    assert finish(job, blocks, workers=workers) == [3, 4, 5]
    assert job.begun() == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}


def test_a_job_of_which_every_question_fails_keeps_none(
    tmp_path: Path, blocks: BlockFolder, workers: int | None
) -> None:
    with pytest.raises(JobError, match="3 questions in a row failed: q2 is away"):
        finish(ScriptedJob(tmp_path, ("fail",) * 3), blocks, workers=workers)
    assert blocks.list_finished() == set()


def test_a_bug_ends_the_job_at_once_with_its_error(
    tmp_path: Path, blocks: BlockFolder, workers: int | None
) -> None:
    job = ScriptedJob(tmp_path, (0, "bug", 0))
    with pytest.raises(JobError, match="questions 'q1' to 'q1': KeyError: 1"):
        finish(job, blocks, workers=workers)
    assert job.begun() == {0: 1, 1: 1}


def test_a_method_of_a_worker_is_called_and_its_error_told(tmp_path: Path, workers: int | None) -> None:
    job = ScriptedJob(tmp_path, (0, "bug"))
    with pool.worker_pool(ScriptedWorker, job, workers) as those:
        assert those.call("block", 0).pack() == b"0"
        with pytest.raises(JobError, match="a worker failed: KeyError: 1"):
            those.call("block", 1)


def test_a_worker_that_cannot_be_made_ends_the_job_with_its_error(
    tmp_path: Path, blocks: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: ScriptedWorker, _job: ScriptedJob) -> None:
        raise ValueError("no such model")

    monkeypatch.setattr(ScriptedWorker, "__init__", fail)
    with pytest.raises(JobError, match="a worker failed: ValueError: no such model"):
        finish(ScriptedJob(tmp_path, (0,)), blocks, workers=1)


def test_one_worker_does_as_many_blocks_at_once_as_it_may(
    tmp_path: Path, blocks: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = threading.Barrier(2)  # of which each block waits for another
    work = ScriptedWorker.block

    def meet(self: ScriptedWorker, number: int) -> NumberBlock:
        met.wait(20.0)
        return work(self, number)

    monkeypatch.setattr(ScriptedWorker, "block", meet)
    before = set(threading.enumerate())
    assert finish(ScriptedJob(tmp_path, (0,) * 4), blocks, at_once=2, workers=1) == [0, 1, 2, 3, 4]
    assert not [
        thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("block_")
    ]


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_a_cluster_without_a_free_processor_is_not_waited_for(
    tmp_path: Path, blocks: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "FREE_WITHIN_S", 0.0)
    monkeypatch.setattr(ray, "available_resources", lambda: {"memory": 1.0})
    with pytest.raises(JobError, match=r"Ray cluster at \S+:\d+ has no free processor: .*RAY_ADDRESS"):
        finish(ScriptedJob(tmp_path, (0,)), blocks)


@pytest.mark.parametrize(("workers", "free", "size"), [(None, 3, 3), (2, 3, 2), (3, 3, 3), (5, 3, 3)])
def test_there_are_as_many_workers_as_asked_for_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, free: int, size: int
) -> None:
    sizes = list[tuple[int, int]]()

    class Recorded:
        def __init__(self, _make: object, _job: object, size: int, at_once: int) -> None:
            sizes.append((size, at_once))

        def close(self) -> None:
            """Has no workers."""

    monkeypatch.setattr(ray_workers, "cluster", lambda _: nullcontext(free))
    monkeypatch.setattr(ray_workers, "RayWorkers", Recorded)
    with pool.worker_pool(ScriptedWorker, ScriptedJob(tmp_path, (0,)), workers):
        pass
    assert sizes == [(size, 1)], "each has one block at a time unless more are asked for"


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
@pytest.mark.parametrize("workers", [None, 1])
def test_a_cluster_is_joined_by_its_address_or_started(
    monkeypatch: pytest.MonkeyPatch, address: str | None, workers: int | None
) -> None:
    calls = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(("join", options)))
    monkeypatch.setattr(ray_workers.local_ray, "cluster_problem", lambda _: None)
    monkeypatch.setattr(ray_workers.local_ray, "start", lambda **options: calls.append(("start", options)))
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append(("end", {})))
    with monkeypatch.context() as environment:
        own = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        environment.setattr(os, "environ", own | ({} if address is None else {"RAY_ADDRESS": address}))
        with ray_workers.cluster(workers) as free:
            assert free == 2
        assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1", "what a user has set stays"
        assert os.environ.get("RAY_USAGE_STATS_ENABLED") == (None if address is None else "0")
        assert os.environ.get("PYTHONSAFEPATH") == (None if address is None else "1")
    (how, options), end = calls
    assert end == ("end", {})
    assert options.pop("logging_level") == logging.ERROR
    assert options.pop("log_to_driver") is False
    if address is None:
        assert how == "start"
        assert options.pop("num_cpus") == (workers or os.cpu_count())
        assert options.keys() == {"object_store_memory"}
    else:
        assert (how, options.keys()) == ("join", {"job_config"})
