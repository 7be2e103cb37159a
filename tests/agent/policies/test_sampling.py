"""With which probability each of some normal variables is the largest."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from armwise.agent.policies.sampling import best_probabilities

means = st.floats(-2.0, 2.0)
deviations = st.floats(1e-4, 1.0)


@given(st.tuples(means, means), st.tuples(deviations, deviations))
def test_of_two_it_is_the_normal_distribution_of_their_difference(
    mean: tuple[float, float], deviation: tuple[float, float]
) -> None:
    expected = stats.norm.cdf((mean[0] - mean[1]) / np.hypot(*deviation))
    found = best_probabilities(np.array(mean), np.array(deviation))
    assert found.sum() == pytest.approx(1.0)
    assert found[0] == pytest.approx(expected, abs=0.02)


@given(st.lists(st.tuples(means, st.floats(0.01, 3.0)), min_size=1, max_size=6))
def test_of_many_it_is_what_the_integral_says(variables: list[tuple[float, float]]) -> None:
    mean, deviation = np.array(variables).T
    at = np.unique((mean + np.linspace(-8, 8, 800)[:, None] * deviation).ravel())
    below = stats.norm.cdf(at[:, None], mean, deviation)
    for place, found in enumerate(best_probabilities(mean, deviation)):
        others = np.delete(below, place, axis=1).prod(axis=1)
        assert found == pytest.approx(integrate.trapezoid(others, below[:, place]), abs=0.006)


@given(st.lists(st.tuples(means, deviations), min_size=1, max_size=6), st.integers(0, 100))
def test_the_order_of_the_variables_does_not_matter(variables: list[tuple[float, float]], seed: int) -> None:
    places = np.random.default_rng(seed).permutation(len(variables))
    mean, deviation = np.array(variables).T
    found, moved = best_probabilities(mean, deviation), best_probabilities(mean[places], deviation[places])
    np.testing.assert_allclose(moved, found[places], atol=1e-9)


def test_equal_variables_share_it_and_without_deviation_the_largest_ones_do() -> None:
    assert best_probabilities(np.full(4, 0.3), np.full(4, 0.2)).tolist() == pytest.approx([0.25] * 4)
    assert best_probabilities(np.array([0.3, 0.3, 0.2]), np.zeros(3)).tolist() == [0.5, 0.5, 0.0]


def test_a_larger_mean_never_has_less() -> None:
    deviation = np.array([0.1, 0.2, 0.05])
    shares = [best_probabilities(np.array([m, 0.5, 0.4]), deviation)[0] for m in np.linspace(0.0, 1.0, 41)]
    assert all(low <= high + 1e-9 for low, high in pairwise(shares))
    assert shares[0] < 0.01 < 0.98 < shares[-1]
