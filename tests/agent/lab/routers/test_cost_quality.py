"""Cost-quality curves: laws of the frontier, its area, mixtures and sweeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from armwise.agent.lab.routers.cost_quality import area, cheapest_mixture, frontier, sweep
from armwise.agent.routers import RouterError

UNIT = st.floats(0.0, 1.0).map(lambda value: round(value, 3))
POINTS = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(2)), elements=UNIT)
SCORES = arrays(np.float64, (6, 3), elements=UNIT)
PRICES = np.array([2.0, 1.0, 4.0])


@given(POINTS)
def test_the_frontier_is_above_every_point_and_never_falls(points: Any) -> None:
    cost, quality = points.T
    kept = frontier(cost, quality)
    assert (np.diff(cost[kept]) > 0.0).all()
    assert (np.diff(quality[kept]) > 0.0).all()
    slopes = np.diff(quality[kept]) / np.diff(cost[kept])
    assert (np.diff(slopes) < 0.0).all()
    assert (np.interp(cost, cost[kept], quality[kept]) >= quality - 1e-9).all()


@given(POINTS)
def test_the_area_lies_in_the_range_of_the_quality(points: Any) -> None:
    cost, quality = points.T
    assert quality.min() - 1e-9 <= area(cost, quality, cost.min(), cost.min() + 1.0) <= quality.max() + 1e-9


@given(POINTS, arrays(np.float64, 8, elements=UNIT))
def test_a_family_that_dominates_has_at_least_the_area(points: Any, gains: Any) -> None:
    cost, quality = points.T
    low, high = float(cost.min()), float(cost.min() + 1.0)
    better = quality + gains[: len(quality)]
    assert area(cost, better, low, high) >= area(cost, quality, low, high) - 1e-9
    assert area(np.append(cost, 0.5 + low), np.append(quality, 0.5), low, high) >= (
        area(cost, quality, low, high) - 1e-9
    )


def test_mixing_two_arms_has_the_area_of_a_straight_line() -> None:
    share = np.linspace(0.0, 1.0, 11)
    assert area(1.0 + share, 0.4 + 0.2 * share, 1.0, 2.0) == pytest.approx(0.5)


def test_points_beyond_a_range_bound_its_last_part_alone() -> None:
    cost, quality = np.array([0.0, 1.0, 3.0, 4.0]), np.array([0.0, 0.5, 0.8, 0.9])
    assert area(cost, quality, 0.0, 2.0) == pytest.approx((0.25 + 0.575) / 2.0)


@given(POINTS, UNIT)
def test_no_point_as_good_as_the_cheapest_mixture_is_cheaper(points: Any, target: float) -> None:
    cost, quality = points.T
    shares = cheapest_mixture(cost, quality, target)
    if shares is None:
        assert quality.max() < target
        return
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0.0).all()
    assert (shares > 0.0).sum() <= 2
    assert shares @ quality >= target - 1e-9
    assert shares @ cost <= cost[quality >= target].min() + 1e-9


@given(SCORES)
def test_a_sweep_begins_at_the_best_arm_and_ends_at_the_cheapest_with_falling_cost(scores: Any) -> None:
    picks = sweep(scores, PRICES)
    assert (scores[np.arange(6), picks[:, 0]] == scores.max(axis=1)).all()
    assert (picks[:, -1] == PRICES.argmin()).all()
    assert (np.diff(PRICES[picks], axis=1) <= 0.0).all()


def test_a_sweep_depends_neither_on_the_scale_of_scores_nor_on_an_offset_of_a_question() -> None:
    scores = np.random.default_rng(0).integers(1000, size=(50, 3)).astype(float)
    moved = 4.0 * (scores + np.arange(50.0)[:, None])
    np.testing.assert_array_equal(sweep(scores, PRICES), sweep(moved, PRICES))


def test_a_sweep_of_two_arms_asks_the_dear_one_where_it_gains_most_first() -> None:
    gains = np.array([0.3, 0.1, 0.2])
    picks = sweep(np.column_stack([np.zeros(3), gains]), np.array([1.0, 2.0]))
    assert [np.flatnonzero(column).tolist() for column in picks.T] == [[0, 1, 2], [0, 2], [0], [], []]


def test_a_sweep_passes_the_weight_at_which_two_arms_are_equal_also_where_it_is_rounded_down() -> None:
    weight = (0.9 - 0.2) / (3.0 - 2.0)
    assert 0.9 - weight * 3.0 > 0.2 - weight * 2.0
    assert sweep(np.array([[0.2, 0.9]]), np.array([2.0, 3.0])).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    ("scores", "prices", "message"),
    [
        (np.zeros((2, 3)), np.zeros(2), r"scores of shape \(2, 3\) do not fit prices of shape \(2,\)"),
        (np.array([[np.nan, 0.0]]), np.zeros(2), "not a finite number"),
        (np.zeros((1, 2)), np.array([1.0, np.inf]), "not a finite number"),
    ],
)
def test_scores_and_prices_that_cannot_be_swept_are_refused(scores: Any, prices: Any, message: str) -> None:
    with pytest.raises(RouterError, match=message):
        sweep(scores, prices)


def test_a_range_may_begin_where_the_cheapest_point_is_but_for_rounding() -> None:
    assert area(np.array([0.1 + 0.2, 1.0]), np.array([0.5, 0.5]), 0.3, 1.0) == pytest.approx(0.5)


def test_a_range_without_a_point_is_refused() -> None:
    with pytest.raises(RouterError, match="the least cost 2 of a point is above 1"):
        area(np.array([2.0]), np.array([0.5]), 1.0, 3.0)
    with pytest.raises(RouterError, match="costs from 3 to 3 are not a range"):
        area(np.array([2.0]), np.array([0.5]), 3.0, 3.0)
