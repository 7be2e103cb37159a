"""Group commit: shared commits, separate failures, and a log that is away."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from armwise.feedback.errors import ConflictError, LogUnavailableError, StoreError
from armwise.feedback.events import Cost, Execution, Status, Tick
from armwise.feedback.log import group_commit
from armwise.feedback.log import tables as t
from armwise.feedback.log.append import Receipt
from armwise.feedback.log.facts import Fact
from armwise.feedback.log.group_commit import GroupCommit
from armwise.feedback.log.store import Store
from tests.feedback.conftest import decision, execution, value

PROBE_S, SLOW_S, QUIET_S = 1.0, 5.0, 10.0
"""Pause between two probes, what is a slow commit, and for how long a write proves that the log is there."""


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


class Held(NamedTuple):
    """A log whose first commit is under way until its gate is opened."""

    gated: GatedStore
    log: GroupCommit
    first: Awaitable[list[Receipt]]


@asynccontextmanager
async def held(store: Store, *facts: Fact) -> AsyncIterator[Held]:
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]
    first = log.append(*(facts or [decision("d0")]))
    await asyncio.to_thread(gated.entered.wait)
    yield Held(gated, log, first)
    log.close()


class AwayStore:
    """A store that may be away, for a reason."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reason = ""
        self.probes = 0

    def append(self, facts: Sequence[Fact]) -> list[Receipt]:
        self._check()
        return self._store.append(facts)

    def probe(self) -> None:
        self.probes += 1
        self._check()

    def _check(self) -> None:
        if self.reason:
            raise LogUnavailableError(self.reason)


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
    async with held(store) as (gated, log, first):
        rest = [log.append(decision(f"d{i}")) for i in range(1, 21)]
        gated.gate.set()
        await asyncio.gather(first, *rest)
        assert gated.batches == [1, 20]


async def test_a_refused_append_fails_alone(store: Store) -> None:
    store.append([decision("taken")])
    async with held(store) as (gated, log, first):
        rest = [log.append(decision(name)) for name in ("d1", "taken", "d2")]
        gated.gate.set()
        await first
        outcomes = await asyncio.gather(*rest, return_exceptions=True)
    assert [isinstance(outcome, ConflictError) for outcome in outcomes] == [False, True, False]
    assert store.record("d2") is not None


async def test_a_refused_append_costs_the_others_few_commits(store: Store) -> None:
    store.append([decision("taken")])
    async with held(store) as (gated, log, first):
        rest = [log.append(decision("taken" if i == 77 else f"d{i}")) for i in range(1, 129)]
        gated.gate.set()
        await first
        outcomes = await asyncio.gather(*rest, return_exceptions=True)
    assert [i for i, outcome in enumerate(outcomes, start=1) if isinstance(outcome, ConflictError)] == [77]
    assert gated.batches[:2] == [1, 128]
    assert len(gated.batches) == 2 + 2 * 7, "two for each of the times that 128 can be halved"


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


async def test_a_client_that_goes_away_keeps_no_other_waiting(store: Store) -> None:
    async with held(store) as (gated, log, first):
        gone, staying = log.append(decision("d1")), log.append(decision("d2"))
        gone.cancel()
        gated.gate.set()
        async with asyncio.timeout(30):
            assert [receipt.seq for receipt in (*await first, *await staying)] == [1, 3]


async def test_a_full_queue_refuses_instead_of_growing(store: Store) -> None:
    gated = GatedStore(store)
    log = GroupCommit(gated, max_waiting=2)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision("d1")), log.append(decision("d2"))]
    with pytest.raises(LogUnavailableError, match=r"\b2 appends\b.* queued"):
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


async def test_what_the_database_does_not_take_fails_alone(store: Store) -> None:
    async with held(store) as (gated, log, first):
        unwritable: Any = (object(),)
        wrong = Execution("d2", "b", Status.OK, Cost(), passages=unwritable)
        rest = [log.append(*facts) for facts in ([decision("d1")], [decision("d2"), wrong], [decision("d3")])]
        gated.gate.set()
        await first
        outcomes = await asyncio.gather(*rest, return_exceptions=True)
        assert not log.trouble
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, False]
    assert not isinstance(outcomes[1], LogUnavailableError)


async def test_after_a_failed_commit_the_log_is_in_trouble_until_a_commit_works(store: Store) -> None:
    away = AwayStore(store)
    log = GroupCommit(away)  # type: ignore[arg-type]
    assert not log.trouble
    away.reason = "no space left"
    with pytest.raises(LogUnavailableError, match="no space left"):
        await log.append(decision("d1"))
    assert log.trouble == "no space left"
    away.reason = ""
    await log.append(decision("d1"))
    assert not log.trouble
    log.close()


