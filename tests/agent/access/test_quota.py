"""One replica refuses exactly what is above a limit; several know of each other what they have reported."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from armwise.agent.access import Caller, Quota, RateLimitedError, SpentError
from armwise.feedback.events import Cost
from armwise.feedback.log import Store
from armwise.feedback.registry import KeyLimits
from armwise.feedback.registry.usage import (
    DAY,
    MINUTE,
    MONTH,
    UsageAmount,
    UsageLedger,
    period,
    spend,
)

NOW = 1_800_000_000.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(log_url: str) -> Iterator[Store]:
    with closing(Store(log_url)) as store:
        yield store


def replicas(store: Store, clock: Clock, n: int = 2) -> list[Quota]:
    return [Quota(UsageLedger(store), clock) for _ in range(n)]


def caller(**limits: float | str) -> Caller:
    return Caller("k", frozenset({"decide"}), limits=KeyLimits(**limits))  # type: ignore[arg-type]


async def admitted(quota: Quota, who: Caller) -> bool:
    try:
        await quota.admit(who)
    except RateLimitedError:
        return False
    return True


async def turn(quota: Quota, who: Caller, name: str, cost: Cost, most: tuple[int, float]) -> bool:
    """Book a turn, carry it out and charge it; return whether it was admitted."""
    try:
        await quota.book(who, name, *most)
    except SpentError:
        return False
    await asyncio.sleep(0)
    quota.charge(name, cost)
    return True


@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_a_replica_admits_exactly_the_requests_of_a_minute(
    store: Store, clock: Clock, limit: int
) -> None:
    (quota, started_later), who = replicas(store, clock), caller(rpm_limit=limit)
    calls = [admitted(quota, who) for _ in range(limit + 20)]
    assert sum(await asyncio.gather(*calls)) == limit
    await quota.report()
    clock.now += 60
    assert not await admitted(started_later, who), "all of them were within the last 60 s"
    clock.now += 0.1
    assert [await admitted(quota, who), await admitted(quota, who)] == [True, False]
    clock.now += 120
    assert sum([await admitted(quota, who) for _ in range(limit + 3)]) == limit


async def test_replicas_exceed_a_limit_by_what_they_have_not_reported(store: Store, clock: Clock) -> None:
    (one, other), who = replicas(store, clock), caller(rpm_limit=10)
    found = [[await admitted(quota, who) for _ in range(6)] for quota in (one, other)]
    assert found == [[True] * 6] * 2
    for quota in (one, other, one):
        await quota.report()
    assert not await admitted(one, who)
    assert not await admitted(other, who)


async def test_a_replica_keeps_to_what_others_report(store: Store, clock: Clock) -> None:
    (one, other), who = replicas(store, clock), caller(rpm_limit=10)
    assert await admitted(one, who)
    for _ in range(5):
        assert await admitted(other, who)
    await other.report()
    await one.report()
    assert dict(one.headers(who))[b"x-ratelimit-remaining-requests"] == b"4"
    assert [await admitted(one, who) for _ in range(5)] == [True] * 4 + [False]


async def test_a_key_that_comes_back_is_read_again(store: Store, clock: Clock) -> None:
    (one, other), who = replicas(store, clock), caller(max_budget=1.0, budget_duration="1d")
    assert await turn(one, who, "d-1", Cost(usd=0.5), (0, 0.5))
    await one.report()
    clock.now += 61
    await one.report()  # it has asked nothing for a minute
    assert await turn(other, who, "d-2", Cost(usd=0.5), (0, 0.5))
    await other.report()
    assert not await turn(one, who, "d-3", Cost(), (0, 0.0))


@pytest.mark.parametrize("limit", [1, 10, 60])
async def test_the_edge_of_a_minute_lets_nothing_more_through(store: Store, clock: Clock, limit: int) -> None:
    """What a refusal tells to wait for is what has to be waited for, and no more."""
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=limit)
    clock.now += 59.9
    assert [await admitted(quota, who) for _ in range(limit + 1)] == [True] * limit + [False]
    clock.now += 0.2
    assert sum([await admitted(quota, who) for _ in range(limit)]) == 1
    with pytest.raises(RateLimitedError) as error:
        await quota.admit(who)
    clock.now += error.value.retry_after_s - 0.01
    assert not await admitted(quota, who)
    clock.now += 0.02
    assert await admitted(quota, who)


async def test_a_clock_that_jumps_back_keeps_what_was_used(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=2)
    clock.now += 61
    assert [await admitted(quota, who) for _ in range(3)] == [True, True, False]
    clock.now -= 0.5
    assert not await admitted(quota, who)
    clock.now -= 60
    assert await admitted(quota, who), "that minute has its own count"
    clock.now += 62
    assert not await admitted(quota, who)


async def test_what_is_over_is_refused_without_the_log(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=1)
    await quota.admit(who)
    with pytest.raises(RateLimitedError, match="1 requests per minute") as error:
        await quota.admit(who)
    assert (error.value.meter, error.value.retry_after_s) == ("requests", 60.0)
    store.close()  # whatever is read or written from here fails
    assert [await admitted(quota, who) for _ in range(100)] == [False] * 100


@pytest.mark.parametrize("n", [1, 10, 40])
async def test_a_budget_of_money_admits_what_it_pays_for(store: Store, clock: Clock, n: int) -> None:
    quotas, who = replicas(store, clock), caller(max_budget=0.1 * n, budget_duration="1d")
    found = []
    for i in range(n + 4):
        found.append(await turn(quotas[i % 2], who, f"d-{i}", Cost(usd=0.1), (0, 0.5)))
        for quota in (*quotas, *quotas):  # so that both know of both
            await quota.report()
    assert found == [True] * n + [False] * 4
    assert spend(store, NOW)["k"]["day"].usd == pytest.approx(0.1 * n)


async def test_a_budget_of_tokens_counts_for_its_month(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(token_budget=100, budget_duration="1mo")
    cost = Cost(prompt_tokens=20, completion_tokens=5)
    found = [await turn(quota, who, f"d-{i}", cost, (90, 0.0)) for i in range(6)]
    assert found == [True] * 4 + [False] * 2
    clock.now += 24 * 3600
    assert not await turn(quota, who, "d-7", cost, (90, 0.0))
    clock.now += 31 * 24 * 3600
    assert await turn(quota, who, "d-8", cost, (90, 0.0))


@pytest.mark.parametrize(
    ("limits", "cost"),
    [
        ({"tpm_limit": 1000, "token_budget": 25, "budget_duration": "1mo"}, Cost(prompt_tokens=25)),
        ({"max_budget": 0.5, "budget_duration": "1d"}, Cost(usd=0.5)),
    ],
)
async def test_a_spent_budget_refuses_also_a_turn_that_costs_nothing_and_a_key_with_another_limit(
    store: Store, clock: Clock, limits: dict[str, float | str], cost: Cost
) -> None:
    (quota,), who = replicas(store, clock, 1), caller(**limits)
    assert await turn(quota, who, "d-1", cost, (25, 0.5))
    assert not await turn(quota, who, "d-2", Cost(), (0, 0.0))


@pytest.mark.parametrize("meter", ["usd", "tokens"])
async def test_turns_at_once_exceed_a_budget_by_one(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, meter: str
) -> None:
    monkeypatch.setattr("armwise.agent.access.quota.WAIT_S", 0.0)
    limit = {"usd": {"max_budget": 10.0}, "tokens": {"token_budget": 10}}[meter]
    (quota,), who = replicas(store, clock, 1), caller(**limit, budget_duration="1d")
    for i in range(4):  # of which none ends: three leave 1, which the fourth exceeds
        await quota.book(who, f"d-{i}", 3, 3.0)
    with pytest.raises(RateLimitedError, match="have reserved the rest") as error:
        await quota.book(who, "d-4", 3, 3.0)
    assert (error.value.meter, error.value.retry_after_s) == ("tokens", 1.0), "USD have no header"
    quota.release("d-0")
    await quota.book(who, "d-5", 3, 3.0)
    for i in (1, 2, 3, 5):
        quota.release(f"d-{i}")
    assert await turn(quota, who, "d-6", Cost(prompt_tokens=10, usd=10.0), (3, 3.0))
    assert not await turn(quota, who, "d-7", Cost(), (0, 0.0))


async def test_a_turn_waits_for_what_is_reserved(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(max_budget=1.0, budget_duration="1d")
    await quota.book(who, "d-1", 0, 1.0)
    waiting = asyncio.create_task(quota.book(who, "d-2", 0, 1.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    quota.release("d-1")
    await waiting


async def test_what_is_under_way_since_the_minute_before_counts(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=100)
    clock.now += 59
    await quota.book(who, "d-1", 100, 0.0)
    clock.now += 1
    with pytest.raises(RateLimitedError):
        await quota.book(who, "d-2", 1, 0.0)
    quota.release("d-1")
    await quota.book(who, "d-3", 1, 0.0)


async def test_tokens_a_minute_are_charged_as_they_were_used(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=100)
    await quota.book(who, "d-1", 30, 0.0)
    quota.charge("d-1", Cost(prompt_tokens=70, completion_tokens=40))
    with pytest.raises(RateLimitedError, match="100 tokens per minute") as error:
        await quota.book(who, "d-2", 1, 0.0)
    assert error.value.meter == "tokens"
    clock.now += error.value.retry_after_s + 0.01
    await quota.book(who, "d-3", 1, 0.0)


@pytest.mark.slow
async def test_a_refused_turn_keeps_nothing_of_its_other_limits(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=50, max_budget=1.0, budget_duration="1d")
    await quota.book(who, "d-1", 10, 1.0)
    with pytest.raises(RateLimitedError):
        await quota.book(who, "d-2", 20, 0.5)
    quota.release("d-1")
    await quota.report()
    await quota.book(who, "d-3", 50, 1.0)


async def test_a_turn_whose_caller_leaves_while_it_waits_keeps_nothing(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=50, max_budget=1.0, budget_duration="1d")
    await quota.book(who, "d-1", 10, 1.0)
    waiting = asyncio.create_task(quota.book(who, "d-2", 50, 0.5))
    while not (turn := quota._turns.get("d-2")) or not turn.booked:  # noqa: SLF001 - until it waits for USD
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    quota.release("d-1")
    await quota.report()
    await quota.book(who, "d-3", 50, 1.0)


async def test_a_turn_counts_for_the_day_on_which_it_was_admitted(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller()
    clock.now += 16 * 3600 - 1  # a second before midnight
    await quota.book(who, "d-1", 50, 0.0)
    clock.now += 2
    quota.charge("d-1", Cost(prompt_tokens=3, completion_tokens=4))
    await quota.report()
    assert spend(store, NOW)["k"]["day"] == UsageAmount(0, 7, 0.0)
    assert spend(store, clock.now)["k"].get("day", UsageAmount()) == UsageAmount()


async def test_what_is_left_is_in_the_headers(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=10, tpm_limit=1000)
    clock.now += 75  # a quarter of the second minute
    assert dict(quota.headers(who)) == {
        b"x-ratelimit-limit-requests": b"10",
        b"x-ratelimit-remaining-requests": b"10",
        b"x-ratelimit-reset-requests": b"45s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"1000",
        b"x-ratelimit-reset-tokens": b"45s",
    }
    for left in range(9, -1, -1):
        await quota.admit(who)
        assert dict(quota.headers(who))[b"x-ratelimit-remaining-requests"] == str(left).encode()
        if left == 5:
            await quota.report()
    await quota.book(who, "d-1", 100, 0.0)
    quota.charge("d-1", Cost(completion_tokens=300))
    assert dict(quota.headers(who))[b"x-ratelimit-remaining-tokens"] == b"700"


async def test_the_last_moment_of_a_minute_and_zero_are_told(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=50, token_budget=90, budget_duration="1d")
    assert dict(quota.headers(who)) == {
        b"x-ratelimit-limit-tokens": b"50",
        b"x-ratelimit-remaining-tokens": b"50",
        b"x-ratelimit-reset-tokens": b"1m0s",
    }
    clock.now += 59.7
    assert dict(quota.headers(who))[b"x-ratelimit-reset-tokens"] == b"1s"
    await quota.book(who, "d-1", 20, 0.0)
    quota.charge("d-1", Cost(completion_tokens=70))
    assert dict(quota.headers(who))[b"x-ratelimit-remaining-tokens"] == b"0", "not below it"


async def test_use_is_reported_by_day_and_month_also_without_limits(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller()
    for day in range(3):
        await quota.admit(who)
        await quota.book(who, f"d-{day}", 50, 0.0)
        quota.charge(f"d-{day}", Cost(prompt_tokens=3, completion_tokens=4, usd=0.5))
        clock.now += 12 * 24 * 3600
    await quota.report()
    found = spend(store, NOW + 12 * 24 * 3600)["k"]
    assert found == {
        "day": UsageAmount(1, 7, 0.5),
        "month": UsageAmount(2, 14, 1.0),  # 15 and 27 January; 8 February
        "total": UsageAmount(3, 21, 1.5),
    }


async def test_minutes_that_are_over_are_forgotten_and_months_are_not(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=5)
    await quota.admit(who)
    await quota.report()
    clock.now += 3600
    await quota.admit(who)
    await quota.report()
    with store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT period FROM usage ORDER BY period").scalars().all()
    minutes = [period(clock.now, MINUTE)]
    assert rows == sorted([*minutes, period(NOW, DAY), period(NOW, MONTH)])


async def begin_report(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> tuple[Quota, asyncio.Task[None], threading.Event]:
    """Return a quota with one request, its report, which is under way, and what lets that go on."""
    usage, entered, go_on = UsageLedger(store), threading.Event(), threading.Event()
    report_usage = usage.report

    def slow(*args: Any) -> Any:
        entered.set()
        go_on.wait(30)
        return report_usage(*args)

    monkeypatch.setattr(usage, "report", slow)
    quota = Quota(usage, clock)
    await quota.admit(caller())
    report = asyncio.create_task(quota.report())
    while not entered.is_set():
        await asyncio.sleep(0)
    return quota, report, go_on


async def test_what_is_spent_while_usage_is_reported_is_in_the_next_report(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota, report, go_on = await begin_report(store, clock, monkeypatch)
    assert await turn(quota, caller(), "d", Cost(usd=0.25, prompt_tokens=7), (9, 1.0))
    go_on.set()
    await report
    assert spend(store, NOW)["k"]["day"].usd == 0.0
    await quota.report()
    spent = spend(store, NOW)["k"]["day"]
    assert (spent.requests, spent.tokens, spent.usd) == (1, 7, 0.25)


async def test_what_was_reported_while_the_caller_left_is_counted_once(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota, report, go_on = await begin_report(store, clock, monkeypatch)
    report.cancel()
    await asyncio.wait([report])
    assert report.cancelled()
    settled = asyncio.create_task(quota.finish_exchange())
    for _ in range(9):
        await asyncio.sleep(0)
    assert not settled.done(), "the exchange is under way"
    go_on.set()
    await settled
    await quota.admit(caller())
    await quota.report()
    assert spend(store, NOW)["k"]["day"].requests == 2


async def test_a_report_without_news_asks_nothing(store: Store, clock: Clock) -> None:
    (quota,) = replicas(store, clock, 1)
    await quota.admit(caller())
    await quota.report()
    store.close()
    await quota.report()
