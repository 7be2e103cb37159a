"""Portfolios are what a plain scan finds, and as good as is promised."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from armwise.arms.lab.portfolio.coverage import take_best, values
from armwise.arms.lab.portfolio.selection import (
    GREEDY,
    KNAPSACK,
    affordable,
    greedy,
    knapsack,
    sample_error,
    sample_size,
    top_by_average,
)

Scores = NDArray[np.float32]

# Multiples of 1/8: what ties, ties exactly, in whatever order it is added up.
EIGHTHS = st.integers(0, 8).map(lambda n: n / 8)
POOLS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=EIGHTHS).filter(
    lambda scores: bool(scores.any())
)


def worth(scores: Scores, arms: tuple[int, ...]) -> float:
    """F by its definition."""
    columns = scores[list(arms)].astype(np.float64)
    return math.fsum(columns.max(axis=0, initial=0.0)) / scores.shape[1]


def scan(scores: Scores, k: int) -> tuple[int, ...]:
    """Greedy as its definition reads: look at every arm, take the first of the best."""
    arms: tuple[int, ...] = ()
    while len(arms) < k:
        gains = {
            arm: worth(scores, (*arms, arm)) - worth(scores, arms)
            for arm in range(len(scores))
            if arm not in arms
        }
        best = max(gains, key=lambda arm: gains[arm])
        if gains[best] <= 0.0:
            break
        arms = (*arms, best)
    return arms


def best_possible(scores: Scores, allowed: list[tuple[int, ...]]) -> float:
    return max(worth(scores, arms) for arms in allowed)


def subsets(n_arms: int) -> list[tuple[int, ...]]:
    return [arms for size in range(n_arms + 1) for arms in combinations(range(n_arms), size)]


def test_a_matrix_by_hand() -> None:
    scores = np.array([[1.0, 0.0, 0.5], [0.25, 1.0, 0.5]], dtype=np.float32)
    chosen = greedy(scores, k=2)
    assert chosen.arms == (1, 0)
    assert chosen.values == pytest.approx((1.75 / 3, 2.5 / 3))
    assert chosen.gains == pytest.approx((1.75 / 3, 0.75 / 3))
    assert chosen.guarantee == GREEDY == pytest.approx(0.632, abs=1e-3)
    assert take_best(scores, (0, 1)).tolist() == [1.0, 1.0, 0.5]
    assert top_by_average(scores, 2) == (1, 0)


def test_arms_that_complement_each_other_win() -> None:
    scores = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]], dtype=np.float32)
    assert top_by_average(scores, 2) == (0, 1)
    assert values(scores, (0, 1)) == (0.6, 0.6)
    assert greedy(scores, 2).arms == (0, 2)
    assert greedy(scores, 2).values == (0.6, 1.0)


@given(POOLS, st.data())
def test_the_picks_are_those_of_a_full_scan(scores: Scores, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    chosen = greedy(scores, k)
    assert chosen.arms == scan(scores, k)
    assert chosen.values == pytest.approx(
        [worth(scores, chosen.arms[: n + 1]) for n in range(len(chosen.arms))]
    )


@pytest.mark.slow
def test_the_picks_are_those_of_a_scan_beyond_float32() -> None:
    """70,000 questions, and arms whose sums differ by 2^-20 or not at all."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 5, 70_001).astype(np.float32) / 4
    scores = np.stack([rng.permutation(base) for _ in range(40)])
    for arm in (3, 17, 31):
        scores[arm, scores[arm].argmin()] = 2.0**-20
    assert greedy(scores, 5).arms == scan(scores, 5)
    assert greedy(scores, 1).arms == (3,)
    assert greedy(scores[3:5], 2).arms == (0, 1)
    assert top_by_average(scores, 4) == (3, 17, 31, 0)


def test_an_arm_with_a_smaller_float32_sum_wins() -> None:
    """Where numbers are added to 1 in float32, one by one, 63 times 2^-25 is lost, and 2^-22 is not."""
    n = 64 * 16
    scores = np.zeros((3, n), dtype=np.float32)
    scores[:2, :16] = 1.0
    scores[0, 16:32] = 2.0**-22
    scores[1, 16:] = 2.0**-25
    scores[2, -1] = 2.0**-25
    assert worth(scores, (1,)) > worth(scores, (0,))
    float32 = scores[:2].reshape(2, 64, 16).sum(axis=1, dtype=np.float32).sum(axis=1, dtype=np.float64)
    assert float32[1] < float32[0]
    assert greedy(scores, 1).arms == (1,)