@pytest.mark.parametrize(
    ("damage", "undo"),
    [
        ("UPDATE log SET at = 1e11", "UPDATE log SET at = 100.0"),
        ("DELETE FROM log", f"INSERT INTO log VALUES ({t.SCHEMA}, 1, 100.0, 'secret')"),
        ("ALTER TABLE ticks RENAME TO gone", "ALTER TABLE gone RENAME TO ticks"),
        ("ALTER TABLE feedback RENAME TO gone", "ALTER TABLE gone RENAME TO feedback"),
    ],
    ids=["time", "head", "ticks", "feedback"],
)
async def test_what_is_wrong_with_the_log_is_tried_once(store: Store, damage: str, undo: str) -> None:
    gated = GatedStore(store)
    log = GroupCommit(gated)  # type: ignore[arg-type]
    first = log.append(decision("d0"))
    await asyncio.to_thread(gated.entered.wait)
    gated.gate.set()
    await first
    gated.gate.clear()
    gated.entered.clear()
    with store.writing() as connection:
        connection.exec_driver_sql(damage)
    second = log.append(decision("d1"), value("d1"), Tick(100.0))
    await asyncio.to_thread(gated.entered.wait)
    rest = [log.append(decision(f"d{i}"), value(f"d{i}"), Tick(100.0)) for i in range(2, 10)]
    gated.gate.set()
    outcomes = await asyncio.gather(second, *rest, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LogUnavailableError}
    with store.writing() as connection:
        connection.exec_driver_sql(undo)
    assert gated.batches == [1, 3, 24]
    assert log.trouble
    await log.append(decision("d1"))
    assert not log.trouble
    log.close()


async def test_a_log_in_trouble_is_tried_at_most_once_a_second(store: Store) -> None:
    away, now = AwayStore(store), 100.0
    log = GroupCommit(away, clock=lambda: now)  # type: ignore[arg-type]
    await log.append(decision("d0"))
    log.check()
    assert away.probes == 0, "what was just written to has not to be tried"
    away.reason = "no space left"
    with pytest.raises(LogUnavailableError):
        await log.append(decision("d1"))
    for _ in range(3):
        with pytest.raises(LogUnavailableError, match="no space left"):
            log.check()
    assert away.probes == 1
    away.reason = ""
    with pytest.raises(LogUnavailableError):
        log.check()
    now += PROBE_S
    log.check()
    assert (away.probes, log.trouble) == (2, "")
    log.close()


async def test_a_log_that_was_not_written_to_of_late_is_tried(store: Store) -> None:
    """A service that starts on a full disk, and one on which the disk fills while nobody asks."""
    away, now = AwayStore(store), 100.0
    away.reason = "no space left"
    log = GroupCommit(away, clock=lambda: now)  # type: ignore[arg-type]
    with pytest.raises(LogUnavailableError, match="no space left"):
        log.check()
    away.reason = ""
    now += PROBE_S
    for _ in range(3):
        log.check()
    assert (away.probes, log.trouble) == (2, "")
    away.reason = "no space left"
    now += QUIET_S
    log.check()
    now += 0.1
    with pytest.raises(LogUnavailableError, match="no space left"):
        log.check()
    assert away.probes == 3
    log.close()


async def test_who_checks_while_another_tries_the_log_does_not_wait_for_it(store: Store) -> None:
    away, entered, gate = AwayStore(store), threading.Event(), threading.Event()
    log = GroupCommit(away)  # type: ignore[arg-type]
    away.reason = "no space left"
    with pytest.raises(LogUnavailableError):
        await log.append(decision("d1"))

    def probe() -> None:
        entered.set()
        assert gate.wait(10)

    away.probe = probe  # type: ignore[method-assign]
    first = asyncio.create_task(asyncio.to_thread(log.check))
    await asyncio.to_thread(entered.wait)
    second = asyncio.create_task(asyncio.to_thread(log.check))
    done, _ = await asyncio.wait([first, second], timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    gate.set()
    assert done == {second}
    with pytest.raises(LogUnavailableError, match="no space left"):
        await second
    await first
    log.close()


async def test_a_commit_that_hangs_is_trouble_while_it_does(store: Store) -> None:
    gated, now = GatedStore(store), 100.0
    log = GroupCommit(gated, clock=lambda: now)  # type: ignore[arg-type]
    append = log.append(decision("d1"))
    await asyncio.to_thread(gated.entered.wait)
    log.check()
    now += SLOW_S
    assert log.trouble == "", "not yet"
    now += 1.0
    with pytest.raises(LogUnavailableError, match="a commit is under way for 6 s"):
        log.check()
    gated.gate.set()
    await append
    log.close()
    log.check()


async def test_a_commit_has_no_more_facts_than_fit_and_divides_no_append(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "MAX_BATCH", 4)
    async with held(store, Tick(1.0)) as (gated, log, first):
        rest = [log.append(*[Tick(1.0)] * n) for n in (2, 2, 1, 9, 1, 3)]
        gated.gate.set()
        receipts = await asyncio.gather(first, *rest)
    assert gated.batches == [1, 4, 1, 9, 4]
    assert [[one.seq for one in some] for some in receipts] == [
        [1], [2, 3], [4, 5], [6], [*range(7, 16)], [16], [17, 18, 19],
    ]  # fmt: skip
