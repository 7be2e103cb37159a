"""Prices of a budget: the newest are kept, and what was spent is read in order."""

from dataclasses import replace

import pytest

from armwise.feedback.budget import Budget, Price
from armwise.feedback.errors import SupersededError
from armwise.feedback.events import LABELS, Cost, Decision, Execution, Mode
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.registry import prices
from armwise.feedback.training_log import take_epoch
from tests.feedback.conftest import decision, execution

STEPS = Budget(steps_per_request=2.0)
DOLLARS = Budget(usd_per_request=2.0)


def price(budget: Budget, log_seq: int, epoch: int) -> Price:
    return Price(budget.name, log_seq, log_seq / 10, -1.5, {"a": (3, 0.5), "b": (1, 0.25)}, epoch, 100.0)


def test_the_newest_price_is_found_and_older_ones_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "KEPT", 2)
    epoch = take_epoch(store, "test", 0.0)
    assert prices.latest(store, STEPS) is None
    for log_seq in range(1, 6):
        prices.publish(store, price(STEPS, log_seq, epoch))
        if log_seq < 3:
            prices.publish(store, price(DOLLARS, 10 * log_seq, epoch))
    assert prices.latest(store, STEPS) == price(STEPS, 5, epoch)
    assert prices.latest(store, DOLLARS) == price(DOLLARS, 20, epoch)
    with store.reading() as connection:
        kept = operations.read_all(connection, Operation.PRICE)
    assert sorted(row.document["log_seq"] for row in kept) == [4, 5, 10, 20]


def test_a_superseded_learner_publishes_no_price(store: Store) -> None:
    old = take_epoch(store, "old", 0.0)
    take_epoch(store, "new", 0.0)
    with pytest.raises(SupersededError):
        prices.publish(store, price(STEPS, 1, old))
    assert prices.latest(store, STEPS) is None


def test_what_policies_spent_is_read_in_order_a_page_at_a_time(store: Store) -> None:
    def spent(made: Decision, steps: int) -> list[Decision | Execution]:
        return [made, replace(execution(made.id), cost=Cost(steps=steps, usd=steps / 4))]

    store.append(spent(replace(decision("d1"), drawn="a", probabilities=(0.5, 0.5)), 1))
    store.append(spent(replace(decision("forced"), mode=Mode.FORCED), 2))
    store.append(spent(replace(decision("label"), policy=LABELS), 3))
    store.append(spent(replace(decision("greedy"), mode=Mode.GREEDY), 4))
    store.append(spent(decision("d2"), 5))
    assert prices.read_spending(store, STEPS, 0, 9) == [(2, "a", 1.0), (8, "b", 4.0), (10, "b", 5.0)]
    assert prices.read_spending(store, STEPS, 2, 1) == [(8, "b", 4.0)]
    assert prices.read_spending(store, DOLLARS, 8, 9) == [(10, "b", 1.25)]
    assert prices.read_spending(store, DOLLARS, 10, 9) == []


LARGE = {"large": (1.0, 2.0, 0.5)}
"""Prices of today, in USD for a thousand tokens read, written and cached."""


def answer(store: Store, name: str, arm: str, usd: float, tokens: dict[str, tuple[int, int, int]]) -> None:
    made = replace(decision(name), drawn=arm, probabilities=(0.5, 0.5))
    store.append([made, replace(execution(name), cost=Cost(usd=usd), tokens_by_model=tokens)])


def test_arms_whose_tokens_have_another_price_today_are_expected_to_cost_that(store: Store) -> None:
    for number, read in enumerate((1000, 3000)):
        answer(store, f"a{number}", "a", 10.0 * read / 1000, {"large": (read, 500, 0)})
        answer(store, f"b{number}", "b", 0.25, {})
    answer(store, "same", "b", 2.0, {"large": (1000, 500, 0)})
    upto = store.log_seq()
    answer(store, "later", "a", 10.0, {"large": (9000, 500, 0)})
    assert prices.reprice(store, DOLLARS, upto, LARGE) == {"a": (2, 3.0)}, "2 and 4 dollars today"
    assert prices.reprice(store, DOLLARS, 2, LARGE) == {"a": (1, 2.0)}
    assert prices.reprice(store, DOLLARS, upto, {}) == {}
    assert prices.reprice(store, STEPS, upto, LARGE) == {}


def test_one_changed_request_makes_all_of_its_arm_count_at_the_prices_of_today(store: Store) -> None:
    answer(store, "unknown", "a", 5.0, {"gone": (1000, 500, 0)})
    answer(store, "before", "a", 9.0, {"large": (1000, 0, 1000)})
    assert prices.reprice(store, DOLLARS, store.log_seq(), LARGE) == {"a": (2, 2.75)}, "5 and .5 dollars"


def test_the_newest_requests_alone_are_counted_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prices.RECENT == 5000
    monkeypatch.setattr(prices, "RECENT", 2)
    for number, written in enumerate((1000, 2000, 4000)):
        answer(store, f"d{number}", "a", 99.0, {"large": (0, written, 0)})
    assert prices.reprice(store, DOLLARS, store.log_seq(), LARGE) == {"a": (2, 6.0)}, "4 and 8 dollars"


def test_later_requests_count_more_than_a_window_of_earlier_ones(store: Store) -> None:
    budget = Budget(usd_per_request=2.0, window=20)
    for number, read in enumerate([1000] * 20 + [21000]):
        answer(store, f"d{number}", "a", 99.0, {"large": (read, 0, 0)})
    found = prices.reprice(store, budget, store.log_seq(), LARGE)
    assert found == {"a": (20, pytest.approx(2.0))}, "1 dollar, and a twentieth of 20 more"