def test_a_guess_is_not_given_up_for_what_float32_loses() -> None:
    """Three cheap arms are worth more than the dear one, by less than their sums in float32 are short of."""
    scores = np.zeros((4, 64, 48), dtype=np.float32)
    for arm in range(3):
        scores[arm, 0, 16 * arm : 16 * (arm + 1)] = 1.0
        scores[arm, 1:, 16 * arm : 16 * (arm + 1)] = 2.0**-25
    scores[3, 0] = 1.0
    scores[3, 1] = 52.5 * 2.0**-25
    scores = scores.reshape(4, -1)
    assert worth(scores, (0, 1)) < worth(scores, (3,)) < worth(scores, (0, 1, 2))
    assert knapsack(scores, np.array([1.0, 1.0, 1.0, 3.0]), 3.0).arms == (0, 1, 2)


def test_what_a_budget_buys_at_most_are_the_cheapest() -> None:
    costs = np.array([0.4, 0.1, 0.0, 0.2, 0.3])
    assert [affordable(costs, budget) for budget in (0.0, 0.05, 0.3, 0.9, 1.0, 9.0)] == [1, 1, 3, 4, 5, 5]


@given(POOLS, st.data())
def test_greedy_keeps_its_promise(scores: Scores, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    chosen = greedy(scores, k)
    best = best_possible(scores, list(combinations(range(len(scores)), k)))
    assert GREEDY * best - 1e-12 <= chosen.values[-1] <= best + 1e-12
    assert list(chosen.values) == sorted(chosen.values)
    assert sorted(chosen.gains, reverse=True) == pytest.approx(list(chosen.gains))


def test_part_of_a_matrix_is_as_good_as_a_matrix() -> None:
    """A view of every other question, in whatever order its bytes lie."""
    scores = np.random.default_rng(0).random((20, 301), dtype=np.float32)
    assert greedy(scores[:, ::2], 4).arms == greedy(np.asfortranarray(scores[:, ::2]), 4).arms
    assert greedy(scores[:, ::2], 4).arms == scan(scores[:, ::2], 4)


def test_arms_that_add_nothing_are_not_chosen() -> None:
    scores = np.array([[1, 0], [1, 0], [0, 1], [1, 1]], dtype=np.float32)
    assert greedy(scores, 4).arms == (3,)
    assert knapsack(scores, np.ones(4), 4.0).arms == (3,)


COSTS = st.integers(0, 8).map(lambda n: n / 4)


@given(POOLS, st.data())
def test_the_knapsack_keeps_its_promise_and_its_budget(scores: Scores, data: st.DataObject) -> None:
    n_arms = len(scores)
    costs = np.array(data.draw(st.lists(COSTS, min_size=n_arms, max_size=n_arms)))
    budget = float(costs.min() + data.draw(st.floats(0.0, 8.0)))
    allowed = [arms for arms in subsets(n_arms) if math.fsum(costs[list(arms)]) <= budget * (1 + 1e-9)]
    best = best_possible(scores, allowed)
    if best == 0.0:
        with pytest.raises(ValueError, match=r"budget .* is too small: the cheapest arm that scores above 0"):
            knapsack(scores, costs, budget)
        return
    chosen = knapsack(scores, costs, budget)
    assert tuple(sorted(chosen.arms)) in allowed
    assert chosen.values[-1] == pytest.approx(worth(scores, chosen.arms))
    assert chosen.values[-1] >= KNAPSACK * best - 1e-12
    assert chosen.guarantee == KNAPSACK


def filled_by_hand(scores: Scores, costs: NDArray[np.float64], budget: float) -> float:
    """F of the best candidate, with every gain computed and no trial stopped."""
    free = [arm for arm in range(len(scores)) if costs[arm] == 0.0]
    best = worth(scores, tuple(free))
    for guess in ([], *([arm] for arm in range(len(scores)) if costs[arm] > 0.0)):
        filled = [*free, *guess]
        while (left := budget - math.fsum(costs[filled])) >= 0.0:
            best = max(best, worth(scores, tuple(filled)))
            gains = {
                arm: worth(scores, (*filled, arm)) - worth(scores, tuple(filled))
                for arm in range(len(scores))
                if arm not in filled and costs[arm] <= left
            }
            best = max([best, *(worth(scores, (*filled, arm)) for arm in gains)])
            if not any(gains.values()):
                break
            filled.append(max(gains, key=lambda arm: gains[arm] / costs[arm]))
    return best


@given(POOLS, st.data())
def test_no_trial_that_could_have_won_is_stopped(scores: Scores, data: st.DataObject) -> None:
    costs = np.array(
        data.draw(st.lists(st.integers(0, 8), min_size=len(scores), max_size=len(scores))), np.float64
    )
    budget = float(data.draw(st.integers(0, 16)))
    expected = filled_by_hand(scores, costs, budget)
    if expected > 0.0:
        chosen = knapsack(scores, costs, budget).arms
        assert worth(scores, chosen) >= expected - 1e-12


def test_what_costs_nothing_is_taken_if_it_adds_anything() -> None:
    scores = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]], dtype=np.float32)
    assert knapsack(scores, np.array([0.0, 0.0, 0.0, 1.0]), 1.0).arms == (0, 2, 3)
    assert knapsack(scores, np.array([0.0, 0.0, 0.0, 1.0]), 0.5).arms == (0, 2)


