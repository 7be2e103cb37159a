"""Group commit: shared commits, separate failures."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from feedback.store import ConflictError, Fact, LogUnavailableError, Receipt, Store, StoreError
from feedback.writer import GroupCommit
from tests.feedback.conftest import decision, execution, value


class GatedStore:
    """A store whose commits wait until they are let through; it remembers each batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.batches: list[int] = []
        self.entered = threading.Event()
        self.gate = threading.Event()

    def append(self, facts: Sequence[Fact]) -> list[Receipt]:
        self.batches.append(len(facts))
        self.entered.set()
        assert self.gate.wait(10)
        return self._store.append(facts)


@pytest.fixture
async def log(store: Store) -> AsyncIterator[GroupCommit]:
    log = GroupCommit(store)
    yield log
    log.close()


async def test_an_append_resolves_once_it_is_durable(store: Store, log: GroupCommit) -> None:
    await log.append(decision("d1"), execution("d1"))
    found = store.record("d1")
    assert found is not None
    assert found.execution is not None


async def test_appends_that_arrive_during_a_commit_share_the_next(store: Store) -> None:
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision(f"d{i}")) for i in range(1, 21)]
    gated.gate.set()
    await asyncio.gather(first, *rest)
    assert gated.batches == [1, 20]
    log.close()


async def test_a_refused_append_fails_alone(store: Store) -> None:
    store.append([decision("taken")])
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision(name)) for name in ("d1", "taken", "d2")]
    gated.gate.set()
    await first
    outcomes = await asyncio.gather(*rest, return_exceptions=True)
    assert [isinstance(outcome, ConflictError) for outcome in outcomes] == [False, True, False]
    assert store.record("d2") is not None
    log.close()


async def test_a_refused_append_costs_the_others_few_commits(store: Store) -> None:
    store.append([decision("taken")])
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision("taken" if i == 77 else f"d{i}")) for i in range(1, 129)]
    gated.gate.set()
    await first
    outcomes = await asyncio.gather(*rest, return_exceptions=True)
    assert [i for i, outcome in enumerate(outcomes, start=1) if isinstance(outcome, ConflictError)] == [77]
    assert gated.batches[:2] == [1, 128]
    assert len(gated.batches) == 2 + 2 * 7, "two for each of the times that 128 can be halved"
    log.close()


async def test_a_client_that_goes_away_loses_nothing(store: Store) -> None:
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]

    async def request() -> None:
        await log.append(decision("d1"))

    task = asyncio.create_task(request())
    await asyncio.to_thread(gated.entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gated.gate.set()
    log.close()
    assert store.record("d1") is not None


async def test_a_full_queue_refuses_instead_of_growing(store: Store) -> None:
    gated = GatedStore(store)
    log = GroupCommit(gated, max_waiting=2)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision("d1")), log.append(decision("d2"))]
    with pytest.raises(LogUnavailableError, match="2 appends are waiting"):
        log.append(decision("d3"))
    gated.gate.set()
    await asyncio.gather(first, *rest)
    log.close()


async def test_closing_commits_what_is_waiting_and_refuses_more(store: Store) -> None:
    log = GroupCommit(store)
    waiting = [log.append(decision(f"d{i}")) for i in range(50)]
    log.close()
    await asyncio.gather(*waiting)
    assert store.counts()["decisions"] == 50
    with pytest.raises(LogUnavailableError, match="closed"):
        log.append(decision("more"))


async def test_a_bug_in_one_batch_does_not_strand_the_next(log: GroupCommit) -> None:
    with pytest.raises(StoreError, match="nan"):
        await log.append(value("d1", number=float("nan")))
    await log.append(decision("d1"))


async def test_many_loops_and_threads_append_at_once(store: Store) -> None:
    log = GroupCommit(store)

    def worker(n: int) -> None:
        async def work() -> None:
            await asyncio.gather(*(log.append(decision(f"{n}-{i}")) for i in range(40)))

        asyncio.run(work())

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert store.counts()["decisions"] == 160
    log.close()
