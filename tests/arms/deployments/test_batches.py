"""Batches: what waits while one is worked on forms the next."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from armwise.arms.deployments.embedders import Batches


class Work:
    """Doubles numbers, once it is let through; a negative number fails its batch.

    Attributes:
        began: Released at the start of every batch.
        gate: A batch ends when it can be acquired.
        batches: The items of every batch.
    """

    def __init__(self) -> None:
        self.began, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.began.release()
        assert self.gate.acquire(timeout=30)
        if min(items) < 0:
            raise ValueError(f"{min(items)} is negative")
        return [2 * item for item in items]


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.gate.release(100)  # nothing waits for a test that has failed


def start(batches: Batches[int, int], *items: int) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(batches.run(item)) for item in items]


async def under_way(work: Work) -> None:
    """Wait until a batch is being worked on."""
    assert await asyncio.to_thread(work.began.acquire, timeout=30)


async def test_items_that_wait_form_the_next_batch(work: Work) -> None:
    batches = Batches(work, 32, "test")
    first = start(batches, 1)
    await under_way(work)
    others = start(batches, 2, 3, 4)
    await asyncio.sleep(0)
    work.gate.release(2)
    assert await asyncio.gather(*first, *others) == [2, 4, 6, 8]
    assert work.batches == [[1], [2, 3, 4]]


async def test_a_batch_has_at_most_so_many_items(work: Work) -> None:
    batches = Batches(work, 2, "test")
    first = start(batches, 1)
    await under_way(work)
    others = start(batches, 2, 3, 4)
    await asyncio.sleep(0)
    work.gate.release(3)
    assert await asyncio.gather(*first, *others) == [2, 4, 6, 8]
    assert work.batches == [[1], [2, 3], [4]]


async def test_an_item_whose_caller_has_left_is_not_worked_on(work: Work) -> None:
    batches = Batches(work, 32, "test")
    first = start(batches, 1)
    await under_way(work)
    left, stays = start(batches, 2, 3)
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    work.gate.release(2)
    assert await asyncio.gather(*first, stays) == [2, 6]
    assert work.batches == [[1], [3]]


async def test_a_failed_batch_fails_all_of_its_items_and_no_other(work: Work) -> None:
    batches = Batches(work, 32, "test")
    first = start(batches, 1)
    await under_way(work)
    others = start(batches, -2, 3)
    await asyncio.sleep(0)
    work.gate.release(3)
    assert await asyncio.gather(*first) == [2]
    for failed in others:
        with pytest.raises(ValueError, match="-2 is negative"):
            await failed
    assert await batches.run(4) == 8


async def test_too_few_results_are_an_error_of_the_callers() -> None:
    batches: Batches[int, int] = Batches(lambda items: items[:-1], 32, "test")
    with pytest.raises(ValueError, match="shorter"):
        await batches.run(1)


def test_callers_of_several_event_loops_share_a_batch(work: Work) -> None:
    batches = Batches(work, 32, "test")
    found: dict[int, int] = {}

    def ask(item: int) -> None:
        found[item] = asyncio.run(batches.run(item))

    askers = [threading.Thread(target=ask, args=(item,)) for item in (1, 2, 3)]
    for asker in askers:
        asker.start()
    work.gate.release(3)
    for asker in askers:
        asker.join(30)
    assert found == {1: 2, 2: 4, 3: 6}
