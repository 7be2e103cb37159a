"""What keys have used: summed by key and period, and read by replicas for some keys."""

from armwise.feedback.log import Store
from armwise.feedback.registry.usage import DAY, MINUTE, MONTH, UsageAmount, UsageLedger, period, spend

NOON = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""


def test_what_is_reported_adds_up_by_key_and_period(store: Store) -> None:
    usage = UsageLedger(store)
    today, month, minute = (period(NOON, kind) for kind in (DAY, MONTH, MINUTE))
    assert (today, month, minute) == ("2023-11-14", "2023-11", "2023-11-14T22:13")
    for _ in range(2):
        usage.report({("k1", today): UsageAmount(1, 10, 0.5), ("k2", month): UsageAmount(3)}, [], NOON)
    usage.report({("k1", "2023-11-13"): UsageAmount(7), ("k1", "2023-10"): UsageAmount(50, 1)}, [], NOON)
    spent = {("k1", month): UsageAmount(5, 50), ("k1", minute): UsageAmount(9)}
    of_k1 = {("k1", today): UsageAmount(2, 20, 1.0), **spent}
    assert usage.report(spent, ["k1", "of no use"], NOON) == of_k1
    assert UsageLedger(store).read(["k1"], NOON + 60) == of_k1, "with the minute before"
    assert UsageLedger(store).read(["k1"], NOON + 120).keys() == {("k1", today), ("k1", month)}
    assert spend(store, NOON) == {
        "k1": {"day": UsageAmount(2, 20, 1.0), "month": UsageAmount(5, 50), "total": UsageAmount(55, 51)},
        "k2": {"day": UsageAmount(), "month": UsageAmount(6), "total": UsageAmount(6)},
    }


def test_minutes_are_kept_for_ten_and_days_and_months_for_ever(store: Store) -> None:
    usage = UsageLedger(store)
    ages = (0, 600, 660, 86_400 * 40)
    for kind in (MINUTE, DAY, MONTH):
        usage.report({("k1", period(NOON - age, kind)): UsageAmount(1) for age in ages}, [], NOON - 3600)
    usage.report({("k2", period(NOON, DAY)): UsageAmount(1)}, [], NOON)

    def is_kept(at: float, kind: int) -> bool:
        return ("k1", period(at, kind)) in usage.read(["k1"], at)

    assert [is_kept(NOON - age, MINUTE) for age in ages] == [True, True, False, False]
    assert [is_kept(NOON - age, DAY) for age in (0, ages[-1])] == [True, True]
    assert [is_kept(NOON - age, MONTH) for age in (0, ages[-1])] == [True, True]
