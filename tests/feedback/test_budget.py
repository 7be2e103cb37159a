"""A budget holds the mean cost at its ceiling, for any way in which a policy answers to its price."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.feedback.budget import Budget, Pacer, Price
from armwise.feedback.events import Cost

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
@pytest.mark.slow
def test_the_mean_cost_is_within_one_percent_of_the_ceiling(how: str, ceiling: float, lag: int) -> None:
    found = [mean_cost(how, ceiling, lag, seed) for seed in range(5)]
    assert all(abs(one - 1.0) < 0.01 for one in found), found


def test_without_a_price_the_same_requests_cost_far_more() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw("subtracts", rng.random() - 0.5, np.zeros(4), rng) for _ in range(2000)]
    assert STEPS[drawn].mean() > 4.5


@pytest.mark.parametrize(
    ("spent", "price", "debt"), [(1.0, 0.001, -2 * 200 * 8.0), (1e9, 1000.0, 2 * 200 * 8.0)]
)
def test_the_price_and_the_debt_stay_between_their_ends(spent: float, price: float, debt: float) -> None:
    pacer = Pacer(Budget(steps_per_request=8.0))
    for _ in range(1000):
        pacer.note("bm25", spent)
    assert (pacer.price, pacer.debt) == (price / 8.0, debt)


@pytest.mark.parametrize(
    ("debt", "spent", "price"),
    [
        (0.0, 2.0, 0.1),
        (0.0, 4.0, 0.1 * math.exp(4 / 20)),
        (0.0, 1e6, 0.1 * math.exp(4.0)),
        (10.0, 2.0, 0.1 * math.exp(4 / 20 * 0.25)),
        (40.0, 2.0, 0.1 * math.exp(4 / 20 * 0.5)),
        (-40.0, 2.0, 0.1 * math.exp(-4 / 20 * 0.5)),
    ],
    ids=["at the ceiling", "twice", "far above", "a debt", "a large debt", "a large saving"],
)
def test_a_step_pays_back_at_most_half_of_the_ceiling(debt: float, spent: float, price: float) -> None:
    pacer = Pacer(Budget(steps_per_request=2.0, window=20), debt=debt)
    pacer.note("bm25", spent)
    assert pacer.price * 2.0 == pytest.approx(price)


def test_an_overspend_is_owed_in_full_beyond_what_the_price_follows_at_once() -> None:
    pacer = Pacer(Budget(steps_per_request=2.0, window=20))
    pacer.note("bm25", 62.0)
    assert pacer.price * 2.0 == pytest.approx(0.1 * math.exp(4.0))
    assert pacer.debt == 60.0


def test_the_same_requests_have_the_same_price_in_any_unit_of_cost() -> None:
    rng = np.random.default_rng(4)
    dollars, cents = Pacer(Budget(usd_per_request=0.02)), Pacer(Budget(usd_per_request=2.0))
    most = 0.0
    for spent in 0.03 * rng.gamma(1.0, size=1500):
        dollars.note("bm25", spent)
        cents.note("bm25", 100 * spent)
        assert cents.price * 100 == pytest.approx(dollars.price)
        assert cents.debt == pytest.approx(100 * dollars.debt)
        most = max(most, dollars.debt)
    assert most == 2 * 200 * 0.02, "it has come to its end"


@pytest.mark.parametrize(("paid", "debt"), [(1.0, -1.0), (0.0, -2.0)])
def test_a_replay_is_charged_what_its_distribution_pays(paid: float, debt: float) -> None:
    pacer, other = Pacer(Budget(steps_per_request=2.0)), Pacer(Budget(steps_per_request=2.0))
    pacer.note("bm25", 6.0, paid=paid)
    other.note("bm25", paid)
    assert (pacer.price, pacer.debt) == (other.price, other.debt) == (other.price, debt)
    assert pacer.costs(["bm25"]) == (6.0,)


def test_the_cost_of_an_arm_is_averaged_over_a_window() -> None:
    pacer = Pacer(Budget(steps_per_request=2.0, window=20))
    for spent in (*[1.0] * 30, 21.0):
        pacer.note("bm25", spent)
    assert pacer.arms == {"bm25": (20, 2.0)}


def test_budgets_that_differ_in_anything_have_names_of_their_own() -> None:
    budgets = [
        {},
        {"window": 201},
        {"usd_per_request": 0.021},
        {"usd_per_request": None, "steps_per_request": 0.02},
    ]
    names = [Budget.model_validate({"usd_per_request": 0.02, **changed}).name for changed in budgets]
    assert len(set(names)) == len(names) == 4
    assert names[0] == "usd 0.02/200", "which prices in the log are found by"


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
    before=st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0.0, 1e9)), min_size=1, max_size=30),
    after=st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0.0, 1e9)), min_size=1, max_size=30),
)
def test_the_price_stays_in_its_range_and_continues_exactly_from_a_published_one(
    before: list[tuple[str, float]], after: list[tuple[str, float]]
) -> None:
    budget = Budget(usd_per_request=0.01)
    whole = Pacer(budget)
    for arm, spent in before:
        whole.note(arm, spent)
    arms = dict(whole.arms)
    published = Price(budget.name, 0, whole.price, whole.debt, dict(arms), 1, 0.0)
    again = published.pacer(budget)
    for arm, spent in after:
        whole.note(arm, spent)
        again.note(arm, spent)
        assert 1e-3 <= whole.price * 0.01 <= 1e3 * (1 + 1e-9)
        assert abs(whole.debt) <= 2 * 200 * 0.01
    assert again == whole
    assert published.arms == arms, "which is stored, and stays as it is"
    assert published.costs(ARMS) == tuple(arms.get(arm, (0, 0.0))[1] for arm in ARMS)


def test_an_arm_that_was_never_drawn_is_expected_to_cost_nothing() -> None:
    pacer = Pacer(Budget(steps_per_request=1.0))
    assert pacer.costs(["new"]) == (0.0,)
    for arm, spent in (("none", 0.0), ("graph", 2.0), ("graph", 4.0)):
        pacer.note(arm, spent)
    assert pacer.costs(["graph", "new", "none"]) == (3.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "either usd_per_request or steps_per_request"),
        ({"usd_per_request": 1.0, "steps_per_request": 1.0}, "either usd_per_request or steps_per_request"),
        ({"usd_per_request": 1.0, "usd_per_day": 1.0}, "usd_per_day"),
    ],
)
def test_a_budget_has_one_ceiling(document: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Budget.model_validate(document)


@pytest.mark.parametrize(
    ("field", "smallest", "largest"),
    [
        ("usd_per_request", 1e-9, 1e9),
        ("steps_per_request", 1e-9, 1e9),
        ("window", 20, 1_000_000),
    ],
)
def test_a_number_of_a_budget_is_within_its_bounds(field: str, smallest: float, largest: float) -> None:
    ceiling = {} if field.endswith("per_request") else {"usd_per_request": 1.0}
    for value in (smallest, largest):
        assert Budget.model_validate({**ceiling, field: value}).model_dump()[field] == value
    for value in (smallest / 2, smallest - 1, largest * 2, largest + 1, math.inf, math.nan):
        with pytest.raises(ValidationError, match=rf"1 validation error for Budget\n{field}\n"):
            Budget.model_validate({**ceiling, field: value})


def test_dollars_and_steps_are_read_from_the_cost_of_an_execution() -> None:
    cost = Cost(steps=2, usd=0.5)
    assert Budget(usd_per_request=1.0).measure(cost) == 0.5
    assert Budget(steps_per_request=1.0).measure(cost) == 2.0
