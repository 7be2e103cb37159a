"""The simulated world: a function of its seed. Whatever waits is woken, and what is killed stays dead."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulation.scheduler import THREADING, WORLD, EventLoop, StuckError, ThreadPool, World


@contextmanager
def world(seed: int = 7) -> Iterator[World]:
    made = World(seed)
    WORLD.append(made)
    try:
        yield made
    finally:
        made.end()
        WORLD.clear()


def run_all(here: World, *threads: Callable[[], object]) -> None:
    """Run threads of one process each to their ends."""
    left = len(threads)

    def counted(run: Callable[[], object]) -> Callable[[], None]:
        def body() -> None:
            nonlocal left
            run()
            left -= 1

        return body

    for number, run in enumerate(threads):
        here.start(here.start_process(f"p{number}"), "main", counted(run))
    here.run(lambda: not left)


def interleave(seed: int) -> list[str]:
    said: list[str] = []

    def talk(name: str) -> None:
        for _ in range(5):
            said.append(name)
            WORLD[-1].pause()

    with world(seed) as here:
        run_all(here, lambda: talk("a"), lambda: talk("b"))
    return said


def test_the_same_seed_gives_the_same_interleaving_and_others_give_others() -> None:
    assert interleave(3) == interleave(3)
    assert len({tuple(interleave(seed)) for seed in range(20)}) > 10


def test_time_passes_only_where_nothing_can_run() -> None:
    at: list[float] = []

    def sleep() -> None:
        WORLD[-1].sleep(100.0)
        at.append(WORLD[-1].now)

    def work() -> None:
        for _ in range(50):
            WORLD[-1].pause()
        at.append(WORLD[-1].now)

    with world() as here:
        run_all(here, sleep, work)
    assert at == [0.0, 100.0]


def test_a_lock_is_held_by_one_and_an_event_wakes_all() -> None:
    inside, most = 0, 0
    lock, gate = THREADING.Lock(), THREADING.Event()

    def enter() -> None:
        nonlocal inside, most
        gate.wait()
        with lock:
            inside += 1
            most = max(most, inside)
            WORLD[-1].pause()
            inside -= 1

    with world() as here:
        run_all(here, *[enter] * 5, gate.set)
    assert (inside, most) == (0, 1)


def test_waits_end_when_their_time_is_over() -> None:
    ended: list[Any] = []
    lock, condition = THREADING.Lock(), THREADING.Condition()
    places = THREADING.BoundedSemaphore(1)

    def wait() -> None:
        lock.acquire()
        places.acquire()
        ended.append(lock.acquire(timeout=2.0))
        ended.append(places.acquire(timeout=2.0))
        ended.append(THREADING.Event().wait(2.0))
        with condition:
            ended.append(condition.wait_for(lambda: False, 2.0))
        ended.append(WORLD[-1].now)

    with world() as here:
        run_all(here, wait)
    assert ended == [False, False, False, False, 8.0]


def test_a_killed_process_never_runs_again_and_others_go_on() -> None:
    done: list[str] = []

    def live(name: str) -> Callable[[], None]:
        def body() -> None:
            try:
                for _ in range(20):
                    WORLD[-1].sleep(1.0)
            finally:
                if not WORLD[-1].over:
                    done.append(name)

        return body

    with world() as here:
        doomed = here.start_process("doomed")
        here.start(doomed, "main", live("doomed"))
        doomed.at_death.append(lambda: done.append("death"))

        def kill() -> None:
            WORLD[-1].sleep(5.5)
            here.kill(doomed)
            here.kill(doomed)

        run_all(here, live("other"), kill)
    assert done == ["death", "other"]


def test_a_process_that_is_killed_where_it_could_run_does_not() -> None:
    ran: list[str] = []

    def work() -> None:
        for _ in range(100):
            WORLD[-1].pause()
        if not WORLD[-1].over:
            ran.append("doomed")

    with world() as here:
        doomed = here.start_process("doomed")
        here.start(doomed, "main", work)

        def kill() -> None:
            WORLD[-1].pause()
            here.kill(doomed)
            WORLD[-1].sleep(1.0)

        run_all(here, kill)
    assert not ran


def test_a_time_out_that_was_not_needed_wakes_nothing_later() -> None:
    gate, never = THREADING.Event(), THREADING.Event()
    woken: list[float] = []

    def wait() -> None:
        gate.wait(5.0)
        never.wait(20.0)
        woken.append(WORLD[-1].now)

    def open_gate() -> None:
        WORLD[-1].sleep(1.0)
        gate.set()

    with world() as here:
        run_all(here, wait, open_gate)
    assert woken == [21.0]


def test_a_stalled_process_goes_on_where_it_was() -> None:
    ticks: list[float] = []

    def tick() -> None:
        for _ in range(4):
            WORLD[-1].sleep(1.0)
            ticks.append(WORLD[-1].now)

    with world() as here:
        process = here.start_process("slow")
        here.start(process, "main", tick)

        def stall() -> None:
            WORLD[-1].sleep(1.5)
            here.stall(process)
            WORLD[-1].sleep(8.0)
            here.go_on(process)

        here.start(here.outside, "stall", stall)
        here.run(lambda: len(ticks) == 4)
    assert ticks == [1.0, 9.5, 10.5, 11.5]


def test_a_world_that_cannot_go_on_says_so() -> None:
    with world() as here, pytest.raises(StuckError, match="everything waits"):
        run_all(here, THREADING.Event().wait)


def test_the_error_of_a_thread_ends_the_world() -> None:
    def fail() -> None:
        raise KeyError("river")

    with world() as here, pytest.raises(KeyError, match="river"):
        run_all(here, fail)


def test_event_loops_run_beside_each_other_with_executors_and_time_outs() -> None:
    said: list[tuple[str, object]] = []

    async def work(name: str) -> None:
        said.append((name, await asyncio.to_thread(WORLD[-1].block, 1.0)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.Event().wait()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        said.append((name, asyncio.get_running_loop().time()))

    def run(name: str) -> Callable[[], None]:
        return lambda: EventLoop(WORLD[-1]).run_until_complete(work(name))

    with world() as here:
        run_all(here, run("a"), run("b"))
    assert sorted(said, key=str) == [("a", 2.0), ("a", False), ("b", 2.0), ("b", False)]


def test_a_pool_runs_as_many_as_it_has_threads_in_order() -> None:
    begun: list[int] = []
    running: list[int] = []
    most: list[int] = []
    futures: list[Future[Any]] = []

    def work(number: int) -> int:
        begun.append(number)
        running.append(number)
        most.append(len(running))
        WORLD[-1].sleep(1.0)
        running.remove(number)
        return number * number

    def submit() -> None:
        pool = ThreadPool(2)
        futures.extend(pool.submit(work, number) for number in range(4))
        WORLD[-1].sleep(1.5)
        futures.append(pool.submit(work, 9))
        pool.shutdown(cancel_futures=True)
        with pytest.raises(RuntimeError):
            pool.submit(work, 5)
        WORLD[-1].sleep(5.0)

    with world() as here:
        run_all(here, submit)
    assert sorted(begun[:2]) == [0, 1]
    assert max(most) == 2
    assert sorted(begun) == [0, 1, 2, 3]
    assert [future.result() for future in futures[:4]] == [0, 1, 4, 9]
    assert futures[4].cancelled()
