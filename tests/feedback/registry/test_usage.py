"""What keys have used: summed by key and period; replicas never reserve more than is left of a limit."""

from math import inf

import pytest

from armwise.feedback.log import Store
from armwise.feedback.registry.usage import (
    DAY,
    MINUTE,
    MONTH,
    Grant,
    Reserve,
    UsageAmount,
    UsageLedger,
    period,
    spend,
)

NOON = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""

USE = ("k1", "2023-11")


@pytest.mark.parametrize(
    ("reserve", "used", "reserved", "grant"),
    [
        (Reserve(USE, "requests", 80, 1), UsageAmount(), UsageAmount(), Grant(10, 70)),
        (Reserve(USE, "requests", 80, 30), UsageAmount(40), UsageAmount(20), Grant(20, 0)),
        (Reserve(USE, "requests", 7, 0), UsageAmount(), UsageAmount(), Grant(1, 6)),
        (Reserve(USE, "requests", 80, 1), UsageAmount(70), UsageAmount(10), Grant(0, 0)),
        (Reserve(USE, "requests", 80, 1), UsageAmount(80), UsageAmount(), Grant(again_s=inf)),
        (Reserve(USE, "tokens", 800, 1), UsageAmount(tokens=400), UsageAmount(requests=7), Grant(50, 350)),
        (Reserve(USE, "usd", 8.0, 0.001), UsageAmount(usd=4.0), UsageAmount(tokens=9), Grant(0.5, 3.5)),
        (Reserve(USE, "usd", 1.0, 0.001), UsageAmount(usd=1.0 - 1e-10), UsageAmount(), Grant(again_s=inf)),
    ],
    ids=[
        "share",
        "what is left",
        "one",
        "leased",
        "used up",
        "tokens",
        "usd",
        "rounded",
    ],
)
def test_an_eighth_of_what_is_left_is_granted_or_what_is_needed(
    reserve: Reserve, used: UsageAmount, reserved: UsageAmount, grant: Grant
) -> None:
    assert reserve.grant(used, reserved) == grant


def test_what_is_reported_adds_up_by_key_and_period(store: Store) -> None:
    usage = UsageLedger(store, "r1")
    today, month = period(NOON, DAY), period(NOON, MONTH)
    assert (today, month, period(NOON, MINUTE)) == ("2023-11-14", "2023-11", "2023-11-14T22:13")
    for _ in range(2):
        usage.exchange({("k1", today): UsageAmount(1, 10, 0.5), ("k2", month): UsageAmount(3)}, {}, NOON)
    usage.exchange({("k1", "2023-11-13"): UsageAmount(7), ("k1", "2023-10"): UsageAmount(50, 1)}, {}, NOON)
    usage.exchange(
        {("k1", month): UsageAmount(5, 50), ("k1", period(NOON, MINUTE)): UsageAmount(9)}, {}, NOON
    )
    left = UsageLedger(store, "r2").exchange({}, {}, NOON, Reserve(("k1", month), "requests", 80, 80))
    assert left == Grant(75, 0), "of what this key has used in this period"
    assert spend(store, NOON) == {
        "k1": {"day": UsageAmount(2, 20, 1.0), "month": UsageAmount(5, 50), "total": UsageAmount(55, 51)},
        "k2": {"day": UsageAmount(), "month": UsageAmount(6), "total": UsageAmount(6)},
    }


def test_a_lease_counts_for_others_until_five_seconds_after_the_last_report(store: Store) -> None:
    one, other = UsageLedger(store, "r1"), UsageLedger(store, "r2")
    want = Reserve(USE, "requests", 80, 60)
    assert one.exchange({}, {}, NOON, want) == Grant(60, 20)
    assert other.exchange({}, {}, NOON + 5.0, want) == Grant(20, 0)
    assert other.exchange({}, {}, NOON + 5.5, want) == Grant(60, 20), "its own earlier lease has ended"
    another = Reserve(("k2", USE[1]), "requests", 80, 60)
    assert one.exchange({}, {}, NOON + 5.5, another) == Grant(60, 20), "each key has a limit of its own"
    next_month = Reserve((USE[0], "2023-12"), "requests", 80, 60)
    assert one.exchange({}, {}, NOON + 5.5, next_month) == Grant(60, 20), "and each period"