def test_a_budget_is_not_missed_by_rounding() -> None:
    scores = np.eye(3, dtype=np.float32)
    assert knapsack(scores, np.full(3, 0.1), 0.3).arms == (0, 1, 2)


def test_scores_that_are_not_known_and_in_range_are_refused() -> None:
    good = np.full((3, 70), 0.5, dtype=np.float32)
    for bad in (np.nan, 1.001, -0.001, np.inf, -np.inf):
        scores = good.copy()
        scores[1, 69] = bad
        for choose in (lambda s: greedy(s, 1), lambda s: knapsack(s, np.ones(3), 1.0)):
            with pytest.raises(ValueError, match=rf"arm 1 scores {bad:g} on question 69; scores must be in"):
                choose(scores)
    for shape in ((3,), (0, 3), (3, 0), (1, 2, 3)):
        with pytest.raises(ValueError, match="shape"):
            greedy(np.zeros(shape, np.float32), 1)


def test_minus_zero_is_zero() -> None:
    assert greedy(np.array([[-0.0, 1.0], [0.5, -0.0]], dtype=np.float32), 2).arms == (0, 1)


BAD = (-1.0, np.nan, np.inf)
EYE, ONES, NOTHING = np.eye(3, dtype=np.float32), np.ones(3), np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("choose", "named"),
    [
        *((lambda k=k: greedy(EYE, k), rf"k is {k}\b.* arms, 3") for k in (0, -1, 4)),
        (lambda: knapsack(EYE, np.ones(2), 1.0), r"costs of shape \(3,\), got \(2,\)"),
        *((lambda c=c: knapsack(EYE, np.array([1.0, c, 1.0]), 1.0), f"arm 1 costs {c:g}") for c in BAD),
        (lambda: knapsack(EYE, ONES, 0.5), "budget 0.5 is too small: .* costs 1$"),
        *((lambda b=b: knapsack(EYE, ONES, b), f"budget {b:g} must be finite") for b in BAD),
        (lambda: greedy(NOTHING, 1), "scores above 0"),
        (lambda: knapsack(NOTHING, np.ones(2), 1.0), "scores above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(choose: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        choose()


@pytest.mark.parametrize("useless", [0.0, 0.25])
def test_a_budget_that_buys_nothing_is_told_what_would(useless: float) -> None:
    """What is cheaper scores 0 everywhere, whether it is free or not."""
    scores = np.array([[0, 0], [1, 0], [1, 1]], dtype=np.float32)
    for budget in (0.125, 0.25, 0.375):
        with pytest.raises(ValueError, match=rf"{budget:g} is too small: .* that scores above 0 costs 0.5$"):
            knapsack(scores, np.array([useless, 1.0, 0.5]), budget)
    assert knapsack(scores, np.array([useless, 1.0, 0.5]), 0.5).arms == (2,)


def test_the_sample_bound_holds_where_the_truth_is_known() -> None:
    """200 samples of 40 questions from a world of 400: the portfolio is never as bad as the bound allows."""
    rng = np.random.default_rng(0)
    world = rng.integers(0, 2, (8, 400)).astype(np.float32)
    best = best_possible(world, list(combinations(range(8), 2)))
    error = sample_error(40, k=2, n_arms=8, delta=0.05)
    missed = 0
    for _ in range(200):
        chosen = greedy(world[:, rng.integers(0, 400, 40)], 2).arms
        missed += worth(world, chosen) < GREEDY * best - error
    assert missed <= 0.05 * 200


def test_the_sample_bound_and_its_inverse_agree() -> None:
    for k, factor in ((1, GREEDY), (5, GREEDY), (9, KNAPSACK)):
        n = sample_size(0.07, k, 360, 0.01, factor)
        assert sample_error(n, k, 360, 0.01, factor) <= 0.07 < sample_error(n - 1, k, 360, 0.01, factor)
