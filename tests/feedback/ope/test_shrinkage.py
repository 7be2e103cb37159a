"""How weights are shrunk, and how the parameter for it is chosen."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from armwise.feedback.arrays import Floats
from armwise.feedback.ope.estimators import clipped_ips, dr, dros, ips, switch_dr
from armwise.feedback.ope.sample import Sample
from armwise.feedback.ope.shrinkage import (
    Trials,
    bernstein_noise,
    candidates,
    clip_weights,
    fit_clip,
    fit_shrinkage,
    fit_threshold,
    least_error,
    shrunk,
    slope,
    switch_weights,
    try_all,
)

law = settings(max_examples=40, deadline=None)

RULES = ["mse", "mse_bound", "slope"]
SHRINKERS = [clip_weights, switch_weights, shrunk]


def columns(low: float = 0.0, high: float = 50.0) -> st.SearchStrategy[tuple[Floats, Floats, Floats]]:
    """Weights, residuals and expectations of up to 30 rows."""
    return st.integers(2, 30).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.float64, n, elements=st.floats(low, high)),
            hnp.arrays(np.float64, n, elements=st.floats(-1.0, 1.0)),
            hnp.arrays(np.float64, n, elements=st.floats(-1.0, 1.0)),
        )
    )


@pytest.mark.parametrize("shrink", SHRINKERS)
@law
@given(columns(), st.floats(1e-3, 1e3))
def test_a_shrunk_weight_is_between_0_and_the_full_one(shrink: Any, rows: Any, parameter: float) -> None:
    weight = rows[0]
    smaller = shrink(weight, parameter)
    assert (smaller >= 0.0).all()
    assert (smaller <= weight).all()
    np.testing.assert_array_equal(shrink(weight, np.inf), weight)


@pytest.mark.parametrize("shrink", SHRINKERS)
@law
@given(columns(), st.floats(1e-3, 1e3), st.floats(1.0, 100.0))
def test_a_larger_parameter_shrinks_less(shrink: Any, rows: Any, parameter: float, times: float) -> None:
    assert (shrink(rows[0], parameter) <= shrink(rows[0], parameter * times) * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("rule", RULES)
@law
@given(rows=columns(high=1.0))
def test_weights_that_are_at_most_1_are_left_alone(rule: Any, rows: Any) -> None:
    weight, residual, expected = rows
    assert fit_clip(weight, residual, rule) == np.inf
    assert fit_threshold(weight, residual, expected, rule) == np.inf
    assert fit_shrinkage(weight, residual, expected, rule) == np.inf


@law
@given(columns(low=1.0))
@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_order_of_the_rows(rows: Any) -> None:
    weight, residual, expected = rows
    grid = candidates(weight.max(), weight.max())
    forwards = try_all(clip_weights, weight, residual, expected, grid)
    backwards = try_all(clip_weights, weight[::-1], residual[::-1], expected[::-1], grid)
    np.testing.assert_allclose(backwards.mean, forwards.mean, atol=1e-12)
    np.testing.assert_allclose(backwards.variance, forwards.variance, atol=1e-9)


@pytest.mark.parametrize("shrink", SHRINKERS)
@pytest.mark.parametrize("n", [1, 3, 5_000])
def test_one_pass_with_all_parameters_equals_one_pass_for_each(shrink: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    weight, residual, expected = rng.exponential(3.0, n), rng.normal(size=n), rng.normal(size=n)
    grid = np.array([0.5, 2.0, 9.0, np.inf])
    for base in (expected, None):
        trials = try_all(shrink, weight, residual, base, grid)
        for j, parameter in enumerate(grid):
            rows = shrink(weight, parameter) * residual + (0.0 if base is None else base)
            assert trials.mean[j] == pytest.approx(rows.mean(), abs=1e-12)
            assert trials.variance[j] == pytest.approx(rows.var(), abs=1e-10)


def test_the_least_error_is_the_sum_of_variance_and_squared_bias() -> None:
    grid = np.array([1.0, 2.0, np.inf])
    trials = Trials(grid, np.array([0.0, 0.3, 0.5]), np.array([1.0, 4.0, 30.0]), 100)
    # 0.25 + 0.01, 0.04 + 0.04 and 0 + 0.3
    assert least_error(trials) == 1
    # 0.49 + 0.01, 0.16 + 0.04 and 0.04 + 0.3
    assert least_error(trials, noise=0.2) == 1
    # 2.25 + 0.01, 1.44 + 0.04 and 1 + 0.3: a wide bound punishes any bias
    assert least_error(trials, noise=1.0) == 2


def test_of_equal_candidates_the_one_that_changes_least_is_picked() -> None:
    same = Trials(np.array([1.0, 2.0, np.inf]), np.full(3, 0.5), np.full(3, 1.0), 100)
    assert least_error(same) == slope(same) == 2


def test_slope_goes_on_while_the_intervals_agree() -> None:
    grid = np.array([1.0, 2.0, 4.0, np.inf])
    variance = np.array([0.01, 1.0, 4.0, 16.0])
    # Half widths of some 0.13, 0.26 and 0.52 from the second on, 0.013 of the first.
    agree = Trials(grid, np.array([0.5, 0.5, 0.5, 0.5]), variance, 101)
    assert slope(agree) == 0
    leaps = Trials(grid, np.array([0.0, 0.5, 0.5, 0.5]), variance, 101)
    assert slope(leaps) == 1
    far = Trials(grid, np.array([0.0, 0.0, -2.0, 0.5]), variance, 101)
    assert slope(far) == 3


def test_slope_of_a_single_row_shrinks_nothing() -> None:
    assert slope(Trials(np.array([1.0, np.inf]), np.array([0.0, 9.0]), np.zeros(2), 1)) == 1


def test_the_noise_of_the_bound_falls_with_the_rows_and_grows_with_the_weights() -> None:
    assert bernstein_noise(np.ones(400)) < bernstein_noise(np.ones(100))
    assert bernstein_noise(np.full(100, 2.0)) == pytest.approx(2.0 * bernstein_noise(np.ones(100)))


def wild(rng: np.random.Generator, n: int) -> Sample:
    """A log that drew the target's arm in one row of a hundred, and a model that is nearly right."""
    p_log, quality = np.array([0.01, 0.99]), np.array([0.6, 0.4])
    drawn = (rng.random(n) < p_log[1]).astype(np.int64)
    reward = (rng.random(n) < quality[drawn]).astype(np.float64)
    target, model = np.tile([0.9, 0.1], (n, 1)), np.tile([0.58, 0.42], (n, 1))
    return Sample(p_log[drawn], drawn, reward, target, model)


def test_the_default_choice_errs_less_than_no_shrinking_on_wild_weights() -> None:
    rng, truth = np.random.default_rng(8), 0.58
    errors = []
    for _ in range(200):
        sample = wild(rng, 200)
        if sample.weight.max() > 1.0:
            estimates = [f(sample).value for f in (ips, clipped_ips, dr, switch_dr, dros)]
            errors.append(np.array(estimates) - truth)
    plain, clip, robust, switch, optimistic = np.sqrt(np.square(errors).mean(axis=0))
    assert clip < 0.9 * plain
    assert switch < 0.95 * robust
    assert optimistic < 0.7 * robust


def test_the_default_choice_leaves_a_long_log_nearly_unbiased() -> None:
    sample = wild(np.random.default_rng(9), 400_000)
    for shrinking, plain in ((clipped_ips, ips), (dros, dr), (switch_dr, dr)):
        assert shrinking(sample).value == pytest.approx(plain(sample).value, abs=0.02)