def test_what_an_expired_lease_held_of_a_minute_counts_as_used_and_of_longer_periods_does_not(
    store: Store,
) -> None:
    one, other = UsageLedger(store, "r1"), UsageLedger(store, "r2")
    minute, day, month = (("k1", period(NOON, kind)) for kind in (MINUTE, DAY, MONTH))
    one.exchange({}, {("k2", minute[1]): UsageAmount(3)}, NOON, Reserve(minute, "requests", 80, 60))
    longer = dict.fromkeys((day, month), UsageAmount(7, 8, 0.5))
    one.exchange({}, {minute: UsageAmount(60), **longer}, NOON)
    assert other.exchange({}, {}, NOON + 5.0, Reserve(minute, "requests", 80, 60)) == Grant(20, 0)
    again = other.exchange({}, {}, NOON + 5.5, Reserve(minute, "requests", 80, 60))
    assert again == Grant(20, 0), "60 may have been used by a replica that was killed"
    assert other.exchange({}, {}, NOON + 20.0, Reserve(minute, "requests", 80, 60)) == Grant(20, 0), "once"
    assert other.exchange({}, {}, NOON + 20.0, Reserve(day, "requests", 80, 80)) == Grant(80, 0)
    assert other.exchange({}, {}, NOON + 20.0, Reserve(month, "requests", 80, 80)) == Grant(80, 0)


def test_what_killed_replicas_held_is_added_to_what_another_reports_at_once(store: Store) -> None:
    minute, later = ("k1", period(NOON, MINUTE)), NOON + 5.5
    for killed in ("r1", "r2"):
        UsageLedger(store, killed).exchange({}, {minute: UsageAmount(20, 5, 0.25)}, NOON)
    another, spent = UsageLedger(store, "r3"), {minute: UsageAmount(10, 1, 0.5)}
    assert another.exchange(spent, {}, later, Reserve(minute, "requests", 80, 80)) == Grant(30, 0)
    assert another.exchange({}, {}, later, Reserve(minute, "tokens", 80, 80)) == Grant(69, 0)
    assert another.exchange({}, {}, later, Reserve(minute, "usd", 80.0, 80.0)) == Grant(79.0, 0.0)


def test_a_lease_that_a_replica_gives_back_is_free_again(store: Store) -> None:
    one, other = UsageLedger(store, "r1"), UsageLedger(store, "r2")
    minute = ("k1", period(NOON, MINUTE))
    assert one.exchange({}, {}, NOON, Reserve(minute, "requests", 80, 60)) == Grant(60, 20)
    one.exchange({}, {}, NOON + 5.5)
    assert other.exchange({}, {}, NOON + 6.0, Reserve(minute, "requests", 80, 80)) == Grant(80, 0)


def test_a_lease_that_is_held_on_is_added_to(store: Store) -> None:
    usage = UsageLedger(store, "r1")
    assert usage.exchange({}, {USE: UsageAmount(16)}, NOON, Reserve(USE, "requests", 80, 1)) == Grant(8, 56)
    assert UsageLedger(store, "r2").exchange({}, {}, NOON, Reserve(USE, "requests", 80, 99)) == Grant(56, 0)


def test_minutes_are_kept_for_ten_and_days_and_months_for_ever(store: Store) -> None:
    usage = UsageLedger(store, "r1")
    ages = (0, 600, 660, 86_400 * 40)
    for kind in (MINUTE, DAY, MONTH):
        usage.exchange({("k1", period(NOON - age, kind)): UsageAmount(1) for age in ages}, {}, NOON - 3600)
    usage.exchange({}, {}, NOON)

    def left(at: float, kind: int) -> float:
        """What is left of 100 where the replica does not hold any of it."""
        use = ("k1", period(at, kind))
        return UsageLedger(store, "r2").exchange({}, {}, NOON, Reserve(use, "requests", 100, 100)).amount

    assert [left(NOON - age, MINUTE) for age in ages] == [99, 99, 100, 100]
    assert [left(NOON - age, DAY) for age in (0, ages[-1])] == [99, 99]
    assert [left(NOON - age, MONTH) for age in (0, ages[-1])] == [99, 99]
