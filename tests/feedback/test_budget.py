"""A budget holds the mean cost at its ceiling, for any way in which a policy answers to its price."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback.budget import RANGE, Budget, Pacer, Price
from feedback.events import Cost

ARMS = ("none", "bm25", "graph", "multi")
STEPS = np.array([0.0, 1.0, 3.0, 6.0])
QUALITY = np.array([0.2, 0.45, 0.6, 0.7])
SPREAD = np.array([0.0, 0.3, 0.5, 0.8])


def draw(how: str, question: float, penalty: np.ndarray, rng: np.random.Generator) -> int:
    """Draw an arm as a policy would that subtracts the penalty, or whose odds are shifted by it."""
    score = QUALITY + question * SPREAD
    if how == "subtracts":
        p = (np.arange(4) == (score - penalty).argmax()).astype(float)
    else:
        p = 0.96 * (np.arange(4) == score.argmax()) + 0.01
        p = p * np.exp((penalty.min() - penalty) / 0.1)
        p /= p.sum()
    return int(rng.choice(4, p=0.96 * p + 0.01))


def mean_cost(how: str, ceiling: float, lag: int, seed: int, requests: int = 2000) -> float:
    """Return the mean cost over its ceiling, where the price is published once in `lag` requests."""
    rng, pacer = np.random.default_rng(seed), Pacer(Budget(steps_per_request=ceiling))
    penalty, total, waiting = np.zeros(4), 0.0, []
    for number in range(1, requests + 1):
        drawn = draw(how, rng.random() - 0.5, penalty, rng)
        spent = float(STEPS[drawn] * rng.gamma(4.0, 0.25))
        total += spent
        waiting.append((ARMS[drawn], spent))
        if number % lag == 0:
            for arm, cost in waiting:
                pacer.note(arm, cost)
            waiting.clear()
            penalty = pacer.price * np.array(pacer.costs(ARMS))
    return total / requests / ceiling


@pytest.mark.parametrize("how", ["subtracts", "shifts the odds"])
@pytest.mark.parametrize("ceiling", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("lag", [1, 10])
def test_the_mean_cost_is_within_one_percent_of_the_ceiling_after_2000_requests(
    how: str, ceiling: float, lag: int
) -> None:
    found = [mean_cost(how, ceiling, lag, seed) for seed in range(5)]
    assert all(abs(one - 1.0) < 0.01 for one in found), found


def test_without_a_price_the_same_requests_cost_far_more() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw("subtracts", rng.random() - 0.5, np.zeros(4), rng) for _ in range(2000)]
    assert STEPS[drawn].mean() > 4.5


def test_a_ceiling_that_is_never_reached_has_the_smallest_price() -> None:
    pacer = Pacer(Budget(steps_per_request=8.0))
    for _ in range(1000):
        pacer.note("bm25", 1.0)
    assert pacer.price == RANGE[0] / 8.0


def test_the_ceiling_holds_again_after_the_costs_of_all_arms_have_doubled() -> None:
    rng, pacer = np.random.default_rng(0), Pacer(Budget(steps_per_request=2.0))
    costs = []
    for number in range(4000):
        penalty = pacer.price * np.array(pacer.costs(ARMS))
        drawn = draw("subtracts", rng.random() - 0.5, penalty, rng)
        costs.append(float(STEPS[drawn]) * (1.0 if number < 2000 else 2.0))
        pacer.note(ARMS[drawn], costs[-1])
    assert np.mean(costs[2000:]) == pytest.approx(2.0, rel=0.01)


@given(
    costs=st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0.0, 1e9)), max_size=60),
    seen=st.integers(0, 60),
)
def test_the_price_stays_in_its_range_and_continues_exactly_from_a_published_one(
    costs: list[tuple[str, float]], seen: int
) -> None:
    budget = Budget(usd_per_request=0.01)
    whole, published = Pacer(budget), Price(budget.name, 0, 0.0, 0.0, {}, 1, 0.0)
    for number, (arm, spent) in enumerate(costs):
        whole.note(arm, spent)
        assert RANGE[0] <= whole.price * 0.01 <= RANGE[1] * (1 + 1e-9)
        assert math.isfinite(whole.debt)
        if number == seen:
            state = {"price": whole.price, "debt": whole.debt, "arms": dict(whole.arms)}
            published = replace(published, **state)  # type: ignore[arg-type]
            again = published.pacer(budget)
            for later in costs[number + 1 :]:
                again.note(*later)
        if number == len(costs) - 1 and seen <= number:
            assert again == whole


def test_an_arm_that_was_never_drawn_is_expected_to_cost_nothing() -> None:
    pacer = Pacer(Budget(steps_per_request=1.0))
    assert pacer.costs(["new"]) == (0.0,)
    for arm, spent in (("none", 0.0), ("graph", 2.0), ("graph", 4.0)):
        pacer.note(arm, spent)
    assert pacer.costs(["graph", "new", "none"]) == (3.0, 0.0, 0.0)


@pytest.mark.parametrize("document", [{}, {"usd_per_request": 1.0, "steps_per_request": 1.0}])
def test_a_budget_has_one_ceiling(document: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="either usd_per_request or steps_per_request was expected"):
        Budget.model_validate(document)


def test_dollars_and_steps_are_read_from_the_cost_of_an_execution() -> None:
    cost = Cost(steps=2, usd=0.5)
    assert Budget(usd_per_request=1.0).spent(cost) == 0.5
    assert Budget(steps_per_request=1.0).spent(cost) == 2.0
