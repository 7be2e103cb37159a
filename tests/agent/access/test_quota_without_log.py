"""Limits of keys while the log is away: what was known last holds, and nothing that is spent is forgotten."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from armwise.agent.access import Quota, RateLimitedError, SpentError
from armwise.agent.access import quota as quotas
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Cost
from armwise.feedback.log import Store
from armwise.feedback.registry.usage import UsageLedger, spend
from tests.agent.access.test_quota import NOW, Clock, admitted, caller, turn

T = TypeVar("T")


@dataclass
class Away:
    """An outage that is switched by hand.

    Attributes:
        answers: Whether requests are answered meanwhile.
        since: When it began; None: the log is there.
    """

    answers: bool = True
    since: float | None = None

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        if self.since is not None:
            raise LogUnavailableError("the server is gone")
        return await call()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        yield store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def away() -> Away:
    return Away()


@pytest.fixture
def quota(store: Store, clock: Clock, away: Away) -> Quota:
    quota = Quota(UsageLedger(store), clock)
    quota.outage = away
    return quota


COST = Cost(prompt_tokens=30, completion_tokens=10, usd=0.5)
MOST = (100, 1.0)


async def test_a_rate_holds_by_what_was_left(quota: Quota, away: Away, clock: Clock) -> None:
    who = caller(rpm_limit=10)
    assert [await admitted(quota, who) for _ in range(4)] == [True] * 4
    away.since = clock()
    assert [await admitted(quota, who) for _ in range(8)] == [True] * 6 + [False] * 2


async def test_the_minute_before_counts_in_part(quota: Quota, away: Away, clock: Clock) -> None:
    who = caller(rpm_limit=12)
    clock.now = NOW - NOW % 60 + 30.0
    assert all([await admitted(quota, who) for _ in range(12)])
    away.since = clock()
    clock.now += 45.0  # a quarter of the next minute has passed
    assert [await admitted(quota, who) for _ in range(5)] == [True] * 3 + [False] * 2


async def test_a_budget_holds_by_what_was_left(quota: Quota, away: Away, clock: Clock) -> None:
    who = caller(max_budget=2.0, budget_duration="1mo")
    assert await turn(quota, who, "t0", COST, MOST)
    away.since = clock()
    for name in ("t1", "t2", "t3"):  # half a dollar each
        assert await turn(quota, who, name, COST, MOST)
    with pytest.raises(SpentError, match="2 USD"):
        await quota.book(who, "t4", *MOST)


async def test_a_budget_that_was_never_read_is_not_guessed(quota: Quota, away: Away, clock: Clock) -> None:
    away.since = clock()
    with pytest.raises(LogUnavailableError):
        await quota.book(caller(max_budget=2.0, budget_duration="1mo"), "t0", *MOST)
    await quota.book(caller(tpm_limit=200), "t1", *MOST)


async def test_a_budget_of_a_key_that_was_idle_is_the_last_known(
    quota: Quota, away: Away, clock: Clock
) -> None:
    who = caller(max_budget=2.0, budget_duration="1mo")
    assert await turn(quota, who, "t0", COST, MOST)
    await quota.report()
    clock.now += 3600.0
    await quota.report()
    away.since = clock()
    assert [await turn(quota, who, f"t{i}", COST, MOST) for i in range(1, 5)] == [True] * 3 + [False]


async def test_a_month_that_begins_meanwhile_has_its_whole_budget(
    quota: Quota, away: Away, clock: Clock
) -> None:
    away.since = clock()
    clock.now += 31 * 86400.0
    who = caller(max_budget=2.0, budget_duration="1mo")
    for name in ("t0", "t1", "t2", "t3"):
        assert await turn(quota, who, name, COST, MOST)
    with pytest.raises(SpentError):
        await quota.book(who, "t4", *MOST)


async def test_what_was_spent_meanwhile_is_reported(
    quota: Quota, away: Away, clock: Clock, store: Store
) -> None:
    who = caller(tpm_limit=1000)
    away.since = clock()
    for name in ("t0", "t1"):
        await quota.admit(who)
        assert await turn(quota, who, name, COST, MOST)
    away.since = None
    await quota.report()
    used = spend(store, clock())["k"]["month"]
    assert (used.requests, used.tokens, used.usd) == (2, 80, 1.0)
    other = Quota(UsageLedger(store), clock)
    with pytest.raises(RateLimitedError):
        await other.book(caller(tpm_limit=80), "t2", *MOST)


async def test_a_turn_under_way_is_waited_for(
    quota: Quota, away: Away, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = caller(token_budget=100, budget_duration="1d")
    assert await turn(quota, who, "t0", Cost(prompt_tokens=10), MOST)
    away.since = clock()
    await quota.book(who, "t1", *MOST)
    monkeypatch.setattr(quotas, "WAIT_S", 0.0)
    with pytest.raises(RateLimitedError, match="requests in progress"):
        await quota.book(who, "t2", *MOST)
    monkeypatch.setattr(quotas, "WAIT_S", 60.0)
    clock.now += 1.0
    waiting = asyncio.ensure_future(quota.book(who, "t3", *MOST))
    await asyncio.sleep(0)
    quota.charge("t1", Cost(prompt_tokens=20))
    await waiting
    quota.charge("t3", Cost(prompt_tokens=70))
    with pytest.raises(SpentError):
        await quota.book(who, "t4", *MOST)


async def test_without_the_setting_a_limit_that_cannot_be_read_fails(
    quota: Quota, away: Away, clock: Clock
) -> None:
    away.answers, away.since = False, clock()
    with pytest.raises(LogUnavailableError):
        await quota.admit(caller(rpm_limit=8))
