"""Replicas on one log refuse together what is above a limit, and nothing that is below it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.access import Caller, Quota, RateLimitedError, SpentError
from armwise.feedback.events import Cost
from armwise.feedback.log import Store
from armwise.feedback.registry import KeyLimits
from armwise.feedback.registry.usage import (
    ALIVE_S,
    DAY,
    MINUTE,
    MONTH,
    Reserve,
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
    return [Quota(UsageLedger(store, f"replica-{i}"), clock) for i in range(n)]


def caller(**limits: float | str) -> Caller:
    return Caller("k", frozenset({"decide"}), limits=KeyLimits(**limits))  # type: ignore[arg-type]


async def polling(quotas: list[Quota]) -> None:
    """Report as replicas do with each poll, until cancelled."""
    while True:
        for quota in quotas:
            await quota.report()
        await asyncio.sleep(0.01)


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
@pytest.mark.slow
async def test_replicas_admit_exactly_the_requests_of_a_minute(
    store: Store, clock: Clock, limit: int
) -> None:
    quotas, who = replicas(store, clock, 3), caller(rpm_limit=limit)
    poll = asyncio.create_task(polling(quotas))
    calls = [admitted(quotas[i % 3], who) for i in range(limit + 20)]
    assert sum(await asyncio.gather(*calls)) == limit
    for quota in quotas:  # each polls long before a minute is over
        await quota.report()
    clock.now += 60
    assert not await admitted(quotas[0], who), "all of them were within the last 60 s"
    clock.now += 0.1
    admitted_again = sum(await asyncio.gather(*(admitted(quota, who) for quota in quotas)))
    assert admitted_again == 1
    clock.now += 120
    assert sum([await admitted(quotas[i % 3], who) for i in range(limit + 3)]) == limit
    poll.cancel()


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


@pytest.mark.slow
async def test_a_replica_gets_what_an_idle_one_has_leased(store: Store, clock: Clock) -> None:
    (idle, busy), who = replicas(store, clock), caller(rpm_limit=80)
    assert await admitted(idle, who), "it holds an eighth of the limit now"
    poll = asyncio.create_task(polling([idle, busy]))
    found = [await admitted(busy, who) for _ in range(80)]
    assert found == [True] * 79 + [False]
    poll.cancel()


async def test_what_is_over_is_refused_without_the_log(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=1)
    await quota.admit(who)
    with pytest.raises(RateLimitedError, match="1 requests a minute are allowed") as error:
        await quota.admit(who)
    assert (error.value.meter, error.value.retry_after_s) == ("requests", 60.0)
    store.close()  # whatever is read or written from here fails
    assert [await admitted(quota, who) for _ in range(100)] == [False] * 100


@pytest.mark.parametrize("n", [1, 10, 40])
@pytest.mark.slow
async def test_a_budget_of_money_admits_what_it_pays_for(store: Store, clock: Clock, n: int) -> None:
    quotas, who = replicas(store, clock), caller(max_budget=0.1 * n, budget_duration="1d")
    poll = asyncio.create_task(polling(quotas))
    cost = Cost(usd=0.1)
    found = [await turn(quotas[i % 2], who, f"d-{i}", cost, (0, 0.5)) for i in range(n + 10)]
    assert found == [True] * n + [False] * 10
    poll.cancel()
    assert spend(store, NOW)["k"]["day"].usd == pytest.approx(0.1 * n)


async def test_a_budget_of_tokens_counts_for_its_month(store: Store, clock: Clock) -> None:
    quotas, who = replicas(store, clock), caller(token_budget=100, budget_duration="1mo")
    poll = asyncio.create_task(polling(quotas))
    cost = Cost(prompt_tokens=20, completion_tokens=5)
    assert [await turn(quotas[i % 2], who, f"d-{i}", cost, (90, 0.0)) for i in range(6)] == [True] * 4 + [
        False
    ] * 2
    clock.now += 24 * 3600
    assert not await turn(quotas[0], who, "d-7", cost, (90, 0.0))
    clock.now += 31 * 24 * 3600
    assert await turn(quotas[0], who, "d-8", cost, (90, 0.0))
    poll.cancel()


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


@pytest.mark.slow
async def test_turns_at_once_do_not_exceed_a_budget_by_more_than_one(store: Store, clock: Clock) -> None:
    quotas, who = replicas(store, clock), caller(max_budget=1.0, budget_duration="1d")
    poll = asyncio.create_task(polling(quotas))
    most = 0.3
    for i in range(4):  # of which none ends: three leave 0.1, which the fourth exceeds
        await quotas[i % 2].book(who, f"d-{i}", 0, most)
    with pytest.raises(RateLimitedError, match="takes up what is left") as error:
        await quotas[0].book(who, "d-4", 0, most)
    assert (error.value.meter, error.value.retry_after_s) == ("tokens", 1.0), "USD have no header"
    for i in range(4):
        for quota in quotas:
            quota.release(f"d-{i}")
    for quota in quotas:  # the one that was refused, too, although no time has passed
        assert await turn(quota, who, "again", Cost(), (0, most)), "what was reserved came back"
    poll.cancel()


@pytest.mark.parametrize("meter", ["usd", "tokens"])
async def test_what_a_replica_returns_while_a_turn_may_exceed_the_budget_admits_no_second_one(
    store: Store, clock: Clock, meter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.access.quota.WAIT_S", 0.0)
    limit = {"usd": {"max_budget": 200.0}, "tokens": {"token_budget": 200}}[meter]
    who, (first, other) = caller(**limit, budget_duration="1d"), replicas(store, clock)

    async def book(quota: Quota, name: str, most: int) -> None:
        await quota.book(who, name, most, float(most))

    await book(first, "holds a lease of 24 beside", 1)
    await book(other, "leaves 5", 170)
    await book(other, "may exceed the budget", 100)
    await first.report()
    with pytest.raises(RateLimitedError, match="under way"):
        await book(other, "would exceed it too", 100)
    other.charge("may exceed the budget", Cost(prompt_tokens=5, completion_tokens=0, usd=5.0))
    await book(other, "is the one that may now", 100)
    with pytest.raises(RateLimitedError, match="under way"):
        await book(first, "would be the second", 100)
    for quota, name, used in ((other, "leaves 5", 170), (other, "is the one that may now", 24)):
        quota.charge(name, Cost(prompt_tokens=used, completion_tokens=0, usd=float(used)))
    first.release("holds a lease of 24 beside")
    await other.report()
    await first.report()
    await book(first, "gets what is left", 1)
    first.charge("gets what is left", Cost(prompt_tokens=1, completion_tokens=0, usd=1.0))
    await first.report()
    with pytest.raises(SpentError):
        await book(other, "comes after the last", 1)


async def test_a_turn_reserves_of_each_limit_of_its_key_in_a_period(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.access.quota.WAIT_S", 0.0)
    who = caller(token_budget=100, max_budget=100.0, budget_duration="1d")
    first, other = replicas(store, clock)
    await first.book(who, "d-1", 90, 20.0)
    await first.report()
    await other.book(who, "takes the last tokens", 90, 1.0)
    with pytest.raises(RateLimitedError, match="under way"):
        await other.book(who, "finds none", 5, 1.0)


async def test_tokens_a_minute_are_charged_as_they_were_used(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(tpm_limit=100)
    await quota.book(who, "d-1", 30, 0.0)
    quota.charge("d-1", Cost(prompt_tokens=70, completion_tokens=40))
    with pytest.raises(RateLimitedError, match="100 tokens a minute are allowed") as error:
        await quota.book(who, "d-2", 1, 0.0)
    assert error.value.meter == "tokens"
    clock.now += error.value.retry_after_s + 0.01
    await quota.book(who, "d-3", 1, 0.0)


async def test_what_a_turn_returns_is_no_more_than_the_limit_had_left(store: Store, clock: Clock) -> None:
    (quota, other), who = replicas(store, clock), caller(tpm_limit=100)
    await quota.book(who, "d-1", 500, 0.0)
    quota.charge("d-1", Cost(prompt_tokens=99))
    assert dict(quota.headers(who))[b"x-ratelimit-remaining-tokens"] == b"1"
    await quota.report()
    await other.book(who, "d-2", 400, 0.0)
    other.release("d-2")
    assert dict(other.headers(who))[b"x-ratelimit-remaining-tokens"] == b"1"


async def test_what_is_under_way_since_the_minute_before_counts_on_all_replicas(
    store: Store, clock: Clock
) -> None:
    (quota, other), who = replicas(store, clock), caller(tpm_limit=100)
    clock.now += 59
    await quota.book(who, "d-1", 100, 0.0)
    clock.now += 1
    for replica in (quota, other):
        with pytest.raises(RateLimitedError):
            await replica.book(who, "d-2", 1, 0.0)
    quota.release("d-1")
    await quota.report()
    clock.now += 0.1
    await other.book(who, "d-3", 1, 0.0)


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


async def test_a_turn_keeps_what_it_has_reserved_for_as_long_as_it_takes(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.access.quota.WAIT_S", 0.0)
    (busy, other), who = replicas(store, clock), caller(max_budget=1.0, budget_duration="1d")
    await busy.book(who, "d-1", 0, 1.0)
    for _ in range(12):
        clock.now += 1.0
        await busy.report()
        with pytest.raises(RateLimitedError, match="takes up what is left"):
            await other.book(who, "d-2", 0, 0.1)
    busy.release("d-1")
    await busy.report()
    assert await turn(other, who, "d-3", Cost(), (0, 0.1))


@pytest.mark.slow
async def test_a_replica_that_has_ended_does_not_hold_its_leases_for_long(store: Store, clock: Clock) -> None:
    (ended, other), who = replicas(store, clock), caller(max_budget=1.0, budget_duration="1d")
    await ended.book(who, "d-1", 0, 1.0)
    with pytest.raises(RateLimitedError):
        await other.book(who, "d-2", 0, 0.1)
    clock.now += ALIVE_S + 1
    await other.book(who, "d-3", 0, 0.1)


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


async def test_a_whole_minute_and_its_last_moment_are_told_and_what_is_exhausted_is_zero(
    store: Store, clock: Clock
) -> None:
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


async def test_what_remains_is_exact_after_each_extension_of_a_lease(store: Store, clock: Clock) -> None:
    (quota, other), who = replicas(store, clock), caller(tpm_limit=800)
    left = 800
    for i, tokens in enumerate((40, 100, 7, 300, 1)):  # none of which empties the lease
        await quota.book(who, f"d-{i}", tokens, 0.0)
        left -= tokens
        assert dict(quota.headers(who))[b"x-ratelimit-remaining-tokens"] == str(left).encode()
    await quota.report()  # returns what it holds, which stays what is left
    assert dict(quota.headers(who))[b"x-ratelimit-remaining-tokens"] == str(left).encode()
    await other.book(who, "d-5", left - 1, 0.0)
    assert dict(other.headers(who))[b"x-ratelimit-remaining-tokens"] == b"1"


async def test_what_keys_use_is_reported_by_day_and_month_with_or_without_limits(
    store: Store, clock: Clock
) -> None:
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


async def test_a_replica_forgets_what_it_held_of_minutes_that_are_over(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=5, tpm_limit=100)
    for minute in range(3):
        await quota.admit(who)
        await quota.book(who, f"d-{minute}", 10, 0.0)
        quota.charge(f"d-{minute}", Cost(prompt_tokens=10))
        await quota.report()
        held = {(use[1], meter) for use, meter in quota._leases}  # noqa: SLF001
        assert held == {(period(clock.now, MINUTE), meter) for meter in ("requests", "tokens")}
        clock.now += 60


async def begin_report(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> tuple[Quota, asyncio.Task[None], threading.Event]:
    """Return a quota with one request, its report, which is under way, and what lets that go on."""
    usage, entered, go_on = UsageLedger(store, "replica"), threading.Event(), threading.Event()
    exchange = usage.exchange

    def slow(*args: Any) -> Any:
        entered.set()
        go_on.wait(30)
        return exchange(*args)

    monkeypatch.setattr(usage, "exchange", slow)
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
    settled = asyncio.create_task(quota.settled())
    for _ in range(9):
        await asyncio.sleep(0)
    assert not settled.done(), "the exchange is under way"
    go_on.set()
    await settled
    await quota.admit(caller())
    await quota.report()
    assert spend(store, NOW)["k"]["day"].requests == 2


async def test_a_report_without_news_writes_nothing(store: Store, clock: Clock) -> None:
    (quota,), who = replicas(store, clock, 1), caller(rpm_limit=5)
    await quota.admit(who)
    await quota.report()
    store.close()
    await quota.report()


async def test_what_is_reserved_is_reported_again_each_second(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, exchanged = UsageLedger(store, "replica"), list[float]()
    exchange = usage.exchange

    def counted(*args: Any) -> Any:
        exchanged.append(clock.now - NOW)
        return exchange(*args)

    quota, who = Quota(usage, clock), caller(max_budget=1.0, budget_duration="1d")
    await quota.book(who, "d-1", 0, 1.0)
    await quota.report()
    monkeypatch.setattr(usage, "exchange", counted)
    for _ in range(9):
        clock.now += 0.25
        await quota.report()
    assert exchanged == [1.0, 2.0]


@given(
    limit=st.integers(1, 1000),
    used=st.integers(0, 1000),
    before=st.integers(0, 1000),
    left_s=st.floats(0.001, 60.0),
    reserved=st.integers(0, 1000),
    wanted=st.integers(0, 1000),
    meter=st.sampled_from(["requests", "tokens", "usd"]),
)
def test_a_grant_is_never_more_than_what_is_left(
    limit: int, used: int, before: int, left_s: float, reserved: int, wanted: int, meter: str
) -> None:
    reserve = Reserve(("k", period(NOW, MINUTE)), meter, limit, wanted)
    amounts = [UsageAmount(**{meter: amount}) for amount in (used, reserved, before)]  # type: ignore[arg-type]
    grant = reserve.grant(*amounts, left_s)
    counted = used + int(before * left_s / 60)
    left = limit - counted - reserved
    assert (grant.amount > 0) == (left > 0)
    assert grant.amount + grant.left == max(0, left)
    assert grant.amount >= min(wanted, max(0, left))
    assert (grant.again_s > 0) == (counted >= limit)
    assert grant.again_s <= max(0.05, left_s + 60)

    limits_whole_minute = Reserve(reserve.use, meter, limit, wanted).grant(
        UsageAmount(), UsageAmount(), amounts[0]
    )
    assert (limits_whole_minute.again_s > 0) == (used >= limit), "at the first moment of a minute, too"
