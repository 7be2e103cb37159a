"""Prices of a budget: the newest are kept, and what was spent is read in order."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from feedback.budget import Budget, Price
from feedback.errors import SupersededError
from feedback.events import LABELS, Cost, Decision, Execution, Mode
from feedback.log import Store
from feedback.log import tables as t
from feedback.registry import prices
from feedback.training_log import take_epoch
from tests.feedback.conftest import decision, execution

STEPS = Budget(steps_per_request=2.0)
DOLLARS = Budget(usd_per_request=2.0)


def price(budget: Budget, log_seq: int, epoch: int) -> Price:
    return Price(budget.name, log_seq, log_seq / 10, -1.5, {"a": (3, 0.5), "b": (1, 0.25)}, epoch, 100.0)


def test_the_newest_price_of_a_budget_is_found_and_older_ones_go(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        kept = connection.scalars(sa.select(t.prices.c.log_seq).order_by(t.prices.c.log_seq)).all()
    assert kept == [4, 5, 10, 20]


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


def test_a_thousand_prices_of_a_budget_are_kept() -> None:
    assert prices.KEPT == 1000
